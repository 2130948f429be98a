"""TRUST.md, made of the promises, the peers' bugs and the kept results."""

from __future__ import annotations

from collections.abc import Mapping

from trust.checks import ROOT, Check
from trust.kept import Result
from trust.peers import BUGS
from trust.promises import PROMISES

FILE = ROOT / "TRUST.md"
HEAD = """\
# Lowtide's promises, and how each is tested

`make trust` runs every check below that has no result yet, and writes this page from the results
([docs/benchmarks/trust.json](docs/benchmarks/trust.json)). A run that is stopped goes on where it was.
`make trust ARGS="T3 T4"` runs those rows again, `ARGS=--all` all of them. Each command also runs alone, from the root
of the tree, once `make trust` or `make test` has built the tests. A figure is that of the last run, with its date and
commit; a commit with a + had changes that were not committed.

[docs/numerics.md](docs/numerics.md) explains the arithmetic behind these promises.

## Promises

| # | promise | how it is tested | command | figure of the last run |
|---|---|---|---|---|
"""
BUGS_HEAD = """
## Bugs of others

Each of these bugs was found by users of another project. Its command runs our tests that fail if Lowtide has it.
(bnb: bitsandbytes; ao: torchao.)

| where | bug | command | last run |
|---|---|---|---|
"""
NOT_RUN = "not run yet"


def stamp(result: Result) -> str:
    return f"{result.date}, {result.commit}"


def figures(checks: tuple[Check, ...], results: Mapping[str, Result]) -> str:
    """The figures of a row; results of one day and commit are stamped once."""
    found = [results.get(check.command) for check in checks]
    lines: list[str] = []
    for number, result in enumerate(found):
        if result is None:
            lines.append(NOT_RUN)
            continue
        after = found[number + 1] if number + 1 < len(found) else None
        stamped = "" if after is not None and stamp(after) == stamp(result) else f" ({stamp(result)})"
        lines.append(f"{'' if result.passed else '**FAILED** '}{result.figure}{stamped}")
    return "<br>".join(lines) or NOT_RUN


def commands(checks: tuple[Check, ...]) -> str:
    return "<br>".join(f"`{check.command}`" for check in checks) or "none yet"


def render(results: Mapping[str, Result]) -> str:
    def line(checks: tuple[Check, ...], *first: str) -> str:
        cells = (*first, commands(checks), figures(checks, results))
        return "| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |\n"

    rows = [line(row.checks, row.number, row.promise, row.how) for row in PROMISES]
    bugs = [line((bug.check,), bug.where, bug.bug) for bug in BUGS]
    return HEAD + "".join(rows) + BUGS_HEAD + "".join(bugs)
