"""Accesses to memory: what lanes read and write, and how often the hardware must go there.

Shared memory has 32 banks of 4 bytes. An access takes a wavefront for each different word that lanes want of one bank;
lanes go together in halves for 8 bytes each, in quarters for 16. Accesses to global memory take a wavefront for each
128 bytes of what goes over the lanes' path, and are counted in sectors of 32 bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sass.operands import LANES, Unknown, address, source, split
from sass.warp import Mask, Warp

Addresses = NDArray[np.uint64]
BANKS = 32
_EVERY = np.ones(LANES, np.bool_)


def bytes_of(name: str) -> int:
    parts = name.split(".")[1:]
    for part, size in (("128", 16), ("64", 8), ("U8", 1), ("S8", 1), ("U16", 2), ("S16", 2)):
        if part in parts:
            return size
    return 4


def bank_wavefronts(at: Addresses, size: int) -> int:
    """The wavefronts of an access of these lanes to shared memory."""
    total = 0
    lanes_at_once = {16: 8, 8: 16}.get(size, LANES)
    seen: list[list[int]] = []  # lanes that want the same as others get it with them
    for first in range(0, len(at), lanes_at_once):
        words = (at[first : first + lanes_at_once] // np.uint64(4))[:, None] + np.arange(
            max(size // 4, 1), dtype=np.uint64
        )
        different = np.unique(words)
        if (wanted := different.tolist()) in seen:
            continue
        seen.append(wanted)
        total += int(np.bincount((different % np.uint64(BANKS)).astype(np.int64)).max())
    return total


def space_of(name: str) -> str:
    base = name.split(".")[0]
    return {"LDS": "shared", "STS": "shared", "LDL": "local", "STL": "local"}.get(base, "global")


def extended(name: str, value: NDArray[np.uint32]) -> NDArray[np.uint32]:
    if name.split(".")[-1] in ("S8", "S16"):
        kind = np.int8 if name.endswith("S8") else np.int16
        return value.astype(np.uint32).view(np.int32).astype(kind).astype(np.int32).view(np.uint32)
    return value


def make_access(warp: Warp, position: int, text: str) -> Callable[[Mask], None]:
    name, operands = split(text)
    is_load = name.startswith("LD")
    where = operands[1] if is_load else operands[0]
    at, size, space = address(warp, where), bytes_of(name), space_of(name)
    words = max(size // 4, 1)
    launch = warp.launch
    puts = [warp.put(operands[0], n) for n in range(words)] if is_load else []
    gets = [] if is_load else [source(warp, operands[1], offset=n) for n in range(words)]

    def run(mask: Mask) -> None:
        here = _EVERY if mask is None else mask
        if not here.any():
            return
        places = at()[here]
        if space != "global":
            places = places & np.uint64(0xFFFFFFFF)
        if space == "local":
            lanes = np.nonzero(here)[0]
            if size < 4:
                raise Unknown(name)
            for n in range(words):
                slot = places.astype(np.int64) // 4 + n
                if is_load:
                    out = np.zeros(LANES, np.uint32)
                    out[here] = warp.local[lanes, slot]
                    puts[n](mask, out)
                else:
                    warp.local[lanes, slot] = gets[n]()[here]
            warp.wavefronts[position] += words
            return
        if (places % np.uint64(size)).any():
            raise Unknown(f"{name} at addresses that are no multiples of {size}")
        if space == "shared":
            wavefronts = bank_wavefronts(places, size)
        else:
            wavefronts = max(1, -(-len(np.unique(places)) * size // 128))
            sectors = np.unique(
                np.concatenate([places // np.uint64(32), (places + np.uint64(size - 1)) // np.uint64(32)])
            )
            warp.sectors += len(sectors)
            warp.global_bytes += len(places) * size
            if size >= 8 and name.startswith(("LDG", "STG")):
                warp.wide_bytes += len(np.unique(places)) * size
        warp.wavefronts[position] += wavefronts
        memory = launch.shared if space == "shared" else launch.memory
        if is_load:
            for n, part in enumerate(memory.load(places, size)):
                out = np.zeros(LANES, np.uint32)
                out[here] = extended(name, part)
                puts[n](mask, out)
        else:
            memory.store(places, size, [get()[here] for get in gets])

    return run


def make_atomic(warp: Warp, position: int, text: str) -> Callable[[Mask], None]:
    name, operands = split(text)
    found = re.match(r"(ATOM|ATOMG|RED|REDG)\.E\.(OR|ADD|MIN)\.", name)
    if not found:
        raise Unknown(name)
    at, value = address(warp, operands[-2]), source(warp, operands[-1])
    put = warp.put(operands[1]) if found[1].startswith("ATOM") else None
    combine = {"OR": np.bitwise_or, "ADD": np.add, "MIN": np.minimum}[found[2]]

    def run(mask: Mask) -> None:
        here = _EVERY if mask is None else mask
        out = np.zeros(LANES, np.uint32)
        for lane in np.nonzero(here)[0]:
            place = at()[lane : lane + 1]
            (before,) = warp.launch.memory.load(place, 4)
            out[lane] = before[0]
            warp.launch.memory.store(place, 4, [combine(before, value()[lane : lane + 1])])
        warp.wavefronts[position] += int(here.sum())
        if put:
            put(mask, out)

    return run


class Range:
    """Bytes at consecutive addresses."""

    def __init__(self, begin: int, data: bytes) -> None:
        self.begin, self.bytes = begin, len(data)
        padded = np.zeros(-(-len(data) // 16) * 16, np.uint8)
        padded[: len(data)] = np.frombuffer(data, np.uint8)
        self.data = padded

    def view(self, size: int) -> NDArray[np.unsignedinteger]:
        return self.data.view({1: np.uint8, 2: np.uint16}.get(size, np.uint32))


class Memory:
    """Ranges of addresses; everything else is out of bounds."""

    def __init__(self, ranges: list[Range]) -> None:
        self.ranges = sorted(ranges, key=lambda r: r.begin)
        self._begins = np.array([r.begin for r in self.ranges], np.uint64)

    def _parts(self, at: Addresses, size: int) -> list[tuple[NDArray[np.int64], NDArray[np.int64], Range]]:
        """Which lanes are in which range, and where there, in units of what is read."""
        number = np.searchsorted(self._begins, at, side="right") - 1
        parts = []
        for which in np.unique(number):
            place = self.ranges[which]
            lanes = np.nonzero(number == which)[0]
            offset = (at[lanes] - np.uint64(place.begin)).astype(np.int64)
            if which < 0 or (offset + size > place.bytes).any():
                raise Unknown(f"an access out of bounds, at {hex(int(at[lanes][0]))}")
            if place.begin % 16:
                raise Unknown("memory that does not begin at a multiple of 16")
            parts.append((lanes, offset // min(size, 4), place))
        return parts

    def load(self, at: Addresses, size: int) -> list[NDArray[np.uint32]]:
        out = [np.zeros(len(at), np.uint32) for _ in range(max(size // 4, 1))]
        for lanes, offset, place in self._parts(at, size):
            view = place.view(size)
            for n, word in enumerate(out):
                word[lanes] = view[offset + n]
        return out

    def store(self, at: Addresses, size: int, words: list[NDArray[np.uint32]]) -> None:
        for lanes, offset, place in self._parts(at, size):
            view = place.view(size)
            for n, word in enumerate(words):
                view[offset + n] = word[lanes]
