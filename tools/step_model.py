#!/usr/bin/env python3
"""Models the speed of steps from their machine code for compute capability 9.0. No GPU runs.

    step_model.py --objects BUILD/cuda LAUNCHES [--json FILE] [--markdown FILE] [--part TEXT]

LAUNCHES is a folder that lowtide_cuda_launches has written: one step of one tile for each configuration. sass/ runs the
instructions of the cubin on these, so that branches are taken, addresses made and tables looked up as a GPU would, and the
memory that they leave must be that which the PTX left, byte for byte. Counted are the instructions of the warps that have a
part in the tile, from the block's first barrier on (before that tables are filled, once for all tiles of a block), and
what they cost on each pipe (sass/pipes.py). Their ratio to what can be issued while the step's bytes move is the ceiling of
the share of the copy rate: latencies that other warps do not hide come on top.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from cubin_report import Kernel, cubins_of, find_tool, read_cubin, skip
from sass.launch import Launch, Recorded
from sass.memory import bytes_of
from sass.operands import Unknown
from sass.pipes import ALU, FMA, HEAVY, ISSUE, LSU, MACHINES, PIPES, XU, costs, is_lookup, pressed


@dataclass
class Step:
    """Per element, but for the first four."""

    name: str
    arithmetic: str
    kernel: str
    registers: int
    shared: int
    bytes: float
    wide_share: float  # of the bytes, those in accesses of 8 bytes and more
    slots: dict[str, float] = field(default_factory=dict)
    lookups: float = 0
    conflicts: float = 0  # wavefronts of a look-up to what it would take without conflicts
    worst_conflicts: float = 0  # of that instruction which has most
    differing_bytes: int = 0
    failure: str = ""

    @property
    def is_slow(self) -> bool:
        return self.wide_share < 0.5

    def ceiling(self, machine: int = 0) -> tuple[float, str]:
        """The most that the share of the copy rate can be, and the pipe that sets it."""
        budget = MACHINES[machine].slots_of(self.bytes)
        pipe = max(PIPES, key=lambda p: self.slots.get(p, 0))
        return min(1.0, budget / self.slots[pipe]), pipe


def name_of(words: dict[str, str]) -> str:
    parts = [words["rule"], words["codec"], words["types"]]
    if words["master"] != "-":
        parts.append(f"master {words['master']}")
    if words["what"] != "-":
        parts.append(words["what"].replace("_", " "))
    return ", ".join(parts)


def kernels_of(objects: Path, wanted: set[str], folder: Path) -> dict[str, Kernel]:
    cuobjdump, nvdisasm = find_tool("cuobjdump"), find_tool("nvdisasm")
    if not cuobjdump or not nvdisasm:
        skip("no cuobjdump and nvdisasm (pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm)")
    files = [file for file in sorted(objects.glob("*.o")) if any(name.encode() in file.read_bytes() for name in wanted)]
    if not files:
        skip(f"not built: {objects}/*.o")
    return {
        kernel.name: kernel
        for file in files
        for cubin in cubins_of(file, ["90"], cuobjdump, folder)
        for kernel in read_cubin(cubin, cuobjdump, nvdisasm)
    }


def model(kernel: Kernel, recorded: Recorded) -> Step:
    words = recorded.words
    elements = int(words["elements"])
    step = Step(
        name_of(words), words["arithmetic"], kernel.name, kernel.registers,
        kernel.shared + int(words["dynamic_bytes"]), int(words["bytes"]) / elements, 0,
    )  # fmt: skip
    launch = Launch(kernel, recorded)
    try:
        warps = [warp for warp in launch.run_block() if pressed(warp)]
    except Unknown as unknown:
        step.failure = str(unknown)
        return step
    step.differing_bytes = launch.differing_bytes(recorded.results)
    counts: Counter[int] = sum((warp.counts for warp in warps), Counter())
    wavefronts: Counter[int] = sum((warp.wavefronts for warp in warps), Counter())
    slots = costs(kernel.code, counts, wavefronts)
    step.slots = {pipe: slots[pipe] / elements for pipe in PIPES}
    step.wide_share = sum(warp.wide_bytes for warp in warps) / int(words["bytes"])
    lookups = {at: n for at, n in counts.items() if is_lookup(kernel.code[at])}
    least = {at: n * bytes_of(kernel.code[at].name) / 4 for at, n in lookups.items()}
    # An instruction that all lanes read one place with is none into a table.
    tables = {at: n for at, n in least.items() if wavefronts[at] > n}
    step.lookups = sum(lookups[at] for at in tables) * 32 / elements
    if tables:
        step.conflicts = sum(wavefronts[at] for at in tables) / sum(tables.values())
        step.worst_conflicts = max(wavefronts[at] / n for at, n in tables.items())
    return step


_KERNELS: dict[str, Kernel] = {}


def model_file(file: Path) -> Step:
    recorded = Recorded.read(file)
    return model(_KERNELS[recorded.words["kernel"]], recorded)


def models(files: list[Path], launches: dict[Path, dict[str, str]]) -> list[Step]:
    """A configuration without a fast kernel runs once: the same kernel has the same launch."""

    def launch(file: Path) -> tuple[str, str]:
        return name_of(launches[file]), launches[file]["kernel"]

    different = {launch(file): file for file in files}
    with ProcessPoolExecutor() as pool:
        found = dict(zip(different, pool.map(model_file, different.values(), chunksize=2)))
    return [replace(found[launch(file)], arithmetic=launches[file]["arithmetic"]) for file in files]


HEAD = ["configuration", "arithmetic", "B", "regs", "slots", "instr", "alu", "fma", "heavy", "xu", "lsu", "conflicts",
        "ceiling", "limit", ""]  # fmt: skip


def row_of(step: Step) -> list[str]:
    if step.failure:
        return [step.name, step.arithmetic, f"{step.bytes:.2f}", str(step.registers), *["-"] * 10, step.failure]
    ceiling, pipe = step.ceiling()
    wrong = [f"{step.differing_bytes} bytes differ"] if step.differing_bytes else []
    if step.is_slow:
        wrong.append("slow path")
    return [
        step.name, step.arithmetic, f"{step.bytes:.2f}", str(step.registers), f"{MACHINES[0].slots_of(step.bytes):.0f}",
        *(f"{step.slots[pipe]:.1f}" for pipe in (ISSUE, ALU, FMA, HEAVY, XU, LSU)),
        f"{step.conflicts:.2f}" if step.lookups else "-", f"{ceiling:.2f}", "memory" if ceiling == 1 else pipe,
        ", ".join(wrong),
    ]  # fmt: skip


def print_table(rows: list[list[str]]) -> None:
    widths = [max(len(row[c]) for row in rows) for c in range(len(rows[0]))]
    for row in rows:
        cells = (
            cell.ljust(w) if c in (0, 1, 13, 14) else cell.rjust(w) for c, (cell, w) in enumerate(zip(row, widths))
        )
        print("  ".join(cells).rstrip())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("launches", type=Path)
    parser.add_argument("--objects", type=Path, required=True, help="the folder of nvcc's objects")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--part", default="", help="only configurations whose names have this")
    options = parser.parse_args()
    files = sorted(options.launches.glob("*.txt"), key=lambda file: int(file.stem))
    launches = {file: Recorded.read(file).words for file in files}
    chosen = [file for file, words in launches.items() if options.part in name_of(words)]
    if not chosen:
        skip(f"no launches in {options.launches} (run lowtide_cuda_launches)")
    with tempfile.TemporaryDirectory() as folder:
        _KERNELS.update(kernels_of(options.objects, {launches[file]["kernel"] for file in chosen}, Path(folder)))
    steps = models(chosen, launches)
    print_table([HEAD, *(row_of(step) for step in steps)])
    if options.json:
        options.json.write_text(json.dumps([asdict(step) for step in steps], indent=1) + "\n")
    if any(step.failure or step.differing_bytes for step in steps):
        sys.exit(1)


if __name__ == "__main__":
    main()
