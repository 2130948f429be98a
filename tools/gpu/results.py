"""The files of runs, run-TIME.json and others beside it. None overwrites another, and each includes earlier results."""

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

SAME = ("gpu", "sources")  # equal in all results that are combined
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
    """Names for the files of a new run, which sort by time."""
    while True:
        now = time.time()
        path = folder / f"run-{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}.{int(now * 1000) % 1000:03d}"
        if not list(folder.glob(f"{path.name}.*")):
            return path
        time.sleep(0.001)


def finished(entry: dict[str, Any]) -> bool:
    """True if the step need not run again. A case that measured nothing lacked something on this machine."""
    measured = any("value" in row for row in entry["rows"]) if "rows" in entry else True
    return entry["status"] in FINISHED and measured


def read(path: Path) -> dict[str, Any]:
    """Reads a result. If the run was killed within a case, the rows of that case are only in the file beside it."""
    result: dict[str, Any] = json.loads(path.read_text())
    beside = path.with_suffix(".rows.jsonl")
    lines = beside.read_text().splitlines(keepends=True) if beside.is_file() else []
    for name in dict.fromkeys(json.loads(line)["case"] for line in lines if line.endswith("\n")):
        if name not in result["cases"]:
            result["cases"][name] = {"status": "cut off", "seconds": 0.0, "rows": kept.read(beside, name),
                                     "reason": "the run was killed"}  # fmt: skip
    return result


def gather(places: list[Path], like: dict[str, Any] | None = None) -> dict[str, Any] | None:
    """Combines the results of the runs in these folders: for each step the latest that finished, of the GPU and sources of
    `like` or else of the latest run. None if there are none."""
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
    """Writes the JSON and the page that are kept."""
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
