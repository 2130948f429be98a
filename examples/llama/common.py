"""Shared by all examples: errors for users, the check for missing packages, and reports."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any


class ExampleError(Exception):
    """An error that the user can fix. The message says what is wrong and what to do."""


def require_packages(names: Iterable[str]) -> None:
    """Raises one error that names all missing packages, with the command that installs them."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise ExampleError(
            f"missing Python package{'s' if len(missing) > 1 else ''}: {', '.join(missing)}\n"
            f"  install with: {sys.executable} -m pip install {' '.join(missing)}"
        )


def write_json(path: Path, value: Any) -> None:
    """Writes a report completely or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    # allow_nan=False: NaN is not JSON, and other readers would reject the whole file.
    temporary.write_text(json.dumps(value, indent=1, allow_nan=False), encoding="utf-8")
    os.replace(temporary, path)
