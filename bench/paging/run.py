#!/usr/bin/env python3
"""Measures what state on disk costs and saves: steps with state in RAM, under a budget that holds it, half on disk and all on
disk, beside the raw rate of the disk, in rounds of one process.

    .venv/bin/python bench/paging/run.py --disk DIRECTORY [--elements 134217728] [--rounds 9]

--disk-rate 1000000000 slows a disk to 1 GB/s of reads and as much of writes (needs control groups, so root).
docs/benchmarks/method.md says how figures are taken and read. Needs g++ and liburing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path[0] = str(Path(__file__).resolve().parents[1])

from common import machine, results  # noqa: E402

import lowtide  # noqa: E402

OUT = Path(__file__).resolve().parents[2] / "build" / "bench"
BLOCK = 1 << 20  # the size of ScratchFile's requests
SLOTS = 4  # slots of the ring
CGROUPS = Path("/sys/fs/cgroup")  # version 2, or version 1, which has a folder per controller


class DiskRate:
    """Limits reads and writes of this process and its children on the disk of `directory` to `rate` bytes/s each."""

    def __init__(self, directory: str, rate: int) -> None:
        number = os.stat(directory).st_dev
        # Limits apply to a whole disk. A partition knows which one it is on.
        device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve()
        disk = ((device.parent if (device / "partition").exists() else device) / "dev").read_text().strip()
        root = CGROUPS / "blkio"
        self._home = root if root.exists() else CGROUPS
        self.path = self._home / f"lowtide-bench-{os.getpid()}-disk"
        try:
            if self._home == CGROUPS:
                (CGROUPS / "cgroup.subtree_control").write_text("+io")
            self.path.mkdir()
            if self._home == CGROUPS:
                (self.path / "io.max").write_text(f"{disk} rbps={rate} wbps={rate}")
            else:
                for way in ("read", "write"):
                    (self.path / f"blkio.throttle.{way}_bps_device").write_text(f"{disk} {rate}")
            (self.path / "cgroup.procs").write_text(str(os.getpid()))
        except OSError as error:
            if self.path.is_dir():
                self.path.rmdir()
            raise SystemExit(f"--disk-rate: the disk's rate cannot be limited: {error}") from error

    def close(self) -> None:
        (self._home / "cgroup.procs").write_text(str(os.getpid()))
        self.path.rmdir()


def raw_disk() -> Path:
    """The program of the raw loop, compiled on first use."""
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


def measure(
    elements: int, state: str, disk: str, chunk: int, rounds: int, disk_rate: int | None
) -> dict[str, float]:
    """disk_rate: limit of the disk in bytes/s each way."""
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
    command = [raw_disk(), disk, on_disk // BLOCK * BLOCK, BLOCK, SLOTS * chunk // BLOCK, 3 * chunk // BLOCK]
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
    if disk_rate:
        least = max(on_disk / disk_rate, figures["ram, s"])
        figures["all on disk / max(compute, bytes at the disk's limit)"] = figures["all on disk, s"] / least
    figures["raw disk, GB/s"] = 2e-9 * (on_disk // BLOCK * BLOCK) / figures["raw disk, s"]
    return figures


def show(state: str, elements: int, chunk: int, figures: dict[str, float]) -> None:
    print(f"AdamW {state}, {elements} elements, chunks of {chunk >> 10} KiB")
    for name, value in figures.items():
        print(f"  {name:52s} {value:10.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--disk", default=None, help="directory on the disk to measure (default: under --out)")
    parser.add_argument("--disk-rate", type=int, default=None, help="bytes/s each way")
    parser.add_argument("--elements", type=int, default=128 << 20)
    parser.add_argument("--chunk", type=int, default=4 << 20, help="bytes")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="small: only shows that it runs")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    if args.quick:
        args.elements, args.chunk, args.rounds = 4 << 20, 256 << 10, 2
    if args.disk_rate is not None and args.disk_rate < 1:
        parser.error("--disk-rate: wanted bytes per second")
    args.out.mkdir(parents=True, exist_ok=True)
    # Not in the system's folder for temporary files, which is often in RAM.
    with contextlib.ExitStack() as stack:
        disk = args.disk or stack.enter_context(tempfile.TemporaryDirectory(prefix="disk-", dir=args.out))
        if args.disk_rate is not None:
            stack.enter_context(contextlib.closing(DiskRate(disk, args.disk_rate)))
        result: dict[str, object] = {"machine": machine.describe(["torch", "lowtide"]), "disk_rate": args.disk_rate}
        for state in ("dynamic8", "fp32"):
            result[state] = figures = measure(args.elements, state, disk, args.chunk, args.rounds, args.disk_rate)
            show(state, args.elements, args.chunk, figures)
    path = args.out / "paging.json"
    results.write(path, result)
    print(path)


if __name__ == "__main__":
    main()
