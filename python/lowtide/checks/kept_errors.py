"""Disk errors that stop nothing: the core keeps the unwritten state in RAM, and reports that once a call is done."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any


class KeptErrors:
    """A block of calls of which none may be left out: the first such error is raised at its end."""

    _first: OSError | None = None

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Raises whatever `function` raises, but for an OSError of a call that is complete."""
        try:
            function(*args)
        except OSError as error:
            if not getattr(error, "complete", False):
                raise
            self._first = self._first or error

    def __enter__(self) -> KeptErrors:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        if kind is None and self._first is not None:
            raise self._first
