"""Makes wheels of the package: compiles the library once per architecture, and the binding for each interpreter."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from wheels.interpreters import STABLE, is_stable
from wheels.toolchain import Toolchain
from wheels.work import Failure, Words, Work

# Entries of a build folder's cache about the previous interpreter.
_PYTHON_LINES = re.compile(r"^_?(Python3?|PYTHON|NB)_.*\n", re.MULTILINE)


def raw_wheel(
    work: Work, what: str, source: Path, python: Path, build: Path, out: Path, settings: Mapping[str, str],
    env: Mapping[str, str], py_api: str = "",
) -> Path:  # fmt: skip
    """Builds the wheel of a source folder, the only one in `out`. Its platform is linux until auditwheel (audit.py) changes it.
    settings: CMake settings for the folder `build`. py_api: the oldest version of a stable ABI."""
    shutil.rmtree(out, ignore_errors=True)
    options = {"build-dir": str(build), "install.strip": "false"}  # the linker strips, because strip knows only one machine
    if py_api:
        options["wheel.py-api"] = py_api
    options |= {f"cmake.define.{name}": value for name, value in settings.items()}
    uv: Words = [work.tools() / "uv", "build", "--wheel", "--python", python, "--out-dir", out]
    work.run(what, [*uv, *(f"-C{name}={value}" for name, value in options.items()), source], env=env)
    [wheel] = out.glob("*.whl")
    return wheel


class Builder:
    """Makes wheels of a source folder with one toolchain."""

    def __init__(self, work: Work, toolchain: Toolchain, source: Path) -> None:
        self._work = work
        self._source = source
        self._toolchain = toolchain
        self._build = toolchain.folder / "build"
        # The types of the module. A cross build cannot load the module to write them.
        self._stub = work.folder / "_core.pyi"

    def wheel(self, version: str, interpreter: Path) -> Path:
        """Builds the wheel for an interpreter. From STABLE on, it serves all later versions, too."""
        arch = self._toolchain.arch
        cache = self._build / "CMakeCache.txt"
        if cache.is_file():
            cache.write_text(_PYTHON_LINES.sub("", cache.read_text()))
        settings = {"LOWTIDE_CUDA": "OFF", "LOWTIDE_SYCL": "OFF", "LOWTIDE_NATIVE": "OFF"}
        settings["nanobind_DIR"] = self._nanobind()
        settings |= self._toolchain.settings
        # CMake from requirements.txt, because Debian's does not know the stable ABI.
        env = self._toolchain.environment() | {"PATH": f"{self._work.tools()}:{os.environ['PATH']}"}
        if self._toolchain.is_cross:
            if not self._stub.is_file():
                raise Failure(f"got no {self._stub}, which this machine's own wheels leave: make one of those first")
            settings["LOWTIDE_CORE_STUB"] = str(self._stub)
            # How scikit-build-core learns of a cross build.
            env["_PYTHON_HOST_PLATFORM"] = f"linux-{arch}"
            env["SETUPTOOLS_EXT_SUFFIX"] = f".cpython-{version.replace('.', '')}-{arch}-linux-gnu.so"
        out = self._toolchain.folder / "raw" / version
        what = f"wheel for {arch}, Python {version}"
        py_api = STABLE if is_stable(version) else ""
        wheel = raw_wheel(self._work, what, self._source, interpreter, self._build, out, settings, env, py_api)
        if not self._toolchain.is_cross:
            shutil.copyfile(self._build / "_core.pyi", self._stub)
        return wheel

    def _nanobind(self) -> str:
        """One nanobind for all builds. Those in uv's environments have another folder each time, so they would be compiled
        again."""
        python = self._work.tools() / "python"
        return self._work.run("looking for nanobind", [python, "-m", "nanobind", "--cmake_dir"]).strip()
