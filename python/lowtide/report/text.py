"""Tables, sizes and times as text. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def table_text(rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table, with the first column aligned left and the others right."""
    rows = [*rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(cell.rjust(width) if n else cell.ljust(width) for n, (cell, width) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    )
    return [line.rstrip() for line in lines]


def seconds_text(seconds: float) -> str:
    """ "1.23 s", "4.56 ms"; "unknown" for 0."""
    if seconds <= 0:
        return "unknown"
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1 or unit == "us":
            break
    return f"{seconds * scale:.3g} {unit}" if seconds * scale < 1000 else f"{seconds * scale:,.0f} {unit}"


def size_text(size: int) -> str:
    """ "13.7 GB", "512 MB" (powers of 1000, three digits); "-" for 0."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(size) >= 0.9995 * scale or unit == "kB":
            break
    return f"{size / scale:.{max(0, 2 - int(math.log10(max(abs(size) / scale, 1))))}f} {unit}" if size else "-"
