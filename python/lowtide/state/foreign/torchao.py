"""Reads state dicts of torchao's low-bit Adam and AdamW.

Like torch.optim.Adam's, but a moment of a large parameter is a tensor subclass over "codes", "scale" (one per block, flat over
the tensor) and, except for float8, "qmap"; or a dict of these, if torchao is not installed:

    OptimState8bit: codes uint8 of the parameter's shape, qmap [256]
    OptimState4bit: codes uint8 [numel / 2], the first of two in the high half, qmap [16]
    OptimStateFp8:  codes float8_e4m3fn of the parameter's shape
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from lowtide.checks.values import check_tensor, expect, read_step
from lowtide.state.entries import (
    NOTHING, Entry, ParamSpec, Quantized, check_book, check_codes, check_group, check_keys, check_scales, entry_of,
)  # fmt: skip

_SUBCLASSES = ("OptimState8bit", "OptimState4bit", "OptimStateFp8")
_MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
_FLOAT8 = torch.float8_e4m3fn


def recognizes(state: dict[Any, Any], groups: list[dict[str, Any]]) -> bool:
    del groups  # almost like torch.optim.Adam's
    return any(_parts(value) is not None for entry in state.values() for value in entry.values())


def read_group(rule: str, group: dict[str, Any], mine: dict[str, Any], where: str) -> dict[str, Any]:
    options, rules = ("lr", "betas", "eps", "weight_decay"), ("adam", "adamw")
    check_group(group, options, "all options of torchao's Adam", rule, rules, "torchao's Adam or AdamW", where)
    if "amsgrad" not in mine:
        expect(not group.get("amsgrad"), f"{where}['amsgrad']", "True", "False")
    return {**mine, **{key: value for key, value in group.items() if key in mine or key != "amsgrad"}}


def read_entry(spec: ParamSpec, entry: dict[str, Any], where: str) -> Entry:
    if not entry:
        return NOTHING
    check_keys(entry, ["step", *_MOMENTS], where)
    step = read_step(entry, where)
    moments: dict[str, Quantized | torch.Tensor] = {}
    for name in (key for key in entry if key != "step"):
        parts, text = _parts(entry[name]), f"{where}, {name}"
        moments[name] = entry[name] if parts is None else _quantized(parts, spec.shape, text)
    return entry_of(spec, step, moments)


def _parts(value: Any) -> dict[str, Any] | None:
    """codes, scale and qmap of a subclass, or of a dict in its place. None for anything else."""
    if isinstance(value, Mapping):
        return dict(value) if {"codes", "scale"} <= set(value) else None
    if type(value).__name__ not in _SUBCLASSES:
        return None
    return {name: getattr(value, name) for name in ("codes", "scale", "qmap") if hasattr(value, name)}


def _quantized(parts: dict[str, Any], shape: torch.Size, where: str) -> Quantized:
    codes, scale, book = parts["codes"], parts["scale"], parts.get("qmap")
    check_tensor(codes, f"{where}, codes")
    numel = shape.numel()
    check_scales(scale, f"{where}, scale", numel)
    even = scale.numel() > 0 and numel % scale.numel() == 0
    expect(even, f"{where}, scale", f"{scale.numel()} values for {numel} elements", "one for each of equal blocks")
    if book is None:
        check_codes(codes, _FLOAT8, shape, f"{where}, codes")
        codes, book = codes.view(torch.uint8), torch.arange(256, dtype=torch.uint8).view(_FLOAT8).float()
    elif codes.numel() == numel:
        check_codes(codes, torch.uint8, shape, f"{where}, codes")
        check_book(book, 256, f"{where}, qmap")
    else:
        check_codes(codes, torch.uint8, (numel // 2,), f"{where}, codes")
        expect(numel % 2 == 0, where, f"4-bit codes of {numel} elements", "an even number of them")
        check_book(book, 16, f"{where}, qmap")
        codes = torch.stack([codes >> 4, codes & 15], dim=-1).view(shape)
    return Quantized(codes, scale.detach().float().reshape(-1), book.float(), numel // scale.numel())
