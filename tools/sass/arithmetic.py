"""Arithmetic and comparisons of floats."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sass import floats
from sass.operands import Source, Unknown, Words, flags, same, source
from sass.table import U, combined, is_in, operation, rounding
from sass.warp import Mask, Warp


def float_source(warp: Warp, name: str, text: str) -> Source:
    get = source(warp, text, True)
    return (lambda: floats.flushed(get())) if is_in(name, "FTZ") else get


def float_result(name: str) -> Callable[[NDArray[np.float32]], Words]:
    saturates, flushes = is_in(name, "SAT"), is_in(name, "FTZ")

    def run(value: NDArray[np.float32]) -> Words:
        if saturates:
            value = floats.saturated(value)
        bits = value.view(U)
        if flushes:
            bits = floats.flushed(bits)
        return np.where(np.isnan(value), U(0x7FFFFFFF), bits)

    return run


@operation("FSETP")
def compare_floats(warp: Warp, name: str, operands: list[str]) -> Callable[[Mask], None]:
    first, second = warp.put_flag(operands[0]), warp.put_flag(operands[1])
    a, b = float_source(warp, name, operands[2]), float_source(warp, name, operands[3])
    other, kind = flags(warp, operands[4]), name.split(".")[1]

    def run(mask: Mask) -> None:
        x, y = a().view(np.float32), b().view(np.float32)
        nan = np.isnan(x) | np.isnan(y)
        if kind in ("NAN", "NUM"):
            found = nan == (kind == "NAN")
        elif kind.endswith("U") and kind != "U":
            found = floats.compare(kind[:-1])(x, y) | nan
        else:
            found = floats.compare(kind)(x, y) & ~nan
        out, opposite = combined(name, found, other()), combined(name, ~found, other())
        first(mask, out)
        second(mask, opposite)

    return run


@operation("FADD", "FMUL")
def float_two(warp: Warp, name: str, operands: list[str]) -> Callable[[Mask], None]:
    put, result, mode = warp.put(operands[0]), float_result(name), rounding(name)
    a, b = (float_source(warp, name, text) for text in operands[1:3])
    is_sum = name.startswith("FADD")
    if mode != "RN":
        one, minus_zero = same(0x3F800000).view(np.float32), same(0x80000000).view(np.float32)

        def run(mask: Mask) -> None:
            x, y = a().view(np.float32), b().view(np.float32)
            put(mask, result(floats.fused(x, one, y, mode) if is_sum else floats.fused(x, y, minus_zero, mode)))

        return run
    if is_sum:
        return lambda mask: put(mask, result(a().view(np.float32) + b().view(np.float32)))
    return lambda mask: put(mask, result(a().view(np.float32) * b().view(np.float32)))


@operation("FFMA")
def float_fused(warp: Warp, name: str, operands: list[str]) -> Callable[[Mask], None]:
    put, result, mode = warp.put(operands[0]), float_result(name), rounding(name)
    a, b, c = (float_source(warp, name, text) for text in operands[1:4])

    def run(mask: Mask) -> None:
        x, y, z = (get().view(np.float32) for get in (a, b, c))
        put(mask, result(floats.fused(x, y, z, mode)))

    return run


@operation("FMNMX")
def float_extreme(warp: Warp, name: str, operands: list[str]) -> Callable[[Mask], None]:
    put, least = warp.put(operands[0]), flags(warp, operands[3])
    a, b = (float_source(warp, name, text) for text in operands[1:3])
    return lambda mask: put(mask, floats.extreme(a(), b(), least(), is_in(name, "NAN")))


@operation("MUFU")
def approximate(warp: Warp, name: str, operands: list[str]) -> Callable[[Mask], None]:
    put, get, kind = warp.put(operands[0]), source(warp, operands[1], True), name.split(".")[1]
    if kind not in floats.APPROXIMATE:
        raise Unknown(name)
    return lambda mask: put(mask, floats.approximate(kind, get()))


@operation("FCHK")
def check_division(warp: Warp, name: str, operands: list[str]) -> Callable[[Mask], None]:
    """Whether the short way of a division may go wrong: then a function does it."""
    put = warp.put_flag(operands[0])
    a, b = (source(warp, text, True) for text in operands[1:3])

    def run(mask: Mask) -> None:
        x, y = a(), b()
        above, below = ((bits >> U(23) & U(255)).astype(np.int32) for bits in (x, y))
        apart = above - below
        odd = (above == 255) | (below <= 1) | (below >= 254) | ((above <= 24) & (x & U(0x7FFFFFFF) != 0))
        put(mask, odd | ((x & U(0x7FFFFFFF) != 0) & ((apart > 125) | (apart < -124))))

    return run
