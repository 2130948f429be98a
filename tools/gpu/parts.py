"""Parts that are built where the bundle is made: the Python module, the plug-in for the GPU over there,
the tests of devices, and a library that they need and a bare system lacks. Nothing is installed into that Python.
"""

from __future__ import annotations

import json
import lzma
import os
import shutil
import subprocess
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu.machine import ROOT, Found

ARCHIVE, MANIFEST = "prebuilt.tar.xz", "manifest.json"
LIBRARY = "libhwy.so.1"
PACKAGE = ("_core*.so", "liblowtide_cuda[0-9]*.so")  # they belong beside the package's Python files
TESTS = "lowtide_device_tests"  # the C++ program that tests devices


@dataclass
class Folders:
    build: Path
    bundle: Path | None = None
    given_tests: Path | None = None

    @property
    def prebuilt(self) -> Path:
        return self.build / "prebuilt"

    @property
    def tests(self) -> Path:
        """The program that tests devices: the given one, a prebuilt one, or that of the tree's own build."""
        if self.given_tests:
            return self.given_tests / TESTS
        there = self.prebuilt / TESTS
        return there if there.is_file() else ROOT / "build" / "dev" / TESTS

    @property
    def site(self) -> Path:
        return self.build / "site"

    @property
    def logs(self) -> Path:
        return self.build / "logs"

    @property
    def wheels(self) -> Path:
        return self.build / "wheels"

    def environment(self) -> dict[str, str]:
        """An environment in which Python finds the package and the contents of the wheels."""
        env = dict(os.environ)
        paths = [str(path) for path in (self.site, self.wheels) if path.is_dir()]
        env["PYTHONPATH"] = os.pathsep.join([*paths, *filter(None, [env.get("PYTHONPATH")])])
        env["PYTHONUNBUFFERED"] = "1"
        env["LD_LIBRARY_PATH"] = os.pathsep.join([str(self.prebuilt), *filter(None, [env.get("LD_LIBRARY_PATH")])])
        env["LOWTIDE_SCRATCH"] = str(self.build)  # killed programs leave their scratch folders there
        if self.bundle and (variants := self.bundle / "variants").is_dir():
            env.setdefault("LOWTIDE_VARIANTS", str(variants))
        return env


def configure(folder: Path, python: str, architectures: str) -> list[str]:
    """The build that users get, and the program that tests devices. The host's times count, so no asserts are on."""
    return ["cmake", "--preset", "release", "-B", str(folder), "-DLOWTIDE_DEV=ON", "-DLOWTIDE_PYTHON=ON",
            "-DLOWTIDE_CUDA=ON", "-DLOWTIDE_SYCL=OFF", "-DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON", f"-DPython_EXECUTABLE={python}",
            f"-DLOWTIDE_CUDA_ARCHITECTURES={architectures}"]  # fmt: skip


def pack(built: Path, library: Path, target: Path, about: dict[str, Any]) -> None:
    """Packs the built parts, without symbols, which take half of the space."""
    folder = built / "packed"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for pattern in (*PACKAGE, TESTS):
        (path,) = built.glob(pattern)
        subprocess.run(["strip", "-o", folder / path.name, path], check=True)
    shutil.copy2(library.resolve(), folder / LIBRARY)
    (folder / MANIFEST).write_text(json.dumps(about))
    with tarfile.open(target, "w:xz") as tar:
        for path in sorted(folder.iterdir()):
            tar.add(path, arcname=path.name)


def unpack(folders: Folders) -> dict[str, Any]:
    """Unpacks the bundle's parts into folders.prebuilt. Returns the manifest, or {} if none can be read."""
    forget(folders)
    archive = folders.bundle / ARCHIVE if folders.bundle else None
    if not archive or not archive.is_file():
        return {}
    folders.prebuilt.mkdir(parents=True)
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(folders.prebuilt, filter="data")
        about: dict[str, Any] = json.loads((folders.prebuilt / MANIFEST).read_text())
    except (OSError, EOFError, ValueError, tarfile.TarError, lzma.LZMAError) as error:
        print(f"{archive} cannot be read: {type(error).__name__}: {error}. Copy the bundle again", flush=True)
        forget(folders)
        return {}
    return about


def unpack_wheels(folders: Folders) -> None:
    """Unpacks wheels into one folder, which Python searches before its own packages, so that it compares the bundle's
    versions."""
    shutil.rmtree(folders.wheels, ignore_errors=True)
    for wheel in sorted((folders.bundle / "wheels").glob("*.whl")) if folders.bundle else ():
        try:
            with zipfile.ZipFile(wheel) as file:
                file.extractall(folders.wheels)
        except (OSError, zipfile.BadZipFile) as error:
            print(f"{wheel} cannot be read: {error}. Copy the bundle again", flush=True)


def package(folders: Folders) -> None:
    """Makes the Python package from this tree's files, the prebuilt module and the plug-in."""
    target = folders.site / "lowtide"
    shutil.copytree(ROOT / "python" / "lowtide", target, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for pattern in PACKAGE:
        for path in folders.prebuilt.glob(pattern):
            shutil.copy2(path, target)


def forget(folders: Folders) -> None:
    """Removes the prebuilt parts and their package, so that no test or import finds them."""
    for folder in (folders.prebuilt, folders.site):
        shutil.rmtree(folder, ignore_errors=True)


def unfit(about: dict[str, Any], found: Found, sources: str) -> str:
    """Why the prebuilt parts cannot be used here, with the tree of that digest; "" if they can."""
    if not about:
        return "the bundle has none"
    if about.get("sources") != sources:
        return f"they are of other sources than this tree ({about.get('revision', 'no commit')}): make the bundle anew"
    architecture = found.architecture or "unknown"
    # Machine code runs on devices of the same major number and no smaller minor one.
    if not any(architecture[:-1] == a[:-1] and architecture >= a for a in about["architectures"]):
        return f"they are for sm_{', sm_'.join(about['architectures'])}, and the GPU is sm_{architecture}"
    return ""


def use(folders: Folders, found: Found, sources: str) -> str:
    """Makes a package of the bundle's parts. Returns why that is impossible, after removing them, or ""."""
    why = unfit(unpack(folders), found, sources)
    if why:
        forget(folders)
    else:
        package(folders)
    return why
