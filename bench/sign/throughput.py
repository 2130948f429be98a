#!/usr/bin/env python3
"""Measures packing, unpacking and votes of signs on the CPU against plain memory passes, numpy and torch.

    .venv/bin/python bench/sign/throughput.py                     all lines, some minutes
    .venv/bin/python bench/sign/throughput.py --json signs.json   also keeps all samples
    .venv/bin/python bench/sign/throughput.py --quick             small and short: shows that it runs, measures nothing

Every round runs each pass of a line once, in turn, with all threads. Only ratios within a line count. The table has the ratio
of the best times and, beside it, the median of the rounds' ratios. Other programs only add to a time; if the two ratios are far
apart, they did.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

import argparse  # noqa: E402
import json  # noqa: E402
import statistics  # noqa: E402
import subprocess  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable  # noqa: E402
from dataclasses import dataclass, replace  # noqa: E402
from typing import Any  # noqa: E402

import numpy  # noqa: E402
import torch  # noqa: E402
from common import machine, results, threads  # noqa: E402
from lowtide.compat.deepspeed import packbits, unpackbits  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Ratio:
    """Another's time / lowtide's. It must be at least `must` (0: only shown)."""

    of: str
    to: tuple[str, ...]  # the fastest of these counts
    must: float
    label: str


READ = "plain read"
PACK = Ratio("pack", ("read",), 0.9, f"pack / {READ}")
UNPACK = Ratio("unpack", ("fill", "memset"), 0.9, "unpack / plain fill")
NUMPY = Ratio("pack", ("numpy_pack",), 2, "pack / numpy.packbits(x >= 0)")
TORCH = Ratio("pack", ("torch_pack",), 15, "pack / torch ((x.view(-1, 8) >= 0) * weights).sum(1)")
COMPAT = (
    Ratio("compat_pack", ("torch_read",), 0.9, "compat.deepspeed.packbits / torch's sum, a plain read"),
    Ratio("compat_unpack", ("torch_fill",), 0.9, "compat.deepspeed.unpackbits / torch.ones, a fill"),
)
VOTE = f"vote / {READ} of its ballots"
LOOP = Ratio("vote", ("loop",), 30, "vote / unpack and sum in a loop")


@dataclass(frozen=True)
class Line:
    arguments: tuple[str, str, int]  # of the program: kind, element type or voters, elements
    rounds: int
    ratios: tuple[Ratio, ...]

    @property
    def name(self) -> str:
        kind, what, elements = self.arguments
        return f"{elements / 1e6:.0f}M {what}" if kind == "values" else f"{what} voters, {elements / 1e6:.0f}M signs"

    @property
    def bytes(self) -> int:
        """Bytes of values or ballots."""
        kind, what, elements = self.arguments
        return elements * {"float32": 4, "bfloat16": 2}[what] if kind == "values" else int(what) * elements // 8


def lines(quick: bool) -> list[Line]:
    sizes = {65536: 3} if quick else {10_000_384: 100, 100_000_768: 20}
    made = []
    if not quick:  # fits the last-level cache, and takes little longer than starting a thread
        shown = tuple(replace(ratio, must=0) for ratio in (PACK, UNPACK, NUMPY, TORCH, *COMPAT))
        made.append(Line(("values", "float32", 1_000_448), 300, shown))
    for elements, rounds in sizes.items():
        made.append(Line(("values", "float32", elements), rounds, (PACK, UNPACK, NUMPY, TORCH, *COMPAT)))
        made.append(Line(("values", "bfloat16", elements), rounds, (PACK, UNPACK)))
        for voters in (2, 3, 8, 16):
            made.append(Line(("votes", str(voters), elements), rounds, (Ratio("vote", ("read",), 0.7, VOTE), LOOP)))
    for voters in (64, 255):
        elements, rounds = next(iter(sizes.items()))
        ratios = (Ratio("vote", ("read",), 0.4, VOTE), LOOP)
        made.append(Line(("votes", str(voters), elements), min(rounds, 15), ratios))
    return made


def float32_passes(elements: int) -> dict[str, Callable[[], object]]:
    """Passes by numpy, torch and DeepSpeed's packbits, by name. Each packs the same `elements` random numbers (a multiple of
    8), including allocations."""
    tensor = torch.randn(elements, generator=torch.Generator().manual_seed(7))
    array = tensor.numpy()
    packed = packbits(tensor, elements, 0)
    weights = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8)
    return {
        "numpy_pack": lambda: numpy.packbits(array >= 0, bitorder="little"),
        "compat_pack": lambda: packbits(tensor, elements, 0),
        "torch_read": tensor.sum,
        "compat_unpack": lambda: unpackbits(packed, elements, 0),
        "torch_fill": lambda: torch.ones(elements),
        "torch_pack": lambda: ((tensor.view(-1, 8) >= 0) * weights).sum(1),
    }


def compiled(folder: Path | None) -> Path:
    """The program that links the library's objects, in `folder` or built by CMake (`make build` does most of that)."""
    if folder is None:
        for command in (["cmake", "--preset", "dev"], ["cmake", "--build", "--preset", "dev", "--target", "sign_throughput"]):
            subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        folder = ROOT / "build" / "dev" / "bench"
    return folder / "sign_throughput"


