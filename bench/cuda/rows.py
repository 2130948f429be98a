"""Rows, the results of a case. Each is a line of JSON, appended to a file at once, so that rows survive if the case or the
whole check is killed."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Absent(Exception):
    """Something cannot be measured here, for the given reason."""


def first_line(error: BaseException) -> str:
    """The first line of an error, because CUDA's continue with general advice."""
    return str(error).strip().partition("\n")[0]


def told(error: BaseException) -> str:
    """Describes an error in a row: its text and where it was raised."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {first_line(error)[:400]} ({Path(where.filename).name}:{where.lineno})"


class Rows:
    def __init__(self, case: str, path: Path | None = None) -> None:
        self.case, self.path = case, path
        self.rows: list[dict[str, Any]] = []

    def add(self, label: str, value: float, unit: str, figure: str | None = None, **detail: Any) -> None:
        """figure: the id in figures.FIGURES of which this row is the value, if any."""
        self._keep({"label": label, "value": value, "unit": unit, "figure": figure, "detail": detail})

    def absent(self, label: str, reason: str, figure: str | None = None) -> None:
        self._keep({"label": label, "absent": " ".join(reason.split()), "figure": figure})

    def attempt(self, label: str, measure: Callable[[], None], figure: str | None = None) -> None:
        """Runs a part of a case. A failure becomes a row, and the next part still runs."""
        try:
            measure()
        except Absent as reason:
            self.absent(label, str(reason), figure)
        except Exception as error:  # from any compared library
            self.absent(label, told(error), figure)

    def _keep(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        print(f"  {row['label']}: {row.get('absent') or format(row['value'], '.4g') + ' ' + row['unit']}", flush=True)
        if self.path:
            with open(self.path, "a") as file:
                file.write(json.dumps({"case": self.case, **row}) + "\n")


def read(path: Path, case: str) -> list[dict[str, Any]]:
    """The rows of a case in such a file. Omits a last line that was cut off."""
    rows = []
    for line in path.read_text().splitlines() if path.is_file() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if row.pop("case") == case:
            rows.append(row)
    return rows
