"""One command of gpu_check: its steps under one deadline, and their results, which are written as they come."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from bench.cuda import rows as kept
from gpu import build, find, report, results, sources, suites
from gpu.build import ROOT
from gpu.plan import SMOKE, Deadline, Step
from gpu.watchdog import run

PACKAGES = ["torch", "lowtide", "bitsandbytes", "torchao", "flashoptim", "transformers", "triton"]
CASE_PY = ROOT / "bench" / "cuda" / "case.py"
ALIVE = "import torch; torch.ones(8, device='cuda').sum().item(); torch.cuda.synchronize()"
ALIVE_S = 25.0
_DESCRIBE = """
import json, sys
sys.path.insert(0, sys.argv[1])
from common import machine
print(json.dumps(machine.describe(sys.argv[2:])))
"""


class Check:
    """Writes NAME.json and NAME.md after every step, and NAME.rows.jsonl after every row."""

    def __init__(self, args: argparse.Namespace, found: find.Found, folders: build.Folders, deadline: Deadline) -> None:
        self.args, self.found, self.folders, self.deadline = args, found, folders, deadline
        self.stopped = ""  # why nothing more is run
        results.put_aside(args.out, args.command)
        self.rows = args.out / f"{args.command}.rows.jsonl"
        digest = sources.digest(ROOT)
        machine = self.machine(digest)
        self.result: dict[str, Any] = {
            "gpu": found.gpu.get("name", "rehearsal" if args.rehearse else "no GPU"),
            "date": time.strftime("%Y-%m-%d"), "driver": found.gpu.get("driver_version", "none"),
            "revision": machine["revision"], "sources": digest, "commands": [args.command], "rehearsal": args.rehearse, "machine": machine,
            "build": {}, "suites": {}, "cases": {}, "seconds": 0.0,
        }  # fmt: skip

    def machine(self, digest: str) -> dict[str, Any]:
        found = self.found
        out: dict[str, Any] = dict.fromkeys(
            ("cpu", "logical_cpus", "memory", "kernel", "huge_pages", "revision"), "unknown"
        )
        out["versions"] = {}
        command = [found.python, "-c", _DESCRIBE, str(ROOT / "bench"), *PACKAGES]
        if text := find.output(command, self.deadline.within(60), self.folders.environment()).strip():
            out.update(json.loads(text.splitlines()[-1]))
        out["revision"] = sources.revision(ROOT, self.folders.bundle, digest, out["revision"])
        return {**out, "gpu": found.gpu, "nvcc_version": found.nvcc_version, "torch": found.torch, "tools": found.tools}

    def prepare(self, unfit: str) -> bool:
        """Builds a package if prebuilt parts cannot be used; a rehearsal then measures the one that is installed."""
        done = True
        if unfit:
            print(f"prebuilt parts cannot be used: {unfit}", flush=True)
            if not self.args.rehearse:
                steps = build.Steps(self.result["build"])
                done = build.build(self.found, self.folders, steps, self.deadline, self.args.python_include)
        if not done:
            self.stopped = "there is no package to measure"
        self.write()
        return done

    def take(self, steps: list[Step]) -> None:
        for step in steps:
            left = self.deadline.left()
            if self.stopped:
                self.keep(step, {"status": "not run", "seconds": 0.0, "reason": self.stopped})
            elif left < min(step.estimate_s, self.args.step_seconds):
                reason = f"it takes about {step.estimate_s:.0f} s, and {max(0.0, left):.0f} s were left"
                self.keep(step, {"status": "not run", "seconds": 0.0, "reason": reason})
            else:
                limit = min(left, step.limit_s, self.args.step_seconds)
                at = f"{self.deadline.elapsed():5.0f} s"
                print(f"{at}  {step.name}: about {step.estimate_s:.0f} s, at most {limit:.0f} s", flush=True)
                self.keep(step, self.case(step.name, limit) if step.is_case else self.suite(step.name, limit))

    def case(self, name: str, limit_s: float) -> dict[str, Any]:
        rehearsed = ["--rehearse"] if self.args.rehearse else []
        command = [self.found.python, CASE_PY, name, "--rows", self.rows, *rehearsed]
        log = self.folders.logs / f"case-{name}.log"
        done = run(command, limit_s, log, self.folders.environment()).data()
        done["rows"] = kept.read(self.rows, name)
        if done["status"] != "ok":
            done["reason"] = f"exit status {done['code']}; the end of its output: {done['tail'][-300:]}"
        for row in done["rows"]:
            print(f"         {row['label']}: " + (row.get("absent") or f"{row['value']:.4g} {row['unit']}"), flush=True)
        return done

    def suite(self, name: str, limit_s: float) -> dict[str, Any]:
        given = suites.suite(name, self.found, self.folders)
        if isinstance(given, str):
            return {"status": "not run", "seconds": 0.0, "reason": given}
        if self.args.rehearse:
            given = suites.rehearsed(given)
        return suites.run_suite(given, self.folders, limit_s)

    def keep(self, step: Step, result: dict[str, Any]) -> None:
        result["estimate_s"] = step.estimate_s
        if step.is_case:
            result.setdefault("rows", [])
        self.result["cases" if step.is_case else "suites"][step.name] = result
        print(f"         {step.name}: {result['status']}, {result['seconds']:.0f} s"
              + (f" ({result['reason']})" if result["status"] == "not run" else ""), flush=True)  # fmt: skip
        self.write()
        if result["status"] not in ("ok", "not run"):
            self.look_for_gpu(result)
        if step.name == SMOKE and not self.stopped:
            self.stopped = self.smoke_failed(result)

    def smoke_failed(self, result: dict[str, Any]) -> str:
        """Why measurements would mean nothing; "" if they do."""
        if result["status"] == "not run" or self.args.go_on:
            return ""
        bad = [row for row in result["rows"] if "absent" in row or (row["figure"] == SMOKE and row["value"] != 0)]
        if result["status"] == "ok" and not bad:
            return ""
        why = [f"{row['label']}: {row.get('absent', row.get('value'))}" for row in bad] or [result.get("reason", "")]
        return f"the smoke test failed: {'; '.join(why)} (--go-on: measure all the same)"

    def look_for_gpu(self, result: dict[str, Any]) -> None:
        """After something went wrong: whether the GPU still answers."""
        if self.args.rehearse:
            return
        limit = max(1.0, min(ALIVE_S, self.deadline.left()))
        alive = run(
            [self.found.python, "-c", ALIVE], limit, self.folders.logs / "alive.log", self.folders.environment()
        )
        if result["status"] == "stuck" or alive.status in ("hung", "stuck"):
            self.stopped = "the GPU no longer answers"

    def write(self) -> None:
        self.result["seconds"] = round(self.deadline.elapsed(), 1)
        report.write(self.result, self.args.out / self.args.command)

    @property
    def ok(self) -> bool:
        """Nothing failed, and every measured figure is reached. Not run, or not supported, is no failure."""
        entries = [*self.result["suites"].values(), *self.result["cases"].values(), *self.result["build"].values()]
        failed = any(entry["status"] != "ok" and not entry["status"].startswith("not ") for entry in entries)
        missed = any(entry["reached"] is False for entry in report.judged(self.result)) and not self.args.rehearse
        return not (failed or missed or self.stopped)
