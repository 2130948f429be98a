"""One run of gpu_check: its steps under one deadline. Writes results as they come."""

from __future__ import annotations

import argparse
import subprocess
import time
from typing import Any

from bench.cuda import rows as kept
from gpu import report, results, sources, suites
from gpu.machine import ROOT, Found
from gpu.parts import Folders
from gpu.plan import SMOKE, Deadline, Step
from gpu.watchdog import Result, Running, run

CASE_PY = ROOT / "bench" / "cuda" / "case.py"
ALIVE = "import torch; torch.ones(8, device='cuda').sum().item(); torch.cuda.synchronize()"
ALIVE_S = 25.0


class Check:
    """Writes run-TIME.json and .md after every step, and .rows.jsonl after every row."""

    def __init__(self, args: argparse.Namespace, found: Found, folders: Folders, deadline: Deadline) -> None:
        self.args, self.found, self.folders, self.deadline = args, found, folders, deadline
        self.stopped = ""  # why no further step runs
        self.stem = results.stem(args.out)
        self.rows = self.stem.with_name(f"{self.stem.name}.rows.jsonl")
        self.spare: Running | None = None
        digest = sources.digest(ROOT)
        revision = sources.revision(ROOT, folders.bundle, digest, found.machine.get("revision", "unknown"))
        self.result: dict[str, Any] = {
            "gpu": found.gpu.get("name", "rehearsal" if args.rehearse else "no GPU"), "date": time.strftime("%Y-%m-%d"),
            "driver": found.gpu.get("driver_version", "none"), "revision": revision, "sources": digest, "rehearsal": args.rehearse,
            "machine": {**found.machine, "gpu": found.gpu, "torch": found.torch, "lowtide": found.lowtide},
            "suites": {}, "cases": {}, "seconds": 0.0,
        }  # fmt: skip
        known = results.gather([*args.known, args.out], self.result) or self.result
        for part in ("suites", "cases"):
            self.result[part].update(known[part])
        self.write()

    def entry(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.result["cases"].get(name) or self.result["suites"].get(name) or {"status": "not run", "rows": []}
        return found

    def wanted(self, queue: tuple[Step, ...]) -> list[Step]:
        """The steps of the queue that no earlier run has finished. The smoke test always runs, because it tests this
        machine."""
        known = [step for step in queue if step.name != SMOKE and results.finished(self.entry(step.name))]
        if known:
            print(f"known of an earlier run: {', '.join(step.name for step in known)}", flush=True)
        return [step for step in queue if step not in known]

    def take(self, steps: list[Step]) -> None:
        try:
            for number, step in enumerate(steps):
                left = self.deadline.left()
                if self.stopped:
                    self.keep(step, {"status": "not run", "seconds": 0.0, "reason": self.stopped})
                elif left < step.estimate_s:
                    reason = f"it takes about {step.estimate_s:.0f} s, and {max(0.0, left):.0f} s were left"
                    self.keep(step, {"status": "not run", "seconds": 0.0, "reason": reason})
                else:
                    limit = min(left, step.limit_s)
                    at = f"{self.deadline.elapsed():5.0f} s"
                    print(f"{at}  {step.name}: about {step.estimate_s:.0f} s, at most {limit:.0f} s", flush=True)
                    more = any(later.is_case for later in steps[number + 1 :])
                    self.keep(step, self.case(step.name, limit, more) if step.is_case else self.suite(step.name, limit))
        finally:
            if self.spare:
                self.spare.kill()

    def started(self) -> Running:
        """Starts a process that imports torch and waits for the name of a case."""
        rehearsed = ["--rehearse"] if self.args.rehearse else []
        return Running([self.found.python, CASE_PY, "--wait", "--rows", self.rows, *rehearsed],
                       self.folders.logs / f"case-{time.monotonic_ns()}.log", self.folders.environment(),
                       stdin=subprocess.PIPE)  # fmt: skip

    def case(self, name: str, limit_s: float, more: bool) -> dict[str, Any]:
        """Runs a case. more: another case follows, whose process imports torch meanwhile."""
        try:
            running = self.spare or self.started()
            running.tell(name, self.folders.logs / f"case-{name}.log")
            self.spare = self.started() if more else None
            done = running.finish(limit_s).data()
        except OSError as error:
            done = Result("missing", 127, 0.0, str(error)).data()
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
        if result["status"] != "not run" or not results.finished(self.entry(step.name)):
            self.result["cases" if step.is_case else "suites"][step.name] = result
        print(f"         {step.name}: {result['status']}, {result['seconds']:.0f} s"
              + (f" ({result['reason']})" if result["status"] == "not run" else ""), flush=True)  # fmt: skip
        self.write()
        if result["status"] not in ("ok", "not run"):
            self.look_for_gpu(result)
        if step.name == SMOKE and not self.stopped:
            self.stopped = self.smoke_failed(result)

    def smoke_failed(self, result: dict[str, Any]) -> str:
        """Why measurements would mean nothing; "" if they mean something."""
        if result["status"] == "not run" or self.args.go_on:
            return ""
        bad = [row for row in result["rows"] if "absent" in row or (row["figure"] == SMOKE and row["value"] != 0)]
        if result["status"] == "ok" and not bad:
            return ""
        why = [f"{row['label']}: {row.get('absent', row.get('value'))}" for row in bad] or [result.get("reason", "")]
        return f"the smoke test failed: {'; '.join(why)} (--go-on: measure all the same)"

    def look_for_gpu(self, result: dict[str, Any]) -> None:
        """Checks whether the GPU still answers after a step that did not end well."""
        if self.args.rehearse:
            return
        limit = max(1.0, min(ALIVE_S, self.deadline.left()))
        alive = run([self.found.python, "-c", ALIVE], limit, self.folders.logs / "alive.log", self.folders.environment())
        if result["status"] == "stuck" or alive.status in ("hung", "stuck"):
            self.stopped = "the GPU no longer answers"

    def write(self) -> None:
        self.result["seconds"] = round(self.deadline.elapsed(), 1)
        report.write(self.result, self.stem)

    @property
    def ok(self) -> bool:
        """True if nothing failed and every measured figure was reached. Steps that did not run or are unsupported do not
        fail."""
        entries = [*self.result["suites"].values(), *self.result["cases"].values()]
        failed = any(entry["status"] != "ok" and not entry["status"].startswith("not ") for entry in entries)
        missed = any(entry["reached"] is False for entry in report.judged(self.result)) and not self.args.rehearse
        return not (failed or missed or self.stopped)
