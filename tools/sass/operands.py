"""Operands of machine code: what their text stands for, as functions of a warp's registers."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from sass.warp import Warp

LANES = 32
Words = NDArray[np.uint32]
Floats = NDArray[np.float32]
Flags = NDArray[np.bool_]
Source = Callable[[], Words]

_MEMORY = re.compile(r"\[([^\]]*)\]")
_SPECIAL_FLOATS = {"+INF": 0x7F800000, "-INF": 0xFF800000, "+QNAN": 0x7FFFFFFF, "-QNAN": 0xFFFFFFFF, "QNAN": 0x7FFFFFFF,
                   "INF": 0x7F800000}  # fmt: skip


class Unknown(Exception):
    """Machine code that the executor does not know."""


def split(text: str) -> tuple[str, list[str]]:
    """The name of an instruction and its operands."""
    name, _, rest = text.partition(" ")
    operands = [part.strip().replace(".reuse", "") for part in re.split(r",(?![^\[]*\])", rest) if part.strip()]
    return name, operands


def same(value: int) -> Words:
    """In all lanes."""
    return np.full(LANES, value & 0xFFFFFFFF, np.uint32)


def number(text: str, is_float: bool) -> int:
    """The 32 bits of a number that stands in the code."""
    if text in _SPECIAL_FLOATS:
        return _SPECIAL_FLOATS[text]
    if re.fullmatch(r"-?0x[0-9a-f]+", text):
        return int(text, 16)
    if is_float or "." in text or "e" in text:
        return int(np.float32(float(text)).view(np.uint32))
    return int(text)


def register(text: str) -> int:
    """The number of a register: R12, UR4, RZ (255)."""
    found = re.fullmatch(r"U?R(\d+|Z)(?:\.\w+)*", text)
    if not found:
        raise Unknown(f"got {text}, wanted a register")
    return (63 if text.startswith("U") else 255) if found[1] == "Z" else int(found[1])


def predicate(text: str) -> int:
    found = re.fullmatch(r"!?U?P([0-6T])", text)
    if not found:
        raise Unknown(f"got {text}, wanted a predicate")
    return 7 if found[1] == "T" else int(found[1])


def flags(warp: Warp, text: str) -> Callable[[], Flags]:
    row: Flags = (warp.uniform_flags if "UP" in text else warp.flags)[predicate(text)]
    return (lambda: ~row) if text.startswith("!") else (lambda: row)


def row_of(warp: Warp, text: str, offset: int = 0) -> Words:
    """The lanes of a register; offset: of those behind it."""
    at = register(text)
    if text.startswith("UR"):
        row: Words = warp.uniform[at if at == 63 else at + offset]
    else:
        row = warp.registers[at if at == 255 else at + offset]
    return row


def source(warp: Warp, text: str, is_float: bool = False, offset: int = 0) -> Source:
    """A source of 32 bits in each lane; offset: the word of a wider one."""
    negative = text.startswith("-") and not text.startswith("-0x") and text not in _SPECIAL_FLOATS
    if negative and re.match(r"-[\d.]", text):
        negative = False
    plain = text[1:] if negative else text
    inverted = plain.startswith("~")
    plain = plain.lstrip("~")
    absolute = plain.startswith("|")
    plain = plain.strip("|")
    get: Source
    if re.match(r"U?R(\d|Z)", plain):
        row = row_of(warp, plain, offset)
        get = lambda: row
    elif plain.startswith("c["):
        get = constant(warp, plain, offset)
    else:
        value = number(plain, is_float)
        if offset:
            value = value >> 32 if value >= 0 else -1
        fixed = same(value)
        get = lambda: fixed
    if absolute:
        inner = get
        get = lambda: inner() & np.uint32(0x7FFFFFFF)
    if inverted:
        inner_of_not = get
        get = lambda: ~inner_of_not()
    if negative:
        positive = get
        if is_float:
            return lambda: positive() ^ np.uint32(0x80000000)
        return lambda: np.uint32(0) - positive()
    return get


def constant(warp: Warp, text: str, offset: int = 0) -> Source:
    found = re.fullmatch(r"c\[0x([0-9a-f]+)\]\[(.*)\]", text)
    if not found:
        raise Unknown(f"got {text}, wanted c[BANK][ADDRESS]")
    bank = int(found[1], 16)
    parts = found[2].split("+")
    places = [source(warp, part) for part in parts]

    def get() -> Words:
        at = sum((place() for place in places[1:]), places[0]())
        return warp.launch.constant(bank, at + np.uint32(4 * offset))

    if all(not re.match(r"U?R\d", part) for part in parts):
        fixed = get()
        return lambda: fixed
    return get


def address(warp: Warp, text: str) -> Callable[[], NDArray[np.uint64]]:
    """The sum in the last [] of a memory operand: R2.64+0x10, R14+UR4, R4+UR6+0x8."""
    inside = _MEMORY.findall(text)[-1]
    terms: list[Callable[[], NDArray[np.uint64]]] = []
    for part in re.sub(r"\+-", "-", inside).replace("-", "+-").split("+"):
        if not part:
            continue
        if part.startswith("-"):
            fixed = np.full(LANES, int(part, 16) & 0xFFFFFFFFFFFFFFFF, np.uint64)
            terms.append(lambda fixed=fixed: fixed)  # type: ignore[misc]
        elif part.startswith("0x"):
            fixed = np.full(LANES, int(part, 16), np.uint64)
            terms.append(lambda fixed=fixed: fixed)  # type: ignore[misc]
        else:
            name, _, kind = part.partition(".")
            factor = np.uint64(int(kind[1:]) if re.fullmatch(r"X\d+", kind) else 1)
            if kind == "64":
                terms.append(wide(warp, name))
            else:
                low = source(warp, name)
                terms.append(lambda low=low, factor=factor: low().astype(np.uint64) * factor)  # type: ignore[misc]
    if len(terms) == 1:
        return terms[0]
    return lambda: sum((term() for term in terms[1:]), terms[0]())


def wide(warp: Warp, text: str) -> Callable[[], NDArray[np.uint64]]:
    """A source of 64 bits."""
    low, high = source(warp, text), source(warp, text, offset=1)
    return lambda: low().astype(np.uint64) | high().astype(np.uint64) << np.uint64(32)


def any_of(name: str, *parts: str) -> bool:
    return bool(set(name.split(".")) & set(parts))


def as_float(get: Source) -> Callable[[], Floats]:
    return lambda: get().view(np.float32)


Operation = Callable[[Any], None]
