#!/usr/bin/env python3
"""Checks and measures the CUDA backend on a machine with a GPU, in two commands of less than ten minutes each.

    python3 tools/gpu_check.py first  --bundle DIR     smoke, bits, bandwidth, peers, paged, memory of training, counters
    python3 tools/gpu_check.py second --bundle DIR     test suites, fp32 paged, peers paged, overlap, graphs, sanitizer
    python3 tools/gpu_check.py merge FOLDER            both results into docs/benchmarks/<gpu>-<date>.{json,md}
    python3 tools/gpu_check.py plan                    the steps of both commands, with estimates
    python3 tools/gpu_check.py first --rehearse        the same path without a GPU, tiny; judges nothing

DIR is made by tools/gpu_bundle.py; without one, everything is built here. Results are written after every row, into
$OUT if that is set. A step that fails or hangs is reported and does not stop the next. docs/gpu-check.md has the
rest.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))  # for the figures of bench/cuda

from gpu import build, find, merge, plan, prebuilt, results, sources  # noqa: E402
from gpu.check import Check  # noqa: E402


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=(*plan.COMMANDS, "merge", "plan"))
    parser.add_argument("results", nargs="*", type=Path, help="merge: folders or files of results")
    parser.add_argument("--steps", type=lambda text: text.split(","), help="those alone, comma-separated (see plan)")
    parser.add_argument("--python", default=sys.executable, help="the Python that has torch (default: this one)")
    parser.add_argument("--python-include", type=Path, help="folder of its Python.h, where it has none: to build here")
    parser.add_argument("--architecture", help="to build here for, as nvcc names it: 90 (default: the GPU's)")
    parser.add_argument(
        "--bundle",
        type=Path,
        help="folder made by tools/gpu_bundle.py (default: gpu-bundle or build/gpu-bundle, if there)",
    )
    parser.add_argument("--wheels", type=Path, help="folder with further wheels")
    parser.add_argument("--tests", type=Path, help="folder of the program that tests devices, if not a prebuilt one")
    parser.add_argument("--seconds", type=float, default=plan.LIMIT_S, help="for all of it (default: %(default)s)")
    parser.add_argument(
        "--step-seconds", type=float, default=plan.LIMIT_S, help="for one step (default: its own limit)"
    )
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "gpu", help="folder to work in")
    parser.add_argument("--out", type=Path, help="where results go (default: $OUT, else results in --build)")
    parser.add_argument("--go-on", action="store_true", help="measure even if the smoke test fails")
    parser.add_argument("--rehearse", action="store_true", help="without a GPU, tiny sizes, nothing is built")
    args = parser.parse_args()
    if args.bundle is None:
        folders = [folder for folder in (ROOT / "gpu-bundle", ROOT / "build" / "gpu-bundle") if folder.is_dir()]
        args.bundle = folders[0] if folders else None
    if args.bundle and not args.bundle.is_dir():
        parser.error(f"--bundle: {args.bundle} is no folder: make it with tools/gpu_bundle.py, or unpack its tar")
    args.build, args.bundle = args.build.resolve(), args.bundle and args.bundle.resolve()
    args.out = args.out or (Path(os.environ["OUT"]) if os.environ.get("OUT") else args.build / "results")
    return args


def steps(args: argparse.Namespace) -> list[plan.Step]:
    if not args.steps:
        return list(plan.COMMANDS[args.command])
    known = {step.name: step for command in plan.COMMANDS.values() for step in command}
    # A rehearsal's cases that go wrong are in no plan, and need the time of a start alone.
    return [known.get(name, plan.Step(name, 0)) for name in args.steps]


def missing(args: argparse.Namespace, found: find.Found, builds: bool) -> list[str]:
    needed = {find.RUN, *([find.BUILD] if builds else [])}
    out = [text for part, text in found.missing if part in needed]
    if args.python_include:
        out = [text for text in out if not text.startswith("no Python.h")]
    if builds and not found.architecture:
        out.append("the GPU's compute capability: nvidia-smi does not tell it. Give it: --architecture 90")
    return out


def look(args: argparse.Namespace, folders: build.Folders, deadline: plan.Deadline) -> find.Found:
    found = find.look(args.python, folders.programs(), folders.environment(), deadline)
    found.gpu["compute_cap"] = args.architecture or found.gpu.get("compute_cap", "")
    return found


def main() -> int:
    deadline = plan.Deadline(0)
    args = arguments()
    if args.command == "plan":
        print(plan.table())
        return 0
    if args.command == "merge":
        return merge.merge(args.results or [args.out], args.out if args.rehearse else ROOT / "docs" / "benchmarks")
    deadline.seconds = args.seconds
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the step that runs, with its children
    for name, folder in (("--out or $OUT", args.out), ("--build", args.build)):
        if why := results.unwritable(folder):
            print(f"{name}: got {folder}, where nothing can be written ({why}); wanted a folder that can be")
            return 2
    folders = build.Folders(args.build, args.bundle, args.wheels, args.tests)
    about = prebuilt.unpack(args.bundle, folders)
    installed = build.Steps()
    found = look(args, folders, deadline)
    build.install_wheels(found, folders, installed, deadline)
    brought = bool(installed.results)
    unfit = prebuilt.use(about, found, folders, sources.digest(ROOT), installed, deadline)
    if unfit and brought:  # wheels may have brought some of what was missing to build
        found = look(args, folders, deadline)
    if (lacking := missing(args, found, bool(unfit))) and not args.rehearse:
        print("\n".join(f"missing: {text}" for text in lacking))
        return 2
    check = Check(args, found, folders, deadline)
    check.result["build"].update(installed.results)
    check.prepare(unfit)
    check.take(steps(args))
    print(
        f"{deadline.elapsed():.0f} s of {args.seconds:.0f} s; results: {args.out / args.command}.json, .md, .rows.jsonl"
    )
    return 0 if check.ok else 1


if __name__ == "__main__":
    sys.exit(main())
