#!/usr/bin/env python3
"""Runs one measurement of bench/cuda in this process; tools/gpu_check.py runs each in one of its own, under a watchdog.

python3 bench/cuda/case.py --list
python3 bench/cuda/case.py resident.bandwidth --json rows.json
python3 bench/cuda/case.py resident.bandwidth --rehearse       tiny, on the CPU: shows that it runs, measures nothing
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":  # in place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import argparse  # noqa: E402
import importlib  # noqa: E402

from bench.cuda.device import Gpu  # noqa: E402
from bench.cuda.rows import Rows  # noqa: E402

SCENARIOS = ("bits", "instructions", "link", "resident", "paged", "overlap", "pressure")
# Correctness and the cases behind the figures come first, so that a run that is cut short has them.
FIRST = ("bits.tiers", "instructions.cubins", "instructions.budgets", "link.copy_engines", "resident.bandwidth", 
         "resident.budget", "paged.dynamic8", "paged.fp32", "resident.peers_7b", "paged.bitsandbytes_8bit",
         "overlap.dynamic8", "pressure.promote_demote", "pressure.oom_guard", "pressure.demote", "resident.graph")  # fmt: skip


def names(rehearse: bool = False) -> list[str]:
    """The names of all cases, in the order in which they should run. A rehearsal also has some that go wrong."""
    scenarios = SCENARIOS + (("rehearsal",) if rehearse else ())
    found = [name for scenario in scenarios for name in importlib.import_module(f"bench.cuda.{scenario}").CASES]
    return [*FIRST, *(name for name in found if name not in FIRST)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", nargs="?")
    parser.add_argument("--list", action="store_true", help="names of all cases, one a line")
    parser.add_argument("--json", type=Path, help="where rows are written, after each of them")
    parser.add_argument("--rehearse", action="store_true")
    args = parser.parse_args()
    if args.list or args.case is None:
        print("\n".join(names(args.rehearse)))
        return 0
    if args.case not in (known := names(args.rehearse)):
        parser.error(f"got {args.case!r}, wanted one of {', '.join(known)}")
    rows = Rows(args.json)
    gpus: list[Gpu] = []

    def run() -> None:
        gpus.append(Gpu(args.rehearse))
        importlib.import_module(f"bench.cuda.{args.case.partition('.')[0]}").CASES[args.case](gpus[0], rows)

    rows.attempt(args.case, run)
    for option in sorted(gpus[0].dropped if gpus else ()):
        rows.absent(f"{args.case}: option {option}", "this rehearsal's optimizer does not take it on the CPU")
    return 0


if __name__ == "__main__":
    sys.exit(main())
