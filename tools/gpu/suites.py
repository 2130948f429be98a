"""Runs the tests that need a device: the C++ program, the Python tests, and the checkers of compute-sanitizer."""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu.machine import ROOT, Found
from gpu.parts import Folders
from gpu.watchdog import Result, run

# Without NEEDED, tests that find no device are skipped. SHARE limits random cases, because the CPU steps them, too.
DEVICE = {"LOWTIDE_TEST_DEVICE": "cuda", "LOWTIDE_TEST_DEVICE_NEEDED": "1", "LOWTIDE_TEST_SHARE": "0.3"}
PYTHON_TESTS: dict[str, tuple[str, ...]] = {
    "suite python": ("devices/test_on_gpu.py",),
    "suite ranks": ("distributed/test_on_gpu_ranks.py",),
    # Each test is a process that imports torch; one after another, they would take 200 s.
    "suite listings": ("docs/test_readme.py", "-n8", "--dist=load", "-k", "test_example_runs or test_fragment_runs"),
}
SANITIZER_ERROR = 86  # an exit status that no test has
# A checker makes tests some ten times slower, so it runs a share of the random cases, in tests that reach its subject.
CHECKED_SHARE = {"LOWTIDE_TEST_SHARE": "0.1"}
CHECKERS = {  # options and tests of each
    # Errors of calls are not reported: some are deliberate, such as asking for attributes of memory that CUDA does not know.
    "memcheck": (("--report-api-errors", "no"), "DeviceSteps.*:DeviceCodecs.*:DeviceNonfinite.*"),
    "synccheck": ((), "DeviceSteps.GiveTheBitsOfTheCpu:DeviceNorms.*"),
    "racecheck": ((), "DeviceSteps.GiveTheBitsOfTheCpu:DeviceNorms.*"),
}


@dataclass
class Suite:
    name: str
    command: list[object]
    report: Path | None = None
    env: dict[str, str] = field(default_factory=dict)


def suite(name: str, found: Found, folders: Folders) -> Suite | str:
    """The suite of that name, or the reason why it cannot run."""
    program = folders.tests
    reports = folders.build / "reports"
    if name in PYTHON_TESTS:
        file, *options = PYTHON_TESTS[name]
        report = reports / f"{file}.xml"
        command = [found.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *options]
        return Suite(name, [*command, ROOT / "tests" / "python" / file], report, {"LOWTIDE_LISTINGS_ON": "cuda"})
    if not program.is_file():
        return f"{program} is not there"
    if name == "suite device":
        report = reports / "device.xml"
        return Suite(name, [program, f"--gtest_output=xml:{report}", "--gtest_brief=1"], report, DEVICE)
    if not found.sanitizer:
        return "compute-sanitizer was not found"
    checker, tests = CHECKERS[name]
    return Suite(name, [found.sanitizer, "--tool", name, *checker, "--print-limit", 2000, "--error-exitcode", SANITIZER_ERROR,
                        program, "--gtest_brief=1", f"--gtest_filter={tests}"], None, {**DEVICE, **CHECKED_SHARE})  # fmt: skip


def rehearsed(given: Suite) -> Suite:
    """The suite on the CPU: Python tests as far as they mean anything there and, if the emulated runtime is built, the two
    shortest device tests on it."""
    env = {**given.env, "LOWTIDE_ON_GPU": "cpu", "LOWTIDE_LISTINGS_ON": ""}
    emulated = Path(os.environ.get("LOWTIDE_CUDA_EMULATED") or ROOT / "build" / "dev" / "liblowtide_cuda_emulated.so")
    if emulated.is_file():
        env |= {"LOWTIDE_CUDA_PLUGIN": str(emulated), "LOWTIDE_TEST_SHARE": "0.02"}
    shortest = ["--gtest_filter=DeviceSteps.Give*:DeviceFill.*"] if "LOWTIDE_TEST_DEVICE" in env else []
    return Suite(given.name, [*given.command, *shortest], given.report, env)


def failure(case: ET.Element) -> str:
    """Names a failed case, and gives the first line of the reason."""
    told = next((found.get("message") or "" for kind in ("failure", "error") if (found := case.find(kind)) is not None), "")
    why = told.strip().partition("\n")[0][:200]
    return f"{case.get('classname')}.{case.get('name')}" + (f": {why}" if why else "")


def counts(path: Path) -> dict[str, Any]:
    """Numbers of cases in a report of gtest or pytest."""
    try:
        found = list(ET.parse(path).getroot().iter("testcase"))
    except (OSError, ET.ParseError):
        return {}
    bad = [case for case in found if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case for case in found if case.find("skipped") is not None or case.get("status") == "notrun"]
    return {
        "passed": len(found) - len(bad) - len(skipped),
        "failed": [failure(case) for case in bad][:50],
        "skipped": len(skipped),
    }


def run_suite(given: Suite, folders: Folders, limit_s: float) -> dict[str, Any]:
    if given.report:
        given.report.parent.mkdir(parents=True, exist_ok=True)
        given.report.unlink(missing_ok=True)
    env = {**folders.environment(), **given.env}
    result = run(given.command, limit_s, folders.logs / f"{given.name.replace(' ', '-')}.log", env, ROOT)
    found = {**result.data(), **(counts(given.report) if given.report else {})}
    return found if given.report else checked(result, found)


def checked(result: Result, found: dict[str, Any]) -> dict[str, Any]:
    """Judges a checker, which makes no report, by its exit status and the end of its output."""
    if result.status == "hung":
        found["status"] = "not finished in time"  # the end of its output says whether it found anything
    elif result.code == SANITIZER_ERROR:
        found["status"] = "errors found"
    elif result.ok and not re.search(r"\[==========\] [1-9]\d* tests? from", result.tail):
        found |= {"status": "failed", "reason": "no test ran"}
    elif "not supported" in result.tail.lower() and not result.ok:
        found["status"] = "not supported here"  # on virtual machines without debugging
    return found
