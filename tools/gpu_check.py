#!/usr/bin/env python3
"""Tests and measures the CUDA backend on a machine with a GPU, in short steps, the most valuable first.

    python3 tools/gpu_check.py run                     as many steps as 450 seconds hold
    python3 tools/gpu_check.py run --seconds 280       the next steps; skips those that earlier runs have finished
    python3 tools/gpu_check.py merge FOLDER            merges all results into docs/benchmarks/<gpu>-<date>.{json,md}
    python3 tools/gpu_check.py plan                    the queue, with estimates
    python3 tools/gpu_check.py run --rehearse          the same path without a GPU, tiny; judges nothing

The package comes from a bundle (tools/gpu_bundle.py), or is the one that the Python with torch imports. Results are written
after every row, into $OUT if that is set. A step that fails or hangs is reported and does not stop the next. See
docs/project/gpu-check.md.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))  # for the figures of bench/cuda

from gpu import machine, parts, plan, results, sources  # noqa: E402
from gpu.check import Check  # noqa: E402


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "merge", "plan"))
    parser.add_argument("results", nargs="*", type=Path, help="merge: folders of results")
    parser.add_argument("--steps", type=lambda text: text.split(","), help="only these, comma-separated (see plan), known or not")
    parser.add_argument("--known", type=Path, action="append", default=[],
                        help="folder of earlier results, besides --out and the bundle's known")  # fmt: skip
    parser.add_argument("--python", default=sys.executable, help="the Python that has torch (default: this one)")
    parser.add_argument("--bundle", type=Path,
                        help="folder made by tools/gpu_bundle.py (default: gpu-bundle or build/gpu-bundle, if there)")  # fmt: skip
    parser.add_argument("--tests", type=Path, help="folder of the program that tests devices, if not a prebuilt one")
    parser.add_argument("--seconds", type=float, default=plan.LIMIT_S, help="for all of it (default: %(default)s)")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "gpu", help="folder to work in")
    parser.add_argument("--out", type=Path, help="where results go (default: $OUT, else results in --build)")
    parser.add_argument("--go-on", action="store_true", help="measure even if the smoke test fails")
    parser.add_argument("--rehearse", action="store_true", help="without a GPU, tiny sizes")
    args = parser.parse_args()
    if args.bundle is None:
        folders = [folder for folder in (ROOT / "gpu-bundle", ROOT / "build" / "gpu-bundle") if folder.is_dir()]
        args.bundle = folders[0] if folders else None
    if args.bundle and not args.bundle.is_dir():
        parser.error(f"--bundle: {args.bundle} is no folder: make it with tools/gpu_bundle.py, or unpack its tar")
    args.build, args.bundle = args.build.resolve(), args.bundle and args.bundle.resolve()
    if args.bundle:
        args.known.append(args.bundle / "known")
    args.out = args.out or (Path(os.environ["OUT"]) if os.environ.get("OUT") else args.build / "results")
    return args


def prepared(args: argparse.Namespace, folders: parts.Folders, deadline: plan.Deadline) -> machine.Found | None:
    """Returns the machine with a package to measure, or None after naming what is missing."""
    found = machine.look(args.python, deadline)
    parts.unpack_wheels(folders)
    if why := parts.use(folders, found, sources.digest(ROOT)):
        print(f"prebuilt parts cannot be used: {why}; the package that {args.python} imports is measured", flush=True)
    machine.probe(found, folders.environment(), deadline)
    missing = [] if args.rehearse else found.missing()
    if "error" in found.lowtide:
        missing.append(f"no package to measure: {found.lowtide['error']}. Name a bundle made for this Python and GPU: --bundle DIR")
    print("\n".join(f"missing: {text}" for text in missing), end="\n" if missing else "", flush=True)
    if missing:
        return None
    print(f"{deadline.elapsed():5.0f} s  measures {found.lowtide.get('file')}", flush=True)
    return found


def main() -> int:
    deadline = plan.Deadline(0)
    args = arguments()
    if args.command == "plan":
        print(plan.table())
        return 0
    if args.command == "merge":
        return results.merge(args.results or [args.out], args.out if args.rehearse else ROOT / "docs" / "benchmarks")
    deadline.seconds = args.seconds
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the step that runs, with its children
    for name, folder in (("--out or $OUT", args.out), ("--build", args.build)):
        if why := results.unwritable(folder):
            print(f"{name}: got {folder}, where nothing can be written ({why}); wanted a folder that can be")
            return 2
    folders = parts.Folders(args.build, args.bundle, args.tests)
    if not (found := prepared(args, folders, deadline)):
        return 2
    check = Check(args, found, folders, deadline)
    known = {step.name: step for step in plan.QUEUE}
    # Cases of a rehearsal that fail are in no plan, and take only the time of a start.
    check.take([known.get(name, plan.Step(name, 0)) for name in args.steps] if args.steps else check.wanted(plan.QUEUE))
    print(f"{deadline.elapsed():.0f} s of {args.seconds:.0f} s; results: {check.stem}.json, .md, .rows.jsonl")
    return 0 if check.ok else 1


if __name__ == "__main__":
    sys.exit(main())
