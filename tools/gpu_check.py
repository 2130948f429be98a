#!/usr/bin/env python3
"""Checks and measures the CUDA backend on a machine with a GPU: builds it, runs its tests and bench/cuda.

    python3 tools/gpu_check.py                                all; writes docs/benchmarks/<gpu>-<date>.{json,md}
    python3 tools/gpu_check.py --bundle DIR                   with what tools/gpu_bundle.py collected: needs no network
    python3 tools/gpu_check.py --parts build                  a part alone; --continue keeps what an earlier call has done
    python3 tools/gpu_check.py --rehearse --python PYTHON     what can be run without a GPU, tiny; judges nothing

A part that fails or hangs is reported and does not stop the next. docs/gpu-check.md: what is needed, how to read it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))  # for the figures of bench/cuda

from gpu import build, find, report  # noqa: E402
from gpu.check import Check  # noqa: E402

PARTS = ("build", "suites", "sanitizer", "measure")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help="comma-separated; default: all")
    parser.add_argument(
        "--cases", type=lambda text: text.split(","), help="measurements by name (bench/cuda/case.py --list)"
    )
    parser.add_argument("--python", default=sys.executable, help="the Python that has torch (default: this one)")
    parser.add_argument("--python-include", type=Path, help="folder of its Python.h, where it has none")
    parser.add_argument("--architecture", help="to build for, as nvcc names it: 90 (default: the GPU's)")
    parser.add_argument(
        "--bundle", type=Path, help="folder made by tools/gpu_bundle.py (default: gpu-bundle, if it is there)"
    )
    parser.add_argument("--wheels", type=Path, help="folder with further wheels (default: wheels, if it is there)")
    parser.add_argument("--seconds", type=float, default=570, help="for all after the build (default: %(default)s)")
    parser.add_argument(
        "--build-seconds", type=float, default=540, help="for a step of the build (default: %(default)s)"
    )
    parser.add_argument("--case-seconds", type=float, default=90, help="for one measurement (default: %(default)s)")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "gpu", help="folder to build in")
    parser.add_argument("--out", type=Path, help="where results go (default: docs/benchmarks; of rehearsals: --build)")
    parser.add_argument("--continue", dest="keep", action="store_true", help="keep what earlier calls have measured")
    parser.add_argument("--rehearse", action="store_true", help="without a GPU, tiny sizes, nothing is built")
    args = parser.parse_args()
    args.parts = args.parts.split(",")
    if unknown := set(args.parts) - set(PARTS):
        parser.error(f"--parts: got {', '.join(sorted(unknown))}, wanted some of {', '.join(PARTS)}")
    if args.bundle is None and (ROOT / "gpu-bundle").is_dir():
        args.bundle = ROOT / "gpu-bundle"
    if args.bundle and not args.bundle.is_dir():
        parser.error(f"--bundle: {args.bundle} is no folder: make it with tools/gpu_bundle.py, or unpack its tar")
    args.build, args.bundle = args.build.resolve(), args.bundle and args.bundle.resolve()
    args.out = args.out or (args.build if args.rehearse else ROOT / "docs" / "benchmarks")
    return args


def main() -> int:
    args = arguments()
    folders = build.Folders(args.build, args.bundle, args.wheels)
    steps = build.Steps()
    found = find.look(args.python, folders.programs(), folders.environment())
    if args.rehearse:
        args.parts = [part for part in args.parts if part != "build"]
    elif "build" in args.parts:
        build.install_wheels(found, folders, steps)
        found = find.look(args.python, folders.programs(), folders.environment())  # wheels may have brought some of it
    needed = {find.BUILD} if "build" in args.parts else set()
    needed |= {find.RUN} if set(args.parts) - {"build"} else set()
    missing = [text for part, text in found.missing if part in needed]
    if args.python_include:
        missing = [text for text in missing if not text.startswith("no Python.h")]
    if missing and not args.rehearse:
        print("\n".join(f"missing: {text}" for text in missing))
        return 2
    if not found.architecture and not args.architecture and "build" in args.parts:
        print("missing: the GPU's compute capability: nvidia-smi does not tell it. Give it: --architecture 90")
        return 2
    found.gpu.setdefault("compute_cap", "")
    found.gpu["compute_cap"] = args.architecture or found.gpu["compute_cap"]
    check = Check(args, found, folders)
    check.result["build"].update(steps.results)
    ready = check.build() if "build" in args.parts else True
    if "suites" in args.parts:
        check.suites()
    if "sanitizer" in args.parts:
        check.sanitizer()
    if "measure" in args.parts and ready:
        check.measure()
    if args.parts == ["build"]:
        check.save()
        return 0 if ready else 1
    paths = check.write()
    print()
    print(paths[1].read_text().partition("## Not measured")[0])
    print("\n".join(map(str, paths)))
    everything = [*check.result["suites"].values(), *check.result["cases"].values(), *check.result["build"].values()]
    missed = any(entry["reached"] is False for entry in report.judged(check.result)) and not args.rehearse
    # Not run, not finished or not supported is no failure: the table says so.
    return (
        1
        if missed or any(entry["status"] != "ok" and not entry["status"].startswith("not ") for entry in everything)
        else 0
    )


if __name__ == "__main__":
    sys.exit(main())
