"""Integer arithmetic of machine code: sums with carries, products, shifts, extremes."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sass.operands import LANES, Unknown, flags, source, wide
from sass.table import LOW, U, is_flag, is_in, operation
from sass.warp import Mask, Warp


def long_source(warp: Warp, text: str) -> Callable[[], NDArray[np.uint64]]:
    """32 bits as a term of a sum with a carry: -x is its complement and 1, as the adder has it."""
    if re.match(r"-U?R", text) or text.startswith("-c["):
        get = source(warp, text[1:])
        return lambda: (get() ^ U(0xFFFFFFFF)).astype(np.uint64) + np.uint64(1)
    plain = source(warp, text)
    return lambda: plain().astype(np.uint64)


@operation("IADD3", "VIADD", "IADD")
def add(warp: Warp, name: str, operands: list[str]) -> Callable[[Mask], None]:
    target, *rest = operands
    carries_out = []
    while is_flag(rest[0]):
        carries_out.append(rest.pop(0))
    carries_in = []
    while is_flag(rest[-1]):
        carries_in.append(flags(warp, rest.pop()))
    put = warp.put(target)
    if not carries_out and not carries_in:
        a, b, c = (source(warp, text) for text in (*rest, "RZ")[:3])
        if rest[2:] in ([], ["RZ"]):
            return lambda mask: put(mask, a() + b())
        return lambda mask: put(mask, a() + b() + c())
    terms = [long_source(warp, text) for text in rest]
    put_carries = [warp.put_flag(text) for text in carries_out]

    def run(mask: Mask) -> None:
        total = sum((term() for term in terms[1:]), terms[0]())
        for carry in carries_in:
            total = total + carry().astype(np.uint64)
        put(mask, total.astype(U))
        over = total >> np.uint64(32)
        for n, put_carry in enumerate(put_carries, 1):
            put_carry(mask, over >= n)

    return run


@operation("IMAD", "IMUL")
def multiply(warp: Warp, name: str, operands: list[str]) -> Callable[[Mask], None]:
    target, *rest = operands
    carry_out = rest.pop(0) if is_flag(rest[0]) else None
    carry_in = flags(warp, rest.pop()) if is_flag(rest[-1]) else None
    if is_in(name, "WIDE") or is_in(name, "HI"):
        a, b, c = source(warp, rest[0]), source(warp, rest[1]), wide(warp, rest[2])
        kind = np.uint32 if is_in(name, "U32") else np.int32
        put_low, put_high = warp.put(target), warp.put(target, 1)
        put_carry = warp.put_flag(carry_out) if carry_out else None
        longer = np.uint64 if kind is np.uint32 else np.int64

        def run_wide(mask: Mask) -> None:
            product = (a().view(kind).astype(longer) * b().view(kind).astype(longer)).view(np.uint64)
            total = product + c()
            if carry_in:
                total = total + carry_in().astype(np.uint64)
            if put_carry:
                put_carry(mask, total < product)
            if is_in(name, "HI"):
                put_low(mask, (total >> np.uint64(32)).astype(U))
            else:
                put_low(mask, total.astype(U))
                put_high(mask, (total >> np.uint64(32)).astype(U))

        return run_wide
    put = warp.put(target)
    a, b, d = (source(warp, text) for text in rest)
    if carry_out:
        raise Unknown("a carry of IMAD")
    if carry_in:
        return lambda mask: put(mask, a() * b() + d() + carry_in().astype(U))
    if rest[:2] == ["RZ", "RZ"]:
        return lambda mask: put(mask, d())
    return lambda mask: put(mask, a() * b() + d())


@operation("IDP")
def dot_product(warp: Warp, name: str, operands: list[str]) -> Callable[[Mask], None]:
    """Four bytes with four bytes, or two halves with the lower or upper two bytes, and a number."""
    kinds = {"U8": np.uint8, "S8": np.int8, "U16": np.uint16, "S16": np.int16}
    try:
        first, second = (kinds[word] for word in name.split(".")[-2:])
    except KeyError:
        raise Unknown(name) from None
    a, b, c = (source(warp, text) for text in operands[1:4])
    put = warp.put(operands[0])
    begin, count = (2 if is_in(name, "HI") else 0), (4 if is_in(name, "4A") else 2)

    def run(mask: Mask) -> None:
        of_a = np.ascontiguousarray(a()).view(first).reshape(LANES, count).astype(np.int64)
        of_b = np.ascontiguousarray(b()).view(second).reshape(LANES, 4)[:, begin : begin + count].astype(np.int64)
        put(mask, ((of_a * of_b).sum(axis=1) + c().astype(np.int64)).astype(U))

    return run


@operation("LEA")
def scaled_add(warp: Warp, name: str, operands: list[str]) -> Callable[[Mask], None]:
    target, *rest = operands
    carry_out = rest.pop(0) if is_flag(rest[0]) else None
    carry_in = flags(warp, rest.pop()) if is_flag(rest[-1]) else None
    shift = np.uint64(int(rest.pop(), 16))
    low, addend = source(warp, rest[0]), long_source(warp, rest[1])
    put = warp.put(target)
    put_carry = warp.put_flag(carry_out) if carry_out else None
    high = source(warp, rest[2]) if len(rest) > 2 else None

    def run(mask: Mask) -> None:
        if is_in(name, "SX32"):
            value = low().view(np.int32).astype(np.int64).view(np.uint64)
        else:
            value = low().astype(np.uint64)
            if high:
                value = value | high().astype(np.uint64) << np.uint64(32)
        value = value << shift
        total = (value >> np.uint64(32) if is_in(name, "HI") else value & LOW) + addend()
        if carry_in:
            total = total + carry_in().astype(np.uint64)
        put(mask, total.astype(U))
        if put_carry:
            put_carry(mask, total > LOW)

    return run


@operation("SHF")
def funnel(warp: Warp, name: str, operands: list[str]) -> Callable[[Mask], None]:
    low, amount, high = (source(warp, text) for text in operands[1:])
    put = warp.put(operands[0])
    is_wide, is_high, is_left = is_in(name, "U64") or is_in(name, "S64"), is_in(name, "HI"), is_in(name, "L")
    kind = np.int64 if is_in(name, "S32") or is_in(name, "S64") else np.uint64
    most, wraps = (U(63) if is_wide else U(32)), is_in(name, "W")
    fixed = operands[2].startswith("0x")
    if fixed and is_high and not is_left and operands[1] == "RZ" and int(operands[2], 16) < 32 and not wraps:
        by = U(int(operands[2], 16))
        if kind is np.int64:
            signed_by = np.int32(by)
            return lambda mask: put(mask, (high().view(np.int32) >> signed_by).view(U))
        return lambda mask: put(mask, high() >> by)

    def run(mask: Mask) -> None:
        by = (amount() & (U(63) if is_wide else U(31)) if wraps else np.minimum(amount(), most)).astype(np.uint64)
        both = low().astype(np.uint64) | high().astype(np.uint64) << np.uint64(32)
        out = both << by if is_left else (both.view(kind) >> by.astype(kind)).view(np.uint64)
        put(mask, (out >> np.uint64(32) if is_high else out).astype(U))

    return run


@operation("IABS")
def magnitude(warp: Warp, name: str, operands: list[str]) -> Callable[[Mask], None]:
    put, get = warp.put(operands[0]), source(warp, operands[1])
    return lambda mask: put(mask, np.abs(get().view(np.int32)).view(U))


@operation("VIMNMX", "IMNMX", "VIMNMX3", "VIADDMNMX")
def integer_extreme(warp: Warp, name: str, operands: list[str]) -> Callable[[Mask], None]:
    """The least or the greatest of two or three numbers, or of a sum and a number; the operand behind them says which."""
    adds = name.startswith("VIADDMNMX")
    count = 3 if adds or name.startswith("VIMNMX3") else 2
    put, least = warp.put(operands[0]), flags(warp, operands[1 + count])
    sources = [source(warp, text) for text in operands[1 : 1 + count]]
    kind = U if is_in(name, "U32") else np.int32

    def run(mask: Mask) -> None:
        values = [get() for get in sources]
        if adds:
            values = [values[0] + values[1], values[2]]
        numbers = [value.view(kind) for value in values]
        put(mask, np.where(least(), np.minimum.reduce(numbers), np.maximum.reduce(numbers)).view(U))

    return run


@operation("POPC", "FLO", "BREV")
def bits(warp: Warp, name: str, operands: list[str]) -> Callable[[Mask], None]:
    put, get = warp.put(operands[0]), source(warp, operands[1])
    kind = name.split(".")[0].removeprefix("U")

    def one(x: int) -> int:
        if kind == "POPC":
            return x.bit_count()
        if kind == "BREV":
            return int(f"{x:032b}"[::-1], 2)
        if not is_in(name, "U32") and x >> 31:
            x ^= 0xFFFFFFFF
        top = x.bit_length() - 1
        return (31 - top if is_in(name, "SH") else top) & 0xFFFFFFFF if x else 0xFFFFFFFF

    return lambda mask: put(mask, np.array([one(int(x)) for x in get()], U))
