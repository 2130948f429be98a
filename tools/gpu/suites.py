"""Runs the tests that need a device: executables that CTest knows, Python's, and checkers of compute-sanitizer."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu.build import ROOT, Folders
from gpu.find import Found, output
from gpu.watchdog import Result, run

LABELS = {"device", "cuda"}  # that the CTest entries have, all of them, that run on a CUDA device
EMULATED = "LOWTIDE_CUDA_PLUGIN"  # in the environment of entries that run on a stand-in for one
NEEDED = {"LOWTIDE_TEST_DEVICE_NEEDED": "1"}  # without it, a test that finds no device is skipped
PYTHON_TESTS = ("test_on_gpu.py",)
CHECKERS = ("memcheck", "racecheck")
SANITIZER_ERROR = 86  # an exit status that no test has
SMALL = {"LOWTIDE_TEST_SHARE": "0.05"}  # of the random cases: a checker makes all slower


@dataclass
class Suite:
    name: str
    command: list[str]
    folder: Path
    env: dict[str, str] = field(default_factory=dict)


def entries(ctest: str, folders: Folders) -> list[Suite]:
    """CTest's entries with LABELS."""
    cmake = folders.cmake
    if not ctest or not cmake.is_dir():
        return []
    text = output([ctest, "--show-only=json-v1"], env=folders.environment(), cwd=cmake)
    try:
        tests = json.loads(text)["tests"]
    except (ValueError, KeyError):
        return []
    found = []
    for test in tests:
        given = {entry["name"]: entry["value"] for entry in test.get("properties", [])}
        env = dict(entry.partition("=")[::2] for entry in given.get("ENVIRONMENT", []))
        if set(given.get("LABELS", [])) >= LABELS and EMULATED not in env and test.get("command"):
            folder = Path(given.get("WORKING_DIRECTORY", cmake))
            found.append(Suite(test["name"], test["command"], folder, {**env, **NEEDED}))
    return found


def python_suite(found: Found, folders: Folders) -> Suite | None:
    tests = ROOT / "tests" / "python"
    files = [tests / name for name in PYTHON_TESTS if (tests / name).is_file()]
    if not files:
        return None
    report = folders.build / "reports" / "pytest.xml"
    report.unlink(missing_ok=True)
    return Suite(
        "python",
        [found.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *map(str, files)],
        ROOT,
    )


def cases(path: Path) -> dict[str, Any]:
    """Counts of a gtest or pytest report."""
    try:
        found = list(ET.parse(path).getroot().iter("testcase"))
    except (OSError, ET.ParseError):
        return {}
    bad = [case for case in found if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case for case in found if case.find("skipped") is not None or case.get("status") == "notrun"]
    return {
        "passed": len(found) - len(bad) - len(skipped),
        "failed": [f"{case.get('classname')}.{case.get('name')}" for case in bad][:50],
        "skipped": len(skipped),
    }


def report_of(suite: Suite) -> Path | None:
    for word in suite.command:
        for option in ("--gtest_output=xml:", "--junitxml="):
            if word.startswith(option):
                return Path(word.removeprefix(option))
    return None


def run_suite(suite: Suite, folders: Folders, limit_s: float) -> dict[str, Any]:
    report = report_of(suite)
    if report:
        report.parent.mkdir(parents=True, exist_ok=True)
        report.unlink(missing_ok=True)
    result = run(suite.command, limit_s, folders.logs / f"suite-{suite.name}.log", {**folders.environment(), **suite.env},
                 suite.folder)  # fmt: skip
    return {**result.data(), **(cases(report) if report else {})}


def run_checker(sanitizer: str, checker: str, suite: Suite, folders: Folders, limit_s: float) -> dict[str, Any]:
    command = [sanitizer, "--tool", checker, "--error-exitcode", SANITIZER_ERROR, *suite.command]
    env = {**folders.environment(), **suite.env, **SMALL}
    result: Result = run(command, limit_s, folders.logs / f"{checker}-{suite.name}.log", env, suite.folder)
    found = result.data()
    if result.status == "hung":
        found["status"] = "not finished in time"  # the end of its output says whether it had found anything
    elif result.code == SANITIZER_ERROR:
        found["status"] = "errors found"
    elif "not supported" in result.tail.lower() and not result.ok:
        found["status"] = "not supported here"  # on virtual machines without debugging
    return found
