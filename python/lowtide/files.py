"""Checkpoint files: what `Optimizer.save` and `load` add to the core's, which holds the state.

The core keeps one text beside the state: JSON of {"lowtide_groups": [the options of each group, without parameters]}.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import torch

from lowtide import _core
from lowtide import state_dict as formats
from lowtide.checks import expect

if TYPE_CHECKING:
    from lowtide.optimizer import Optimizer

_KEY = "lowtide_groups"


def save(optimizer: Optimizer, path: str | os.PathLike[str]) -> None:
    """See `Optimizer.save`."""
    groups = []
    for group in optimizer.param_groups:
        options = {key: _plain(value) for key, value in group.items() if key != "params"}
        groups.append({**options, "params": len(group["params"])})
    optimizer._core.save(os.fspath(path), json.dumps({_KEY: groups}, default=_refuse))


def load(optimizer: Optimizer, path: str | os.PathLike[str]) -> None:
    """See `Optimizer.load`."""
    name = os.fspath(path)
    try:
        metadata = json.loads(_core.checkpoint_metadata(name) or "{}")
    except json.JSONDecodeError as error:
        raise ValueError(f"{name}: got metadata that is not JSON: {error}") from error
    found = isinstance(metadata, dict) and isinstance(metadata.get(_KEY), list)
    expect(found, name, "a checkpoint without the options of param_groups", "one that Optimizer.save wrote")
    groups: list[dict[str, Any]] = []
    number = 0
    for n, saved in enumerate(metadata[_KEY]):
        whole = isinstance(saved, dict) and isinstance(saved.get("params"), int) and 0 <= saved["params"] < 2**31
        expect(whole, f"{name}, group {n}", repr(saved)[:80], "options and a number of params")
        options = {key: _tuples(value) for key, value in saved.items()}
        groups.append({**options, "params": list(range(number, number + saved["params"]))})
        number += saved["params"]
    new_groups = formats.check_groups(optimizer, {"state": {}, "param_groups": groups})
    optimizer._core.load(name)
    optimizer.param_groups = new_groups
    formats.show_state(optimizer)


def _plain(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_plain(part) for part in value]
    return value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value


def _tuples(value: Any) -> Any:  # JSON has no tuples; betas is one
    return tuple(value) if isinstance(value, list) else value


def _refuse(value: object) -> object:
    raise ValueError(f"param_groups: got {value!r} ({type(value).__name__}), wanted plain values to save in a file")
