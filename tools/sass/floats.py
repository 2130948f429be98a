"""Arithmetic of float32 as the hardware has it: one rounding of a product and a sum, denormals kept or flushed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sass.operands import Flags, Floats, Words

Doubles = NDArray[np.float64]
SIGN = np.uint32(0x80000000)
EXPONENT = np.uint32(0x7F800000)


def flushed(bits: Words) -> Words:
    """Denormals as zeros of their sign."""
    return np.where(bits & EXPONENT == 0, bits & SIGN, bits)


def rounded(value: Doubles, error: Doubles, mode: str) -> Floats:
    """The float32 next to value + error, where error is less than the last bit of the value."""
    if mode == "RN":
        # Rounding to odd first makes the second rounding the only one.
        odd = value.view(np.int64) & 1
        away = (error > 0) == (value > 0)
        shift = np.where((error != 0) & (odd == 0) & np.isfinite(value), np.where(away, 1, -1), 0)
        return (value.view(np.int64) + shift).view(np.float64).astype(np.float32)
    near = value.astype(np.float32)
    beyond = near.astype(np.float64) - value - error  # exact: they are close
    up = np.nextafter(near, np.float32(np.inf))
    down = np.nextafter(near, np.float32(-np.inf))
    down_wanted, up_wanted = beyond > 0, beyond < 0
    if mode == "RZ":
        down_wanted, up_wanted = down_wanted & (value > 0), up_wanted & (value < 0)
    elif mode == "RM":
        up_wanted = np.zeros_like(up_wanted)
    else:
        down_wanted = np.zeros_like(down_wanted)
    return np.where(np.isfinite(value), np.where(down_wanted, down, np.where(up_wanted, up, near)), near)


def fused(a: Floats, b: Floats, c: Floats, mode: str = "RN") -> Floats:
    product = a.astype(np.float64) * b.astype(np.float64)  # exact
    addend = c.astype(np.float64)
    total = product + addend
    back = total - product
    error = (product - (total - back)) + (addend - back)
    error = np.where(np.isfinite(error), error, 0.0)
    out = rounded(total, error, mode)
    return np.where(total == 0, total.astype(np.float32), out)


def saturated(x: Floats) -> Floats:
    return np.where(np.isnan(x), np.float32(0), np.minimum(np.maximum(x, np.float32(0)), np.float32(1)))


def order(bits: Words) -> NDArray[np.int32]:
    """Integers in the order of the floats, -0 before +0."""
    signed = bits.view(np.int32)
    return np.where(signed < 0, signed ^ np.int32(0x7FFFFFFF), signed)


def extreme(a: Words, b: Words, least: Flags, keeps_nan: bool) -> Words:
    """The minimum where `least`, else the maximum."""
    x, y = a.view(np.float32), b.view(np.float32)
    out = np.where((order(a) < order(b)) == least, a, b)
    a_nan, b_nan = np.isnan(x), np.isnan(y)
    if keeps_nan:
        return np.where(a_nan | b_nan, np.uint32(0x7FFFFFFF), out)
    return np.where(a_nan, np.where(b_nan, np.uint32(0x7FFFFFFF), b), np.where(b_nan, a, out))


def compare(kind: str) -> Callable[[NDArray[np.generic], NDArray[np.generic]], Flags]:
    return {"LT": np.less, "LE": np.less_equal, "GT": np.greater, "GE": np.greater_equal, "EQ": np.equal,
            "NE": np.not_equal}[kind]  # fmt: skip


# Approximate functions, correctly rounded: one of the values that PTX allows.
APPROXIMATE: dict[str, Callable[[Doubles], Doubles]] = {
    "RCP": lambda x: 1.0 / x,
    "RSQ": lambda x: 1.0 / np.sqrt(x),
    "SQRT": np.sqrt,
    "EX2": np.exp2,
    "LG2": np.log2,
}


def approximate(kind: str, bits: Words) -> Words:
    function = APPROXIMATE[kind]
    values = flushed(bits).view(np.float32).astype(np.float64)
    return flushed(function(values).astype(np.float32).view(np.uint32))


def brain_halves(high: Words, low: Words) -> Words:
    def one(bits: Words) -> Words:
        is_nan = (bits & np.uint32(0x7FFFFFFF)) > EXPONENT
        up = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
        return np.where(is_nan, np.uint32(0x7FFF), up >> np.uint32(16))

    return one(high) << np.uint32(16) | one(low)


def halves(high: Words, low: Words) -> Words:
    def one(bits: Words) -> Words:
        return bits.view(np.float32).astype(np.float16).view(np.uint16).astype(np.uint32)

    return one(high) << np.uint32(16) | one(low)
