"""Disk errors that stop nothing: the core keeps the unwritten state in RAM and reports the error after the call."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any


class KeptErrors:
    """Runs a block of calls to its end even if one meets such an error; raises the first one at the end."""

    _first: OSError | None = None

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Raises whatever `function` raises, except an OSError of a call that is complete."""
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
