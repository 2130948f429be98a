"""TRUST.md, made of the promises and the peers' bugs."""

from __future__ import annotations

from trust.checks import ROOT, Check
from trust.peers import BUGS
from trust.promises import PROMISES

FILE = ROOT / "TRUST.md"
HEAD = """\
# Lowtide's promises, and how each is tested

`make trust` runs every check below that has no result in build/trust yet, and prints its figure; a run that is stopped goes on where it was.
`make trust ARGS="T3 T4"` runs those rows again, `ARGS=--all` all of them. Each command also runs alone, from the root of the tree, once
`make trust` or `make test` has built the tests.

[docs/numerics.md](docs/numerics.md) explains the arithmetic behind these promises.

## Promises

| # | promise | how it is tested | command |
|---|---|---|---|
"""
BUGS_HEAD = """
## Bugs of others

Each of these bugs was found by users of another project. Its command runs our tests that fail if Lowtide has it.
(bnb: bitsandbytes; ao: torchao.)

| where | bug | command |
|---|---|---|
"""
def commands(checks: tuple[Check, ...]) -> str:
    return "<br>".join(f"`{check.command}`" for check in checks) or "none yet"


def render() -> str:
    def line(checks: tuple[Check, ...], *first: str) -> str:
        return "| " + " | ".join(text.replace("|", "\\|") for text in (*first, commands(checks))) + " |\n"

    rows = [line(row.checks, row.number, row.promise, row.how) for row in PROMISES]
    bugs = [line((bug.check,), bug.where, bug.bug) for bug in BUGS]
    return HEAD + "".join(rows) + BUGS_HEAD + "".join(bugs)
