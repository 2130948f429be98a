"""Results as JSON files, with one row per line, and no more digits than a measurement can tell."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DIGITS = 4  # significant digits of a time or a rate
LOSS_DIGITS = 6  # of losses, whose fourth digit is compared
ROW = 1000  # the most characters of a row


def rounded(value: Any, digits: int = DIGITS) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: rounded(each, digits) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(each, digits) for each in value]
    return value


def text(value: Any, depth: int = 0) -> str:
    """One line for each key and each row. Dicts of the second level that fit a row take one line."""
    compact = json.dumps(value, ensure_ascii=False)
    rows = isinstance(value, list) and any(isinstance(row, (dict, list)) for row in value)
    longest = ROW if isinstance(value, dict) and depth else 120
    if len(compact) <= longest or not (rows or (isinstance(value, dict) and depth < 2)):
        return compact
    if rows:
        return "[\n" + ",\n".join(text(row, 2) for row in value) + "\n]"
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {text(each, depth + 1)}" for key, each in value.items()) + "\n}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], align: Sequence[str] = ()) -> list[str]:
    """Lines of a Markdown table. align: "---" or "---:" for each column."""
    cells = [head, align or ["---"] * len(head), *rows]
    return ["| " + " | ".join(text.replace("|", "/").replace("\n", " ") for text in row) + " |" for row in cells]


def write(path: Path, value: Any, digits: int = DIGITS) -> None:
    path.write_text(text(rounded(value, digits)) + "\n", encoding="utf-8")
