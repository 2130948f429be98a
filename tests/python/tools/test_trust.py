"""Claims: TRUST.md has all promises in order, each names tests that the tree has, and `make trust` fails where none of them ran."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "TRUST.md").exists())
sys.path.insert(0, str(ROOT / "tools"))
import make_trust  # noqa: E402

ROWS = make_trust.rows((ROOT / "TRUST.md").read_text(encoding="utf-8"))


@functools.cache
def names_in_the_tree() -> set[str]:
    """Suite.Name and Suite.* of C++; file and file::test of Python."""
    names: set[str] = set()
    for path in [*(ROOT / "tests").rglob("*.cpp"), *(ROOT / "src").rglob("*_test.cpp")]:
        for suite, name in re.findall(r"^TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", path.read_text(encoding="utf-8"), re.MULTILINE):
            names |= {f"{suite}.{name}", f"{suite}.*"}
    for path in (ROOT / "tests/python").rglob("test_*.py"):
        found = re.findall(r"^def (test_\w+)\(", path.read_text(encoding="utf-8"), re.MULTILINE)
        names |= {path.name, *(f"{path.name}::{name}" for name in found)}
    return names


def missing(test: str) -> list[str]:
    """The names of a cell's command that the tree does not have. Parameters, for which * stands in C++, are no part of a name."""
    first, *rest = test.split()
    if first.startswith("lowtide_"):
        wanted = [re.sub(r"(?<!\.)\*$", "", name.removeprefix("*")) for name in rest[0].split(":")]
    else:
        wanted = [name.partition("[")[0] for name in (first, *rest) if name.startswith("test_")]
    return [name for name in wanted if name not in names_in_the_tree()]


def test_every_named_test_is_there(figure: Callable[[str], None]) -> None:
    assert list(dict.fromkeys(number for number, _ in ROWS)) == [*(f"T{number}" for number in range(1, 30)), "bugs"]
    assert {test: lost for _, test in ROWS if (lost := missing(test))} == {}
    figure(f"{len(ROWS)} commands, all of whose tests are there")


@pytest.mark.parametrize("test", ["lowtide_tests Nobody.Wrote", "lowtide_tests Nobody.*", "test_trust.py::test_nobody_wrote"])
def test_a_name_that_is_not_there_is_found(test: str) -> None:
    assert missing(test) == [test.split()[-1]]


@pytest.mark.parametrize(
    ("said", "passed", "figures"),
    [
        ("Note: filter\n3 of 4\n[  PASSED  ] 2 tests.", True, ["3 of 4", "[  PASSED  ] 2 tests."]),
        ("3 of 4\n[  PASSED  ] 2 tests.\nexit 1", False, ["3 of 4", "[  PASSED  ] 2 tests."]),
        ("[  PASSED  ] 0 tests.", False, ["[  PASSED  ] 0 tests."]),
        ("..  [100%]\n==== figures ====\ntest_a: 0 differ\n2 passed in 1.00s", True, ["test_a: 0 differ", "2 passed in 1.00s"]),
        ("1 skipped in 1.00s", False, ["1 skipped in 1.00s"]),
    ],
)
def test_a_check_passes_with_its_status_and_a_test_that_ran(
    said: str, passed: bool, figures: list[str], tmp_path: Path
) -> None:
    said, failed, _ = said.partition("\nexit 1")
    program = f"print({said!r}); raise SystemExit({int(bool(failed))})"
    assert make_trust.run([sys.executable, "-c", program], tmp_path / "log") == (passed, figures)


def test_commands_find_their_programs_and_files() -> None:
    wanted = ["build/dev/lowtide_tests", "--gtest_brief=1", "--gtest_filter=Wear.*"]
    assert make_trust.command("lowtide_tests Wear.*", "build/dev") == wanted
    [*_, file] = make_trust.command("test_trust.py::test_x", "build/dev")
    assert ROOT / file.partition("::")[0] == Path(__file__).resolve()


def test_unknown_rows_are_refused() -> None:
    refused = subprocess.run([sys.executable, make_trust.__file__, "T99"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2 and "got rows T99, wanted some of T1, T2" in refused.stderr
