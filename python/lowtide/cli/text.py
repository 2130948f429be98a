"""Text of the command line: reads numbers and names, and makes output safe to show."""

from __future__ import annotations

import json
import re
import shutil
import textwrap
from collections.abc import Iterable
from typing import Any

from lowtide.planning.models import count_of

_SUSPECT = re.compile(r"[^ -~\n]")  # possibly unprintable


def count(name: str, text: str) -> int:
    """ "7e9", "7B", "16Mi" as a number. Raises ValueError about `name`."""
    found = count_of(text)
    if found is None:
        raise ValueError(f"{name}: got {text!r}, wanted a number such as 7e9, 350M, 7B or 16Mi")
    return found


def numbers_of(name: str, text: str) -> tuple[float, ...]:
    """ "0.9,0.95" as numbers. Raises ValueError about `name`."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{name}: got {text!r}, wanted numbers such as 0.9,0.95") from None


def width() -> int:
    """The number of columns of the terminal, or COLUMNS; 80 without either."""
    return max(40, shutil.get_terminal_size().columns)


def wrapped(line: str, indent: str = "") -> list[str]:
    """The line, wrapped between words. indent: begins every line but the first."""
    if len(line) <= width():
        return [line.rstrip()]
    return textwrap.wrap(line, width(), subsequent_indent=indent, break_on_hyphens=False)


def pairs(rows: Iterable[tuple[str, str]], indent: str = "") -> list[str]:
    """Lines of names and texts, with the texts aligned in a column."""
    rows = [*rows]
    longest = max((len(name) for name, _ in rows), default=0)
    found = []
    for name, text in rows:
        head = f"{indent}{name.ljust(longest)}  "
        found += [line.rstrip() for line in wrapped(head + printable(text).replace("\n", "\\n"), " " * len(head))]
    return found


def printable(text: str) -> str:
    """Text that is safe to show, whoever wrote it. Escapes control characters, and characters that reverse the writing
    direction, as "\\x1b" or "\\u202e". Keeps line ends."""
    return _SUSPECT.sub(lambda found: _shown(found[0], found[0].encode("unicode_escape").decode()), text)


def json_text(value: Any) -> str:
    """JSON that is safe to show: unprintable characters are escaped."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return _SUSPECT.sub(lambda found: _shown(found[0], json.dumps(found[0])[1:-1]), text)


def _shown(one: str, escaped: str) -> str:
    return one if one.isprintable() else escaped
