"""Reads state dicts of FlashOptim (arXiv 2602.23349).

Like torch.optim's, but a moment x may be "x::quantized", in the parameter's shape, with "x::scales", a float16 for each group
of 32 flat over the tensor (for bfloat16 parameters its bits are stored as bfloat16):

    int8 (averages): x = scale · y / (2 - |y|), y = code / 127        uint8 (second moments): x = (scale · code / 255)²

and "error_bits" holds the difference between a bfloat16 or float16 parameter and its float32 value, in units of half its last
place.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

from lowtide import _core
from lowtide.checks.values import check_tensor, expect, read_step
from lowtide.state import blockwise
from lowtide.state.entries import NOTHING, Entry, ParamSpec, check_codes, check_group, check_keys, check_scales, entry_of

_GROUP = 32
_CODES, _SCALES, _ERRORS = "::quantized", "::scales", "error_bits"
_RULES = ("adam", "adamw", "lion", "sgd")  # rules whose states have the same names as in Lowtide
_OWN = ("master_bytewidth", "quantize")  # options that mean nothing here
_MANTISSA_BITS = {torch.bfloat16: 7, torch.float16: 10}


def recognizes(state: dict[Any, Any], groups: list[dict[str, Any]]) -> bool:
    keys = [str(key) for entry in state.values() for key in entry]
    return any("master_bytewidth" in group for group in groups) or any(
        key == _ERRORS or key.endswith(_CODES) for key in keys
    )


def read_group(rule: str, group: dict[str, Any], mine: dict[str, Any], where: str) -> dict[str, Any]:
    needed = {"sgd": ("momentum", "dampening"), "lion": ("betas",)}.get(rule, ("betas", "eps"))
    options = ("lr", "weight_decay", *needed)
    check_group(group, options, f"all options of FlashOptim's {rule!r}", rule, _RULES, "FlashOptim", where)
    return {**mine, **{key: value for key, value in group.items() if key not in _OWN}}


def read_entry(spec: ParamSpec, entry: dict[str, Any], where: str) -> Entry:
    names = _core.state_names(spec.rule)
    keys = [name + suffix for name in names for suffix in ("", _CODES, _SCALES)]
    check_keys(entry, ["step", _ERRORS, *keys], where)
    held = [name for name in names if name in entry or name + _CODES in entry]
    moments = {name: _moment(entry, name, spec.shape, spec.signed[name], where) for name in held}
    if entry.get(_ERRORS) is not None:
        _check_errors(entry[_ERRORS], spec.shape, f"{where}, {_ERRORS}")
        warnings.warn(
            "load_state_dict: FlashOptim's error_bits, the low bits of parameters, are not loaded: "
            "lowtide.compat.flashoptim.master_weights() returns the float32 weights that they complete",
            stacklevel=2,
        )
    if not moments:
        return NOTHING
    # Only Adam counts steps. For the others, it is enough to know that there was one.
    step = read_step(entry, where) if "exp_avg_sq" in names else 1
    return entry_of(spec, step, moments)


def _moment(entry: dict[str, Any], name: str, shape: torch.Size, signed: bool, where: str) -> torch.Tensor:
    """Decodes a moment to float32."""
    if name in entry:
        both = name + _CODES in entry or name + _SCALES in entry
        expect(not both, where, f"{name!r} and its codes", "one of them")
        value: torch.Tensor = entry[name]
        return value
    codes, scales = entry[name + _CODES], entry.get(name + _SCALES)
    check_codes(codes, torch.int8 if signed else torch.uint8, shape, f"{where}, {name}{_CODES}")
    text = f"{where}, {name}{_SCALES}"
    check_tensor(scales, text)
    assert isinstance(scales, torch.Tensor)
    expect(scales.dtype in (torch.float16, torch.bfloat16), text, scales.dtype, torch.float16)
    count = -(-shape.numel() // _GROUP)
    expect(scales.numel() == count, text, f"{scales.numel()} values", f"{count}, one for each {_GROUP} elements")
    scales = scales.detach().resolve_neg().contiguous().view(torch.float16)
    check_scales(scales, text, count)
    if not signed:
        root = blockwise.decode(codes, scales.float(), torch.arange(256) / 255, _GROUP)
        return root * root
    y = (torch.arange(256) - 128) / 127
    return blockwise.decode(codes.int() + 128, scales.float(), y / (2 - y.abs()), _GROUP)


def _check_errors(errors: Any, shape: torch.Size, where: str) -> None:
    check_tensor(errors, where)
    expect(tuple(errors.shape) == tuple(shape), where, f"shape {tuple(errors.shape)}", tuple(shape))


def master_weight(param: torch.Tensor, errors: Any, master_bytes: int, where: str) -> torch.Tensor:
    """The float32 value of a bfloat16 or float16 parameter: param + errors / most · 2^(exponent - mantissa bits - 1).
    master_bytes: 3 for int8 errors, 4 for int16. In a state_dict errors have the parameter's type, as torch requires: int8 as
    values, int16 as bits.
    """
    expect(param.dtype in _MANTISSA_BITS, where, param.dtype, "a bfloat16 or float16 parameter")
    expect(master_bytes in (3, 4), f"{where}, master_bytewidth", master_bytes, "3 or 4")
    _check_errors(errors, param.shape, where)
    kind, most = (torch.int8, 127) if master_bytes == 3 else (torch.int16, 32767)
    if errors.dtype == param.dtype:
        errors = errors.detach().to(kind) if master_bytes == 3 else errors.detach().contiguous().view(kind)
    expect(errors.dtype == kind, where, errors.dtype, kind)
    narrow = param.detach().float()
    least = -126 if param.dtype == torch.bfloat16 else -14
    # frexp's mantissa is in [0.5, 1), so its exponent is one more than that of the first bit.
    exponent = torch.where(narrow == 0, least, (torch.frexp(narrow).exponent - 1).clamp(min=least))
    half_place = torch.ldexp(torch.ones_like(narrow), exponent - _MANTISSA_BITS[param.dtype] - 1)
    weight: torch.Tensor = narrow + errors.float() / most * half_place
    return weight
