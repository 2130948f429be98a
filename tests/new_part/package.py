"""The Python package with the files of a new part."""

from __future__ import annotations

import shutil
from pathlib import Path

SOURCES = Path("python/lowtide")


def completed(root: Path, part: Path, package: Path) -> list[str]:
    """Adds to `package`, which has the compiled module, the Python files of the tree, with those of the part in place of their
    own. Returns the names of all files of the part."""
    for file in (root / SOURCES).rglob("*.py"):
        name = file.relative_to(root)
        (package / file.relative_to(root / SOURCES)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(part / name if (part / name).exists() else file, package / file.relative_to(root / SOURCES))
    return sorted(str(file.relative_to(part)) for file in part.rglob("*") if file.is_file() and file.parent != part)
