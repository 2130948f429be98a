"""For the tests of docs/frameworks.md: its blocks, and packages whose own start needs more than is tested."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from support import bits

PAGE = Path(__file__).parents[3] / "docs" / "frameworks.md"


def blocks(title: str) -> list[str]:
    """The blocks of code below that heading of the page."""
    section = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.S | re.M)
    assert section, f"docs/frameworks.md has no section {title!r}"
    return re.findall(r"^```(?:py|yaml)\n(.*?)^```", section[1], re.S | re.M)


@contextmanager
def without_start(*packages: str) -> Iterator[dict[str, ModuleType]]:
    """Lets modules of these packages be imported while the packages' `__init__` does not run; all of them go again."""
    made, tops = {}, {name.partition(".")[0] for name in packages}
    try:
        for name in packages:
            parent = name.rpartition(".")[0]
            found = PathFinder.find_spec(name, made[parent].__path__ if parent else None)
            if not found or not found.submodule_search_locations:
                pytest.skip(f"{name} is not installed")
            made[name] = ModuleType(name)
            made[name].__path__ = list(found.submodule_search_locations)
            sys.modules[name] = made[name]
        yield made
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] in tops]:
            del sys.modules[name]


def matrices(seed: int) -> torch.nn.Sequential:
    """A model with state in 8 bits and in 32."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(96, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64))


def gradients(model: torch.nn.Module, step: int) -> None:
    """Gradients that depend on the weights, and on nothing else but the number of the step."""
    inputs = torch.randn(8, 96, generator=torch.Generator().manual_seed(step))
    model.zero_grad()
    model(inputs).square().mean().backward()


def weights(model: torch.nn.Module) -> dict[str, bytes]:
    return {name: bits(param) for name, param in model.named_parameters()}


def train(model: torch.nn.Module, step: Callable[[], Any], numbers: Iterable[int]) -> dict[str, bytes]:
    """The weights after steps with these numbers."""
    for number in numbers:
        gradients(model, number)
        step()
    return weights(model)
