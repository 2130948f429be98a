"""Claim: TRUST.md has the promises and their checks, and each check names tests that the tree has."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))
import make_trust  # noqa: E402
from trust import kept, page  # noqa: E402
from trust.checks import Check, Names, cpp, python  # noqa: E402
from trust.promises import PROMISES  # noqa: E402

CHECKS = make_trust.selected([])


def test_the_page_is_made_of_the_promises() -> None:
    assert page.FILE.read_text(encoding="utf-8") == page.render(), "write it: python3 tools/make_trust.py --page"


def test_every_named_test_is_there(figure: Callable[[str], None]) -> None:
    assert [row.number for row in PROMISES] == [f"T{number}" for number in range(1, 29)]
    names = Names.of_tree()
    missing = {check.command: names.missing(check) for check in CHECKS}
    assert {command: lost for command, lost in missing.items() if lost} == {}
    figure(f"{sum(len(check.cpp) + len(check.python) for check in CHECKS)} names in {len(CHECKS)} commands, all there")


@pytest.mark.parametrize(
    "check",
    [
        cpp("lowtide_tests", "Nobody.Wrote"),
        cpp("lowtide_tests", "Nobody.*"),
        python("test_trust.py::test_nobody_wrote"),
    ],
)
def test_a_name_that_is_not_there_is_found(check: Check) -> None:
    assert Names.of_tree().missing(check) == [*check.cpp, *check.python]


def test_figures_add_up_and_keep_the_largest() -> None:
    pattern = r"(?P<wrong>\d+) of (?P<all>[\d,]+) wrong, at most (?P<most_off>[\d.]+)"
    check = Check("run", pattern, "{wrong} of {all:,}, {most_off}")
    assert check.figure_of("0 of 1,000 wrong, at most 0.5\n2 of 500 wrong, at most 0.25\n") == "2 of 1,500, 0.5"
    assert check.figure_of("nothing here") is None


@pytest.mark.parametrize(
    ("command", "passed", "text"),
    [
        ("echo '3 of 4'", True, "3 of 4"),
        ("echo '3 of 4'; exit 1", False, "3 of 4"),
        ("echo nothing", False, "exit status 0, no figure in the output"),
    ],
)
def test_a_check_passes_with_its_status_and_a_figure(command: str, passed: bool, text: str, tmp_path: Path) -> None:
    check = Check(command, r"(?P<got>\d) of (?P<all>\d)", "{got} of {all}")
    result = make_trust.run(check, make_trust.PROGRAMS, tmp_path / "log")
    assert (result.passed, result.figure) == (passed, text)


def test_results_go_round_and_old_checks_go(tmp_path: Path) -> None:
    result = kept.Result("0 of 9", True, "2026-11-23", "0123456", 1.5)
    first, second = (Check(name, "", "") for name in ("first", "second"))
    kept.write({"second": result, "first": result, "gone": result}, [first, second], tmp_path / "kept.json")
    assert list(kept.read(tmp_path / "kept.json").items()) == [("first", result), ("second", result)]


def test_unknown_rows_are_refused() -> None:
    program = Path(make_trust.__file__)
    refused = subprocess.run([sys.executable, program, "T99"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2 and "got rows T99, wanted some of T1, T2" in refused.stderr
