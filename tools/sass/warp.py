"""A warp: registers of 32 lanes, which of these run together, and where they wait for each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from sass.operands import LANES, Flags, Unknown, Words, predicate, register

if TYPE_CHECKING:
    from sass.launch import Launch

Mask = Flags | None  # the lanes that an instruction changes; None: all
ALL = (1 << LANES) - 1


def mask_of(lanes: int) -> Flags:
    return np.unpackbits(np.array([lanes], "<u4").view(np.uint8), bitorder="little").astype(np.bool_)


def lanes_of(mask: Flags) -> int:
    return int(np.packbits(mask, bitorder="little").view("<u4")[0])


class Warp:
    def __init__(self, launch: Launch, block: int, number: int) -> None:
        self.launch, self.block, self.number = launch, block, number
        self.registers = np.full((256, LANES), 0xC5C5C5C5, np.uint32)
        self.uniform = np.full((64, LANES), 0xC5C5C5C5, np.uint32)
        self.registers[255] = self.uniform[63] = 0
        self.flags, self.uniform_flags = (np.zeros((8, LANES), np.bool_) for _ in range(2))
        self.flags[7] = self.uniform_flags[7] = True
        self.local = np.zeros((LANES, launch.LOCAL_BYTES // 4), np.uint32)
        self.groups: dict[int, int] = {0: ALL}  # lanes by the position of what they run next
        self.waiting: dict[int, int] = {}  # likewise, of lanes that wait for others
        self.barriers: dict[str, list[int]] = {}  # for each lane the lanes that it meets there
        self.at_barrier = False
        self.ended = 0
        self.counts: Counter[int] = Counter()  # instructions by position
        self.wavefronts: Counter[int] = Counter()  # of accesses to memory, likewise
        self.global_bytes = self.wide_bytes = self.sectors = 0  # of accesses to global memory
        self.meetings = 0
        self.trace: list[tuple[int, int]] | None = None  # positions and their wavefronts, in order, if it is wanted
        self._made: dict[int, Callable[[Mask], None]] = {}

    def meet(self) -> None:
        """All of the block have come to its barrier. What is counted begins behind the first."""
        self.at_barrier = False
        ((position, lanes),) = self.waiting.items()
        self.waiting.clear()
        self.go(position + 1, lanes)
        if not self.meetings:
            self.trace = [] if self.launch.traces else None
            self.counts.clear()
            self.wavefronts.clear()
            self.global_bytes = self.wide_bytes = self.sectors = 0
        self.meetings += 1

    def put(self, text: str, offset: int = 0) -> Callable[[Mask, Words], None]:
        """A function that writes a register; offset: the word of a wider one."""
        at = register(text)
        if text.startswith("U"):
            if at == 63:
                return lambda mask, value: None
            row = self.uniform[at + offset]

            def put_all(mask: Mask, value: Words) -> None:
                row[:] = value

            return put_all
        if at == 255:
            return lambda mask, value: None
        row = self.registers[at + offset]

        def put(mask: Mask, value: Words) -> None:
            if mask is None:
                row[:] = value
            else:
                np.copyto(row, value, where=mask)

        return put

    def put_flag(self, text: str) -> Callable[[Mask, Flags], None]:
        at = predicate(text)
        if at == 7:
            return lambda mask, value: None
        is_uniform = text.lstrip("!").startswith("U")
        row = (self.uniform_flags if is_uniform else self.flags)[at]

        def put(mask: Mask, value: Flags) -> None:
            if mask is None or is_uniform:
                row[:] = value
            else:
                np.copyto(row, value, where=mask)

        return put

    # Where lanes go.

    def go(self, position: int, lanes: int) -> None:
        if lanes:
            self.groups[position] = self.groups.get(position, 0) | lanes

    def end(self, lanes: int) -> None:
        self.ended |= lanes
        for position in list(self.waiting):
            self.release(position)

    def wait(self, position: int, lanes: int) -> None:
        """At a meeting, whose position is this."""
        self.waiting[position] = self.waiting.get(position, 0) | lanes
        self.release(position)

    def release(self, position: int) -> None:
        """Those who meet there go on if all have come."""
        lanes = self.waiting.get(position, 0)
        instruction = self.launch.code[position]
        if instruction.name.startswith("BSYNC"):
            of_lane = self.barriers.get(instruction.text.split()[1], [0] * LANES)
            wanted = 0
            for lane in range(LANES):
                if lanes >> lane & 1:
                    wanted |= of_lane[lane]
        else:
            wanted = ALL
        if lanes and (wanted & ~self.ended) & ~lanes == 0:
            del self.waiting[position]
            self.go(position + 1, lanes)

    def run(self) -> None:
        """Until all lanes have ended or wait at the block's barrier."""
        launch = self.launch
        while self.groups:
            position = min(self.groups)
            lanes = self.groups.pop(position)
            others = min(self.groups) if self.groups else len(launch.code) + 1
            mask = None if lanes == ALL else mask_of(lanes)
            while True:
                step = launch.steps[position]
                self.counts[position] += 1
                if self.trace is not None:
                    self.trace.append((position, self.wavefronts[position]))
                launch.issued += 1
                if launch.issued > launch.MOST_INSTRUCTIONS:
                    raise Unknown("a step that does not end")
                if step.is_control:
                    step.run(self, position, lanes)
                    break
                made = self._made.get(position)
                if made is None:
                    made = self._made[position] = step.make(self)
                made(mask)
                position += 1
                if position >= others:
                    self.go(position, lanes)
                    break
        if self.waiting and not self.at_barrier:
            raise Unknown(f"lanes wait for others that never come, at {sorted(self.waiting)}")
