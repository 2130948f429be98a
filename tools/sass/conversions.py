"""Conversions between floats, halves and integers."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from sass import floats
from sass.operands import Unknown, same, source, wide
from sass.table import U, is_in, operation, rounding
from sass.warp import Mask, Warp


@operation("F2FP")
def pack(warp: Warp, name: str, operands: list[str]) -> Callable[[Mask], None]:
    put = warp.put(operands[0])
    a, b = (source(warp, text, True) for text in operands[1:3])
    if not is_in(name, "PACK_AB") or not is_in(name, "F32"):
        raise Unknown(name)
    convert = floats.brain_halves if is_in(name, "BF16") else floats.halves
    return lambda mask: put(mask, convert(a(), b()))


@operation("HADD2")
def half_to_float(warp: Warp, name: str, operands: list[str]) -> Callable[[Mask], None]:
    found = re.fullmatch(r"(-?)(R\d+)\.H([01])_H[01]", operands[2])
    if not is_in(name, "F32") or operands[1] != "-RZ" or not found:
        raise Unknown(f"{name} {operands}")
    put, get, shift = warp.put(operands[0]), source(warp, found[2]), U(16 * int(found[3]))
    sign = U(0x80000000 if found[1] else 0)

    def run(mask: Mask) -> None:
        half = (get() >> shift).astype(np.uint16).view(np.float16)
        put(mask, half.astype(np.float32).view(U) ^ sign)

    return run


@operation("HFMA2")
def packed_constant(warp: Warp, name: str, operands: list[str]) -> Callable[[Mask], None]:
    """How the compiler moves a constant where other pipes are busy: -0 * 0 + two halves."""
    if operands[1:3] != ["-RZ", "RZ"] or len(operands) != 5:
        raise Unknown(f"{name} {operands}")
    high, low = (int(np.float16(float(text)).view(np.uint16)) for text in operands[3:])
    put, value = warp.put(operands[0]), same(high << 16 | low)
    return lambda mask: put(mask, value)


def integers_of(name: str) -> tuple[float, float]:
    """The least and the largest integer of a conversion."""
    if is_in(name, "U64"):
        return 0.0, 18446744073709549568.0
    if is_in(name, "S64"):
        return -9223372036854775808.0, 9223372036854774784.0
    return (0.0, 4294967295.0) if is_in(name, "U32") else (-2147483648.0, 2147483647.0)


@operation("F2I")
def to_integer(warp: Warp, name: str, operands: list[str]) -> Callable[[Mask], None]:
    put, get = warp.put(operands[0]), source(warp, operands[1], True)
    least, most = integers_of(name)
    is_wide = is_in(name, "U64") or is_in(name, "S64")
    put_high = warp.put(operands[0], 1) if is_wide else None
    cut = np.trunc if is_in(name, "TRUNC") else np.floor if is_in(name, "FLOOR") else np.rint

    def run(mask: Mask) -> None:
        value = get().view(np.float32).astype(np.float64)
        value = np.clip(np.where(np.isnan(value), 0.0, cut(value)), least, most)
        out = value.astype(np.uint64) if least == 0 else value.astype(np.int64).view(np.uint64)
        put(mask, out.astype(U))
        if put_high:
            put_high(mask, (out >> np.uint64(32)).astype(U))

    return run


@operation("I2F", "I2FP")
def from_integer(warp: Warp, name: str, operands: list[str]) -> Callable[[Mask], None]:
    put, text = warp.put(operands[0]), operands[1]
    is_long, is_unsigned = is_in(name, "U64") or is_in(name, "S64"), is_in(name, "U64") or is_in(name, "U32")
    long, short = wide(warp, text) if is_long else None, source(warp, text)

    def exact() -> list[int]:
        if long:
            return [int(x) for x in long().view(np.uint64 if is_unsigned else np.int64)]
        return [int(x) for x in short().view(U if is_unsigned else np.int32)]

    mode = rounding(name)

    def run(mask: Mask) -> None:
        values = exact()
        near = np.array([float(x) for x in values])
        error = np.array([float(x - int(f)) for x, f in zip(values, near)])
        put(mask, floats.rounded(near, error, mode).view(U))

    return run
