"""The optimizers under comparison: how to make one from its label and how many bytes its state takes."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import torch

from .config import Config
from .errors import ExampleError

NAMES = ("torch", "lowtide")


def parse_label(label: str, default_state: str) -> tuple[str, str]:
    """Split ``torch``, ``torch:fused``, ``lowtide`` or ``lowtide:STATE`` into library and variant."""
    name, _, variant = label.partition(":")
    if name not in NAMES or (name == "torch" and variant not in ("", "fused")):
        raise ExampleError(f"no optimizer {label!r}; known are torch, torch:fused, lowtide (with --state) and "
                           "lowtide:STATE, for example lowtide:bf16")  # fmt: skip
    return name, variant if name == "torch" else variant or default_state


def check_optimizers(config: Config) -> None:
    """Refuse unknown names and a missing library before any time is spent."""
    names = {parse_label(label, config.state)[0] for label in config.optimizers}
    if "lowtide" in names and importlib.util.find_spec("lowtide") is None:
        raise ExampleError("missing Python package: lowtide\n  install with: pip install .  (in the root of the "
                           "repository), or compare nothing with --optimizers torch")  # fmt: skip


def title(label: str, config: Config) -> str:
    """How tables and plots name a run."""
    name, variant = parse_label(label, config.state)
    if name == "torch":  # it keeps its state in the type of the weights
        return f"torch AdamW {config.dtype}{' ' + variant if variant else ''}"
    return f"lowtide AdamW {variant}"


def make_optimizer(label: str, config: Config, groups: list[dict[str, object]]) -> torch.optim.Optimizer:
    """Make AdamW of either library with the same hyper-parameters."""
    name, variant = parse_label(label, config.state)
    settings: dict[str, Any] = {"lr": config.lr, "betas": (config.beta1, config.beta2), "eps": config.eps}
    if name == "torch":
        return torch.optim.AdamW(groups, fused=variant == "fused" or None, **settings)
    import lowtide

    try:
        return lowtide.AdamW(groups, state=variant, **settings)
    except ValueError as error:
        raise ExampleError(f"lowtide refused {label!r} with state {variant!r}: {error}") from error


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of all tensors that the optimizer would hand to a checkpoint, each counted once."""
    seen: dict[tuple[int, int], int] = {}
    for tensor in _tensors(optimizer.state_dict()["state"]):
        seen[tensor.data_ptr(), tensor.numel()] = tensor.numel() * tensor.element_size()
    return sum(seen.values())


def reported_bytes(optimizer: torch.optim.Optimizer) -> int | None:
    """What the optimizer itself says its state takes; None for one that does not say."""
    report = getattr(optimizer, "report", None)
    return int(report()["state_bytes"]) if callable(report) else None


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
