#!/usr/bin/env python3
"""Says how much of the PTX has run: coverage.py PTX_FOLDER COVERAGE_FOLDER

Counts kernels, instructions by their names, and lines with an instruction, in the text and among those that processes
noted in COVERAGE_FOLDER (tests/cuda/ptx/runtime.h). Exits with 1 if a kernel or an instruction's name is missing; with
77 where there is no PTX.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path

SKIPPED = 77
ENTRY = re.compile(r"\.entry\s+(\w+)")
INSTRUCTION = re.compile(r"(?:@!?%p\d+\s+)?([a-z][a-z0-9_]*(?:\.[A-Za-z0-9_:]+)*)\b")


def instructions_of(text: str) -> dict[int, str]:
    """Lines of instructions, with the names of these."""
    found: dict[int, str] = {}
    pending, line = False, 0
    for number, raw in enumerate(text.split("\n"), 1):
        if not pending:
            line = number
        # Scopes and declarations of inline PTX share lines with instructions.
        for part in re.split(r"(?<=[;{}])", raw.split("//")[0]):
            match = None if pending else INSTRUCTION.match(part.strip())
            if match:
                found[line] = match[1]
            if match or pending:  # calls go over several lines
                pending = not part.rstrip().endswith(";") and bool(part.strip() or pending)
    return found


def main() -> int:
    texts = {file.name: file.read_text() for file in sorted(Path(sys.argv[1]).glob("*.ptx"))}
    if not texts:
        print(f"skipped: no PTX in {sys.argv[1]}")
        return SKIPPED
    kernels = {name for text in texts.values() for name in ENTRY.findall(text)}
    launched: set[str] = set()
    seen: dict[str, set[int]] = defaultdict(set)
    for note in Path(sys.argv[2]).glob("*.txt"):
        file = ""
        for words in map(str.split, note.read_text().splitlines()):
            if words[0] == "kernel":
                file = words[1]
                launched.add(words[2])
            else:
                seen[file].add(int(words[1]))
    names: set[str] = set()
    executed: set[str] = set()
    lines = covered = 0
    for file, text in texts.items():
        found = instructions_of(text)
        names |= set(found.values())
        executed |= {name for line, name in found.items() if line in seen[file]}
        lines += len(found)
        covered += len(found.keys() & seen[file])
    print(f"kernels executed: {len(kernels & launched)} of {len(kernels)}")
    print(f"instructions by name: {len(executed)} of {len(names)}")
    print(f"lines with an instruction: {covered} of {lines} ({100 * covered / lines:.1f} %)")
    for kind, missing in (("kernel", kernels - launched), ("instruction", names - executed)):
        for name in sorted(missing):
            print(f"never executed: {kind} {name}")
    return 1 if kernels - launched or names - executed else 0


if __name__ == "__main__":
    sys.exit(main())
