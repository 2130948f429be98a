"""Rows, the results of a case. Each is written to the case's file at once, so a case that is killed keeps them."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.cuda.device import Absent


class Rows:
    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = []

    def add(self, label: str, value: float, unit: str, figure: str | None = None, **detail: Any) -> None:
        """`figure`: the id of one of figures.FIGURES, if this row is its value."""
        self._keep({"label": label, "value": value, "unit": unit, "figure": figure, "detail": detail})

    def absent(self, label: str, reason: str, figure: str | None = None) -> None:
        self._keep({"label": label, "absent": reason, "figure": figure})

    def attempt(self, label: str, measure: Callable[[], None], figure: str | None = None) -> None:
        """Runs a part of a case. A failure becomes a row, and the next part still runs."""
        try:
            measure()
        except Absent as reason:
            self.absent(label, str(reason), figure)
        except Exception as error:  # of any library that is compared
            where = traceback.extract_tb(error.__traceback__)[-1]
            self.absent(
                label, f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"[:500], figure
            )

    def _keep(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        print(f"  {row['label']}: {row.get('absent') or format(row['value'], '.4g') + ' ' + row['unit']}", flush=True)
        if self.path:
            part = self.path.with_suffix(".part")
            part.write_text(json.dumps(self.rows))
            os.replace(part, self.path)
