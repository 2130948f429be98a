#!/usr/bin/env python3
"""Reads the machine code of the CUDA kernels: registers, spills, accesses, and instructions per element.

    cubin_report.py FILE...                       objects of nvcc, or cubins
    cubin_report.py --all FILE...                 every kernel, not only those that have a budget
    cubin_report.py --architectures 80,90 FILE... these only

Needs cuobjdump and nvdisasm: on PATH, or pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm. Exits with 1 if a budget
is exceeded or a kernel does what none may; with 77, and the reason, without the tools or the files.

Instructions per element. A lane of a step's hot path has 16 elements. The machine code is cut into basic blocks and
natural loops (a branch back to a block that dominates it). The hot loop is the innermost one with 128-bit stores to
global memory. Of its blocks those count from which such a store can still be reached in the same round, and those that
come behind a store before the next round: both branches of every condition among them, and none of the slow path,
which goes back without such a store. (BRA.DIV, to where lanes that have diverged meet, is never taken: warps are whole.)
Their instructions, without NOP, divided by 16, are "loop". "static" is the whole kernel's.

Judged of every kernel, with a budget or without: selectors of PRMT, which extend a sign or say why not; fused sums of exact
kernels, which are those of divisions and roots and of nothing else; memory of threads' own; and the registers and shared
memory that let BLOCKS of them be resident. The hot loops of dynamic8 must sign-extend a half of each element's bits.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from sass.cubins import Kernel, cubins_of, demangled, find_tool, read_cubin, skip
from sass.loops import hot_loop
from sass.offences import ELEMENTS_OF_A_LANE, NARROW_OF_RULE, wrong_everywhere

# Instructions per element of hot loops, at most: (rule, codec) -> exact, and fast where there is such a kernel. For all
# pairs of element types and all architectures. At 4.3 TB/s an H200 issues 78 per element of AdamW with 8-bit states
# (132 multiprocessors of 128 lanes).
BUDGETS = {
    ("adam", "dynamic8"): (76, 60),
    ("adam", "bf16"): (53, 36),
    ("adam", "fp32"): (50, 33),
    ("adamw", "dynamic8"): (76, 60),
    ("adamw", "bf16"): (53, 36),
    ("adamw", "fp32"): (50, 33),
    ("lion", "dynamic8"): (45,),
    ("lion", "bf16"): (30,),
    ("lion", "fp32"): (29,),
    ("sgd", "dynamic8"): (40,),
    ("sgd", "bf16"): (25,),
    ("sgd", "fp32"): (24,),
}

# Budgets of exact kernels that round stochastically: (rule, codec) -> at most. They count both ways of rounding a
# state, of which a step takes one; float8 has one only.
RANDOM_BUDGETS = {
    ("adam", "dynamic8"): 145,
    ("adam", "bf16"): 80,
    ("adam", "float8"): 103,
    ("adamw", "dynamic8"): 145,
    ("adamw", "bf16"): 80,
    ("adamw", "float8"): 103,
    ("lion", "dynamic8"): 85,
    ("lion", "bf16"): 47,
    ("lion", "float8"): 63,
    ("sgd", "dynamic8"): 80,
    ("sgd", "bf16"): 43,
    ("sgd", "float8"): 58,
}


def budget_of(name: str) -> float | None:
    """By a kernel's short name."""
    words = name.split()
    if words[-1] == "random":
        return RANDOM_BUDGETS.get((words[0], words[1]))
    found = BUDGETS.get((words[0], words[1])) if len(words) == 4 and words[2] != "any" else None
    is_fast = words[-1] == "fast"
    return found[is_fast] if found and is_fast < len(found) else None


# To nearest, dynamic8 looks up the code of a signed value by its upper half, sign-extended: one of these for each element.
SIGN_EXTENSION = re.compile(r"SHF\.R\.S32\.HI \S+, RZ, 0x10,|PRMT \S+, \S+, 0xbb32,|LEA\.HI\.SX32 .*, 0x10")

