#!/usr/bin/env python3
"""Reads the machine code of the CUDA kernels: registers, spills, accesses, and instructions per element.

    cubin_report.py FILE...                       objects of nvcc, or cubins
    cubin_report.py --all FILE...                 every kernel, not only those that have a budget
    cubin_report.py --architectures 80,90 FILE... these only

Needs cuobjdump and nvdisasm: on PATH, or pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm. Exits with 1 if a budget
is exceeded, a step's kernel spills or loses signs; with 77, and the reason, without the tools or the files.

Instructions per element. A lane of a step's hot path has 16 elements. The machine code is cut into basic blocks and
natural loops (a branch back to a block that dominates it). The hot loop is the innermost one with 128-bit stores to
global memory. Of its blocks those count from which such a store can still be reached in the same round, and those that
come behind a store before the next round: both branches of every condition among them, and none of the slow path,
which goes back without such a store. (BRA.DIV, to where lanes that have diverged meet, is never taken: warps are whole.)
Their instructions, without NOP, divided by 16, are "loop". "static" is the whole kernel's.

Signs. The hot loops of dynamic8 must sign-extend a half of each element's bits (SIGN_EXTENSION).
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import NoReturn

ELEMENTS_OF_A_LANE = 16
SKIPPED = 77  # exit status

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

# States with a scale, which is 4 bytes for a block, read and written.
NARROW_OF_RULE = {"adam": 2, "adamw": 2, "lion": 1, "sgd": 1}


def budget_of(name: str) -> float | None:
    """By a kernel's short name."""
    words = name.split()
    if words[-1] == "random":
        return RANDOM_BUDGETS.get((words[0], words[1]))
    found = BUDGETS.get((words[0], words[1])) if len(words) == 4 and words[2] != "any" else None
    is_fast = words[-1] == "fast"
    return found[is_fast] if found and is_fast < len(found) else None

# To nearest, dynamic8 looks up the code of a signed value by its upper half, sign-extended: one of these for each
# element. CUDA's __byte_perm cannot do it: it masks selectors, so that PTX's 0xbb32 becomes 0x3332, which loses the sign.
SIGN_EXTENSION = re.compile(r"SHF\.R\.S32\.HI \S+, RZ, 0x10,|PRMT \S+, \S+, 0xbb32,|LEA\.HI\.SX32 .*, 0x10")
LOST_SIGN = re.compile(r"PRMT .*\b0x3332\b")

ACCESS = re.compile(r"^(LDG|STG|LD|ST)\.")
BRANCH = re.compile(r"^(BRA|BRX|JMP|JMX)\b")


@dataclass
class Instruction:
    address: int
    text: str  # without its predicate
    predicate: str

    @property
    def name(self) -> str:
        return self.text.split()[0]

    @property
    def is_wide(self) -> bool:
        return ".128" in self.name

    @property
    def is_store(self) -> bool:
        return self.name.startswith(("STG.", "ST."))


@dataclass
class Kernel:
    name: str
    architecture: str
    registers: int = 0
    shared: int = 0
    stack: int = 0
    code: list[Instruction] = field(default_factory=list)

    @property
    def spills(self) -> int:
        return sum(i.name.startswith(("LDL", "STL")) for i in self.code)


def find_tool(name: str) -> Path | None:
    """Finds a tool on PATH, or in the folder of its Python package."""
    if there := shutil.which(name):
        return Path(there)
    for package in (f"nvidia-cuda-{name}", f"nvidia-cuda-{name}-cu13", f"nvidia-cuda-{name}-cu12"):
        try:
            files = metadata.files(package) or []
        except metadata.PackageNotFoundError:
            continue
        for file in files:
            if file.name == name:
                return Path(str(file.locate()))
    return None


def run(*command: object, cwd: Path | None = None) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"cubin_report: {Path(words[0]).name} failed with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def cubins_of(file: Path, architectures: list[str], cuobjdump: Path, folder: Path) -> list[Path]:
    """The cubins of these architectures; of all, if none is named."""
    if file.suffix == ".cubin":
        return [file]
    into = folder / file.name
    into.mkdir()
    run(cuobjdump, "-xelf", "all", file.resolve(), cwd=into)
    found = sorted(into.glob("*.cubin"))
    return [cubin for cubin in found if not architectures or any(f".sm_{a}." in cubin.name for a in architectures)]


