"""The C++ programs of this folder, compiled when first needed."""

from __future__ import annotations

import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
OUT = ROOT / "build" / "bench"


def raw_disk() -> Path:
    """The raw loop, which needs the compiler and liburing alone."""
    source, built = HERE / "raw_disk.cpp", OUT / "raw_disk"
    if not built.exists() or built.stat().st_mtime < source.stat().st_mtime:
        OUT.mkdir(parents=True, exist_ok=True)
        subprocess.run(["g++", "-std=c++20", "-O2", str(source), "-o", str(built), "-luring"], check=True)
    return built


def linked(name: str, folder: Path | None, beside_plugin: bool = False) -> Path:
    """A program that links the library's objects: from `folder`, or built by CMake into build/dev (`make build` has
    done most of that; without it, minutes). beside_plugin: it looks for plug-ins where it is."""
    if folder is not None:
        return folder / name
    for command in (["cmake", "--preset", "dev"], ["cmake", "--build", "--preset", "dev", "--target", name]):
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return ROOT / "build" / "dev" / (name if beside_plugin else f"bench/{name}")
