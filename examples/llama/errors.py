"""The errors that the example shows to its user, and the check for missing packages."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable


class ExampleError(Exception):
    """Something the user can put right; the message says what is wrong and what to do."""


class Interrupted(Exception):
    """The job stopped before its end, in good order: a checkpoint holds everything done so far."""

    def __init__(self, message: str, signum: int = 0) -> None:
        super().__init__(message)
        self.signum = signum

    @property
    def exit_code(self) -> int:
        """128 + signal, as shells report it; 0 when the stop was asked for with ``--stop-after``."""
        return 128 + self.signum if self.signum else 0


def require_packages(names: Iterable[str]) -> None:
    """Raise one error that names every missing package at once, with the command that installs them."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise ExampleError(
            f"missing Python package{'s' if len(missing) > 1 else ''}: {', '.join(missing)}\n"
            f"  install with: {sys.executable} -m pip install {' '.join(missing)}"
        )