def read_cubin(cubin: Path, cuobjdump: Path, nvdisasm: Path) -> list[Kernel]:
    """Every kernel of a cubin, which is of one architecture."""
    kernels: dict[str, Kernel] = {}
    usage = run(cuobjdump, "-res-usage", cubin)
    for name, rest in re.findall(r"Function (\S+?):\s*\n\s*(REG:.*)", usage):
        values = dict(re.findall(r"(\w+):(\d+)", rest))
        kernels[name] = Kernel(name, "", int(values["REG"]), int(values["SHARED"]), int(values["STACK"]))
    text = run(nvdisasm, "-c", cubin)
    target = re.search(r"\.target\s+(sm_\w+)", text)
    architecture = target[1] if target else "?"
    for section in re.split(r"(?m)^\s*\.section\s+", text)[1:]:
        head = re.match(r"\.text\.(\S+?),", section)
        if not head or head[1] not in kernels:
            continue
        kernel = kernels[head[1]]
        kernel.architecture = architecture
        kernel.code = read_code(section)
    return [k for k in kernels.values() if k.code]


def read_code(section: str) -> list[Instruction]:
    labels: dict[str, int] = {}
    pending: list[str] = []
    lines: list[tuple[int, str]] = []
    for line in section.splitlines():
        if label := re.match(r"\s*(\.L_x_\d+|\.text\.\S+|\S+):\s*$", line):
            pending.append(label[1])
        elif found := re.match(r"\s*/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;", line):
            address = int(found[1], 16)
            labels |= dict.fromkeys(pending, address)
            pending.clear()
            lines.append((address, found[2]))
    code = []
    for address, text in lines:
        predicate = ""
        if guarded := re.match(r"(@!?U?P\w+)\s+(.*)", text):
            predicate, text = guarded[1], guarded[2]
        text = re.sub(r"`\((\S+?)\)", lambda m: hex(labels.get(m[1], -1)), text)
        code.append(Instruction(address, text, predicate))
    return code


@dataclass
class Block:
    code: list[Instruction]
    to: list[int] = field(default_factory=list)


def blocks_of(code: list[Instruction]) -> list[Block]:
    """Basic blocks in the order of their addresses, and which follow which. Calls return, and end no block."""
    index = {i.address: at for at, i in enumerate(code)}

    def target(i: Instruction) -> int | None:
        found = re.findall(r"0x[0-9a-f]+", i.text) if BRANCH.match(i.text) else []
        return index.get(int(found[-1], 16)) if found else None

    starts = {0}
    for at, i in enumerate(code):
        if BRANCH.match(i.text) or i.name in ("EXIT", "RET.REL.NODEC", "RET.ABS.NODEC"):
            starts.add(at + 1)
            if (to := target(i)) is not None:
                starts.add(to)
    ordered = sorted(s for s in starts if s < len(code))
    number = {s: n for n, s in enumerate(ordered)}
    blocks = []
    for n, start in enumerate(ordered):
        end = ordered[n + 1] if n + 1 < len(ordered) else len(code)
        block = Block(code[start:end])
        last = block.code[-1]
        if BRANCH.match(last.text) and ".DIV" not in last.name and (to := target(last)) is not None:
            block.to.append(number[to])
        ends = (BRANCH.match(last.text) or last.name.startswith(("EXIT", "RET"))) and not conditional(last)
        if not ends and n + 1 < len(ordered):
            block.to.append(n + 1)
        blocks.append(block)
    return blocks


def conditional(i: Instruction) -> bool:
    """A branch may have a second predicate among its operands, and one on divergence in its name."""
    return bool(i.predicate) or bool(re.search(r"\s!?U?P\d", i.text)) or ".DIV" in i.name or ".CONV" in i.name


def reach(begin: set[int], follow: list[list[int]], within: set[int]) -> set[int]:
    seen, todo = set(begin), list(begin)
    while todo:
        for to in follow[todo.pop()]:
            if to in within and to not in seen:
                seen.add(to)
                todo.append(to)
    return seen


