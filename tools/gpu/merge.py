"""Puts the results of both commands together, as they are kept: one JSON, one page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from bench.cuda import rows as kept
from gpu import report
from gpu.plan import COMMANDS


def files(places: list[Path]) -> list[Path]:
    return [file for place in places for file in (
        [place / f"{name}.json" for name in COMMANDS if (place / f"{name}.json").is_file()] if place.is_dir() else [place]
    )]  # fmt: skip


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


def merge(places: list[Path], target: Path) -> int:
    found = [read(path) for path in files(places)]
    if not found:
        print(f"merge: got no results in {', '.join(map(str, places))}, wanted first.json and second.json there")
        return 2
    out = found[0]
    for other in found[1:]:
        for key in ("gpu", "driver", "revision"):
            if other[key] != out[key]:
                print(
                    f"merge: {key}: got {out[key]!r} and {other[key]!r}, wanted the results of one machine and one commit"
                )
                return 2
        out["commands"] += other["commands"]
        out["seconds"] += other["seconds"]
        for part in ("build", "suites", "cases"):
            # The second command's smoke test does not hide the first one's.
            out[part] |= {name: entry for name, entry in other[part].items() if name not in out[part]}
    slug = re.sub(r"[^a-z0-9]+", "-", out["gpu"].lower()).strip("-")
    target.mkdir(parents=True, exist_ok=True)
    paths = report.write(out, target / f"{slug}-{out['date']}")
    print("\n".join(map(str, paths)))
    return 0
