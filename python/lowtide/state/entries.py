"""Entries of state dicts, as every reader returns them: plain data, which restore.py checks against live state and copies. Also
converts quantized moments of other libraries."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from lowtide.checks.values import check_floats, check_tensor, expect
from lowtide.devices.sharding import local_of, rows_of
from lowtide.state import blockwise


class ParamSpec(NamedTuple):
    """A parameter as a reader sees it."""

    rule: str  # the optimizer's rule
    shape: torch.Size  # the whole shape, even of a DTensor
    codec: str  # the codec of its state
    signed: Mapping[str, bool]  # all possible states by name, and whether each is signed
    param: torch.Tensor  # the parameter, with its current weights
    group: Mapping[str, Any]  # its group in the dict


class Entry(NamedTuple):
    """The state of one parameter in a dict. Tensors cover the whole parameter, or this rank's part of a DTensor."""

    step: int
    tensors: Mapping[str, Any]
    encode: bool  # whether tensors are values to encode, not codes and scales
    carried: Mapping[str, float] | None = None  # see carried.py; None: the options imply them


NOTHING = Entry(0, {}, False)


def check_values(tensors: Mapping[str, Any], names: list[str], shape: torch.Size, where: str) -> None:
    """Raises ValueError unless `tensors` are floating-point values with these names and this shape."""
    expect(sorted(tensors) == sorted(names), where, sorted(tensors), names)
    for name in names:
        check_floats(tensors[name], f"{where}, {name}", shape)


class Quantized(NamedTuple):
    """One moment in blocks that run flat over the tensor, across row ends."""

    codes: torch.Tensor  # uint8, in the parameter's shape
    scales: torch.Tensor  # float32 [ceil(numel / block)]
    book: torch.Tensor  # float32 [256], ascending
    block: int

    def values(self) -> torch.Tensor:
        return blockwise.decode(self.codes, self.scales, self.book, self.block)


def entry_of(spec: ParamSpec, step: int, moments: Mapping[str, Quantized | torch.Tensor]) -> Entry:
    """moments: every state of a parameter, by Lowtide's name. Codes stay codes, with one scale (rows, blocks) per dynamic8
    block, if all of them use dynamic8's map and no block has more than one scale."""
    stored: dict[str, torch.Tensor] = {}
    rows, length = rows_of(spec.shape)
    for name, moment in moments.items():
        aligned = (rows == 1 or length % blockwise.BLOCK == 0) and spec.codec == "dynamic8" and name in spec.signed
        if not aligned or not isinstance(moment, Quantized) or moment.block % blockwise.BLOCK:
            break
        if not torch.equal(moment.book, blockwise.dynamic_map(spec.signed[name]).to(moment.book.device)):
            break
        scales = moment.scales.repeat_interleave(moment.block // blockwise.BLOCK)
        stored[name] = moment.codes
        stored[f"{name}_scale"] = scales[: -(-moment.codes.numel() // blockwise.BLOCK)].reshape(rows, -1)
    else:
        return Entry(step, stored, False)
    values = {name: moment.values() if isinstance(moment, Quantized) else moment for name, moment in moments.items()}
    return Entry(step, values, True)


def check_group(
    group: Mapping[str, Any], options: Iterable[str], wanted: str, rule: str, rules: Container[str], library: str, where: str
) -> None:  # fmt: skip
    """Raises ValueError for a group of a library that has none of these rules, or for a group that lacks one of these options."""
    expect(rule in rules, where, f"a group from {library}", f"a state_dict of lowtide's {rule!r}")
    missing = [key for key in options if key not in group]
    expect(not missing, where, f"no {missing}", wanted)


def weights_of(spec: ParamSpec, where: str) -> torch.Tensor:
    """The parameter's weights, on the CPU in float32, for states that are told from them. Raises ValueError if there are none, or only a
    part."""
    expect(not spec.param.is_meta, where, "weights on meta", "the weights that were saved with this dict: load the model first")
    whole = type(local_of(spec.param)) is type(spec.param)
    expect(whole, where, "a DTensor parameter", "a whole one: load before the model is sharded, and carry on by Lowtide's state_dict")
    return spec.param.detach().to("cpu", torch.float32)  # a device may have no room for all of them at once


def check_keys(entry: Mapping[Any, Any], known: Sequence[str], where: str) -> None:
    unknown = sorted(str(key) for key in entry if key not in known)
    expect(not unknown, where, f"unknown keys {unknown}", f"only {', '.join(known)}")


def check_codes(codes: Any, dtype: torch.dtype, shape: Sequence[int], where: str) -> None:
    check_tensor(codes, where)
    expect(codes.dtype == dtype, where, codes.dtype, dtype)
    expect(tuple(codes.shape) == tuple(shape), where, f"shape {tuple(codes.shape)}", tuple(shape))
    # Blocks follow memory. The strides when saved, not the current ones, determine the order of elements.
    expect(codes.is_contiguous(), where, f"strides {codes.stride()}", "a contiguous tensor")


def check_scales(scales: Any, where: str, most: int) -> None:
    """most: an upper bound on the number of scales. The caller checks the exact number."""
    check_floats(scales, where)
    expect(scales.numel() <= most, where, f"{scales.numel()} values", f"{most} at most")
    if scales.numel():
        low, high = (float(bound) for bound in torch.aminmax(scales.detach()))
        expect(0 <= low and high < math.inf, where, f"scales from {low} to {high}", "finite ones, none below 0")


def check_book(book: Any, size: int, where: str) -> None:
    check_floats(book, where)
    expect(tuple(book.shape) == (size,), where, f"shape {tuple(book.shape)}", (size,))
    values = book.detach().float()
    expect(bool(torch.isfinite(values).all()), where, "values that are not finite", f"{size} finite ones")
    falls = (values[1:] < values[:-1]).nonzero()
    at = int(falls[0]) if len(falls) else 0
    got = f"{float(values[at]):.9g} before {float(values[at + 1]):.9g}"
    expect(not len(falls), where, got, "values in ascending order")
