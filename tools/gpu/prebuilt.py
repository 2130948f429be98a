"""Parts that are built where the bundle is made, so that no time of a rented GPU goes into compiling: the Python
module for the Python over there, the plug-in for its GPU, the tests of devices, and the libraries that they need and
a bare system lacks.
"""

from __future__ import annotations

import json
import lzma
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

from gpu.build import PACKAGE, TESTS, Folders, Steps, imported, package
from gpu.find import Found
from gpu.plan import Deadline

ARCHIVE, MANIFEST = "prebuilt.tar.xz", "manifest.json"
LIBRARY = "libhwy.so.1"


def configure(folder: Path, python: str, nanobind: str, architectures: str) -> list[str]:
    """The build that users get, and the program that tests devices. The host's times count, so no asserts are on."""
    return ["cmake", "--preset", "release", "-B", str(folder), "-DLOWTIDE_DEV=ON", "-DLOWTIDE_PYTHON=ON",
            "-DLOWTIDE_CUDA=ON", "-DLOWTIDE_SYCL=OFF", "-DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON", f"-DPython_EXECUTABLE={python}",
            f"-Dnanobind_DIR={nanobind}", f"-DLOWTIDE_CUDA_ARCHITECTURES={architectures}"]  # fmt: skip


def pack(built: Path, library: Path, target: Path, about: dict[str, Any]) -> None:
    """Without symbols, which are half of it."""
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


def unpack(bundle: Path | None, folders: Folders) -> dict[str, Any]:
    """Unpacks them into folders.prebuilt. Returns the manifest, or {} if the bundle has none that can be read."""
    forget(folders)
    archive = bundle / ARCHIVE if bundle else None
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


def forget(folders: Folders) -> None:
    """Removes them, and the package of them: neither a test nor an import finds what is not to be used."""
    for folder in (folders.prebuilt, folders.site / "lowtide"):
        shutil.rmtree(folder, ignore_errors=True)


def unfit(about: dict[str, Any], found: Found, sources: str) -> str:
    """Why the prebuilt parts cannot be used here, with the tree of that digest; "" if they can."""
    if not about:
        return "the bundle has none"
    if about.get("sources") != sources:
        return f"they are of other sources than this tree ({about.get('revision', 'no commit')}): make the bundle anew"
    here = {"python": found.torch.get("soabi", "unknown"), "architecture": found.architecture or "unknown"}
    if about["python"] != here["python"]:
        return f"they are for {about['python']}, and the Python that has torch is {here['python']}"
    # Machine code runs on devices of the same major number and no smaller minor one.
    if not any(here["architecture"][:-1] == a[:-1] and here["architecture"] >= a for a in about["architectures"]):
        return f"they are for sm_{', sm_'.join(about['architectures'])}, and the GPU is sm_{here['architecture']}"
    return ""


def use(about: dict[str, Any], found: Found, folders: Folders, sources: str, steps: Steps, deadline: Deadline) -> str:
    """Puts the package of prebuilt parts together. Returns why that cannot be; then nothing is left of them."""
    why = unfit(about, found, sources)
    if not why:
        package(folders, folders.prebuilt)
        result = imported(found, folders, deadline)
        if steps.add("prebuilt parts", result):
            return ""
        steps.results["prebuilt parts"]["status"] = "not usable"  # no failure of what is measured
        why = f"they cannot be imported: {(result.tail.strip().splitlines() or [result.status])[-1]}"
    forget(folders)
    return why
