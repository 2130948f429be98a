"""Values of all lanes, and what lanes tell each other."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sass.operands import LANES, Unknown, flags, same, source
from sass.table import U, is_flag, is_in, operation
from sass.warp import Mask, Warp


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
    put = None if is_flag(operands[0]) else warp.put(operands.pop(0))
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


@operation("REDUX")
def reduce(warp: Warp, name: str, operands: list[str]) -> Callable[[Mask], None]:
    put, get = warp.put(operands[0]), source(warp, operands[1])
    combine = {"MIN": np.minimum, "MAX": np.maximum, "SUM": np.add, "OR": np.bitwise_or}[name.split(".")[1]]
    kind = np.int32 if is_in(name, "S32") else np.uint32

    def run(mask: Mask) -> None:
        values = get() if mask is None else get()[mask]
        put(mask, np.full(LANES, combine.reduce(values.view(kind)), kind).view(np.uint32))

    return run
