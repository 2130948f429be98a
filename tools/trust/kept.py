"""The kept results: the last run of every check, in one JSON file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from trust.checks import ROOT, Check

FILE = ROOT / "build/trust/results.json"


@dataclass(frozen=True)
class Result:
    figure: str
    passed: bool
    date: str  # YYYY-MM-DD
    commit: str  # short; with a + if files of the tree were changed
    seconds: float


def read(path: Path = FILE) -> dict[str, Result]:
    """By command."""
    if not path.exists():
        return {}
    return {command: Result(**result) for command, result in json.loads(path.read_text(encoding="utf-8")).items()}


def write(results: dict[str, Result], wanted: list[Check], path: Path = FILE) -> None:
    """Only those that are still checks, in their order."""
    ordered = {check.command: asdict(results[check.command]) for check in wanted if check.command in results}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
