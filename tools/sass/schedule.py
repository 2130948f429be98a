"""A simulation of one multiprocessor: warps of a step beside each other, cycle by cycle, by the schedule that ptxas has
written into their instructions.

Each instruction of compute capability 7.0 and later says how many cycles its warp waits behind it, which of six barriers
it waits for, and which it sets until its result is there (bits 105 to 125 of the 128; NVIDIA does not document them, Jia
et al., "Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking", do). A sub-partition issues one instruction in a
cycle, of the warps that can; pipes take as long as pipes.py says. Bytes of global memory pass one server at the rate of the
copy, and come LATENCY later.

Assumptions: latencies are those that microbenchmarks have found, and stay the same; nothing misses the instruction cache;
what is read twice (items, scales) comes from the L2 cache without a charge.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sass.cubins import Instruction, Kernel
from sass.memory import bytes_of
from sass.offences import REGISTERS_OF_ALL, SHARED_OF_ALL, SHARED_OF_BLOCK
from sass.pipes import ALU, FMA, HEAVY, LSU, XU, Machine, pipe_of
from sass.warp import Warp

PARTITIONS = 4
# Cycles from a wavefront, or the issue, to the result.
OF_SHARED, OF_XU, OF_SHUFFLE, OF_L2, OF_MEMORY, OF_OTHERS = 23, 18, 22, 260, 650, 20
LSU_QUEUE = 48  # wavefronts that may wait before issue does


@dataclass
class Issued:
    """One instruction of a trace, as far as time goes."""

    stall: int
    sets: int  # barrier, 7: none
    reads: int
    waits: int
    pipe: str | None
    wavefronts: int
    latency: int
    bytes: int  # of global memory


def decoded(instruction: Instruction, wavefronts: int) -> Issued:
    control, pipe = instruction.control, pipe_of(instruction)
    base = instruction.name.split(".")[0]
    moved, latency = 0, OF_OTHERS
    if base in ("LDG", "STG") and bytes_of(instruction.name) >= 8:
        moved, latency = 128 * wavefronts, OF_MEMORY
    elif base in ("LD", "LDG"):
        latency = OF_L2
    elif base == "LDS":
        latency = OF_SHARED
    elif base == "SHFL":
        latency = OF_SHUFFLE
    elif pipe == XU:
        latency = OF_XU
    return Issued(
        control & 15, control >> 5 & 7, control >> 8 & 7, control >> 11 & 63, pipe, max(wavefronts, 1), latency, moved
    )


def trace_of(warp: Warp) -> list[Issued]:
    """The instructions of a warp in order. Its trace has the wavefronts before each."""
    last: dict[int, Issued] = {}
    before: dict[int, int] = {}
    out = []
    for position, total in warp.trace or []:
        if position in last:
            _settle(last[position], total - before[position])
        before[position] = total
        last[position] = decoded(warp.launch.code[position], 1)
        out.append(last[position])
    for position, issued in last.items():
        _settle(issued, warp.wavefronts[position] - before[position])
    return out


def _settle(issued: Issued, wavefronts: int) -> None:
    issued.wavefronts = max(wavefronts, 1)
    issued.bytes = 128 * wavefronts if issued.bytes else 0


def resident_blocks(kernel: Kernel, threads: int, shared: int) -> int:
    by_registers = REGISTERS_OF_ALL // (-(-kernel.registers // 8) * 8 * threads)
    return max(1, min(by_registers, SHARED_OF_ALL["sm_90"] // (shared + SHARED_OF_BLOCK)))


class Runner:
    """A resident warp, which begins the trace anew when it is done."""

    def __init__(self, begin: float) -> None:
        self.at, self.ready = 0, begin
        self.barriers = [0.0] * 6


def share(trace: list[Issued], warps: int, moved: float, machine: Machine) -> float:
    """The part of the copy rate that a multiprocessor reaches, moving so many bytes with each trace."""
    rate = machine.copied / machine.clock / machine.multiprocessors
    length = len(trace)
    # Warps are somewhere in their tiles.
    runners = [[Runner(0) for _ in range(n, warps, PARTITIONS)] for n in range(PARTITIONS)]
    for number, runner in enumerate(runner for partition in runners for runner in partition):
        runner.at = number * length // warps
    free = [{ALU: 0.0, FMA: 0.0, HEAVY: 0.0, XU: 0.0} for _ in range(PARTITIONS)]
    lsu = memory = cycle = begin = 0.0
    issued, turn = 0, [0] * PARTITIONS
    warm, last = length * warps // 4, length * warps * 5 // 4
    while issued < last:
        soonest = cycle + 1000.0
        for partition in range(PARTITIONS):
            pipes, own = free[partition], runners[partition]
            for offset in range(len(own)):
                runner = own[(turn[partition] + offset) % len(own)]
                if runner.ready > cycle:
                    soonest = min(soonest, runner.ready)
                    continue
                one = trace[runner.at]
                until = max((runner.barriers[b] for b in range(6) if one.waits >> b & 1), default=0.0)
                pipe = one.pipe
                if pipe == FMA:
                    until = max(until, min(pipes[FMA], pipes[HEAVY]))
                elif pipe == LSU:
                    until = max(until, lsu - LSU_QUEUE)
                elif pipe:
                    until = max(until, pipes[pipe])
                if until > cycle:
                    soonest = min(soonest, until)
                    continue
                done = cycle + one.latency
                if pipe == FMA:
                    lighter = FMA if pipes[FMA] <= cycle else HEAVY
                    pipes[lighter] = cycle + 2
                elif pipe in (ALU, HEAVY):
                    pipes[pipe] = cycle + 2
                elif pipe == XU:
                    pipes[XU] = cycle + 8
                elif pipe == LSU:
                    lsu = max(lsu, cycle + 4.0) + one.wavefronts
                    done = lsu + one.latency
                    if one.bytes:
                        memory = max(memory, lsu) + one.bytes / rate
                        done = memory + one.latency
                if one.sets < 6:
                    runner.barriers[one.sets] = max(runner.barriers[one.sets], done)
                if one.reads < 6:
                    runner.barriers[one.reads] = max(runner.barriers[one.reads], (lsu if pipe == LSU else cycle) + 8)
                runner.ready = cycle + max(one.stall, 1)
                runner.at = (runner.at + 1) % length
                turn[partition] = (turn[partition] + offset) % len(own)  # the same warp first, as long as it can
                issued += 1
                if issued == warm:
                    begin = max(cycle, memory)
                soonest = cycle + 1
                break
        cycle = max(cycle + 1.0, float(math.ceil(soonest)))
    # Memory has taken on work that it must do in the time, too.
    return moved * (last - warm) / length / ((max(cycle, memory) - begin) * rate)
