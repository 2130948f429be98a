"""Puts the results of both commands together, as they are kept: one JSON, one page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from bench.cuda import rows as kept
from gpu import report, results
from gpu.plan import COMMANDS

SAME = ("gpu", "driver", "revision", "sources")  # in all results that are put together


def read(path: Path) -> dict[str, Any]:
    """A result. Its command may have been killed within a case, whose rows are then beside it only."""
    result: dict[str, Any] = json.loads(path.read_text())
    beside = path.with_suffix(".rows.jsonl")
    names = {json.loads(line)["case"]: None for line in _whole_lines(beside)}
    for name in names:
        if name not in result["cases"]:
            result["cases"][name] = {"status": "cut off", "seconds": 0.0, "rows": kept.read(beside, name),
                                     "reason": "the command was killed"}  # fmt: skip
    return result


def _whole_lines(path: Path) -> list[str]:
    lines = path.read_text().splitlines(keepends=True) if path.is_file() else []
    return [line for line in lines if line.endswith("\n")]


def _difference(one: dict[str, Any], other: dict[str, Any]) -> str:
    return "; ".join(
        f"{key}: got {one.get(key)!r} and {other.get(key)!r}" for key in SAME if one.get(key) != other.get(key)
    )


def _add(out: dict[str, Any], other: dict[str, Any]) -> None:
    """Entries that `out` has count, if they were run: later runs come first, and the first command's smoke test."""
    out["commands"] += [name for name in other["commands"] if name not in out["commands"]]
    out["seconds"] += other["seconds"]
    for part in ("build", "suites", "cases"):
        for name, entry in other[part].items():
            if name not in out[part] or out[part][name]["status"] == "not run":
                out[part][name] = entry


def merge(places: list[Path], target: Path) -> int:
    folders = [results.of(place, name) for place in places if place.is_dir() for name in COMMANDS]
    named = [path for place in places if not place.is_dir() for path in [place]]
    latest = [paths[0] for paths in folders if paths] + named
    if not latest:
        print(f"merge: got no results in {', '.join(map(str, places))}, wanted first.json and second.json there")
        return 2
    read_all = {path: read(path) for path in [path for paths in folders for path in paths] + named}
    out = read_all[latest[0]]
    for path, other in read_all.items():
        if difference := _difference(out, other):
            if path in latest:
                print(f"merge: {path}: {difference}; wanted the results of one machine and one commit")
                return 2
            print(f"merge: left out {path}: {difference}")
            continue
        print(f"merge: read {path}")
        if other is not out:
            _add(out, other)
    slug = re.sub(r"[^a-z0-9]+", "-", out["gpu"].lower()).strip("-")
    target.mkdir(parents=True, exist_ok=True)
    paths = report.write(out, target / f"{slug}-{out['date']}")
    print("\n".join(map(str, paths)))
    return 0