ACCESS = re.compile(r"^(LDG|STG|LD|ST)\.")


def judge(kernel: Kernel) -> tuple[list[str], str]:
    """The kernel's row of the table, and what is wrong with it."""
    name, hot = demangled(kernel.name), hot_loop(kernel)
    wide = [i for i in hot or [] if ACCESS.match(i.name) and ".128" in i.name]
    per_element = len(hot) / ELEMENTS_OF_A_LANE if hot else None
    wrong = wrong_everywhere(kernel, name)
    budget = budget_of(name)
    if budget is not None:
        if per_element is None:
            wrong.append("no loop with 128-bit stores")
        elif per_element > budget:
            wrong.append(f"{per_element:.1f} instructions, at most {budget}")
        # Scales are what is narrower: a float each for a block.
        narrow = [i.name for i in hot or [] if re.match(r"(LDG|STG)\.E\.EF", i.name) and ".128" not in i.name]
        if len(narrow) > 2 * NARROW_OF_RULE.get(name.split()[0], 0):
            wrong.append(f"{len(narrow)} narrow accesses")
    if budget is not None and name.split()[1] == "dynamic8":
        extended = sum(bool(SIGN_EXTENSION.match(i.text)) for i in hot or [])
        if extended < ELEMENTS_OF_A_LANE:
            wrong.append(f"{extended} sign extensions, at least {ELEMENTS_OF_A_LANE}")
    row = [kernel.architecture, name, str(kernel.registers), str(kernel.spills), str(kernel.shared),
           str(sum(not i.is_store for i in wide)), str(sum(i.is_store for i in wide)), str(len(kernel.code)),
           f"{per_element:.1f}" if per_element else "-", str(budget) if budget else "-", ", ".join(wrong) or "ok"]  # fmt: skip
    return row, ", ".join(wrong)


HEAD = ["arch", "kernel", "regs", "spills", "shared", "ld128", "st128", "static", "loop", "budget", ""]


def print_table(rows: list[list[str]]) -> None:
    widths = [max(len(row[c]) for row in [HEAD, *rows]) for c in range(len(HEAD))]
    for row in [HEAD, *sorted(rows)]:
        cells = (cell.ljust(w) if c in (0, 1, 10) else cell.rjust(w) for c, (cell, w) in enumerate(zip(row, widths)))
        print("  ".join(cells).rstrip())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--architectures", default="", metavar="LIST", help="e.g. 80,90 (default: all)")
    parser.add_argument("--dump", metavar="PART", help="print the hot loop of kernels with this in their short name")
    options = parser.parse_args()
    cuobjdump, nvdisasm = find_tool("cuobjdump"), find_tool("nvdisasm")
    if not cuobjdump or not nvdisasm:
        skip("no cuobjdump and nvdisasm (pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm)")
    if missing := [str(file) for file in options.files if not file.is_file()]:
        skip(f"not built: {', '.join(missing)}")
    architectures = list(filter(None, options.architectures.split(",")))
    with tempfile.TemporaryDirectory() as folder:
        kernels = [
            kernel
            for file in options.files
            for cubin in cubins_of(file, architectures, cuobjdump, Path(folder))
            for kernel in read_cubin(cubin, cuobjdump, nvdisasm)
        ]
    judged = [(kernel, *judge(kernel)) for kernel in kernels]
    print_table([row for _, row, wrong in judged if options.all or wrong or row[9] != "-"])
    if options.dump:
        for kernel, row, _ in judged:
            if options.dump in row[1]:
                print(f"\n{row[0]} {row[1]}")
                print("\n".join(f"{i.address:6x} {i.predicate:6}{i.text}" for i in hot_loop(kernel) or []))
    bad = sum(bool(wrong) for _, _, wrong in judged)
    measured = sum(row[9] != "-" for _, row, _ in judged)
    print(f"{len(kernels)} kernels, {measured} with a budget, {bad} wrong")
    if bad or not measured:
        sys.exit(1)


if __name__ == "__main__":
    main()
