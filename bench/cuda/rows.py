"""Rows, the results of a case. Each is a line of JSON that is appended to a file at once, so whatever is killed, the
case or all of the check, keeps them."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Absent(Exception):
    """Something cannot be measured here, and why."""


def first_line(error: BaseException) -> str:
    """CUDA's errors go on with general advice."""
    return str(error).strip().partition("\n")[0]


def told(error: BaseException) -> str:
    """The words of a row for it, and where it was raised."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {first_line(error)[:400]} ({Path(where.filename).name}:{where.lineno})"


class Rows:
    def __init__(self, case: str, path: Path | None = None) -> None:
        self.case, self.path = case, path
        self.rows: list[dict[str, Any]] = []

    def add(self, label: str, value: float, unit: str, figure: str | None = None, **detail: Any) -> None:
        """`figure`: the id of one of figures.FIGURES, if this row is its value."""
        self._keep({"label": label, "value": value, "unit": unit, "figure": figure, "detail": detail})

    def absent(self, label: str, reason: str, figure: str | None = None) -> None:
        self._keep({"label": label, "absent": " ".join(reason.split()), "figure": figure})

    def attempt(self, label: str, measure: Callable[[], None], figure: str | None = None) -> None:
        """Runs a part of a case. A failure becomes a row, and the next part still runs."""
        try:
            measure()
        except Absent as reason:
            self.absent(label, str(reason), figure)
        except Exception as error:  # of any library that is compared
            self.absent(label, told(error), figure)

    def _keep(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        print(f"  {row['label']}: {row.get('absent') or format(row['value'], '.4g') + ' ' + row['unit']}", flush=True)
        if self.path:
            with open(self.path, "a") as file:
                file.write(json.dumps({"case": self.case, **row}) + "\n")


def read(path: Path, case: str) -> list[dict[str, Any]]:
    """The rows of a case in such a file. A last line that was cut off is left out."""
    rows = []
    for line in path.read_text().splitlines() if path.is_file() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if row.pop("case") == case:
            rows.append(row)
    return rows
