"""Files that are either the old one or the new one, never half of each."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from .errors import ExampleError


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Let ``write`` fill a temporary file, force it to disk, then rename it over ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise ExampleError(f"cannot write {path}: {error.strerror or error}; the file there before is untouched") from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as readable JSON."""
    # allow_nan=False: NaN is not JSON, and a reader in another language would reject the whole file.
    text = json.dumps(value, indent=1, allow_nan=False)
    write_atomically(path, lambda file: file.write(text.encode()))


def _sync_folder(folder: Path) -> None:
    """Force the rename itself to disk; without this a power cut may bring the old name back."""
    if os.name != "posix":  # other systems cannot open a folder
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
