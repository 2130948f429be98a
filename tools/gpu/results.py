"""The files of runs, run-TIME.json and others beside it: none overwrites another, and each holds what is known before it."""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.cuda import rows as kept
from gpu import report

SAME = ("gpu", "sources")  # in all results that are put together
FINISHED = ("ok", "failed", "errors found", "not supported here")


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


def stem(folder: Path) -> Path:
    """Names for the files of a new run. They are in the order of their times."""
    while True:
        now = time.time()
        path = folder / f"run-{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}.{int(now * 1000) % 1000:03d}"
        if not list(folder.glob(f"{path.name}.*")):
            return path
        time.sleep(0.001)


def finished(entry: dict[str, Any]) -> bool:
    """Whether the step need not be run again. A case that has measured nothing has something absent here."""
    measured = any("value" in row for row in entry["rows"]) if "rows" in entry else True
    return entry["status"] in FINISHED and measured


def read(path: Path) -> dict[str, Any]:
    """A result. Its run may have been killed within a case, whose rows are then beside it only."""
    result: dict[str, Any] = json.loads(path.read_text())
    beside = path.with_suffix(".rows.jsonl")
    lines = beside.read_text().splitlines(keepends=True) if beside.is_file() else []
    for name in dict.fromkeys(json.loads(line)["case"] for line in lines if line.endswith("\n")):
        if name not in result["cases"]:
            result["cases"][name] = {"status": "cut off", "seconds": 0.0, "rows": kept.read(beside, name),
                                     "reason": "the run was killed"}  # fmt: skip
    return result


def gather(places: list[Path], like: dict[str, Any] | None = None) -> dict[str, Any] | None:
    """The results of the runs in these folders, the latest of each step that finished; those of the GPU and sources of
    `like`, else of the latest run. None if there is none."""
    found = {path.name: path for place in places if place.is_dir() for path in place.glob("run-*.json")}
    out: dict[str, Any] | None = None
    for _, path in sorted(found.items(), reverse=True):
        one = read(path)
        like = like or one
        if different := [key for key in SAME if one.get(key) != like.get(key)]:
            print(f"left out {path}: got another {' and '.join(different)} than the others or this machine", flush=True)
        elif out is None:
            out = one
        else:
            for part in ("suites", "cases"):
                for name, entry in one[part].items():
                    if name not in out[part] or (finished(entry) and not finished(out[part][name])):
                        out[part][name] = entry
    return out


def merge(places: list[Path], target: Path) -> int:
    """One JSON and one page, as they are kept."""
    out = gather(places)
    if not out:
        print(f"merge: got no results in {', '.join(map(str, places))}, wanted run-*.json there")
        return 2
    slug = re.sub(r"[^a-z0-9]+", "-", out["gpu"].lower()).strip("-")
    target.mkdir(parents=True, exist_ok=True)
    path = target / f"{slug}-{out['date']}"
    report.write(out, path, kept=True)
    print(f"{path}.json\n{path}.md")
    return 0
