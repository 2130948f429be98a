"""Makes the wheels of plug-ins. Each is its own Python package (packages/), for all versions of Python.

Host code is compiled as the package's is, and CUDA's kernels by nvcc: 13's is PyPI's (cuda.txt), 12's the environment's LOWTIDE_NVCC.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

from wheels import audit
from wheels.build import raw_wheel
from wheels.hashes import require_equal
from wheels.toolchain import Toolchain, write
from wheels.work import Failure, Words, Work, say

ARCHITECTURE = "x86_64"
BITS = Path(__file__).with_name("bits.py")
CUDA_PACKAGES = Path(__file__).with_name("cuda.txt")
CUDA_BYTES = {"cuda12": 100_000_000, "cuda13": 64_000_000}  # of a wheel; 12's older drivers read only weaker compression
BACKEND = "nanobind-backend\n"  # for the trials
SYCL_PACKAGES = f"intel-sycl-rt==2026.2.*\nintel-opencl-rt==2026.2.*\n{BACKEND}"  # the second for kernels, too
_BACKENDS = "import sys; from lowtide import _core; print(_core.backends()[sys.argv[1]])"


def project(source: Path, name: str) -> Path:
    """The folder of the package lowtide-<name> in `source`. The package for CUDA 12 is the one for CUDA 13 with other numbers."""
    folder = source / "packages" / f"lowtide-{name}"
    if name == "cuda12":
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(folder.with_name("lowtide-cuda13"), folder, symlinks=True)
        for file in (folder / "pyproject.toml", folder / "README.md"):
            text = file.read_text().replace("580", "525")
            file.write_text(re.sub(r"(cuda|CUDA :: )13", r"\g<1>12", text))
    return folder


class Plugins:
    """Makes wheels of the packages in the folder `source` into `out`."""

    def __init__(self, work: Work, source: Path, out: Path) -> None:
        self._work, self._source, self._out = work, source, out
        self._toolchain = Toolchain(work, ARCHITECTURE)

    def make(self, name: str) -> Path:
        """Makes the audited wheel of lowtide-<name>."""
        self._toolchain.make()
        return self._cuda(name) if name.startswith("cuda") else self._sycl(name)

    def try_beside(self, wheel: Path, plugin: Path, name: str) -> None:
        """Tries the plug-in in its own environment, beside a wheel of the package, without torch. CUDA's must load without a
        driver; SYCL's steps on the CPU must have the bits of the CPU backend."""
        backend = name.rstrip("0123456789")
        folder = self._work.environment(name, SYCL_PACKAGES if backend == "sycl" else BACKEND)
        python = folder / "bin" / "python"
        pip: Words = [python, "-m", "pip", "install", "--no-input", "-q", "--no-deps", "--force-reinstall"]
        self._work.run(f"installing {plugin.name}", [*pip, wheel, plugin])
        env = {}
        if backend == "cuda":  # without a driver it only loads if it is named
            [installed] = folder.glob(f"lib/python*/site-packages/lowtide_{name}/*.so")
            env["LOWTIDE_CUDA_PLUGIN"] = str(installed)
        said = self._work.run(f"backends with {plugin.name}", [python, "-c", _BACKENDS, backend], env=env, cwd=folder)
        say(f"{plugin.name}: {said.strip()}")
        if backend == "cuda" and f"CUDA {name.removeprefix(backend)}." not in said:
            raise Failure(f"{plugin.name} was not loaded, or is for another CUDA: {said}")
        if backend == "sycl":
            printed = self._work.run(f"steps with {plugin.name}", [python, BITS, backend], cwd=folder)
            hashes = json.loads(printed.splitlines()[-1])
            require_equal(plugin.name, hashes, hashes[backend])

    def fitting(self) -> Path | None:
        """The wheel of the package in `out`; None if there is none."""
        return next(self._out.glob(f"lowtide-*_{ARCHITECTURE}.whl"), None)

    def _sycl(self, name: str) -> Path:
        settings = {
            "CMAKE_TOOLCHAIN_FILE": str(self._toolchain.file),
            "LOWTIDE_SYCL_ROOT": str(self._work.environment(name, SYCL_PACKAGES)),
        }
        return audit.repair(self._work, self._wheel(name, settings), ARCHITECTURE, self._out, excluded="libsycl.so.9")

    def _cuda(self, name: str) -> Path:
        if name == "cuda13":
            [toolkit] = self._work.environment("cuda", CUDA_PACKAGES.read_text()).glob("lib/python*/site-packages/nvidia/cu13")
        else:
            toolkit = Path(os.environ["LOWTIDE_NVCC"]).resolve().parents[1]
        # CMake searches only these folders for libraries.
        file = self._toolchain.folder / "cuda.cmake"
        write(file, f'include("{self._toolchain.file}")\nlist(APPEND CMAKE_FIND_ROOT_PATH "{toolkit}")\n')
        settings = {"CMAKE_TOOLCHAIN_FILE": str(file), "LOWTIDE_NVCC": str(toolkit / "bin" / "nvcc")}
        return audit.repair(self._work, self._wheel(name, settings), ARCHITECTURE, self._out, most=CUDA_BYTES[name])

    def _wheel(self, name: str, settings: dict[str, str]) -> Path:
        folder = self._toolchain.folder / f"lowtide-{name}"
        return raw_wheel(
            self._work, f"wheel of lowtide-{name}", project(self._source, name),
            folder / "-".join(["build", *re.findall(r"\w+", os.environ.get("CMAKE_ARGS", ""))]), folder / "raw", settings, self._toolchain.environment(), [],
        )  # fmt: skip
