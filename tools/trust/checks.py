"""A check: a command that tests a promise, the tests that it names, and how its output becomes one figure."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = "build/dev"  # the folder of C++ tests
PYTEST = ".venv/bin/python -m pytest -q"


@dataclass(frozen=True)
class Check:
    """`pattern` is looked for in the whole output. Its named groups are numbers: they add up over all matches, those
    whose name begins with `most_` give the largest. `figure` is the text that takes them."""

    command: str
    pattern: str
    figure: str
    cpp: tuple[str, ...] = ()  # Suite.Name, or Suite.*
    python: tuple[str, ...] = ()  # file::test

    def figure_of(self, output: str) -> str | None:
        """None: the output has no figure."""
        found: dict[str, float] = {}
        matches = list(re.finditer(self.pattern, output, re.MULTILINE))
        for match in matches:
            for name, text in match.groupdict().items():
                number = float((text or "0").replace(",", ""))
                known = found.get(name, 0.0)
                found[name] = max(known, number) if name.startswith("most_") else known + number
        if not matches:
            return None
        whole = {name: int(number) if number.is_integer() else number for name, number in found.items()}
        return self.figure.format(matches=len(matches), **whole)


CROSS = "lowtide_cross_tests"
UNIT = "lowtide_tests"
COMPARED = r"(?P<bytes>[\d,]+) bytes compared, (?P<differ>\d+) differ"
DIFFER = "{differ} of {bytes:,} bytes differ"
GTEST_PASSED = r"\[  PASSED  \] (?P<passed>[1-9]\d*) tests?"
PYTEST_PASSED = r"^(?P<passed>[1-9]\d*) passed"


def cpp(
    program: str, tests: str, pattern: str = GTEST_PASSED, figure: str = "{passed} tests pass", environment: str = ""
) -> Check:
    """Tests of a C++ program, named as --gtest_filter takes them (without exclusions)."""
    command = f"{PROGRAMS}/{program} --gtest_brief=1 --gtest_filter={shlex.quote(tests)}"
    return Check(f"{environment} {command}".strip(), pattern, figure, cpp=tuple(tests.split(":")))


def python(*tests: str, pattern: str = PYTEST_PASSED, figure: str = "{passed} tests pass") -> Check:
    """Tests of tests/python: `room/file::test`, or `room/file` for all of it."""
    paths = " ".join(f"tests/python/{test}" for test in tests)
    return Check(f"{PYTEST} {paths}", pattern, figure, python=tests)


@dataclass(frozen=True)
class Promise:
    number: str
    promise: str
    how: str
    checks: tuple[Check, ...]


@dataclass(frozen=True)
class Bug:
    """A bug that another project had, and our check that fails if we have it."""

    where: str
    bug: str
    check: Check


@dataclass
class Names:
    """The names of all tests of the tree."""

    cpp: set[str] = field(default_factory=set)
    python: set[str] = field(default_factory=set)

    @classmethod
    def of_tree(cls) -> Names:
        names = cls()
        for path in [*(ROOT / "tests").rglob("*.cpp"), *(ROOT / "src").rglob("*_test.cpp")]:
            text = path.read_text(encoding="utf-8")
            for suite, name in re.findall(r"^TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", text, re.MULTILINE):
                names.cpp |= {f"{suite}.{name}", f"{suite}.*"}
        tests = ROOT / "tests/python"
        for path in tests.rglob("test_*.py"):
            file = path.relative_to(tests).as_posix()
            names.python.add(file)
            for name in re.findall(r"^def (test_\w+)\(", path.read_text(encoding="utf-8"), re.MULTILINE):
                names.python.add(f"{file}::{name}")
        return names

    def missing(self, check: Check) -> list[str]:
        """The names of the check's tests that the tree does not have."""
        # The parameters of a test, for which * stands, are no part of its name.
        cpp_names = [re.sub(r"(?<!\.)\*$", "", name.removeprefix("*")) for name in check.cpp]
        return [name for name in cpp_names if name not in self.cpp] + [
            name for name in check.python if name.partition("[")[0] not in self.python
        ]
