"""How a checkpoint file describes itself: the metadata that `Optimizer.save` writes, and the header. Imports no torch."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lowtide import _core
from lowtide.memory.forecast import path_of

GROUPS = "lowtide_groups"
_FLOAT = "lowtide_float"  # {this: "inf"} is a float for which JSON has no number
# More lists, dicts and values than the largest header of parameters has. Each takes Python at least 50 bytes.
_MOST_CONTAINERS, _MOST_VALUES = 1 << 20, 1 << 22


def write_metadata(metadata: dict[str, Any], default: Callable[[object], object]) -> str:
    """JSON for `read_metadata`. default: as for json.dumps."""
    return json.dumps(_marked(metadata), default=default, allow_nan=False)


def _marked(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _marked(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_marked(part) for part in value]
    return {_FLOAT: str(float(value))} if isinstance(value, float) and not math.isfinite(value) else value


def _unmarked(found: dict[str, Any]) -> Any:
    text = found.get(_FLOAT) if len(found) == 1 else None
    return float(text) if text in ("inf", "-inf", "nan") else found


def read_metadata(text: str, where: str) -> Any:
    """Parses the metadata of a checkpoint, which may be any text by any writer. Raises ValueError about `where` if it is not
    JSON, or if it has so many lists and values that they would take a hundred times the memory of a model's. They are counted
    before parsing."""
    containers, values = text.count("[") + text.count("{"), text.count(",")
    if containers > _MOST_CONTAINERS or values > _MOST_VALUES:
        wanted = f"{_MOST_CONTAINERS} lists and {_MOST_VALUES} values at most"
        raise ValueError(f"{where}: got metadata of {containers} lists and {values} values, wanted {wanted}")
    try:
        return json.loads(text or "{}", object_hook=_unmarked if _FLOAT in text else None)  # a call for each dict takes time
    except (ValueError, RecursionError) as error:  # also for numbers that are too long
        raise ValueError(f"{where}: got metadata that is not JSON: {error}") from None


def describe_checkpoint(file: Path) -> dict[str, Any]:
    """Values for `lowtide inspect`: the file's name and bytes, what the core reads in its header, and the options of the groups
    ([] if Python did not write the file). Raises ValueError or OSError."""
    found = _core.describe_checkpoint(path_of("file", file))
    try:
        metadata = read_metadata(found.pop("metadata"), str(file))
    except ValueError:  # not a checkpoint from Python
        metadata = {}
    groups = metadata.get(GROUPS) if isinstance(metadata, dict) else None
    ours = isinstance(groups, list) and all(isinstance(group, dict) for group in groups)
    return {"file": str(file), "bytes": file.stat().st_size, **found, "groups": groups if ours else []}
