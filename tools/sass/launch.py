"""A launch of a kernel, run from its machine code: blocks of warps, their memory, and where control goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sass import arithmetic, conversions, exchange, integers, logic  # noqa: F401 (they fill the table)
from sass.cubins import Instruction, Kernel
from sass.memory import Memory, Range, make_access, make_atomic
from sass.operands import LANES, Unknown, Words, flags, predicate, source, split
from sass.table import OPERATIONS
from sass.warp import ALL, Mask, Warp, lanes_of, mask_of

PARAMETERS = 0x210  # of bank 0, sm_90
NOTHING = {"NOP", "YIELD", "WARPSYNC.ALL", "DEPBAR", "MEMBAR", "ERRBAR", "CCTL", "NANOSLEEP", "LDGDEPBAR"}
CONTROL = ("BRA", "EXIT", "BSSY", "BSYNC", "BREAK", "CALL", "RET", "BAR", "WARPSYNC", "BRX", "JMP", "BMOV")


@dataclass
class Recorded:
    """A launch as lowtide_cuda_launches writes it."""

    words: dict[str, str] = field(default_factory=dict)
    memory: list[Range] = field(default_factory=list)
    results: list[Range] = field(default_factory=list)

    @staticmethod
    def read(file: Path) -> Recorded:
        out = Recorded()
        data = file.with_suffix(".bin").read_bytes()
        for line in file.read_text().splitlines():
            name, _, rest = line.partition(" ")
            if name in ("memory", "result"):
                begin, size, at = map(int, rest.split())
                where = out.memory if name == "memory" else out.results
                where.append(Range(begin, data[at : at + size]))
            else:
                out.words[name] = rest
        return out


class Step:
    """An instruction, ready to be run."""

    def __init__(self, launch: Launch, position: int) -> None:
        self.launch, self.position = launch, position
        self.instruction = launch.code[position]
        self.is_control = self.instruction.name.split(".")[0] in CONTROL

    def make(self, warp: Warp) -> Callable[[Mask], None]:
        i = self.instruction
        run = self._operation(warp, i)
        if not i.predicate:
            return run
        guard = flags(warp, i.predicate[1:])

        def guarded(mask: Mask) -> None:
            here = guard()
            if mask is not None:
                here = here & mask
            if here.all():
                run(None)
            elif here.any():
                run(here.copy())

        return guarded

    def _operation(self, warp: Warp, i: Instruction) -> Callable[[Mask], None]:
        base = i.name.split(".")[0]
        if base in NOTHING or i.name in NOTHING:
            return lambda mask: None
        if base in ("LD", "ST", "LDG", "STG", "LDS", "STS", "LDL", "STL"):
            return make_access(warp, self.position, i.text)
        if base in ("ATOM", "ATOMG", "RED", "REDG"):
            return make_atomic(warp, self.position, i.text)
        name, operands = split(i.text)
        known = OPERATIONS.get(base) or (OPERATIONS.get(base[1:]) if base.startswith("U") else None)
        if known is None:
            raise Unknown(f"{i.text} at {hex(i.address)}")
        return known(warp, name, operands)

    # Control.

    def run(self, warp: Warp, position: int, lanes: int) -> None:
        i = self.instruction
        taken = lanes
        words = i.text.replace(",", " ").split()
        for text in [i.predicate[1:]] if i.predicate else []:
            taken &= lanes_of(flags(warp, text)())
        base = words[0].split(".")[0]
        after = position + 1
        if base == "EXIT":
            warp.go(after, lanes & ~taken)
            warp.end(taken)
        elif base == "BRA":
            self._branch(warp, lanes, taken, words, after)
        elif base == "BRX":
            warp.go(after, lanes & ~taken)
            behind = self.launch.code[after].address + int(words[-1], 16)
            self._go_each(warp, taken, source(warp, words[1])() + np.uint32(behind & 0xFFFFFFFF))
        elif base == "BSSY":
            of_lane = warp.barriers.setdefault(words[1], [0] * LANES)
            for lane in range(LANES):
                if lanes >> lane & 1:
                    of_lane[lane] = lanes
            warp.go(after, lanes)
        elif base == "BREAK":
            warp.barriers[words[-1]] = [met & ~taken for met in warp.barriers[words[-1]]]
            warp.go(after, lanes)
        elif base == "BSYNC":
            warp.go(after, lanes & ~taken)
            warp.wait(position, taken)
        elif base == "CALL":
            warp.go(after, lanes & ~taken)
            warp.go(self.launch.position(int(words[-1], 16)), taken)
        elif base == "RET":
            warp.go(after, lanes & ~taken)
            self._go_each(warp, taken, source(warp, words[1])())
        elif base == "WARPSYNC":
            if lanes | warp.ended == ALL:
                warp.go(after, lanes)
            else:
                warp.wait(position, lanes)
        elif base == "BAR":
            if lanes | warp.ended != ALL:
                raise Unknown("a barrier that a part of a warp comes to")
            warp.at_barrier = True
            warp.waiting[position] = lanes
        else:
            raise Unknown(i.text)

    def _go_each(self, warp: Warp, taken: int, targets: Words) -> None:
        mask = mask_of(taken)
        for target in np.unique(targets[mask]):
            warp.go(self.launch.position(int(target)), lanes_of((targets == target) & mask))

    def _branch(self, warp: Warp, lanes: int, taken: int, words: list[str], after: int) -> None:
        to = self.launch.position(int(words[-1], 16))
        if ".DIV" in words[0]:  # where lanes have diverged
            wanted = int(source(warp, words[1])()[0])
            taken = 0 if lanes == wanted & ~warp.ended else taken
        else:
            for text in words[1:-1]:
                predicate(text)
                taken &= lanes_of(flags(warp, text)())
        warp.go(to, taken)
        warp.go(after, lanes & ~taken)


class Launch:
    LOCAL_BYTES = 8192
    MOST_INSTRUCTIONS = 4_000_000

    def __init__(self, kernel: Kernel, recorded: Recorded, traces: bool = False) -> None:
        self.traces = traces
        self.code = kernel.code
        self._position = {i.address: at for at, i in enumerate(kernel.code)}
        self.steps = [Step(self, at) for at in range(len(kernel.code))]
        self.memory = Memory(recorded.memory)
        self.threads, self.blocks = int(recorded.words["threads"]), int(recorded.words["blocks"])
        self.shared_bytes = kernel.shared + int(recorded.words["dynamic_bytes"])
        self.issued = 0
        parameters = bytes.fromhex(recorded.words["parameters"])
        bank = np.zeros(PARAMETERS + len(parameters) + 64, np.uint8)
        bank[PARAMETERS : PARAMETERS + len(parameters)] = np.frombuffer(parameters, np.uint8)
        self._bank = bank[: len(bank) // 4 * 4].view(np.uint32)
        self._bank[0], self._bank[1], self._bank[2] = self.threads, 1, 1
        self._bank[3], self._bank[4], self._bank[5] = self.blocks, 1, 1
        self._bank[0x28 // 4] = self.LOCAL_BYTES - 1024  # the top of the stack
        self._banks = {0: self._bank, **{n: np.frombuffer(data, "<u4") for n, data in kernel.constants.items()}}

    def constant(self, bank: int, at: Words) -> Words:
        """The words there, lane by lane."""
        words = self._banks.get(bank)
        if words is None or (at % 4).any() or (at // 4 >= len(words)).any():
            raise Unknown(f"c[{bank}][{hex(int(at.max()))}]")
        return words[at // 4]

    def position(self, code_address: int) -> int:
        return self._position[code_address]

    def run(self) -> list[Warp]:
        return [warp for block in range(self.blocks) for warp in self.run_block(block)]

    def run_block(self, block: int) -> list[Warp]:
        # Addresses of shared memory begin behind what the system keeps.
        self.shared = Memory([Range(0x400, bytes([0xC5]) * self.shared_bytes)])
        warps = [Warp(self, block, number) for number in range(self.threads // LANES)]
        with np.errstate(all="ignore"):
            while any(warp.groups for warp in warps):
                for warp in warps:
                    warp.run()
                if all(warp.at_barrier or warp.ended == ALL for warp in warps):
                    for warp in warps:
                        if warp.at_barrier:
                            warp.meet()
        return warps

    def differing_bytes(self, results: list[Range]) -> int:
        """How many bytes of the memory are not what they should be."""
        bad = 0
        for wanted in results:
            for range_ in self.memory.ranges:
                if range_.begin <= wanted.begin < range_.begin + range_.bytes:
                    at = wanted.begin - range_.begin
                    got = range_.data[at : at + wanted.bytes]
                    bad += int((got != wanted.data[: wanted.bytes]).sum())
        return bad
