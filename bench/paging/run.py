#!/usr/bin/env python3
"""What a memory budget costs: steps with state in RAM, under a budget that holds it, half on disk, and all on disk,
beside the raw rate of the disk, in rounds of one process.

    .venv/bin/python bench/paging/run.py --disk DIRECTORY [--elements 128Mi] [--rounds 9]

docs/benchmarks/README.md says how figures are taken and read. Needs g++ and liburing (for the raw rate).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch  # noqa: E402
from common import machine  # noqa: E402

import lowtide  # noqa: E402

OUT = Path(__file__).resolve().parents[2] / "build" / "bench"
BLOCK, DEPTH = 1 << 20, 8  # as ScratchFile cuts its requests


def raw_disk() -> Path:
    """The compiled raw loop."""
    source, built = Path(__file__).with_name("raw_disk.cpp"), OUT / "raw_disk"
    if not built.exists() or built.stat().st_mtime < source.stat().st_mtime:
        OUT.mkdir(parents=True, exist_ok=True)
        subprocess.run(["g++", "-std=c++20", "-O2", str(source), "-o", str(built), "-luring"], check=True)
    return built


def optimizer(param: torch.nn.Parameter, state: str, memory: lowtide.Memory | None) -> lowtide.AdamW:
    return lowtide.AdamW([param], lr=1e-4, state=state, memory=memory, nonfinite="propagate")


def timed(step: object) -> float:
    start = time.perf_counter()
    step()  # type: ignore[operator]
    return time.perf_counter() - start


def measure(elements: int, state: str, disk: str, chunk: int, rounds: int) -> dict[str, float]:
    param = torch.nn.Parameter(torch.randn(elements // 1024, 1024) * 0.02)
    param.grad = torch.randn_like(param) * 1e-3
    plain = optimizer(param, state, None)
    total = plain.report()["state_bytes"]
    room = lowtide.Memory(host=2 * int(total), disk=disk)
    half = lowtide.Memory(host=int(total) // 2 + 3 * chunk, disk=disk, chunk=chunk)
    none = lowtide.Memory(host=4 * chunk, disk=disk, chunk=chunk)
    lines = {
        "ram": plain,
        "budget that holds it": optimizer(param, state, room),
        "half on disk": optimizer(param, state, half),
        "all on disk": optimizer(param, state, none),
    }
    for line in lines.values():
        line.step()
    times: dict[str, list[float]] = {name: [] for name in (*lines, "raw disk")}
    on_disk = int(lines["all on disk"].report()["disk_bytes"])
    command = [raw_disk(), disk, on_disk // BLOCK * BLOCK, BLOCK, DEPTH, 3 * chunk // BLOCK]
    with subprocess.Popen(list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as raw:
        assert raw.stdin is not None
        assert raw.stdout is not None
        for _ in range(rounds):
            for name, line in lines.items():
                times[name].append(timed(line.step))
            raw.stdin.write("\n")
            raw.stdin.flush()
            times["raw disk"].append(float(raw.stdout.readline()))
        raw.stdin.close()
    figures = {f"{name}, s": statistics.median(series) for name, series in times.items()}
    ratios = [b / a for a, b in zip(times["ram"], times["budget that holds it"], strict=True)]
    bound = [max(r, c) for r, c in zip(times["raw disk"], times["ram"], strict=True)]
    figures["budget that holds it / ram"] = statistics.median(ratios)
    figures["raw disk / all on disk (rate reached)"] = statistics.median(
        r / s for r, s in zip(times["raw disk"], times["all on disk"], strict=True)
    )
    figures["all on disk / max(compute, raw disk)"] = statistics.median(
        s / b for s, b in zip(times["all on disk"], bound, strict=True)
    )
    for name in ("half on disk", "all on disk"):
        report = lines[name].report()
        moved = (report["read_bytes"] + report["written_bytes"]) / (rounds + 1)
        figures[f"{name}: bytes moved / planned"] = moved / report["moved_per_step"]
        figures[f"{name}: MB moved per step"] = moved / 1e6
        figures[f"{name}: RAM, MB"] = report["allocated_bytes"] / 1e6
    figures["raw disk, GB/s"] = 2e-9 * (on_disk // BLOCK * BLOCK) / figures["raw disk, s"]
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--disk", default=None, help="directory on the disk to measure (default: a temporary one)")
    parser.add_argument("--elements", type=int, default=128 << 20)
    parser.add_argument("--chunk", type=int, default=4 << 20, help="bytes")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    torch.set_num_threads(torch.get_num_threads())
    disk = args.disk or tempfile.mkdtemp(prefix="lowtide-bench-")
    result = {"machine": machine.describe(["torch", "lowtide"]), "elements": args.elements, "chunk": args.chunk}
    for state in ("dynamic8", "fp32"):
        result[state] = figures = measure(args.elements, state, disk, args.chunk, args.rounds)
        print(f"AdamW {state}, {args.elements} elements, chunks of {args.chunk >> 20} MiB")
        for name, value in figures.items():
            print(f"  {name:44s} {value:10.4f}")
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "paging.json"
    path.write_text(json.dumps(result, indent=1))
    print(path)


if __name__ == "__main__":
    main()
