"""Finds what no kernel's machine code may contain, or only within a budget."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from sass.cubins import Kernel, demangled

ELEMENTS_OF_A_LANE = 16

_STRUCT = re.compile(r"^struct (\w+)(?: : (?:\w+<)?(\w+)>?)? \{|kStates = (\d+);", re.MULTILINE)


def states_of_rules() -> dict[str, int]:
    """The number of states of each rule, from its header or that of its base, by the name of its struct in lower case."""
    bases: dict[str, str] = {}
    states: dict[str, int] = {}
    for header in sorted((Path(__file__).parents[2] / "src" / "portable" / "rules").glob("*.h")):
        name = ""
        for struct, base, count in _STRUCT.findall(header.read_text(encoding="utf-8")):
            if struct:
                name = struct.lower()
                bases[name] = base.lower()
            else:
                states[name] = int(count)
    for name in bases:
        of = name
        while of and of not in states:
            of = bases.get(of, "")
        if of:
            states[name] = states[of]
    return states


STATES = states_of_rules()

# Blocks of a step that must be resident together on a multiprocessor (__launch_bounds__), and its registers. Their shared memory,
# at most 48 KiB each, always fits from 8.0 on; a multiprocessor of 7.5 has 64 KiB and holds one block of dynamic8.
BLOCKS, THREADS, REGISTERS_OF_ALL = 2, 256, 65536

# Kernels whose threads index arrays of their own at run time: norms and feedback for tensors with strides, sums of terms,
# counters of votes, and ballots. All others keep everything in registers.
HAS_LOCAL = re.compile(r"norms_kernel|terms_kernel|ballot_kernel|feedback_kernel|count_kernel|vote_kernel")

# Steps with three or four states keep some of a lane's 48 or 64 values in local memory, because two blocks per multiprocessor
# leave a thread 128 registers. One access is one instruction of some ten thousand. By the number of states; for 7.5, twice as many.
MOST_LOCAL = {3: 75, 4: 320}

# Fast steps of dynamic8 lack one register: each round of the plain path reads the number of the tile's blocks from local
# memory, one access per thousand instructions.
MOST_LOCAL_OF_FAST_DYNAMIC8 = 2

# Fused sums that the source requests for codes of float8: per element and state, one to read and one to write. Their products,
# by 2 and 1/2, are exact.
FUSED_IN_FLOAT8 = 2

# Norms only read codes, on two paths: for plain tiles and for others.
NORM_PATHS = 2

# Rules whose arithmetic for numbers in range is not IEEE's (real-inl.h). Careful steps contain it once more, with the reads.
HAS_CAREFUL = {"adam", "adamw", "adamamsgrad", "adamwamsgrad", "lamb", "lion"}


def hot_paths(states: int) -> int:
    """How many copies of the hot path a kernel has: for the most common form, for the others and, with at most two states, for
    whole sectors."""
    return 3 if states <= 2 else 2


def wrong_selectors(kernel: Kernel) -> list[str]:
    """Selectors of PRMT that take a byte's sign without extending its number, or that repeat a byte instead of its sign.
    (CUDA's __byte_perm masks selectors, so that PTX's 0xbb32 becomes 0x3332.)"""
    wrong = []
    for i in kernel.code:
        if not (found := re.match(r"U?PRMT \S+, (\S+), 0x([0-9a-f]+), (\S+)", i.text)):
            continue
        nibbles = [int(digit, 16) for digit in reversed(found[2].zfill(4))]
        plain = [n for n in nibbles if n < 8]
        extends = all(n == plain[-1] + 8 for n in nibbles[len(plain) :]) if plain else False
        repeated = nibbles[1] if nibbles[1] == nibbles[2] == nibbles[3] != nibbles[0] else 8
        loses = repeated < 8 and not found[3 if repeated >= 4 else 1].startswith(("RZ", "URZ"))
        if (len(plain) < 4 and not extends) or loses:
            wrong.append(f"a PRMT with selector 0x{found[2]}")
    return sorted(set(wrong))


def fused(kernel: Kernel) -> tuple[int, int]:
    """The fused sums that an exact kernel has, and how many it may have. nvcc's sequences, which real-inl.h has, too, use one
    reciprocal or reciprocal root each: 6 for a division of known range, 5 for a checked one (FCHK), 2 for a checked reciprocal
    (which otherwise calls a function), 2 for a root, 1 for a division of doubles, whose range it checks. Sums inside functions
    do not count; reciprocals of integer divisions, which begin with a conversion upwards, have none."""
    end = min(kernel.functions, default=1 << 62)
    code = [i for i in kernel.code if i.address < end]
    called = [kernel.functions.get(int(i.text.split()[-1], 16), "") for i in code if i.name.startswith("CALL")]
    names = Counter(i.name for i in code)

    def count(pattern: str) -> int:
        return sum(times for name, times in names.items() if re.match(pattern, name))

    float_reciprocals = count(r"MUFU\.RCP$") - count(r"I2F\..*\.RP$")
    checked = sum("rcp_rn" in name and "dblrcp" not in name for name in called)
    may = 6 * float_reciprocals + 2 * count(r"MUFU\.RSQ$") + count(r"MUFU\.RCP64H$") - count("FCHK") - 4 * checked
    words = demangled(kernel.name).split()
    if "norms_kernel" in words[:-2] and words[-1] == "Float8":
        may += ELEMENTS_OF_A_LANE * STATES.get(words[-2].lower(), 2) * NORM_PATHS
    if words[1:2] == ["float8"]:
        states = STATES.get(words[0], 2)
        may += FUSED_IN_FLOAT8 * ELEMENTS_OF_A_LANE * states * hot_paths(states)
        may += ELEMENTS_OF_A_LANE * states * (words[0] in HAS_CAREFUL)
    return count(r"FFMA(?!.*\.SAT)"), may


def wrong_everywhere(kernel: Kernel, name: str) -> list[str]:
    """The offences that any kernel can commit."""
    wrong = wrong_selectors(kernel)
    most_local = MOST_LOCAL.get(STATES.get(name.partition(" ")[0], 2), 0) * (2 if kernel.architecture == "sm_75" else 1)
    if name.endswith(" dynamic8 fast"):
        most_local = max(most_local, MOST_LOCAL_OF_FAST_DYNAMIC8)
    if kernel.spills > most_local and not HAS_LOCAL.search(name):
        wrong.append(f"{kernel.spills} accesses to local memory, at most {most_local}")
    if "cuda_device_fast" not in kernel.name:
        found, may = fused(kernel)
        if found > may:
            wrong.append(f"{found} fused sums, at most {may}: something is contracted")
    if "step_kernel" in kernel.name and kernel.registers * THREADS * BLOCKS > REGISTERS_OF_ALL:
        wrong.append(f"{kernel.registers} registers: {BLOCKS} blocks of {THREADS} threads are not resident")
    return wrong
