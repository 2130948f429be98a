#!/usr/bin/env python3
"""Measures the costs and savings of state on disk. Rows (--rows):

    budgets    a step with state in RAM, under a budget that holds it, half and all on disk, beside the raw disk
    os         explicit paging against the operating system's own, under the same memory limit (needs cgroups: root)
    checksums  what checksums and generations take of a step
    llama      memory of training a LLaMA of 220 M parameters, loss and speed, with five optimizers

    .venv/bin/python bench/paging/run.py --disk DIRECTORY [--rows budgets,os] [--elements 134217728] [--rounds 9]

--disk-rate 1000000000 makes a disk of 1 GB/s (read, and as much written) of a faster one (needs cgroups: root).

docs/benchmarks/method.md says how figures are taken and read. Needs g++, liburing and CMake.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from common import machine, results  # noqa: E402
from paging import budgets, checksums, llama, os_paging, programs  # noqa: E402
from paging.cgroup import DiskRate  # noqa: E402

ROWS = ("budgets", "os", "checksums", "llama")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--disk", default=None, help="directory on the disk to measure (default: under --out)")
    parser.add_argument("--disk-rate", type=int, default=None, help="bytes/s each way, for every row but os")
    parser.add_argument("--rows", default=",".join(ROWS), help="comma-separated; default: all")
    parser.add_argument("--elements", type=int, default=128 << 20)
    parser.add_argument("--chunk", type=int, default=4 << 20, help="bytes")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--share", type=float, default=0.25, help="os: the budget, as a share of the state")
    parser.add_argument("--steps", type=int, default=4, help="os: timed steps of a turn")
    parser.add_argument("--quick", action="store_true", help="everything small: it runs, and no more")
    parser.add_argument("--programs", type=Path, default=None, help="folder of compiled programs (default: CMake's)")
    parser.add_argument("--out", type=Path, default=programs.OUT)
    args = parser.parse_args()
    if args.quick:
        args.elements, args.chunk, args.rounds, args.steps = 4 << 20, 256 << 10, 2, 2
    rows = args.rows.split(",")
    if args.disk_rate is not None and (args.disk_rate < 1 or "os" in rows):
        parser.error("--disk-rate: wanted bytes per second, and rows other than os")
    if unknown := set(rows) - set(ROWS):
        parser.error(f"--rows: got {', '.join(sorted(unknown))}, wanted some of {', '.join(ROWS)}")
    args.out.mkdir(parents=True, exist_ok=True)
    # Not the system's folder for temporary files, which is often one in RAM.
    with contextlib.ExitStack() as stack:
        disk = args.disk or stack.enter_context(tempfile.TemporaryDirectory(prefix="disk-", dir=args.out))
        if args.disk_rate is not None:
            stack.enter_context(contextlib.closing(DiskRate(disk, args.disk_rate)))
        result: dict[str, object] = {"machine": machine.describe(["torch", "lowtide"]), "rows": rows,
                                     "disk_rate": args.disk_rate}  # fmt: skip
        for state in ("dynamic8", "fp32"):
            here: dict[str, object] = {}
            result[state] = here
            if "budgets" in rows:
                here["budgets"] = figures = budgets.measure(
                    args.elements, state, disk, args.chunk, args.rounds, args.disk_rate
                )
                budgets.show(state, args.elements, args.chunk, figures)
            if "os" in rows:
                row = os_paging.measure(state, args.elements, args.share, args.chunk, args.rounds, args.steps, disk,
                                        args.programs)  # fmt: skip
                here["os"] = row
                os_paging.show(row)
            if "checksums" in rows:
                row = checksums.measure(state, args.elements, args.chunk, args.rounds, disk, args.programs)
                here["checksums"] = row
                checksums.show(row)
        if "llama" in rows:
            result["llama"] = row = llama.measure(llama.TINY if args.quick else llama.LARGE, disk)
            llama.show(row)
    path = args.out / "paging.json"
    results.write(path, result)
    print(path)


if __name__ == "__main__":
    main()
