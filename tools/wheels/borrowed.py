"""The packages that a wheel is tried with: nanobind-backend, torch, what else the project depends on, and what the golden
hashes need.

All but the first are lent from environments that have them, or installed by uv, whose cache keeps one copy of what several have.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from wheels.work import ROOT, Failure, Words, Work, say

WANTED = (ROOT / "pyproject.toml", "pytest", "hypothesis", "numpy")  # dependencies of the project and of the golden hashes
# Up to this version, PyPI's torch for ARM64 comes without CUDA, which takes gigabytes.
CPU_ON_ARM64 = "torch<2.11"
_LISTED = """
import importlib.util, json, sys
if "%d.%d" % sys.version_info[:2] == sys.argv[1] and importlib.util.find_spec("torch"):
    print(json.dumps([path for path in sys.path if path.endswith("site-packages")]))
"""


class Borrowed:
    """Packages for each version of Python: from `pythons`, or installed if `install`."""

    def __init__(self, work: Work, pythons: list[Path], install: bool) -> None:
        self._work, self._pythons, self._install = work, pythons, install
        self._folder = work.folder / "torch"

    def backend(self, version: str, arch: str) -> Path:
        """The wheel of nanobind-backend for Python `version` and an architecture."""
        folder = self._work.folder / "backend" / f"{arch}-{version}"
        if not folder.is_dir():
            new = folder.with_suffix(".new")
            pip: Words = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", new]
            target = ["--only-binary=:all:", f"--python-version={version}", f"--platform=manylinux_2_28_{arch}"]
            self._work.run(f"nanobind-backend for {arch}, Python {version}", [*pip, *target, "nanobind-backend"])
            new.rename(folder)
        [wheel] = folder.glob("*.whl")
        return wheel

    def folders(self, version: str) -> list[Path]:
        """The folders of packages for Python `version`; none if nobody has torch for it."""
        for python in filter(Path.is_file, self._pythons):
            done = subprocess.run([python, "-c", _LISTED, version], capture_output=True, text=True, check=False)
            if done.stdout:
                return [Path(path) for path in json.loads(done.stdout)]
        if not self._install:
            say(f"Python {version}: no torch is lent for it (--torch-python), and none installed (--torch)")
            return []
        return [self._installed(f"torch for Python {version}", version, version, [])]

    def foreign(self, arch: str, version: str) -> list[Path]:
        """The same, of packages for another architecture."""
        if not self._install:
            return []
        platform = ["--python-platform", f"{arch}-manylinux_2_28", "--only-binary", ":all:"]
        return [self._installed(f"torch for {arch}", f"{arch}-{version}", version, platform, CPU_ON_ARM64)]

    def _installed(self, what: str, name: str, version: str, options: list[str], without_index: str = "torch") -> Path:
        target = self._folder / name
        if target.is_dir():
            return target
        new = target.with_suffix(".new")
        # pip compiles what it installs, too.
        options = ["--quiet", "--compile-bytecode", *options]
        uv: Words = [self._work.tools() / "uv", "pip", "install", "--python", version, "--target", new, *options]
        pyproject, *packages = WANTED
        try:  # torch's own index has it without CUDA
            self._work.run(f"installing {what}, without CUDA", [*uv, "--torch-backend=cpu", "-r", pyproject, *packages])
        except Failure:
            self._work.run(f"installing {what}, from pip's index", [*uv, "-r", pyproject, *packages, without_index])
        return new.rename(target)
