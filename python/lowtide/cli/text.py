"""Texts that go in and out of the command line: numbers and names that it reads, and text that is safe to show."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from lowtide.planning.models import count_of

_SUSPECT = re.compile(r"[^ -~\n]")  # possibly unprintable


def count(name: str, text: str) -> int:
    """ "7e9", "7B", "16Mi" as a number. Raises ValueError that names `name`."""
    found = count_of(text)
    if found is None:
        raise ValueError(f"{name}: got {text!r}, wanted a number such as 7e9, 350M, 7B or 16Mi")
    return found


def numbers_of(name: str, text: str) -> tuple[float, ...]:
    """ "0.9,0.95" as numbers. Raises ValueError that names `name`."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{name}: got {text!r}, wanted numbers such as 0.9,0.95") from None


def check_unit(name: str, text: str | None) -> None:
    """Raises ValueError, naming `name`, for bytes without a unit that are too few to be meant, as in "--gpu 24"."""
    if text is not None and text.strip().isdecimal() and 0 < int(text) < 1 << 20:
        raise ValueError(f"{name}: got {text!r}, which is that many bytes; did you mean {text.strip()}GB?")


def check_name(name: str, text: str, known: Sequence[str]) -> None:
    """Raises ValueError, naming `name`, unless `text` is one of the `known`."""
    if text not in known:
        raise ValueError(f"{name}: got {text!r}, wanted one of {', '.join(known)}")


def printable(text: str) -> str:
    """The text as a terminal may show it, whoever wrote it: escapes control characters, and characters that reverse the
    direction of writing, as "\\x1b" or "\\u202e". Line ends stay."""
    return _SUSPECT.sub(lambda found: _shown(found[0], found[0].encode("unicode_escape").decode()), text)


def json_text(value: Any) -> str:
    """JSON that a terminal may show: unprintable characters are escaped."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return _SUSPECT.sub(lambda found: _shown(found[0], json.dumps(found[0])[1:-1]), text)


def _shown(one: str, escaped: str) -> str:
    return one if one.isprintable() else escaped
