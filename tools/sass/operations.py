"""Arithmetic, logic and comparisons of machine code, by their names: each makes, of an instruction's operands in a warp,
a function that computes what the destinations get."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sass import floats
from sass.operands import LANES, Flags, Source, Unknown, Words, flags, same, source, wide
from sass.warp import Mask, Warp

Make = Callable[[Warp, str, list[str]], Callable[[Mask], None]]
OPERATIONS: dict[str, Make] = {}
U = np.uint32
LOW = np.uint64(0xFFFFFFFF)


def operation(*names: str) -> Callable[[Make], Make]:
    def add(make: Make) -> Make:
        OPERATIONS.update(dict.fromkeys(names, make))
        return make

    return add


def words_of(text: str) -> bool:
    return bool(re.match(r"!?U?P[0-6T]$", text))


def is_in(name: str, part: str) -> bool:
    return part in name.split(".")[1:]


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
    while words_of(rest[0]):
        carries_out.append(rest.pop(0))
    carries_in = []
    while words_of(rest[-1]):
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
    carry_out = rest.pop(0) if words_of(rest[0]) else None
    carry_in = flags(warp, rest.pop()) if words_of(rest[-1]) else None
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


@operation("LEA")
def scaled_add(warp: Warp, name: str, operands: list[str]) -> Callable[[Mask], None]:
    target, *rest = operands
    carry_out = rest.pop(0) if words_of(rest[0]) else None
    carry_in = flags(warp, rest.pop()) if words_of(rest[-1]) else None
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
    put_flag = warp.put_flag(operands.pop(0)) if words_of(operands[0]) else None
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


@operation("IABS")
def magnitude(warp: Warp, name: str, operands: list[str]) -> Callable[[Mask], None]:
    put, get = warp.put(operands[0]), source(warp, operands[1])
    return lambda mask: put(mask, np.abs(get().view(np.int32)).view(U))


@operation("VIMNMX", "IMNMX")
def integer_extreme(warp: Warp, name: str, operands: list[str]) -> Callable[[Mask], None]:
    put, least = warp.put(operands[0]), flags(warp, operands[3])
    a, b = (source(warp, text) for text in operands[1:3])
    kind = U if is_in(name, "U32") else np.int32

    def run(mask: Mask) -> None:
        x, y = a().view(kind), b().view(kind)
        put(mask, np.where(least(), np.minimum(x, y), np.maximum(x, y)).view(U))

    return run


@operation("VIADDMNMX")
def add_extreme(warp: Warp, name: str, operands: list[str]) -> Callable[[Mask], None]:
    put, least = warp.put(operands[0]), flags(warp, operands[4])
    a, b, c = (source(warp, text) for text in operands[1:4])
    kind = U if is_in(name, "U32") else np.int32

    def run(mask: Mask) -> None:
        x, y = (a() + b()).view(kind), c().view(kind)
        put(mask, np.where(least(), np.minimum(x, y), np.maximum(x, y)).view(U))

    return run


def combined(name: str, found: Flags, other: Flags) -> Flags:
    if is_in(name, "AND"):
        return found & other
    return found | other if is_in(name, "OR") else found ^ other


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


def rounding(name: str) -> str:
    return next((part for part in name.split(".")[1:] if part in ("RZ", "RM", "RP")), "RN")


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


@operation("R2UR")
def to_uniform(warp: Warp, name: str, operands: list[str]) -> Callable[[Mask], None]:
    put, get = warp.put(operands[0]), source(warp, operands[1])

    def run(mask: Mask) -> None:
        lane = 0 if mask is None else int(np.argmax(mask))
        put(None, same(int(get()[lane])))

    return run


@operation("S2R", "CS2R", "S2UR")
def special(warp: Warp, name: str, operands: list[str]) -> Callable[[Mask], None]:
    target, what = operands
    lane = np.arange(LANES, dtype=U)
    values = {
        "SR_TID.X": lane + U(LANES * warp.number),
        "SR_LANEID": lane,
        "SR_CTAID.X": same(warp.block),
        "SR_CgaCtaId": same(0),
        "SRZ": same(0),
    }
    if what not in values:
        raise Unknown(f"{name} {what}")
    value, put = values[what], warp.put(target)
    if name.split(".")[0] == "CS2R" and not is_in(name, "32"):
        high = warp.put(target, 1)

        def run(mask: Mask) -> None:
            put(mask, value)
            high(mask, same(0))

        return run
    return lambda mask: put(mask, value)


@operation("LDC", "ULDC")
def load_constant(warp: Warp, name: str, operands: list[str]) -> Callable[[Mask], None]:
    words = 2 if is_in(name, "64") else 1
    puts = [warp.put(operands[0], n) for n in range(words)]
    gets = [source(warp, operands[1], offset=n) for n in range(words)]

    def run(mask: Mask) -> None:
        for put, get in zip(puts, gets):
            put(mask, get())

    return run


@operation("SHFL")
def shuffle(warp: Warp, name: str, operands: list[str]) -> Callable[[Mask], None]:
    valid, put = warp.put_flag(operands[0]), warp.put(operands[1])
    get, by, clamp = (source(warp, text) for text in operands[2:5])
    kind, lane = name.split(".")[1], np.arange(LANES)

    def run(mask: Mask) -> None:
        shift, limits = by().astype(np.int64) & 31, clamp().astype(np.int64)
        segment, most = limits >> 8 & 31, limits & 31
        end = (lane & segment) | (most & ~segment)
        if kind == "BFLY":
            of, there = lane ^ shift, (lane ^ shift) <= end
        elif kind == "UP":
            of, there = lane - shift, lane - shift >= end
        elif kind == "DOWN":
            of, there = lane + shift, lane + shift <= end
        else:
            of = (lane & segment) | (shift & ~segment)
            there = of <= end
        out = np.where(there, get()[np.where(there, of, lane)], get())
        put(mask, out)
        valid(mask, there)

    return run


@operation("VOTE", "VOTEU")
def vote(warp: Warp, name: str, operands: list[str]) -> Callable[[Mask], None]:
    operands = list(operands)
    put = None if words_of(operands[0]) else warp.put(operands.pop(0))
    put_flag = warp.put_flag(operands[0])
    get, kind = flags(warp, operands[1]), name.split(".")[1]

    def run(mask: Mask) -> None:
        here = np.ones(LANES, np.bool_) if mask is None else mask
        yes = get() & here
        if put:
            put(mask, same(int(np.packbits(yes, bitorder="little").view("<u4")[0])))
        found = bool(yes.any()) if kind == "ANY" else bool((yes == here).all())
        put_flag(mask, np.full(LANES, found))

    return run
