#!/usr/bin/env python3
"""Builds everything, runs every test suite and ends with `N passed, N failed[, N skipped]`.

A suite that fails does not stop the next. A step that cannot run (a build, a crash before any result) counts as one failure.
Exit status 0 means that nothing failed and every suite had tests.

Random tests start from one seed, so that results repeat, and long ones run a share of their cases. --soak N runs, N times with
new seeds and an optimized release build: all Python tests; the CUDA device tests again, on the kernels' PTX; the tests of
torch_npu; and all cases of the C++ tests that otherwise run a share.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BOOTSTRAP = ROOT / "tools/bootstrap.sh"
EXTRAS = "test,docs,examples,frameworks,peers,sycl-runtime"
WORKERS = 2  # processes of pytest; with more than cores, tests of time limits fail
SEED = "20261122"  # for random tests, unless LOWTIDE_TEST_SEED is set
SHARE = "0.15"  # of cases in long Python tests (tests/python/conftest.py), without --soak
# The long C++ tests: all cases of tests of which `make test` runs a share, CUDA and SYCL kernels of all rules and CUDA's for the
# oldest architecture, and the compiler's optimization of a release.
SOAK_ENTRIES = "_soak$|^one_definition$|^cuda_library$"
SOAK_OPTIONS = (
    "-DLOWTIDE_CUDA_ARCHITECTURES=75;90", "-DLOWTIDE_CUDA_RULES=", "-DLOWTIDE_SYCL_BALLOTS=", "-DCMAKE_CXX_FLAGS_RELEASE=-O3 -g1",
    "-DLOWTIDE_QUICK_KERNELS=OFF", "-DLOWTIDE_UNITY=OFF",
)  # fmt: skip
# The tests of CUDA devices again, on an executor of the kernels' PTX. They take minutes, so only --soak runs them.
PTX_PLUGIN = "liblowtide_cuda_ptx.so"
PTX_TESTS = (
    "tests/python/devices/test_cuda.py", "tests/python/devices/test_device_steps.py", "tests/python/votes/test_vote_devices.py",
    "tests/python/votes/test_accumulator_devices.py", "-k", "cuda",
)  # fmt: skip
# Torch's device type "npu": torch_npu needs this torch, and six libraries of CANN, for which one file stands in.
NPU_PACKAGES = ("torch==2.14.0", "torch-npu==2.14.0")
NPU_LIBRARIES = ("ascendcl", "hccl", "ge_runner", "graph", "acl_op_compiler", "acl_tdt_channel")
NPU_TESTS = "tests/python/devices/npu_jobs.py"


@dataclass
class Tally:
    passed: int = 0
    failures: list[str] = field(default_factory=list)
    skips: list[str] = field(default_factory=list)

    def add_xml(self, path: Path) -> bool:
        """Adds the test cases of a JUnit-like file from gtest, pytest or ctest. Returns False if it has none."""
        cases = read_cases(path)
        for case in cases:
            self.add_case(case)
        return bool(cases)

    def add_case(self, case: ET.Element) -> None:
        name = ".".join(filter(None, (case.get("classname"), case.get("name"))))
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            self.failures.append(name)
        elif skipped is not None or case.get("status") in ("notrun", "disabled"):
            self.skips.append(f"{name}: {skip_reason(skipped, case.findtext('system-out'))}")
        else:
            self.passed += 1


def skip_reason(skipped: ET.Element | None, output: str | None) -> str:
    if skipped is None:
        return "disabled"
    reason = skipped.get("message") or "no reason given"
    if reason == "collection skipped":  # for a whole pytest file, the text has the reason
        reason = skipped.text or reason
    if reason.startswith("SKIP_") and output:  # ctest names the rule; the test says why
        reason = output
    return " ".join(reason.split())


def read_cases(path: Path) -> list[ET.Element]:
    try:
        return list(ET.parse(path).getroot().iter("testcase"))
    except (OSError, ET.ParseError):
        return []


def was_not_started(entry: ET.Element) -> bool:
    """True for a missing program. ctest also says "notrun" of a test that skipped itself."""
    skipped = entry.find("skipped")
    return entry.get("status") == "notrun" and not (
        skipped is not None and (skipped.get("message") or "").startswith("SKIP_")
    )


def run(title: str, *command: object, env: dict[str, str] | None = None) -> int:
    """Runs a command, shows its output and returns its exit status."""
    print(f"== {title}", flush=True)
    start = time.monotonic()
    try:
        status = subprocess.run(
            [str(word) for word in command], cwd=ROOT, env=env, stdin=subprocess.DEVNULL, check=False
        ).returncode
    except OSError as error:
        print(error)
        status = 127
    print(f"== {title}: {'ok' if status == 0 else f'exit status {status}'}, {time.monotonic() - start:.0f} s", flush=True)
    return status


class Requirements:
    """Installs the packages that tests import while C++ compiles, because pip uses one core and waits for the network."""

    def __init__(self) -> None:
        print("== Python requirements: begun, beside the C++ build", flush=True)
        self._log = tempfile.NamedTemporaryFile()
        self._process = subprocess.Popen(
            [str(BOOTSTRAP), "--no-package", "--extras", EXTRAS],
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def wait(self, tally: Tally) -> None:
        """Shows the output as it comes, and counts a failure. A second call does nothing."""
        if self._log.closed:
            return
        start = time.monotonic()
        with self._log, open(self._log.name, encoding="utf-8", errors="replace") as output:
            while (status := self._process.poll()) is None:
                print(output.read(), end="", flush=True)
                time.sleep(1)
            print(output.read(), end="")
        print(f"== Python requirements: {'ok' if status == 0 else f'exit status {status}'}, waited {time.monotonic() - start:.0f} s")
        if status != 0:
            tally.failures.append("Python requirements")


def cpp_build(tally: Tally, preset: str, requirements: Requirements, options: tuple[str, ...] = ()) -> bool:
    built = cpp_compile(tally, preset, options)
    requirements.wait(tally)
    return built


def cpp_compile(tally: Tally, preset: str, options: tuple[str, ...]) -> bool:
    for title, command in (
        ("configure", ("cmake", "--preset", preset, *options, *shlex.split(os.environ.get("CMAKE_ARGS", "")))),
        ("build", ("cmake", "--build", "--preset", preset)),
    ):
        if run(f"C++ {title}", *command) != 0:
            tally.failures.append(f"C++ {title}")
            return False
    return True


def cpp_tests(
    tally: Tally, preset: str, requirements: Requirements, options: tuple[str, ...] = (), only: tuple[str, ...] = ()
) -> None:
    build = ROOT / "build" / preset
    if not cpp_build(tally, preset, requirements, options):
        return

    # Remove results of an earlier run, which must not count.
    reports = build / "reports"
    shutil.rmtree(reports, ignore_errors=True)
    reports.mkdir()
    entries_xml = reports / "ctest-entries.xml"
    status = run("C++ tests", "ctest", "--preset", preset, "--output-junit", entries_xml, *only)

    failed_before = len(tally.failures)
    entries = read_cases(entries_xml)
    for entry in entries:
        # A gtest executable is one entry, whose own report has the cases.
        entry_failed = entry.get("status") == "fail" or entry.find("failure") is not None
        failed_inside = len(tally.failures)
        if not tally.add_xml(reports / f"{entry.get('name')}.xml"):
            if was_not_started(entry):
                tally.failures.append(f"{entry.get('name')} (could not be started)")
            else:
                tally.add_case(entry)
        elif entry_failed and len(tally.failures) == failed_inside:
            tally.failures.append(f"{entry.get('name')} (failed outside its cases)")
    if not entries or (status != 0 and len(tally.failures) == failed_before):
        tally.failures.append(f"ctest (exit status {status}, {len(entries)} entries)")


def python_package(tally: Tally, preset: str) -> bool:
    # Uses the build of the C++ tests, which saves minutes and has asserts enabled.
    made = run("Python package", BOOTSTRAP, "--extras", EXTRAS, "--build-dir", f"build/{preset}") == 0
    if not made:
        tally.failures.append("Python package")
    return made


def python_tests(tally: Tally, title: str, *arguments: str, **settings: str) -> None:
    report = ROOT / "build" / "reports" / (title.replace(" ", "-") + ".xml")
    report.unlink(missing_ok=True)
    failed_before = len(tally.failures)
    # No path of this folder may hide the installed package. With as many torch threads as cores in each worker, threads would
    # wait for one another far longer than they compute.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"} | settings
    status = run(
        title, ROOT / ".venv/bin/python", "-m", "pytest", "-q",
        "--continue-on-collection-errors", f"-n{WORKERS}", "--dist=loadfile", "--no-loadscope-reorder", f"--junitxml={report}", *arguments,
        env=env,
    )
    any_case = tally.add_xml(report)
    if not any_case or (status != 0 and len(tally.failures) == failed_before):
        tally.failures.append(f"{title} (exit status {status}{'' if any_case else ', no results'})")


def npu_settings(tally: Tally) -> dict[str, str]:
    """The environment in which .venv's Python has torch_npu, with both packages below build/; {} if that is impossible."""
    folder = ROOT / "build/npu"
    site, cann, installed = folder / "site", folder / "cann", folder / "installed"
    wanted = " ".join(NPU_PACKAGES)
    if not any((ROOT / ".venv").glob("lib/python*/site-packages/nvidia")):
        tally.skips.append("Python tests on torch_npu: its torch wants NVIDIA's libraries, which a torch without CUDA leaves out of .venv")
        return {}
    if not installed.is_file() or installed.read_text() != wanted:
        shutil.rmtree(site, ignore_errors=True)
        print(f"== torch_npu: installing {wanted} into {site}", flush=True)
        pip = subprocess.run(
            [
                ROOT / ".venv/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
                "--only-binary=:all:", f"--target={site}", *NPU_PACKAGES,
            ],
            stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        if pip.returncode != 0:
            tally.skips.append(f"Python tests on torch_npu: {' '.join(pip.stderr.split())}")
            return {}
        installed.write_text(wanted)
    cann.mkdir(exist_ok=True)
    first, *others = (cann / f"lib{name}.so" for name in NPU_LIBRARIES)
    compiler = os.environ.get("CXX", "c++"), "-std=c++20", "-O1", "-shared", "-fPIC"
    if run("CANN without an NPU", *compiler, ROOT / "tests/python/devices/fake_cann.cpp", "-o", first) != 0:
        tally.failures.append("CANN without an NPU")
        return {}
    for other in others:
        other.unlink(missing_ok=True)
        other.symlink_to(first.name)
    return {"PYTHONPATH": str(site), "LD_LIBRARY_PATH": f"{cann}:{os.environ.get('LD_LIBRARY_PATH', '')}".rstrip(":")}


def print_failures(tally: Tally) -> int:
    """Prints failures and returns the exit status."""
    for name in tally.failures:
        print(f"FAILED: {name}")
    return 1 if tally.failures else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="dev", help="CMake preset of the C++ tests (default: %(default)s)")
    parser.add_argument("--soak", type=int, metavar="N", help="N rounds of random tests with new seeds")
    parser.add_argument("--prepare", action="store_true", help="build and install what the tests need, and run none")
    parser.add_argument("pytest", nargs="*", help="arguments for pytest, after --")
    options = parser.parse_args()

    # Modules that bootstrap.sh does not compile are compiled on import. Keep the results: for torch that takes two seconds.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    tally = Tally()
    if run("system packages", BOOTSTRAP, "--system-only", "--extras", EXTRAS) != 0:
        tally.failures.append("system packages")
    else:
        # The SYCL plug-in is built with the runtime in .venv. Without it, tests are skipped and say so.
        if run("SYCL runtime", BOOTSTRAP, "--no-package", "--only", "--extras", "sycl-runtime") != 0:
            tally.failures.append("SYCL runtime")
        requirements = Requirements()
        if options.prepare:
            if cpp_build(tally, options.preset, requirements):
                python_package(tally, options.preset)
            return print_failures(tally)
        if options.soak:
            os.environ.pop("LOWTIDE_TEST_SEED", None)
            for _ in range(options.soak):
                cpp_tests(tally, options.preset, requirements, SOAK_OPTIONS, ("-C", "soak", "-R", SOAK_ENTRIES))
        else:
            os.environ.setdefault("LOWTIDE_TEST_SEED", SEED)
            cpp_tests(tally, options.preset, requirements)
        if python_package(tally, options.preset):
            build = ROOT / "build" / options.preset
            has_ptx = any((build / "ptx").glob("*.ptx"))  # otherwise nvcc, or the tool that reads its objects, is missing
            for _ in range(options.soak or 1):
                share = {} if options.soak or options.pytest else {"LOWTIDE_TEST_SHARE": SHARE}
                parts = {"Python tests": "without", "Python tests on xpu": "only"} if not options.pytest else {"Python tests": ""}
                for title, part in parts.items():
                    python_tests(tally, title, "tests/python", *options.pytest, LOWTIDE_TEST_XPU=part, **share)
                if options.soak and has_ptx and not options.pytest:
                    python_tests(tally, "Python tests on PTX", *PTX_TESTS, LOWTIDE_CUDA_EMULATED=str(build / PTX_PLUGIN))
            if options.soak and not options.pytest and (settings := npu_settings(tally)):
                for _ in range(options.soak):
                    python_tests(tally, "Python tests on torch_npu", NPU_TESTS, **settings)

    print()
    for reason in tally.skips:
        print(f"skipped: {reason}")
    status = print_failures(tally)
    skipped = f", {len(tally.skips)} skipped" if tally.skips else ""
    print(f"{tally.passed} passed, {len(tally.failures)} failed{skipped}")
    return status


if __name__ == "__main__":
    sys.exit(main())
