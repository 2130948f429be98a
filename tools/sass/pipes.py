"""The cost of instructions on a multiprocessor of compute capability 9.0, and the machines that have it.

A multiprocessor has four sub-partitions. Each issues one instruction of a warp in a cycle, to pipes of its own, and
shares the path to memory with the others. Widths are from the table "Throughput of Native Arithmetic Instructions" of
NVIDIA's CUDA C++ Programming Guide (results in a cycle and multiprocessor, 9.0), and which pipe an instruction takes
from "Pipelines" of the Nsight Compute Kernel Profiling Guide:

  fma   128 for float32's additions, multiplications and their sums: two pipes of 64, of which the heavy one also takes
        integer multiplications (IMAD, whatever it is for)
  alu   64 for integer additions, comparisons, minima, shifts, logic, permutations and selections; FP32 to BF16 and FP16
        ("the ALU pipeline performs fast FP32-to-FP16 conversion")
  xu    16 for reciprocals, roots and conversions between floats and integers, and reductions of a warp
  lsu   32 for shuffles. One wavefront in a cycle: of shared memory, 32 banks of 4 bytes (memory.py counts conflicts); of
        global memory, 128 bytes

Costs are in slots: one is what a sub-partition issues to one lane, so that a warp's instruction costs 32, twice that on a
pipe of 64, and a wavefront, for which all four sub-partitions wait, 128.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from sass.cubins import Instruction
from sass.warp import Warp

ISSUE, ALU, FMA, HEAVY, XU, LSU = "issue", "alu", "fma", "fma heavy", "xu", "lsu"
PIPES = (ISSUE, ALU, FMA, HEAVY, XU, LSU)

_FLOATS = {"FADD", "FMUL", "FFMA", "HADD2", "HMUL2", "HFMA2"}
_MULTIPLIES = {"IMAD", "IMUL", "IDP"}
_APPROXIMATE = {"REDUX", "MUFU", "F2I", "I2F", "FRND", "POPC", "FLO", "BREV"}
_MEMORY = {
    "LD",
    "LDG",
    "LDS",
    "LDL",
    "ST",
    "STG",
    "STS",
    "STL",
    "ATOM",
    "ATOMG",
    "ATOMS",
    "RED",
    "REDG",
    "LDGSTS",
    "SHFL",
}
# Issued, and then no matter of these pipes: branches, meetings, constants, the datapath of uniform values.
_ELSEWHERE = {
    "NOP", "BRA", "EXIT", "BSSY", "BSYNC", "BREAK", "CALL", "RET", "WARPSYNC", "YIELD", "BAR", "DEPBAR", "LDGDEPBAR", "MEMBAR",
    "ERRBAR", "CCTL", "LDC", "S2R", "S2UR", "CS2R", "R2UR", "VOTEU", "NANOSLEEP", "ENDCOLLECTIVE", "BRX", "SYNCS", "UBLKCP", "FENCE", "ELECT",
}  # fmt: skip
_ALU = {
    "IADD3", "VIADD", "IABS", "LEA", "LOP3", "PLOP3", "SHF", "PRMT", "SEL", "FSEL", "MOV", "ISETP", "FSETP", "FMNMX", "VIMNMX",
    "VIADDMNMX", "VIMNMX3", "IMNMX", "F2FP", "FCHK", "VOTE", "I2FP", "P2R", "R2P", "BMSK", "SGXT",
}  # fmt: skip


def pipe_of(instruction: Instruction) -> str | None:
    """None: none of those that are modelled. A name that nobody knows is an error."""
    base = instruction.name.split(".")[0]
    for names, pipe in ((_FLOATS, FMA), (_MULTIPLIES, HEAVY), (_APPROXIMATE, XU), (_MEMORY, LSU), (_ALU, ALU)):
        if base in names:
            return pipe
    if base in _ELSEWHERE or (base.startswith("U") and base[1:] in _ALU | _ELSEWHERE | _MULTIPLIES | _APPROXIMATE):
        return None
    raise ValueError(f"got {instruction.text}, whose pipe nobody has said, wanted a name of tools/sass/pipes.py")


def costs(code: list[Instruction], counts: Counter[int], wavefronts: Counter[int]) -> Counter[str]:
    """In slots. counts: of each instruction, as warps have issued it; wavefronts: likewise."""
    slots: Counter[str] = Counter()
    for position, count in counts.items():
        pipe = pipe_of(code[position])
        slots[ISSUE] += 32 * count
        if pipe == FMA:
            slots[FMA] += 32 * count
        elif pipe == HEAVY:
            slots[FMA] += 32 * count
            slots[HEAVY] += 64 * count
        elif pipe == ALU:
            slots[ALU] += 64 * count
        elif pipe == XU:
            slots[XU] += 256 * count
        elif pipe == LSU:
            slots[LSU] += 128 * (wavefronts[position] or count)
    return slots


def is_lookup(instruction: Instruction) -> bool:
    return instruction.name.split(".")[0] == "LDS"


@dataclass(frozen=True)
class Machine:
    name: str
    multiprocessors: int
    clock: float  # cycles in a second, when all multiprocessors work
    copied: float  # bytes in a second, read and written, of the fastest copy within its memory

    def slots_of(self, moved: float) -> float:
        """That can be issued while so many bytes move."""
        return self.multiprocessors * 128 * self.clock * moved / self.copied


# Multiprocessors and the boost clock by NVIDIA's data sheets. H200: 4.3e12 was measured of a copy, 0.896 of the 4.8e12 of its
# data sheet. H100: the same share of 3.35e12; nobody has measured it for this project.
MACHINES = (Machine("H200", 132, 1.98e9, 4.3e12), Machine("H100 SXM", 132, 1.98e9, 3.0e12))


def pressed(warp: Warp) -> bool:
    """Whether it has had a part in a step."""
    return warp.global_bytes > 0
