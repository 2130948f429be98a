"""The source distribution, and the folder of its files that wheels are built from: what it lacks, they would miss."""

from __future__ import annotations

import shutil
import sys
import tarfile
from pathlib import Path

from wheels.work import ROOT, Work


def distribution(work: Work, out: Path) -> Path:
    """Makes the source distribution in `out` and returns the folder with its files."""
    made = work.folder / "sdist"
    shutil.rmtree(made, ignore_errors=True)
    uv: list[str | Path] = [work.tools() / "uv", "build", "--sdist", "--python", sys.executable, "--out-dir", made]
    work.run("source distribution", [*uv, ROOT])
    [archive] = made.glob("lowtide-*.tar.gz")
    out.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(archive, out / archive.name)
    folder = work.folder / "source"
    _unpack(archive, folder)
    return folder


def _unpack(archive: Path, folder: Path) -> None:
    """Writes the files whose content is new: the archive gives all files one time, which builds could not tell apart."""
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