def timed(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def measure(program: Path, line: Line, count: int) -> dict[str, list[float | None]]:
    """Seconds by pass, with one sample per round; None if a round left the pass out."""
    here = float32_passes(line.arguments[2]) if line.arguments[1] == "float32" else {}
    samples: dict[str, list[float | None]] = {}
    command = [str(program), *map(str, line.arguments), str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin and child.stdout
        for turn in range(line.rounds + 1):
            print(file=child.stdin, flush=True)
            if not (answer := child.stdout.readline()):
                raise SystemExit(f"{program.name} ended early")
            # numpy and torch are ten times slower, and need fewer samples.
            slow = {name: timed(run) if turn % 4 <= 1 else None for name, run in here.items()}
            if turn == 0:
                continue  # touches everything for the first time
            for name, seconds in (json.loads(answer) | slow).items():
                samples.setdefault(name, []).append(seconds)
    return samples


def judge(line: Line, samples: dict[str, list[float | None]]) -> list[dict[str, Any]]:
    rows = []
    best = {name: min(one for one in series if one is not None) for name, series in samples.items()}
    for ratio in line.ratios:
        to = min(ratio.to, key=best.__getitem__)
        got = best[to] / best[ratio.of]
        pairs = zip(samples[to], samples[ratio.of], strict=True)
        median = statistics.median(other / own for other, own in pairs if other is not None and own is not None)
        rows.append({"line": line.name, "ratio": ratio.label, "must": ratio.must, "got": got, "median": median,
                     "seconds": best[ratio.of], "gb_per_s": line.bytes / best[ratio.of] * 1e-9,
                     "reached": got >= ratio.must})  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="where to write machine, ratios and samples")
    parser.add_argument("--programs", type=Path, help="folder of sign_throughput, if CMake is not to build it")
    parser.add_argument("--threads", type=int, default=len(threads.cores()))
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    program = compiled(arguments.programs)
    torch.set_num_threads(arguments.threads)
    result: dict[str, Any] = {
        "machine": machine.describe(["torch", "numpy"]), "threads": arguments.threads, "quick": arguments.quick,
        "load_before": machine.load_average(), "rows": [], "samples": {},
    }  # fmt: skip
    print(f"{'':26}{'must':>6}{'got':>9}{'median':>9}{'ms':>9}{'GB/s':>8}")
    for line in lines(arguments.quick):
        samples = measure(program, line, arguments.threads)
        result["samples"][line.name] = samples
        for row in judge(line, samples):
            result["rows"].append(row)
            mark = "" if arguments.quick or not row["must"] else " yes" if row["reached"] else " NO"
            print(f"{row['line']:26}{row['must']:>6g}{row['got']:>9.2f}{row['median']:>9.2f}"
                  f"{1e3 * row['seconds']:>9.3f}{row['gb_per_s']:>8.1f}{mark:5}{row['ratio']}", flush=True)  # fmt: skip
    result["load_after"] = machine.load_average()
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        results.write(arguments.json, result)


if __name__ == "__main__":
    main()