def dominators(blocks: list[Block], before: list[list[int]]) -> list[set[int]]:
    everything = set(range(len(blocks)))
    reached = reach({0}, [b.to for b in blocks], everything)
    found = [everything for _ in blocks]
    found[0] = {0}
    changed = True
    while changed:
        changed = False
        for n in sorted(reached - {0}):
            new = {n} | set.intersection(*(found[p] for p in before[n] if p in reached))
            if new != found[n]:
                found[n], changed = new, True
    return found


def hot_loop(kernel: Kernel) -> list[Instruction] | None:
    """The instructions that count; None without a loop that stores 128 bits at a time."""
    blocks = blocks_of(kernel.code)
    before: list[list[int]] = [[] for _ in blocks]
    for n, block in enumerate(blocks):
        for to in block.to:
            before[to].append(n)
    dominated_by = dominators(blocks, before)
    after = [b.to for b in blocks]
    reached = reach({0}, after, set(range(len(blocks))))
    stores = {n for n in reached if any(i.is_store and i.is_wide for i in blocks[n].code)}
    loops: dict[int, set[int]] = {}
    for n in reached:
        for head in after[n]:
            if head in dominated_by[n]:
                loops.setdefault(head, {head}).update(reach({n}, before, reached - {head}))
    holding = [(len(body), head) for head, body in loops.items() if stores & body]
    if not holding:
        return None
    _, head = min(holding)
    body = loops[head]
    of_body = stores & body
    to_store = reach(of_body, before, body - {head}) | {head}
    from_store = reach(of_body, after, body - {head})
    return [i for n in sorted(to_store | from_store) for i in blocks[n].code if i.name != "NOP"]


def demangled(name: str) -> str:
    """A short name: "adamw dynamic8 bf16,bf16" of a step's hot kernel, else the kernel's own."""
    words = re.findall(r"\d+([A-Za-z]\w*)", split_lengths(name))
    if "HotBlocks" not in name:
        return " ".join(w for w in words if w not in ("lowtide", "StepArguments"))
    kernel = words[words.index("step_kernel") + 1 :]
    rule, codec = kernel[0], kernel[1]
    mode = "fast" if "cuda_device_fast" in name else "exact"
    if re.search(r"HotBlocks.*Lb1E", name):
        mode += " random"
    if "NoHotBlocks" in name:
        return f"{rule.lower()} {codec.lower()} any {mode}"
    # Types are the last template arguments; a repeated one is a back reference.
    tail = name[name.index("HotBlocks") + len("HotBlocks") :].split("EEEE")[0]
    types = re.findall(r"4bf16|3f16|f(?=f|E|$|N)|f$|S\d?_", tail)
    named = {"4bf16": "bf16", "3f16": "f16", "f": "f32"}
    pair = [named[t] for t in types if t in named]
    pair = pair * 2 if len(pair) == 1 else pair
    return f"{rule.lower()} {codec.lower()} {','.join(pair)} {mode}"


def split_lengths(name: str) -> str:
    """A mangled name with a space behind each word, whose length stands before it."""
    out, at = [], 0
    while at < len(name):
        if number := re.match(r"\d+", name[at:]):
            length = int(number[0])
            end = at + len(number[0]) + length
            if length and end <= len(name):
                out.append(f" {number[0]}{name[at + len(number[0]):end]} ")
                at = end
                continue
        out.append(name[at])
        at += 1
    return "".join(out)


def judge(kernel: Kernel) -> tuple[list[str], str]:
    """The kernel's row of the table, and what is wrong with it."""
    name, hot = demangled(kernel.name), hot_loop(kernel)
    wide = [i for i in hot or [] if ACCESS.match(i.name) and ".128" in i.name]
    per_element = len(hot) / ELEMENTS_OF_A_LANE if hot else None
    wrong = []
    if kernel.spills and (hot or "step" in name):
        wrong.append(f"{kernel.spills} spills")
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
    if any(LOST_SIGN.match(i.text) for i in kernel.code):
        wrong.append("a PRMT that loses the sign (0x3332)")
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


def skip(reason: str) -> NoReturn:
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)


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
    print(f"{len(kernels)} kernels, {measured} with a budget, {bad} beyond it or with spills")
    if bad or not measured:
        sys.exit(1)


if __name__ == "__main__":
    main()
