#!/usr/bin/env python3
"""Checks and measures the CUDA backend on a machine with a GPU: builds it, runs its tests, compute-sanitizer and bench/cuda.

    python3 tools/gpu_check.py                                all; then docs/benchmarks/<gpu>-<date>.{json,md} are written
    python3 tools/gpu_check.py --bundle DIR                   with what tools/gpu_bundle.py collected: needs no network
    python3 tools/gpu_check.py --parts build                  a part alone; --continue keeps what an earlier call has done
    python3 tools/gpu_check.py --rehearse --python PYTHON     everything that can be run without a GPU, tiny; judges nothing

A part that fails or hangs is reported and does not stop the next. docs/gpu-check.md says what is needed and how to read it.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))  # for the figures of bench/cuda

from gpu import build, find, report, suites  # noqa: E402
from gpu.watchdog import run  # noqa: E402

PARTS = ("build", "suites", "sanitizer", "measure")
PACKAGES = ["torch", "lowtide", "bitsandbytes", "torchao", "triton"]
# Of the time after the build, at most; what a part leaves is the next one's.
SHARE_S = {"suites": 120.0, "sanitizer": 90.0, "measure": 600.0}
CASE_PY = ROOT / "bench" / "cuda" / "case.py"
ALIVE = "import torch; torch.ones(8, device='cuda').sum().item(); torch.cuda.synchronize()"
ENOUGH_S = 12.0  # less time is not worth starting a process that loads torch
_DESCRIBE = """
import json, sys
sys.path.insert(0, sys.argv[1])
from common import machine
print(json.dumps(machine.describe(sys.argv[2:])))
"""


class Check:
    """One run. Its result is written after every step, so that a run that is cut off loses nothing that it had."""

    def __init__(self, args: argparse.Namespace, found: find.Found, folders: build.Folders) -> None:
        self.args, self.found, self.folders = args, found, folders
        self.path = folders.build / "result.json"
        self.start = time.monotonic()
        self.until = self.start + args.seconds
        self.lost = False  # the GPU no longer answers
        self.result: dict[str, Any] = {"build": {}, "suites": {}, "cases": {}, "seconds": 0.0}
        if args.keep and self.path.is_file():
            self.result = json.loads(self.path.read_text())
        self.before = self.result["seconds"]
        self.result.update(
            gpu=found.gpu.get("name", "rehearsal" if args.rehearse else "no GPU"),
            date=time.strftime("%Y-%m-%d"), rehearsal=args.rehearse, machine=self.machine(),
        )  # fmt: skip

    def machine(self) -> dict[str, Any]:
        found = self.found
        out: dict[str, Any] = dict.fromkeys(("cpu", "logical_cpus", "memory", "kernel", "huge_pages", "revision"), "unknown")
        out["versions"] = {}
        command = [found.python, "-c", _DESCRIBE, str(ROOT / "bench"), *PACKAGES]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, env=self.folders.environment())
            out.update(json.loads(done.stdout.strip().splitlines()[-1]))
        except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
            out["error"] = f"{type(error).__name__}: {error}"
        noted = self.folders.bundle / "revision" if self.folders.bundle else None
        if out["revision"] == "unknown" and noted and noted.is_file():
            out["revision"] = noted.read_text().strip()
        return {**out, "gpu": found.gpu, "nvcc_version": found.nvcc_version, "torch": found.torch, "tools": found.tools}

    def save(self) -> None:
        self.result["seconds"] = round(self.before + time.monotonic() - self.start, 1)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.result, indent=1))

    def build(self) -> bool:
        steps = build.Steps(self.result["build"])
        try:
            return build.build(self.found, self.folders, steps, self.args.build_seconds, self.args.python_include)
        finally:
            self.save()
            self.until = time.monotonic() + self.args.seconds  # the build has a limit of its own

    def left(self, until: float) -> Iterator[float]:
        """The limit for the next step, as long as there is time and a GPU."""
        while not self.lost and (rest := min(until, self.until) - time.monotonic()) > min(ENOUGH_S, self.args.case_seconds):
            yield min(rest, self.args.case_seconds)

    def look_for_gpu(self, result: dict[str, Any]) -> None:
        """After something went wrong: whether the GPU still answers."""
        if result["status"] == "ok" or self.args.rehearse:
            return
        alive = run([self.found.python, "-c", ALIVE], 40, self.folders.logs / "alive.log", self.folders.environment())
        self.lost = result["status"] == "stuck" or alive.status in ("hung", "stuck")
        if self.lost:
            print("the GPU no longer answers: nothing more is run on it", flush=True)

    def suites(self) -> None:
        found = suites.entries(self.found.tools["ctest"], self.folders)
        if not self.args.rehearse and (python := suites.python_suite(self.found, self.folders)):
            found.append(python)
        limits = self.left(time.monotonic() + SHARE_S["suites"])
        for suite in found:
            if self.args.keep and self.result["suites"].get(suite.name, {}).get("status") == "ok":
                continue
            if (limit := next(limits, None)) is None:
                self.result["suites"][suite.name] = {"status": "not run: no time or no GPU left", "seconds": 0.0}
                continue
            self.keep_suite(suite.name, suites.run_suite(suite, self.folders, limit))
        if not found:
            print("suites: no CTest entry of this build has the labels " + " and ".join(sorted(suites.LABELS)), flush=True)

    def keep_suite(self, name: str, result: dict[str, Any]) -> None:
        self.result["suites"][name] = result
        print(f"suite {name}: {result['status']}, {result['seconds']:.0f} s, {result.get('passed', '?')} passed", flush=True)
        self.save()
        self.look_for_gpu(result)

    def sanitizer(self) -> None:
        program = self.found.tools["compute-sanitizer"]
        if not program:
            print("compute-sanitizer is not there: its checks are not run", flush=True)
            self.result["suites"]["compute-sanitizer"] = {"status": "not run: it was not found", "seconds": 0.0}
            return
        limits = self.left(time.monotonic() + SHARE_S["sanitizer"])
        for checker in suites.CHECKERS:
            for suite in suites.entries(self.found.tools["ctest"], self.folders):
                name = f"{checker} {suite.name}"
                if (limit := next(limits, None)) is None:
                    self.result["suites"][name] = {"status": "not run: no time or no GPU left", "seconds": 0.0}
                else:
                    self.keep_suite(name, suites.run_checker(program, checker, suite, self.folders, limit))

    def names(self) -> list[str]:
        command = [self.found.python, str(CASE_PY), "--list", *(["--rehearse"] if self.args.rehearse else [])]
        done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False, env=self.folders.environment())
        known = done.stdout.split()
        if done.returncode != 0 or not known:
            print(f"measure: the cases cannot be listed: {done.stderr.strip().splitlines()[-1:]}", flush=True)
        if unknown := set(self.args.cases or ()) - set(known):
            print(f"--cases: got {', '.join(sorted(unknown))}, wanted some of {', '.join(known)}", flush=True)
        wrong = not self.args.cases  # unless asked for, no case that is meant to go wrong
        return [n for n in known if (not self.args.cases or n in self.args.cases) and not (wrong and n.startswith("rehearsal."))]

    def measure(self) -> None:
        limits = self.left(time.monotonic() + SHARE_S["measure"])
        for name in self.names():
            if self.args.keep and self.result["cases"].get(name, {}).get("status") == "ok":
                continue
            limit = next(limits, None)
            if limit is None:
                reason = "the GPU no longer answers" if self.lost else f"no time left of {self.args.seconds:.0f} s"
                self.result["cases"][name] = {"status": "not run", "seconds": 0.0, "rows": [], "reason": reason}
                continue
            print(f"{name} (at most {limit:.0f} s)", flush=True)
            file = self.folders.build / "cases" / f"{name}.json"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.unlink(missing_ok=True)
            command = [self.found.python, CASE_PY, name, "--json", file, *(["--rehearse"] if self.args.rehearse else [])]
            log = self.folders.logs / f"case-{name}.log"
            done = run(command, limit, log, self.folders.environment()).data()
            done["rows"] = json.loads(file.read_text()) if file.is_file() else []
            if done["status"] != "ok":
                done["reason"] = f"status {done['code']} after {done['seconds']:.0f} s; the end of {log.name}: " + done["tail"][-300:]
            for row in done["rows"]:
                print(f"  {row['label']}: " + (row.get("absent") or f"{row['value']:.4g} {row['unit']}"), flush=True)
            print(f"  {done['status']}, {done['seconds']:.0f} s", flush=True)
            self.result["cases"][name] = done
            self.save()
            self.look_for_gpu(done)

    def write(self) -> tuple[Path, Path]:
        """The result and its tables where they are kept."""
        self.save()
        slug = re.sub(r"[^a-z0-9]+", "-", self.result["gpu"].lower()).strip("-")
        self.args.out.mkdir(parents=True, exist_ok=True)
        stem = self.args.out / f"{slug}-{self.result['date']}"
        data, text = stem.with_suffix(".json"), stem.with_suffix(".md")
        data.write_text(json.dumps({**self.result, "figures": report.judged(self.result)}, indent=1) + "\n")
        text.write_text(report.markdown(self.result))
        return data, text


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help="comma-separated; default: all")
    parser.add_argument("--cases", type=lambda text: text.split(","), help="measurements by name (bench/cuda/case.py --list)")
    parser.add_argument("--python", default=sys.executable, help="the Python that has torch (default: this one)")
    parser.add_argument("--python-include", type=Path, help="folder of its Python.h, where it has none")
    parser.add_argument("--architecture", help="to build for, as nvcc names it: 90 (default: the GPU's)")
    parser.add_argument("--bundle", type=Path, help="folder made by tools/gpu_bundle.py (default: gpu-bundle, if it is there)")
    parser.add_argument("--wheels", type=Path, help="folder with further wheels (default: wheels, if it is there)")
    parser.add_argument("--seconds", type=float, default=570, help="for all after the build (default: %(default)s)")
    parser.add_argument("--build-seconds", type=float, default=540, help="for a step of the build (default: %(default)s)")
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
    return 1 if missed or any(entry["status"] != "ok" for entry in everything) else 0


if __name__ == "__main__":
    sys.exit(main())
