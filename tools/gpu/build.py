"""Builds the CUDA plug-in, its tests and the Python module into one folder, from a bundle where the machine lacks things.

One CMake build makes all of it; the package is put together beside it (`site`), and wheels of the bundle that the Python
with torch does not have are unpacked beside it, too: nothing is installed into that Python.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu.find import Found, output
from gpu.plan import Deadline
from gpu.watchdog import Result, run

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ("_core*.so", "liblowtide_cuda[0-9]*.so")  # beside the package's Python files
TESTS = "lowtide_device_tests"  # the program that tests devices
# The targets to build: the module, the plug-in, and the tests of devices.
TARGETS = re.compile(rf"^(_core|lowtide_cuda\d+|{TESTS})$")


@dataclass
class Folders:
    build: Path
    bundle: Path | None = None
    wheels: Path | None = None
    given_tests: Path | None = None

    @property
    def prebuilt(self) -> Path:
        return self.build / "prebuilt"

    @property
    def tests(self) -> Path:
        """Where the program is that tests devices: one that was named, a prebuilt one or one that was built here."""
        if self.given_tests:
            return self.given_tests
        return self.prebuilt if (self.prebuilt / TESTS).is_file() else self.cmake

    @property
    def cmake(self) -> Path:
        return self.build / "cmake"

    @property
    def site(self) -> Path:
        return self.build / "site"

    @property
    def logs(self) -> Path:
        return self.build / "logs"

    @property
    def installed(self) -> Path:
        return self.build / "wheels"

    def wheel_folders(self) -> list[Path]:
        return sorted(path for path in self.installed.glob("*") if path.is_dir())

    def programs(self) -> list[Path]:
        """Folders of programs from wheels."""
        return [folder / "bin" for folder in self.wheel_folders() if (folder / "bin").is_dir()]

    def environment(self) -> dict[str, str]:
        """An environment in which Python finds the package and the wheels, and PATH has the programs of the wheels."""
        env = dict(os.environ)
        env["PYTHONPATH"] = os.pathsep.join(map(str, [self.site, *self.wheel_folders()]))
        env["PATH"] = os.pathsep.join([env.get("PATH", os.defpath), *map(str, self.programs())])
        env["PYTHONUNBUFFERED"] = "1"
        libraries = [str(self.prebuilt), *filter(None, [env.get("LD_LIBRARY_PATH")])]
        env["LD_LIBRARY_PATH"] = os.pathsep.join(libraries)
        env["LOWTIDE_SCRATCH"] = str(self.build)  # what is killed leaves its scratch folder there
        return env


@dataclass
class Steps:
    """Results by name."""

    results: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, name: str, result: Result) -> bool:
        self.results[name] = result.data()
        print(f"{name}: {result.status}, {result.seconds:.0f} s", flush=True)
        if not result.ok:
            print("\n".join(f"    {line}" for line in result.tail.splitlines()[-15:]), flush=True)
        return result.ok


def _has(python: str, wheel: Path, env: dict[str, str], limit_s: float) -> bool:
    """Whether that Python has the wheel's distribution, of whatever version."""
    name = wheel.name.split("-")[0]
    code = f"import importlib.metadata as m; m.version({name!r})"
    return output([python, "-c", code + "; print(1)"], limit_s, env) != ""


def install_wheels(found: Found, folders: Folders, steps: Steps, deadline: Deadline) -> None:
    """Each into a folder of its own: one that does not fit keeps no other out, and pip leaves programs out of a folder
    that has some."""
    places = [path for path in (folders.wheels, folders.bundle and folders.bundle / "wheels", ROOT / "wheels") if path]
    wheels = {
        wheel.name: wheel for place in reversed(places) if place.is_dir() for wheel in sorted(place.glob("*.whl"))
    }
    env = folders.environment()
    for wheel in wheels.values():
        if deadline.left() <= 0:
            steps.add("wheels", Result("hung", -1, 0, f"no time is left for {wheel.name} and what follows"))
            return
        if not _has(found.python, wheel, env, deadline.within(60)):
            command = [found.python, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile",
                       "--disable-pip-version-check", "--target", folders.installed / wheel.stem, wheel]  # fmt: skip
            log = folders.logs / f"wheel-{wheel.name}.log"
            steps.add(f"wheel {wheel.name}", run(command, deadline.within(120), log, env))


