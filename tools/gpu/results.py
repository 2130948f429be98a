"""The files of a command's results: that their folder can be written, and that no later run overwrites them."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

SUFFIXES = (".json", ".md", ".rows.jsonl")


def unwritable(folder: Path) -> str:
    """Makes the folder; returns why nothing can be written there, or ""."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0")
            os.fsync(file.fileno())
    except OSError as error:
        return f"{type(error).__name__}: {error.strerror}"
    return ""


def earlier(folder: Path, name: str) -> list[int]:
    """The numbers of the results that were put aside, the latest first."""
    pattern = re.compile(re.escape(name) + r"\.(\d+)(?:" + "|".join(map(re.escape, SUFFIXES)) + ")")
    return sorted({int(match[1]) for path in folder.iterdir() if (match := pattern.fullmatch(path.name))}, reverse=True)


def put_aside(folder: Path, name: str) -> None:
    """Renames the results of an earlier run: first.json becomes first.1.json, the next one first.2.json."""
    there = [suffix for suffix in SUFFIXES if (folder / f"{name}{suffix}").exists()]
    if there:
        number = max(earlier(folder, name), default=0) + 1
        for suffix in there:
            (folder / f"{name}{suffix}").rename(folder / f"{name}.{number}{suffix}")
        print(f"earlier results are now {folder / name}.{number}.*", flush=True)


def of(folder: Path, name: str) -> list[Path]:
    """All results of a command, the latest first."""
    paths = [folder / f"{name}.json", *(folder / f"{name}.{number}.json" for number in earlier(folder, name))]
    return [path for path in paths if path.is_file()]
