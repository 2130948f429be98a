"""Makes wheels of the package: the library is compiled once for an architecture, the binding for each interpreter."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from wheels.interpreters import STABLE, is_stable
from wheels.toolchain import Toolchain
from wheels.work import Failure, Words, Work

# A build folder's findings about the interpreter of the wheel before.
_PYTHON_LINES = re.compile(r"^_?(Python3?|PYTHON|NB)_.*\n", re.MULTILINE)


class Builder:
    """Makes wheels of a source folder with one toolchain."""

    def __init__(self, work: Work, toolchain: Toolchain, source: Path) -> None:
        self._work = work
        self._source = source
        self._toolchain = toolchain
        self._build = toolchain.folder / "build"
        # The types of the module, which a cross build cannot load to write them down.
        self._stub = work.folder / "_core.pyi"

    def wheel(self, version: str, interpreter: Path) -> Path:
        """The wheel for an interpreter, as built: its platform is linux, which auditwheel (audit.py) raises. From STABLE
        on, the wheel is for all later versions, too."""
        arch = self._toolchain.arch
        cache = self._build / "CMakeCache.txt"
        if cache.is_file():
            cache.write_text(_PYTHON_LINES.sub("", cache.read_text()))
        settings = {"LOWTIDE_CUDA": "OFF", "LOWTIDE_SYCL": "OFF", "LOWTIDE_SHARED_KERNELS": "ON"}
        settings["nanobind_DIR"] = self._nanobind()
        settings |= self._toolchain.settings
        # CMake of requirements.txt: Debian's does not know the stable ABI.
        env = self._toolchain.environment() | {"PATH": f"{self._work.tools()}:{os.environ['PATH']}"}
        if self._toolchain.is_cross:
            if not self._stub.is_file():
                raise Failure(f"got no {self._stub}, which this machine's own wheels leave: make one of those first")
            settings["LOWTIDE_CORE_STUB"] = str(self._stub)
            # As scikit-build-core wants to be told of a cross build.
            env["_PYTHON_HOST_PLATFORM"] = f"linux-{arch}"
            env["SETUPTOOLS_EXT_SUFFIX"] = f".cpython-{version.replace('.', '')}-{arch}-linux-gnu.so"
        options = {"build-dir": str(self._build), "install.strip": "false"}  # the linker strips: strip knows one machine
        if is_stable(version):
            options["wheel.py-api"] = STABLE
        options |= {f"cmake.define.{name}": value for name, value in settings.items()}

        what = f"wheel for {arch}, Python {version}"
        out = self._toolchain.folder / "raw" / version
        shutil.rmtree(out, ignore_errors=True)
        uv: Words = [self._work.tools() / "uv", "build", "--wheel", "--python", interpreter, "--out-dir", out]
        self._work.run(what, [*uv, *(f"-C{name}={value}" for name, value in options.items()), self._source], env=env)
        if not self._toolchain.is_cross:
            shutil.copyfile(self._build / "_core.pyi", self._stub)
        [wheel] = out.glob("*.whl")
        return wheel

    def _nanobind(self) -> str:
        """One nanobind for all: that of uv's environments is in another folder each time, and would be compiled anew."""
        python = self._work.tools() / "python"
        return self._work.run("looking for nanobind", [python, "-m", "nanobind", "--cmake_dir"]).strip()
