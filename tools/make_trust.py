#!/usr/bin/env python3
"""Runs the checks of TRUST.md and prints their figures. Keeps each result in build/trust/results.json as soon as it is
there: a run that is stopped goes on where it was. Wants the tests built (make trust builds them).

    python3 tools/make_trust.py             the checks without a result, and those that failed
    python3 tools/make_trust.py T3 T17      those rows, again
    python3 tools/make_trust.py bugs        the bugs of others, again
    python3 tools/make_trust.py --all       all, again
    python3 tools/make_trust.py --page      nothing; writes the page
"""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys
import time
from pathlib import Path

from trust import kept, page
from trust.checks import PROGRAMS, ROOT, Check
from trust.peers import BUGS
from trust.promises import PROMISES


def selected(rows: list[str]) -> list[Check]:
    """The checks of these rows, each command once, with the figure of its promise; of all rows if there are none."""
    checks = {check.command: check for row in PROMISES for check in row.checks}
    for bug in BUGS:
        checks.setdefault(bug.check.command, bug.check)
    wanted = {check.command for row in PROMISES if not rows or row.number in rows for check in row.checks}
    wanted |= {bug.check.command for bug in BUGS if not rows or "bugs" in rows}
    return [check for command, check in checks.items() if command in wanted]


def commit() -> str:
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no")
    return git("rev-parse", "--short=7", "HEAD") + ("+" if changed else "")


def run(check: Check, programs: str, log: Path) -> kept.Result:
    """Runs the check's command; its whole output goes to the log."""
    start = time.monotonic()
    command = check.command.replace(f"{PROGRAMS}/", f"{programs}/")
    with log.open("w", encoding="utf-8") as out:
        done = subprocess.run(command, shell=True, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, check=False)
    figure = check.figure_of(log.read_text(encoding="utf-8", errors="replace"))
    passed = done.returncode == 0 and figure is not None
    if figure is None:
        figure = f"exit status {done.returncode}, no figure in the output"
    return kept.Result(figure, passed, datetime.date.today().isoformat(), commit(), round(time.monotonic() - start, 1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help="T1 to T28, or bugs: those alone, again")
    parser.add_argument("--all", action="store_true", help="run again what has a result")
    parser.add_argument("--page", action="store_true", help="run nothing")
    parser.add_argument("--programs", default=PROGRAMS, help="the folder of the C++ tests (default: %(default)s)")
    options = parser.parse_args()
    known = [row.number for row in PROMISES] + ["bugs"]
    if unknown := [row for row in options.rows if row not in known]:
        parser.error(f"got rows {', '.join(unknown)}, wanted some of {', '.join(known)}")

    results = kept.read()
    everything = selected([])
    good = set() if options.all or options.rows else {command for command, result in results.items() if result.passed}
    todo = [] if options.page else [check for check in selected(options.rows) if check.command not in good]
    logs = ROOT / "build/trust"
    logs.mkdir(parents=True, exist_ok=True)
    failed = 0
    for number, check in enumerate(todo, 1):
        print(f"[{number}/{len(todo)}] {check.command}", flush=True)
        log = logs / f"{number}.log"
        result = run(check, options.programs, log)
        failed += not result.passed
        verdict = "ok" if result.passed else f"FAILED (output: {log})"
        print(f"    {verdict}, {result.seconds:.0f} s: {result.figure}", flush=True)
        results[check.command] = result
        kept.write(results, everything)
    if options.page:
        page.FILE.write_text(page.render(), encoding="utf-8")
    waiting = sum(check.command not in results for check in everything)
    print(f"{len(everything)} checks: {failed} failed now, {waiting} not run yet; results in {kept.FILE.relative_to(ROOT)}")
    return 1 if failed else 0


if __name__ == "__main__":
    os.environ.setdefault("LOWTIDE_TEST_SEED", "20261122")
    sys.exit(main())
