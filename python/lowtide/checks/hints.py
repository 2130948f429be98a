"""Hints at what a mistyped name may have meant. Imports no torch."""

import difflib
from collections.abc import Sequence


def hint(name: object, known: Sequence[str], likeness: float = 0.6) -> str:
    """Words for an error about an unknown name: the most similar known name, if any. likeness: 1 means equal."""
    same = [one for one in known if one.lower() == str(name).lower()]
    close = same or difflib.get_close_matches(str(name), known, n=1, cutoff=likeness)
    return f" (did you mean {close[0]!r}?)" if close else ""
