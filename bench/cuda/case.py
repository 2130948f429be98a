#!/usr/bin/env python3
"""Runs one measurement of bench/cuda in this process. tools/gpu_check.py runs each in its own, under a watchdog.

python3 bench/cuda/case.py --list
python3 bench/cuda/case.py resident.bandwidth --rows rows.jsonl
python3 bench/cuda/case.py resident.bandwidth --rehearse       tiny, on the CPU: shows that it runs, measures nothing
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":  # instead of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import argparse  # noqa: E402
import ctypes  # noqa: E402
import importlib  # noqa: E402
import signal  # noqa: E402

from bench.cuda import emulated  # noqa: E402
from bench.cuda.device import Gpu  # noqa: E402
from bench.cuda.rows import Rows  # noqa: E402

PR_SET_PDEATHSIG = 1
SCENARIOS = ("smoke", "bits", "resident", "uncommon", "calls", "capture", "graphs", "variants", "link", "paged", "overlap", "pressure",
             "counters", "whole")  # fmt: skip


def names(rehearse: bool = False) -> list[str]:
    """The names of all cases. A rehearsal also has some that fail."""
    scenarios = SCENARIOS + (("rehearsal",) if rehearse else ())
    return [name for scenario in scenarios for name in importlib.import_module(f"bench.cuda.{scenario}").CASES]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", nargs="?")
    parser.add_argument("--wait", action="store_true", help="import torch, then read the case's name from standard input")
    parser.add_argument("--list", action="store_true", help="names of all cases, one a line")
    parser.add_argument("--rows", type=Path, help="file that each row is appended to")
    parser.add_argument("--rehearse", action="store_true")
    args = parser.parse_args()
    if args.wait:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        import lowtide  # noqa: F401 (as torch: it takes a while)

        args.case = sys.stdin.readline().strip()
    if args.list or not args.case:
        print("\n".join(names(args.rehearse)))
        return 0
    if args.case not in (known := names(args.rehearse)):
        parser.error(f"got {args.case!r}, wanted one of {', '.join(known)}")
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a killed check leaves no process on the GPU
    rows = Rows(args.case, args.rows)
    gpus: list[Gpu] = []

    def run() -> None:
        gpus.append(emulated.opened() if args.rehearse else Gpu(rehearse=False))
        importlib.import_module(f"bench.cuda.{args.case.partition('.')[0]}").CASES[args.case](gpus[0], rows)

    rows.attempt(args.case, run)
    for option in sorted(gpus[0].dropped if gpus else ()):
        rows.absent(f"{args.case}: option {option}", "this rehearsal's optimizer does not take it on the CPU")
    return 0


if __name__ == "__main__":
    sys.exit(main())
