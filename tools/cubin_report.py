#!/usr/bin/env python3
"""Reads the machine code of the CUDA kernels: registers, local memory, accesses, and forbidden instructions.

    cubin_report.py FILE...                       the kernels of steps, in objects of nvcc or cubins
    cubin_report.py --all FILE...                 every kernel
    cubin_report.py --dump PART FILE...           also the code of kernels with PART in their short name

Needs cuobjdump and nvdisasm, on PATH or from pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm. Exits with 1 if a kernel
breaks a rule; with 77 and the reason if the tools or files are missing.

The rules: selectors of PRMT extend a sign or say why not; exact kernels fuse only the sums of divisions and roots; threads use
no local memory; registers let BLOCKS blocks be resident (sass/offences.py); and dynamic8 sign-extends half of
each element's bits.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from sass.cubins import Kernel, cubins_of, demangled, find_tool, read_cubin, skip
from sass.offences import ELEMENTS_OF_A_LANE, wrong_everywhere

# When rounding to nearest, dynamic8 looks up the code of a signed value by its upper half, sign-extended. Kernels of these
# rules, whose first state is signed, have one signed product of halves per element for it.
SIGN_EXTENSION = re.compile(r"IDP\.2A\.LO\.S16\.U8 ")
HAS_SIGNS = re.compile(r"(adam|adamw|lion|sgd) dynamic8 ")

ACCESS = re.compile(r"^(LDG|STG|LD|ST)\..*\.128")


def judge(kernel: Kernel) -> tuple[list[str], str]:
    """The row of a kernel in the table, and its offences."""
    name = demangled(kernel.name)
    wide = [i for i in kernel.code if ACCESS.match(i.name)]
    wrong = wrong_everywhere(kernel, name)
    if HAS_SIGNS.match(name):
        if not wide:
            wrong.append("no 16-byte access")
        extended = sum(bool(SIGN_EXTENSION.match(i.text)) for i in kernel.code)
        if extended < ELEMENTS_OF_A_LANE:
            wrong.append(f"{extended} sign extensions, at least {ELEMENTS_OF_A_LANE}")
    row = [kernel.architecture, name, str(kernel.registers), str(kernel.spills), str(kernel.shared),
           str(sum(not i.is_store for i in wide)), str(sum(i.is_store for i in wide)), str(len(kernel.code)),
           ", ".join(wrong) or "ok"]  # fmt: skip
    return row, ", ".join(wrong)


HEAD = ["arch", "kernel", "regs", "local", "shared", "ld128", "st128", "static", ""]


def print_table(rows: list[list[str]]) -> None:
    widths = [max(len(row[c]) for row in [HEAD, *rows]) for c in range(len(HEAD))]
    for row in [HEAD, *sorted(rows)]:
        cells = (cell.ljust(w) if c in (0, 1, 8) else cell.rjust(w) for c, (cell, w) in enumerate(zip(row, widths)))
        print("  ".join(cells).rstrip())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--architectures", default="", metavar="LIST", help="e.g. 80,90 (default: all)")
    parser.add_argument("--dump", metavar="PART", help="print the code of kernels with this in their short name")
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
    print_table([row for kernel, row, wrong in judged if options.all or wrong or "step_kernel" in kernel.name])
    for kernel, row, _ in judged:
        if options.dump and options.dump in row[1]:
            print(f"\n{row[0]} {row[1]}")
            print("\n".join(f"{i.address:6x} {i.predicate:6}{i.text}" for i in kernel.code))
    bad = sum(bool(wrong) for _, _, wrong in judged)
    print(f"{len(kernels)} kernels, {bad} wrong")
    if bad or not kernels:
        sys.exit(1)


if __name__ == "__main__":
    main()
