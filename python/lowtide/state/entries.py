"""Entries of state dicts, as every reader hands them over: data, which restore.py checks against live state and copies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from lowtide.checks.values import check_floats, expect


class ParamSpec(NamedTuple):
    """A parameter as a reader sees it."""

    rule: str  # the optimizer's
    shape: torch.Size  # of the whole, if it is a DTensor
    codec: str  # of its state
    signed: Mapping[str, bool]  # every state that it can have, by name, and whether it takes both signs


class Entry(NamedTuple):
    """The state of one parameter in a dict. Tensors are those of the whole parameter, or of a DTensor's part."""

    step: int
    tensors: Mapping[str, Any]
    encode: bool  # floating-point values, to be encoded; else codes and scales as the core has them


NOTHING = Entry(0, {}, False)


def check_values(tensors: Mapping[str, Any], names: list[str], shape: torch.Size, where: str) -> None:
    """ValueError unless `tensors` are floating-point values of these names and this shape."""
    expect(sorted(tensors) == sorted(names), where, sorted(tensors), names)
    for name in names:
        check_floats(tensors[name], f"{where}, {name}", shape)
