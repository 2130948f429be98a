"""Makes the files of a part from the page that shows it: extract.py PAGE ROOT OUT FILE...

A block of C++ whose first line is "// path" is a new file. A block of a diff whose first line is "--- path" changes a
file of ROOT: each of its pieces, which "@@" begins, stands there once. A block "// reference: ..." is what the test
compares with, OUT/reference.inc. OUT gets these files alone, by their paths, and OUT/part.h their list. Fails if the
page has files other than FILE...
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

BLOCK = re.compile(r"^```(?:cpp\n// |diff\n--- )([^\n]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def patched(path: str, text: str, diff: str) -> str:
    """`text` with the pieces of `diff` applied."""
    for piece in diff.split("@@\n")[1:]:
        lines = piece.splitlines(keepends=True)
        old = "".join(line[1:] for line in lines if line[0] in " -")
        new = "".join(line[1:] for line in lines if line[0] in " +")
        if not old or f"\n{text}".count(f"\n{old}") != 1:
            sys.exit(f"{path}: got {text.count(old)} places for a piece of the page's diff, wanted 1. It shows\n{old}")
        text = f"\n{text}".replace(f"\n{old}", f"\n{new}")[1:]
    return text


def main(page: Path, root: Path, out: Path, *wanted: str) -> None:
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    files = {}
    for name, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        if name.startswith("reference:"):
            (out / "reference.inc").write_text(text)
            continue
        old = (root / name).read_text(encoding="utf-8") if (root / name).exists() else None
        files[name] = text if old is None else patched(name, old, text)
        if files[name] == old:
            sys.exit(f"{page}: its block of {name} changes nothing")
    if sorted(files) != sorted(wanted):
        sys.exit(f"{page}: got blocks of {', '.join(files)}, wanted {', '.join(wanted)}")
    for name, text in files.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(text, encoding="utf-8")
    listed = ", ".join(f'"{name}"' for name in files)
    (out / "part.h").write_text(f"inline constexpr const char* kPartFiles[] = {{{listed}}};\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]), *sys.argv[4:])
