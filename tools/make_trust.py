#!/usr/bin/env python3
"""Runs the tests that TRUST.md names, prints their figures and gathers them in build/trust/figures.md. Needs the tests built
(`make trust` builds them). Notes each passed test at once, so that a stopped run resumes.

    python3 tools/make_trust.py             the tests that have not passed yet
    python3 tools/make_trust.py T3 T17      these rows, again
    python3 tools/make_trust.py bugs        the bugs of other libraries, again
    python3 tools/make_trust.py --all       all, again
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "build" / "trust"
PASSED = re.compile(r"^\[  PASSED  \] [1-9]\d* tests?|^[1-9]\d* passed|^\w+: [1-9][\d,]* executions", re.MULTILINE)
FRAME = re.compile(r"^\[(?!  PASSED)|^Note: |^Running main|^=|%\]$|^$")  # lines that gtest and pytest print around figures


def rows(page: str) -> list[tuple[str, str]]:
    """The number of each row ("bugs" in the second table) with each command in its last cell, in the order of the page."""
    found = []
    for line in page.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) in (3, 4) and cells[-1].startswith("`"):
            number = cells[0] if len(cells) == 4 else "bugs"
            found += [(number, test.strip("`").replace("\\|", "|")) for test in cells[-1].split("<br>")]
    return found


def command(test: str, programs: str) -> list[str]:
    """The words that run a cell's command from the root of the tree."""
    first, *rest = test.split()
    if first.startswith("lowtide_"):
        return [f"{programs}/{first}", "--gtest_brief=1", f"--gtest_filter={rest[0]}"]
    if not first.startswith("test_"):
        return [first, *rest]
    folders = {path.name: path.parent.relative_to(ROOT) for path in (ROOT / "tests/python").rglob("test_*.py")}
    names = [f"{folders[name.partition('::')[0]]}/{name}" for name in (first, *rest)]
    return [".venv/bin/python", "-m", "pytest", "-q", *names]


def figures(output: str) -> list[str]:
    """The last lines that tests have printed; for pytest, those below "figures"."""
    said = output.partition(" figures ===")[2] or output
    return [line for line in said.splitlines() if not FRAME.search(line)][-8:]


def commit() -> str:
    """The short commit, with a + if files of the tree have changed."""
    described = ["git", "describe", "--always", "--exclude=*", "--abbrev=7", "--dirty=+"]
    return subprocess.run(described, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def run(words: list[str], log: Path) -> tuple[bool, list[str]]:
    """Returns whether at least one test ran and none failed, and the figures. The whole output goes to the log."""
    with log.open("w", encoding="utf-8") as out:
        status = subprocess.run(words, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, check=False).returncode
    output = log.read_text(encoding="utf-8", errors="replace")
    return status == 0 and bool(PASSED.search(output)), figures(output)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help="T1 to T29, or bugs: those alone, again")
    parser.add_argument("--all", action="store_true", help="run again what has passed")
    parser.add_argument("--programs", default="build/dev", help="the folder of the C++ tests (default: %(default)s)")
    options = parser.parse_args()
    named = rows((ROOT / "TRUST.md").read_text(encoding="utf-8"))
    known = list(dict.fromkeys(number for number, _ in named))
    if unknown := [row for row in options.rows if row not in known]:
        parser.error(f"got rows {', '.join(unknown)}, wanted some of {', '.join(known)}")

    OUT.mkdir(parents=True, exist_ok=True)
    kept = OUT / "passed.json"
    passed: dict[str, list[str]] = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    again = options.all or bool(options.rows)
    todo = [test for number, test in named if (not options.rows or number in options.rows) and (again or test not in passed)]
    failed = 0
    for number, test in enumerate(dict.fromkeys(todo), 1):
        print(f"[{number}/{len(set(todo))}] {test}", flush=True)
        start, log = time.monotonic(), OUT / f"{number}.log"
        good, said = run(command(test, options.programs), log)
        print(*(f"    {line}" for line in said), sep="\n")
        print(f"    {'ok' if good else f'FAILED (output: {log})'}, {time.monotonic() - start:.0f} s", flush=True)
        failed += not good
        passed.pop(test, None)
        if good:
            passed[test] = [f"{datetime.date.today()}, commit {commit()}", *said]
        kept.write_text(json.dumps(passed, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    cells = [f"| {number} | `{test}` | {'<br>'.join(passed.get(test, ['not passed yet']))} |" for number, test in named]
    (OUT / "figures.md").write_text("\n".join(["| row | tests | figures |", "|---|---|---|", *cells, ""]), encoding="utf-8")
    waiting = len({test for _, test in named} - passed.keys())
    print(f"{failed} failed now, {waiting} wait; all figures: {OUT.relative_to(ROOT)}/figures.md")
    return 1 if failed else 0


if __name__ == "__main__":
    os.environ.setdefault("LOWTIDE_TEST_SEED", "20261122")
    sys.exit(main())
