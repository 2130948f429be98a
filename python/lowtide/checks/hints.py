"""Hints at what a mistyped name may have meant. Imports no torch."""

import difflib
import re
from collections.abc import Sequence

_OF_BITS = {"4": "dynamic4", "8": "dynamic8", "16": "bf16", "32": "fp32"}


def hint(name: object, known: Sequence[str], likeness: float = 0.6, meant: str | None = None) -> str:
    """A suggestion for an error about an unknown name: `meant`, else the most similar known name, else "". An exact match has
    likeness 1."""
    if meant:
        return f" (did you mean {meant!r}?)"
    same = [one for one in known if one.lower() == str(name).lower()]
    close = same or difflib.get_close_matches(str(name), known, n=1, cutoff=likeness)
    return f" (did you mean {close[0]!r}?)" if close else ""


def format_hint(name: object, known: Sequence[str]) -> str:
    """A suggestion for an unknown state format, also by the number of bits in its name ("int8", 8); "" if there is none."""
    bits = re.search(r"32|16|8|4", str(name))
    if bits is None or name in known:
        return ""
    return hint(name, known, likeness=0.8) or f" (did you mean {_OF_BITS[bits[0]]!r}?)"


def check_name(name: str, text: str, known: Sequence[str]) -> None:
    """Raises ValueError about `name` unless `text` is one of the `known` values."""
    if text not in known:
        raise ValueError(f"{name}: got {text!r}{hint(text, known)}, wanted one of {', '.join(known)}")
