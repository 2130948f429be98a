"""The table of instructions by their names: each makes, of its operands in a warp, a function that computes what its
destinations get in the lanes of a mask."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from sass.operands import Flags
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


def is_flag(text: str) -> bool:
    return bool(re.match(r"!?U?P[0-6T]$", text))


def is_in(name: str, part: str) -> bool:
    return part in name.split(".")[1:]


def rounding(name: str) -> str:
    return next((part for part in name.split(".")[1:] if part in ("RZ", "RM", "RP")), "RN")


def combined(name: str, found: Flags, other: Flags) -> Flags:
    """A comparison with the third flag of its instruction."""
    if is_in(name, "AND"):
        return found & other
    return found | other if is_in(name, "OR") else found ^ other
