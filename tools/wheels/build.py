"""Makes wheels of the package: the library is compiled once for an architecture, the binding for each interpreter."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from wheels.toolchain import Toolchain
from wheels.work import Failure, Work

# A build folder's findings about the interpreter of the wheel before.
_PYTHON_LINES = re.compile(r"^_?(Python3?|PYTHON|NB)_.*\n", re.MULTILINE)


class Builder:
    """Makes wheels of a source folder with one toolchain."""

    def __init__(self, work: Work, toolchain: Toolchain, source: Path) -> None:
        self._work = work
        self._source = source
        self._toolchain = toolchain
        self._build = toolchain.folder / "build"
        self._raw = toolchain.folder / "raw"
        # The types of the module, which a cross build cannot load to write them down.
        self._stub = work.folder / "_core.pyi"

    def wheel(self, version: str, interpreter: Path) -> Path:
        """The wheel for an interpreter, as built: its platform is linux, which auditwheel (audit.py) raises."""
        arch = self._toolchain.arch
        cache = self._build / "CMakeCache.txt"
        if cache.is_file():
            cache.write_text(_PYTHON_LINES.sub("", cache.read_text()))
        # One nanobind for all: that of uv's environments is in another folder each time, and would be compiled anew.
        nanobind = self._work.run(
            "looking for nanobind", [self._work.tools() / "python", "-m", "nanobind", "--cmake_dir"]
        )
        settings = {"LOWTIDE_CUDA": "OFF", "LOWTIDE_SYCL": "OFF", "nanobind_DIR": nanobind.strip()}
        env = self._toolchain.environment()
        if self._toolchain.is_cross:
            if not self._stub.is_file():
                raise Failure(f"got no {self._stub}, which this machine's own wheels leave: make one of those first")
            settings["LOWTIDE_CORE_STUB"] = str(self._stub)
            # As scikit-build-core wants to be told of a cross build.
            env["_PYTHON_HOST_PLATFORM"] = f"linux-{arch}"
            env["SETUPTOOLS_EXT_SUFFIX"] = f".cpython-{version.replace('.', '')}-{arch}-linux-gnu.so"
        wheel = self._uv(f"wheel for {arch}, Python {version}", self._source, interpreter, self._build, settings, env)
        if not self._toolchain.is_cross:
            shutil.copyfile(self._build / "_core.pyi", self._stub)
        return wheel

    def _uv(
        self,
        what: str,
        folder: Path,
        interpreter: Path,
        build: Path,
        settings: Mapping[str, str],
        env: Mapping[str, str],
    ) -> Path:
        out = self._raw / what.replace(" ", "-")
        shutil.rmtree(out, ignore_errors=True)
        options = {
            "build-dir": str(build),
            "install.strip": "false",
        }  # the linker strips: strip knows its own machine's
        options |= {f"cmake.define.{name}": value for name, value in settings.items()}
        options["cmake.define.CMAKE_TOOLCHAIN_FILE"] = str(self._toolchain.file)
        command: list[str | Path] = [
            self._work.tools() / "uv",
            "build",
            "--wheel",
            "--python",
            interpreter,
            "--out-dir",
            out,
        ]
        command += [f"-C{name}={value}" for name, value in options.items()]
        self._work.run(what, [*command, folder], env=env)
        [wheel] = out.glob("*.whl")
        return wheel
