#!/usr/bin/env python3
"""Checks by #include that the source tree keeps its order. Prints each offence as file:line and exits 1.

portable -> nothing; core -> nothing; backend -> both; then memory, optim, sign, capi and python, each on what stands
before it. Public headers (include/lowtide) include only each other and may be included by all but portable.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Module -> modules that it may include, besides itself. A new folder of src/ gets its line here.
ALLOWED: dict[str, set[str]] = {
    "portable": set(),
    "core": {"include"},
    "backend": {"include", "portable", "core"},
    "memory": {"include", "portable", "core", "backend"},
    "optim": {"include", "portable", "core", "backend", "memory"},
    "sign": {"include", "portable", "core", "backend"},
    "bnb": {"include", "portable", "core", "backend"},
    "capi": {"include", "portable", "core", "backend", "memory", "optim", "sign"},
    "python": {"include", "portable", "core", "backend", "memory", "optim", "sign"},
    "include": set(),
}
# The portable kernels also goes to compilers without a standard library, so portable/ takes no system header.
NO_SYSTEM_HEADERS = {"portable"}

SUFFIXES = {".h", ".hpp", ".inc", ".def", ".c", ".cpp", ".cu"}
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')


def module_of(path: Path) -> str | None:
    """The module that a file belongs to; None for what is outside of our sources."""
    parts = path.relative_to(ROOT).parts
    if parts[0] == "src" and len(parts) > 2:
        return parts[1]
    return parts[0] if parts[0] in ("include", "python") else None


def resolve(name: str, includer: Path) -> Path | None:
    """The file of ours that `#include "name"` means."""
    for folder in (includer.parent, ROOT / "src", ROOT / "include"):
        candidate = (folder / name).resolve()
        if candidate.is_file() and candidate.is_relative_to(ROOT):
            return candidate
    return None


def offences_of(path: Path, module: str) -> list[str]:
    found = []
    is_test = path.stem.endswith("_test")
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        name = match.group(1) or match.group(2)
        target = resolve(name, path)
        problem = None
        if target is not None:
            other = module_of(target)
            if other != module and other not in ALLOWED[module]:
                problem = f"{module} must not depend on {other or 'files outside of src/ and include/'}"
        elif module in NO_SYSTEM_HEADERS and not is_test:
            problem = f"{module} includes nothing outside of its folder"
        elif match.group(1) and module != "python" and not is_test:
            problem = "no such file in src/ or include/ (headers of others go in <>)"
        if problem:
            found.append(f'{path.relative_to(ROOT)}:{number}: "{name}": {problem}')
    return found


def main() -> int:
    offences: list[str] = []
    count = 0
    for top in ("src", "include", "python"):
        for path in sorted((ROOT / top).rglob("*")):
            if path.suffix not in SUFFIXES:
                continue
            module = module_of(path)
            if module not in ALLOWED:
                offences.append(f"{path.relative_to(ROOT)}: belongs to no module that tools/check_tree.py knows")
                continue
            count += 1
            offences += offences_of(path, module)
    for offence in offences:
        print(offence)
    print(f"{count} files checked, {len(offences)} offences")
    return 1 if offences or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
