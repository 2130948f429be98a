"""Identifies the sources of a build. A commit cannot, in a tree with uncommitted work or without a history."""

from __future__ import annotations

import hashlib
from pathlib import Path

FOLDERS = ("include", "src", "python", "cmake", "tests")  # tests: the C++ tests of devices
SUFFIXES = {".h", ".hpp", ".inc", ".def", ".c", ".cpp", ".cu", ".in", ".map", ".cmake"}
GENERATED = "_core.pyi"


def _counts(path: Path) -> bool:
    return path.suffix in SUFFIXES or path.name == "CMakeLists.txt"


def _is_of_package(path: Path) -> bool:
    return path.suffix in (".py", ".pyi") and path.name != GENERATED


def digest(root: Path) -> str:
    """A hash of all files that go into the prebuilt parts, and of the package's Python files, which accompany them."""
    found = [path for folder in FOLDERS for path in (root / folder).rglob("*") if path.is_file() and _counts(path)]
    found += [path for path in (root / "python").rglob("*") if path.is_file() and _is_of_package(path)]
    found += [root / name for name in ("CMakeLists.txt", "CMakePresets.json")]
    made = hashlib.sha256()
    for path in sorted(set(found)):
        data = path.read_bytes()
        made.update(f"{path.relative_to(root).as_posix()} {len(data)}\n".encode() + data)
    return made.hexdigest()


def revision(root: Path, bundle: Path | None, here: str, told: str) -> str:
    """The commit of a tree, from its history or, without one, from a bundle of the same sources."""
    if (root / ".git").exists() and told != "unknown":  # otherwise the history may be that of a surrounding tree
        return told
    noted = [bundle / name for name in ("sources", "revision")] if bundle else []
    if noted and all(path.is_file() for path in noted) and noted[0].read_text().strip() == here:
        return noted[1].read_text().strip()
    return f"sources {here[:12]}"
