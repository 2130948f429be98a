"""Logic, permutations, selections and comparisons of integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sass import floats
from sass.operands import LANES, Unknown, Words, flags, source
from sass.table import U, combined, is_flag, is_in, operation
from sass.warp import Mask, Warp

_TWO_INPUTS: dict[int, Callable[[Words, Words, Words], Words]] = {
    0xC0: lambda a, b, c: a & b,
    0xFC: lambda a, b, c: a | b,
    0x3C: lambda a, b, c: a ^ b,
    0x33: lambda a, b, c: ~b,
    0x0F: lambda a, b, c: ~a,
    0xF8: lambda a, b, c: a | b & c,
    0xEA: lambda a, b, c: a & b | c,
    0x78: lambda a, b, c: a ^ b & c,
    0x6A: lambda a, b, c: a & b ^ c,
    0x96: lambda a, b, c: a ^ b ^ c,
    0xFE: lambda a, b, c: a | b | c,
    0x80: lambda a, b, c: a & b & c,
    0x30: lambda a, b, c: a & ~b,
}


def by_table(table: int) -> Callable[[Words, Words, Words], Words]:
    """A function of three bits: bit 4a + 2b + c of the table."""
    if found := _TWO_INPUTS.get(table):
        return found

    def run(a: Words, b: Words, c: Words) -> Words:
        out = np.zeros_like(a)
        for row in range(8):
            if table >> row & 1:
                out |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
        return out

    return run


@operation("LOP3")
def logic(warp: Warp, name: str, operands: list[str]) -> Callable[[Mask], None]:
    operands = list(operands)
    put_flag = warp.put_flag(operands.pop(0)) if is_flag(operands[0]) else None
    put = warp.put(operands[0])
    a, b, c = (source(warp, text) for text in operands[1:4])
    function = by_table(int(operands[4], 16))
    also = flags(warp, operands[5]) if len(operands) > 5 else None
    if put_flag is None:
        return lambda mask: put(mask, function(a(), b(), c()))

    def run(mask: Mask) -> None:
        out = function(a(), b(), c())
        put(mask, out)
        put_flag(mask, (out != 0) | also() if also else out != 0)

    return run


@operation("PLOP3")
def flag_logic(warp: Warp, name: str, operands: list[str]) -> Callable[[Mask], None]:
    first, second = warp.put_flag(operands[0]), warp.put_flag(operands[1])
    a, b, c = (flags(warp, text) for text in operands[2:5])
    of_first, of_second = by_table(int(operands[5], 16)), by_table(int(operands[6], 16))

    def run(mask: Mask) -> None:
        x, y, z = (get().astype(U) * U(0xFFFFFFFF) for get in (a, b, c))
        out, other = of_first(x, y, z) != 0, of_second(x, y, z) != 0
        first(mask, out)
        second(mask, other)

    return run


@operation("PRMT")
def permute(warp: Warp, name: str, operands: list[str]) -> Callable[[Mask], None]:
    if name not in ("PRMT", "UPRMT"):
        raise Unknown(name)
    put = warp.put(operands[0])
    a, selector, b = (source(warp, text) for text in operands[1:])

    def run(mask: Mask) -> None:
        both = a().astype(np.uint64) | b().astype(np.uint64) << np.uint64(32)
        chosen = selector()
        out = np.zeros(LANES, U)
        for byte in range(4):
            nibble = chosen >> U(4 * byte) & U(15)
            value = (both >> (nibble & U(7)).astype(np.uint64) * np.uint64(8)).astype(U) & U(255)
            out |= np.where(nibble & U(8) != 0, (value >> U(7)) * U(255), value) << U(8 * byte)
        put(mask, out)

    return run


@operation("SEL", "FSEL")
def select(warp: Warp, name: str, operands: list[str]) -> Callable[[Mask], None]:
    put, choice = warp.put(operands[0]), flags(warp, operands[3])
    a, b = (source(warp, text, name.startswith("F")) for text in operands[1:3])
    return lambda mask: put(mask, np.where(choice(), a(), b()))


@operation("MOV")
def move(warp: Warp, name: str, operands: list[str]) -> Callable[[Mask], None]:
    put, get = warp.put(operands[0]), source(warp, operands[1])
    return lambda mask: put(mask, get())


@operation("ISETP")
def compare_integers(warp: Warp, name: str, operands: list[str]) -> Callable[[Mask], None]:
    first, second = warp.put_flag(operands[0]), warp.put_flag(operands[1])
    a, b, other = source(warp, operands[2]), source(warp, operands[3]), flags(warp, operands[4])
    low = flags(warp, operands[5]) if len(operands) > 5 else None
    kind = name.split(".")[1]
    of = U if is_in(name, "U32") else np.int32
    test = floats.compare(kind)

    def run(mask: Mask) -> None:
        x, y = a().view(of), b().view(of)
        found = test(x, y)
        if low:  # the upper halves of 64 bits: the lower ones decide where these are equal
            found = np.where(x == y, low(), found)
        out, opposite = combined(name, found, other()), combined(name, ~found, other())
        first(mask, out)
        second(mask, opposite)

    return run


@operation("P2R")
def flags_to_register(warp: Warp, name: str, operands: list[str]) -> Callable[[Mask], None]:
    if operands[1] != "PR" or name != "P2R":
        raise Unknown(f"{name} {operands}")
    put, get, which = warp.put(operands[0]), source(warp, operands[2]), source(warp, operands[3])

    def run(mask: Mask) -> None:
        word = np.packbits(warp.flags[:7], axis=0, bitorder="little")[0].astype(U)
        put(mask, (get() & ~which()) | (word & which()))

    return run


@operation("R2P")
def register_to_flags(warp: Warp, name: str, operands: list[str]) -> Callable[[Mask], None]:
    if operands[0] != "PR" or name != "R2P":
        raise Unknown(f"{name} {operands}")
    get, which = source(warp, operands[1]), int(operands[2], 16)
    puts = [(n, warp.put_flag(f"P{n}")) for n in range(7) if which >> n & 1]

    def run(mask: Mask) -> None:
        word = get().copy()
        for n, put in puts:
            put(mask, (word >> U(n) & U(1)) != 0)

    return run
