"""Makes wheels: of the package, one for an architecture and all versions of Python, and of plug-ins."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from wheels.toolchain import Toolchain
from wheels.work import Failure, Words, Work


def raw_wheel(
    work: Work, what: str, source: Path, build: Path, out: Path, settings: Mapping[str, str], env: Mapping[str, str],
    flags: Words,
) -> Path:  # fmt: skip
    """The wheel of a source folder as built, the only one in `out`: its platform is linux, which auditwheel (audit.py)
    raises. settings: of CMake, whose build folder is `build`; flags: of uv build."""
    shutil.rmtree(out, ignore_errors=True)
    options = {"build-dir": str(build), "install.strip": "false"}  # the linker strips: strip knows one machine
    options |= {f"cmake.define.{name}": value for name, value in settings.items()}
    uv: Words = [work.tools() / "uv", "build", "--wheel", "--python", sys.executable, *flags, "--out-dir", out]
    work.run(what, [*uv, *(f"-C{name}={value}" for name, value in options.items()), source], env=env)
    [wheel] = out.glob("*.whl")
    return wheel


def package_wheel(work: Work, toolchain: Toolchain, source: Path) -> Path:
    """The wheel of the package, as built."""
    settings = {"LOWTIDE_CUDA": "OFF", "LOWTIDE_SYCL": "OFF", "LOWTIDE_NATIVE": "OFF"} | toolchain.settings
    env = toolchain.environment() | {"PATH": f"{work.tools()}:{os.environ['PATH']}"}
    build, stub = toolchain.folder / "build", work.folder / "_core.pyi"
    if toolchain.is_cross:
        # The types of the module, which a cross build cannot load to write them down.
        if not stub.is_file():
            raise Failure(f"got no {stub}, which this machine's own wheel leaves: make that first")
        settings["LOWTIDE_CORE_STUB"] = str(stub)
        env["_PYTHON_HOST_PLATFORM"] = f"linux-{toolchain.arch}"  # as scikit-build-core wants to be told of a cross build
    # With the nanobind of requirements.txt: an environment of its own would be in another folder each time, and all that
    # includes its headers compiled anew.
    flags: Words = ["--no-build-isolation"]
    wheel = raw_wheel(work, f"wheel for {toolchain.arch}", source, build, toolchain.folder / "raw", settings, env, flags)
    if not toolchain.is_cross:
        shutil.copyfile(build / "_core.pyi", stub)
    return wheel