def _configure(found: Found, folders: Folders, headers: Path | None) -> list[object]:
    command: list[object] = [
        found.tools["cmake"], "-S", ROOT, "-B", folders.cmake,
        "-G", "Ninja" if found.tools["ninja"] else "Unix Makefiles",
        "-DCMAKE_BUILD_TYPE=Release", "-DLOWTIDE_DEV=ON", "-DLOWTIDE_PYTHON=ON",
        "-DLOWTIDE_CUDA=ON", "-DLOWTIDE_SYCL=OFF",
        "-DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON",  # no test that runs here is about it
        f"-DLOWTIDE_NVCC={found.nvcc}", f"-DLOWTIDE_CUDA_ARCHITECTURES={found.architecture}",
        f"-DPython_EXECUTABLE={found.python}", f"-DPython3_EXECUTABLE={found.python}",
    ]  # fmt: skip
    if found.tools["ninja"]:
        command.append(f"-DCMAKE_MAKE_PROGRAM={found.tools['ninja']}")
    if headers:
        command += [f"-DPython_INCLUDE_DIR={headers}", f"-DPython3_INCLUDE_DIR={headers}"]
    if folders.bundle and (prefix := folders.bundle / "prefix").is_dir():
        # Headers without a CMake package: whatever compiles looks there after its own folders.
        command += [f"-Dhwy_DIR={prefix}/cmake", f"-DGTest_DIR={prefix}/cmake", f"-DCMAKE_PREFIX_PATH={prefix}"]
    return command


def _environment(folders: Folders) -> dict[str, str]:
    env = folders.environment()
    if folders.bundle:
        include = str(folders.bundle / "prefix" / "include")
        env["CPLUS_INCLUDE_PATH"] = os.pathsep.join(filter(None, [env.get("CPLUS_INCLUDE_PATH"), include]))
    return env


def targets(found: Found, folders: Folders, limit_s: float) -> list[str]:
    """The targets of the configured build that are needed here."""
    command = [found.tools["cmake"], "--build", folders.cmake, "--target", "help"]
    text = output(command, limit_s, folders.environment())
    words = {re.sub(r"^\.\.\.\s*", "", line).split(":")[0].strip() for line in text.splitlines()}
    return sorted(word for word in words if TARGETS.match(word))


def package(folders: Folders, parts: Path) -> None:
    """The Python package: its files as they are in this tree, and the module of `parts` with the plug-in beside it,
    where the module looks for it."""
    target = folders.site / "lowtide"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(ROOT / "python" / "lowtide", target, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for pattern in PACKAGE:
        for path in parts.glob(pattern):
            shutil.copy2(path, target)


def imported(found: Found, folders: Folders, deadline: Deadline) -> Result:
    """Whether the package can be imported, and which backends it has."""
    check = "import lowtide; print(lowtide.__file__, lowtide.backends())"
    return run([found.python, "-c", check], deadline.within(60), folders.logs / "import.log", folders.environment())


def build(found: Found, folders: Folders, steps: Steps, deadline: Deadline, headers: Path | None = None) -> bool:
    """Builds everything; False if there is no package to measure."""
    env = _environment(folders)
    logs = folders.logs
    configured = run(_configure(found, folders, headers), deadline.left(), logs / "configure.log", env)
    if not steps.add("configure", configured):
        return False
    wanted = targets(found, folders, deadline.within(60))
    if "_core" not in wanted:
        steps.add("targets", Result("failed", 1, 0, f"no target _core among those that are needed: {wanted}"))
        return False
    done = True
    # The module and the plug-in first: without tests there is still something to measure.
    for names in ([name for name in wanted if name != TESTS], [name for name in wanted if name == TESTS]):
        if names:
            command = [found.tools["cmake"], "--build", folders.cmake, "--parallel", os.cpu_count() or 2,
                       "--target", *names]  # fmt: skip
            built = run(command, deadline.left(), logs / f"build-{names[0]}.log", env)
            done &= steps.add("build of " + ", ".join(names), built) or names == [TESTS]
    if done:
        package(folders, folders.cmake)
        done = steps.add("import of the package", imported(found, folders, deadline))
    return done
