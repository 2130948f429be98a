#!/usr/bin/env python3
"""Models the speed of steps from their machine code for compute capability 9.0. No GPU runs.

    step_model.py --objects BUILD/cuda LAUNCHES                        prints the table
    step_model.py --objects BUILD/cuda LAUNCHES --write FILE.json      writes it, and FILE.md for people
    step_model.py --objects BUILD/cuda LAUNCHES --judge FILE.json      exits with 1 if a step has left its budget, or grown, since

LAUNCHES is a folder that lowtide_cuda_launches has written: one step of one tile for each configuration. sass/ runs the
instructions of the cubin on these, so that branches are taken, addresses made and tables looked up as a GPU would, and the
memory that they leave must be that which the PTX left, byte for byte (fast kernels: but for rounding). Counted are the
instructions of the warps that have a part in the tile, from the block's first barrier on (before that tables are filled,
once for all tiles of a block), and what they cost on each pipe (sass/pipes.py). Their ratio to what can be issued while
the step's bytes move is the ceiling of the share of the copy rate: latencies that other warps do not hide come on top.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from sass.cubins import Kernel, cubins_of, demangled, find_tool, read_cubin, skip

if not find_spec("numpy"):
    skip("no numpy (pip install .[test])")
from sass import report
from sass.launch import Launch, Recorded
from sass.memory import bytes_of
from sass.operands import LANES, Unknown
from sass.pipes import MACHINES, PIPES, costs, is_lookup, pressed
from sass.report import Step
from sass.schedule import resident_blocks, share, trace_of


def name_of(words: dict[str, str]) -> str:
    if words["what"] == "search":
        return f"search of gradients, {words['types'].split(',')[1]}"
    parts = [words["rule"], words["codec"], words["types"]]
    if words["master"] != "-":
        parts.append(f"master {words['master']}")
    if words["what"] != "-":
        parts.append(words["what"].replace("_", " "))
    return ", ".join(parts)


def kernels_of(objects: Path, wanted: set[str], folder: Path, with_control: bool) -> dict[str, Kernel]:
    cuobjdump, nvdisasm = find_tool("cuobjdump"), find_tool("nvdisasm")
    if not cuobjdump or not nvdisasm:
        skip("no cuobjdump and nvdisasm (pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm)")
    files = [file for file in sorted(objects.glob("*.o")) if any(name.encode() in file.read_bytes() for name in wanted)]
    if not files:
        skip(f"not built: {objects}/*.o")
    found = {
        kernel.name: kernel
        for file in files
        for cubin in cubins_of(file, ["90"], cuobjdump, folder)
        for kernel in read_cubin(cubin, cuobjdump, nvdisasm, with_control)
    }
    if not found:
        skip(f"no machine code for sm_90 in {objects} (LOWTIDE_CUDA_ARCHITECTURES)")
    return found


def model(kernel: Kernel, recorded: Recorded) -> Step:
    words = recorded.words
    elements = int(words["elements"])
    step = Step(
        name_of(words), words["arithmetic"], demangled(kernel.name), kernel.registers,
        kernel.shared + int(words["dynamic_bytes"]), int(words["bytes"]) / elements, 0,
    )  # fmt: skip
    schedules = _SCHEDULED is not None and bool(_SCHEDULED.search(step.name))
    launch = Launch(kernel, recorded, traces=schedules)
    try:
        warps = [warp for warp in launch.run() if pressed(warp)]
    except Unknown as unknown:
        step.failure = str(unknown)
        return step
    step.different = launch.differing_bytes(recorded.results) / elements
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
    if schedules and not step.is_narrow:
        threads = int(words["threads"])
        warps_resident = resident_blocks(kernel, threads, step.shared) * threads // LANES
        step.scheduled = share(trace_of(warps[0]), warps_resident, step.bytes * elements / len(warps), MACHINES[0])
    return step


_KERNELS: dict[str, Kernel] = {}
_SCHEDULED: re.Pattern[str] | None = None


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("launches", type=Path)
    parser.add_argument("--objects", type=Path, required=True, help="the folder of nvcc's objects")
    parser.add_argument("--part", default="", help="only configurations whose names have this")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every Nth of them")
    parser.add_argument("--schedule", metavar="PATTERN", help="simulate those whose names match, in seconds each")
    parser.add_argument(
        "--write", type=Path, metavar="FILE",
        help="with --before: beside the figures of that file; configurations that LAUNCHES lacks keep theirs",
    )  # fmt: skip
    parser.add_argument("--before", type=Path, metavar="FILE")
    parser.add_argument("--judge", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.schedule:
        global _SCHEDULED
        _SCHEDULED = re.compile(options.schedule)
    files = sorted(options.launches.glob("*.txt"), key=lambda file: int(file.stem))
    launches = {file: Recorded.read(file).words for file in files}
    chosen = [file for file, words in launches.items() if options.part in name_of(words)][:: options.every]
    if not chosen:
        skip(f"no launches in {options.launches} (run lowtide_cuda_launches)")
    with tempfile.TemporaryDirectory() as folder:
        wanted = {launches[file]["kernel"] for file in chosen}
        _KERNELS.update(kernels_of(options.objects, wanted, Path(folder), bool(options.schedule)))
    steps = models(chosen, launches)
    if options.write:
        before = report.read(options.before) if options.before else None
        report.write(report.completed(steps, before or []), options.write, before)
    if not options.judge:
        report.print_table(steps)
    wrong = report.judge(steps, report.read(options.judge) if options.judge else None)
    print("\n".join(wrong))
    print(f"{len(steps)} of {len(files)} configurations, {sum(step.is_narrow for step in steps)} narrow, {len(wrong)} wrong")
    if wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
