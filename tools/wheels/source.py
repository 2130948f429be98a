"""The source distribution: makes it, unpacks it into the folder that wheels are built from (so that they miss what it lacks),
and tries it as docs/quick-start.md says for a machine without network."""

from __future__ import annotations

import shutil
import sys
import tarfile
from pathlib import Path

from wheels.bare import BITS
from wheels.hashes import Hashes, hashes_in
from wheels.work import ROOT, Failure, Words, Work

# Only this machine's instruction set, which builds in a third of the time, and no plug-ins.
OPTIONS = "-DLOWTIDE_NATIVE=ON -DLOWTIDE_CUDA=OFF -DLOWTIDE_SYCL=OFF"
OFFLINE = ("unshare", "--map-root-user", "--net")  # a namespace without network


def distribution(work: Work, out: Path) -> tuple[Path, Path]:
    """Makes the source distribution in `out`. Returns the archive, and the folder of its contents."""
    made = work.folder / "sdist"
    shutil.rmtree(made, ignore_errors=True)
    uv: Words = [work.tools() / "uv", "build", "--sdist", "--python", sys.executable, "--out-dir", made]
    work.run("source distribution", [*uv, ROOT])
    [archive] = made.glob("lowtide-*.tar.gz")
    out.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(archive, out / archive.name)
    folder = work.folder / "source"
    _unpack(archive, folder)
    return archive, folder


def trial(work: Work, archive: Path) -> Hashes:
    """Builds and installs the archive without network, with this machine's compiler and libraries; bits.py's hashes."""
    if not shutil.which("unshare"):
        raise Failure("got no unshare (util-linux), wanted it to try the source distribution without network")
    venv = work.folder / "bare" / "source"
    python = venv / "bin" / "python"
    pip: Words = [python, "-m", "pip", "--no-input", "--disable-pip-version-check"]
    work.run("environment of the source distribution", [sys.executable, "-m", "venv", "--clear", venv])
    work.run("its build tools", [*pip, "install", "scikit-build-core", "nanobind", "nanobind-backend", "typing_extensions"])
    env = {"CMAKE_ARGS": OPTIONS}
    if shutil.which("ccache"):
        env["CMAKE_CXX_COMPILER_LAUNCHER"] = "ccache"
    install = ["install", "--no-index", "--no-build-isolation", "--no-deps"]
    work.run("source distribution, built without network", [*OFFLINE, *pip, *install, archive], env=env, cwd=venv)
    return hashes_in(work.run("its steps without torch", [python, BITS], cwd=venv))


def _unpack(archive: Path, folder: Path) -> None:
    """Writes files with new content. The archive gives all files one time, by which builds could not tell them apart."""
    kept = set()
    with tarfile.open(archive) as tar:
        for member in tar:
            file = tar.extractfile(member)
            if file is None:
                continue
            path = folder / Path(*Path(member.name).parts[1:])
            content = file.read()
            kept.add(path)
            if not path.is_file() or path.read_bytes() != content:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
                path.chmod(member.mode)
    for path in folder.rglob("*"):
        if path.is_file() and path not in kept:
            path.unlink()
