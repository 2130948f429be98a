"""One run of gpu_check: its parts, their time limits, and their results."""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu import build, find, report, suites
from gpu.build import ROOT
from gpu.watchdog import run

PACKAGES = ["torch", "lowtide", "bitsandbytes", "torchao", "triton"]
# The most that each part may take of the time after the build. A part's unused time goes to the next one.
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
    """One run. Its result is written after every step, so a run that is cut off loses no result."""

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
        out: dict[str, Any] = dict.fromkeys(
            ("cpu", "logical_cpus", "memory", "kernel", "huge_pages", "revision"), "unknown"
        )
        out["versions"] = {}
        command = [found.python, "-c", _DESCRIBE, str(ROOT / "bench"), *PACKAGES]
        if text := find.output(command, 120, self.folders.environment()).strip():
            out.update(json.loads(text.splitlines()[-1]))
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
        while not self.lost and (rest := min(until, self.until) - time.monotonic()) > min(
            ENOUGH_S, self.args.case_seconds
        ):
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
            print(
                "suites: no CTest entry of this build has the labels " + " and ".join(sorted(suites.LABELS)), flush=True
            )

    def keep_suite(self, name: str, result: dict[str, Any]) -> None:
        self.result["suites"][name] = result
        print(
            f"suite {name}: {result['status']}, {result['seconds']:.0f} s, {result.get('passed', '?')} passed",
            flush=True,
        )
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
                    limit = min(limit, SHARE_S["sanitizer"] / len(suites.CHECKERS))
                    self.keep_suite(name, suites.run_checker(program, checker, suite, self.folders, limit))

    def names(self) -> list[str]:
        command = [self.found.python, str(CASE_PY), "--list", *(["--rehearse"] if self.args.rehearse else [])]
        known = find.output(command, 180, self.folders.environment()).split()
        if not known:
            self.result["cases"]["list"] = {
                "status": "failed",
                "seconds": 0.0,
                "rows": [],
                "reason": " ".join(command) + " failed",
            }
        if unknown := set(self.args.cases or ()) - set(known):
            print(f"--cases: got {', '.join(sorted(unknown))}, wanted some of {', '.join(known)}", flush=True)
        wrong = not self.args.cases  # unless asked for, no case that is meant to go wrong
        return [
            n
            for n in known
            if (not self.args.cases or n in self.args.cases) and not (wrong and n.startswith("rehearsal."))
        ]

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
            command = [
                self.found.python,
                CASE_PY,
                name,
                "--json",
                file,
                *(["--rehearse"] if self.args.rehearse else []),
            ]
            log = self.folders.logs / f"case-{name}.log"
            done = run(command, limit, log, self.folders.environment()).data()
            done["rows"] = json.loads(file.read_text()) if file.is_file() else []
            if done["status"] != "ok":
                done["reason"] = (
                    f"status {done['code']} after {done['seconds']:.0f} s; the end of {log.name}: "
                    + done["tail"][-300:]
                )
            for row in done["rows"]:
                print(f"  {row['label']}: " + (row.get("absent") or f"{row['value']:.4g} {row['unit']}"), flush=True)
            print(f"  {done['status']}, {done['seconds']:.0f} s", flush=True)
            self.result["cases"][name] = done
            self.write()
            self.look_for_gpu(done)

    def write(self) -> tuple[Path, Path]:
        """Writes the result and its tables where they are kept."""
        self.save()
        slug = re.sub(r"[^a-z0-9]+", "-", self.result["gpu"].lower()).strip("-")
        self.args.out.mkdir(parents=True, exist_ok=True)
        stem = self.args.out / f"{slug}-{self.result['date']}"
        data, text = stem.with_suffix(".json"), stem.with_suffix(".md")
        data.write_text(json.dumps({**self.result, "figures": report.judged(self.result)}, indent=1) + "\n")
        text.write_text(report.markdown(self.result))
        return data, text
