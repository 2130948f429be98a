"""Checkpoint files: what `Optimizer.save` and `load` add to the core, which handles the state.

The core stores one text beside the state: JSON of {"lowtide_groups": [the options of each group, without parameters]}; with
DTensor parameters also "lowtide_shards": [the position of this rank's part of each, null for a plain parameter]; with row
moments also "lowtide_rows": {parameter number: base64 of this rank's, little-endian float32 in row-major order}; one that is
missing is zeros. {"lowtide_float": "inf"} is a float for which JSON has no number. A file holds one rank's part and is for the
same rank of an equal mesh.
"""

from __future__ import annotations

import base64
import binascii
import ctypes
import os
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import torch

from lowtide import _core
from lowtide.checks.values import check_moment, expect
from lowtide.devices.pieces import local_moments
from lowtide.devices.sharding import local_of
from lowtide.engine.cores import KeptErrors
from lowtide.engine.engine import Engine
from lowtide.memory.budgets import size_of
from lowtide.memory.forecast import path_of
from lowtide.state.metadata import GROUPS, read_metadata, write_metadata
from lowtide.state.pending_save import PendingSave
from lowtide.state.groups import read_groups

_SHARDS = "lowtide_shards"
_ROWS = "lowtide_rows"
_MOST_ROWS = 18_000_000  # the core's header has room for 100 MB, and base64 takes 16/3 bytes for each


def save(engine: Engine, param_groups: Sequence[dict[str, Any]], path: str | os.PathLike[str]) -> None:
    """See `Optimizer.save`."""
    engine.core.save(path_of("path", path), _metadata(engine, param_groups))


def save_beside(
    engine: Engine, param_groups: Sequence[dict[str, Any]], path: str | os.PathLike[str], copies: int | str
) -> PendingSave:
    """See `Optimizer.save`."""
    name, most = path_of("path", path), size_of("copies", copies)
    # Only prepend the directory: os.path.abspath takes "" for a directory, and drops a trailing "/", and ".." behind a link.
    whole = name if os.path.isabs(name) else os.path.join(os.getcwd(), name)
    return PendingSave(engine.core.save_async(name, _metadata(engine, param_groups), most), whole)


def _metadata(engine: Engine, param_groups: Sequence[dict[str, Any]]) -> str:
    groups = []
    for group in param_groups:
        options = {key: _plain(value) for key, value in group.items() if key != "params"}
        groups.append({**options, "params": len(group["params"])})
    rows = {i: moment for i in sorted(engine.with_moments(param_groups)) if (moment := engine.row_moment(i)) is not None}
    count = sum(moment.numel() for moment in rows.values())
    expect(count <= _MOST_ROWS, "save", f"{count} row moments", f"{_MOST_ROWS} at most in one file: save state_dict()")
    texts = {i: _text(moment.cpu().contiguous()) for i, moment in rows.items()}
    return write_metadata({GROUPS: groups, **_shards(engine), **({_ROWS: texts} if texts else {})}, _refuse)


def load(
    engine: Engine, param_groups: Sequence[dict[str, Any]], path: str | os.PathLike[str], kept: KeptErrors
) -> list[dict[str, Any]]:
    """See `Optimizer.load`. Returns the new parameter groups once the state is loaded."""
    name = path_of("path", path)
    metadata = read_metadata(_core.checkpoint_metadata(name), name)
    found = isinstance(metadata, dict) and isinstance(metadata.get(GROUPS), list)
    expect(found, name, "a checkpoint without the options of param_groups", "one that Optimizer.save wrote")
    expect(len(metadata[GROUPS]) == len(param_groups), name, f"{len(metadata[GROUPS])} groups", f"{len(param_groups)}")
    _check_shards(engine, metadata.get(_SHARDS), name)
    groups: list[dict[str, Any]] = []
    number = 0
    for n, saved in enumerate(metadata[GROUPS]):
        whole = isinstance(saved, dict) and isinstance(saved.get("params"), int) and 0 <= saved["params"] < 2**31
        expect(whole, f"{name}, group {n}", repr(saved)[:80], "options and a number of params")
        options = {key: tuple(value) if isinstance(value, list) else value for key, value in saved.items()}  # JSON has no tuples
        groups.append({**options, "params": range(number, number + saved["params"])})
        number += saved["params"]
    # No copies are needed, because nothing else holds these values.
    new_groups = read_groups(engine, param_groups, {"param_groups": groups}, copied=lambda value: value).groups
    rows = _rows(engine, new_groups, metadata.get(_ROWS, {}), f"{name}, {_ROWS}")
    engine.copies.read(engine)
    kept.call(engine.core.load, name)
    for i in range(number):
        engine.moments.put(i, rows.get(i))
    engine.away, engine.aside = set(), set()
    return new_groups


def _text(values: torch.Tensor) -> str:
    return base64.b64encode(ctypes.string_at(values.data_ptr(), values.nbytes) if values.nbytes else b"").decode()


def _rows(engine: Engine, groups: Sequence[dict[str, Any]], saved: Any, where: str) -> dict[int, torch.Tensor]:
    """Row moments of a file with these groups, by parameter number, checked."""
    expect(isinstance(saved, dict), where, type(saved).__name__, "a dict")
    found: dict[int, torch.Tensor] = {}
    numbers, scaled = {str(i): i for i in range(len(engine.params))}, engine.with_moments(groups)
    for key, text in saved.items():
        expect(key in numbers, where, f"parameter {key!r:.40}", f"one from 0 to {len(numbers) - 1}")
        i = numbers[key]
        at, param = f"{where}, parameter {i}", engine.params[i]
        expect(i in scaled, at, "row moments", "none: only matrices of a Muon whose group sets row_beta2 have some")
        shape = local_moments(param.tensor, param.sharding)
        try:
            values = base64.b64decode(text, validate=True)
        except (TypeError, ValueError, binascii.Error):
            raise ValueError(f"{at}: got {text!r:.40}, wanted base64") from None
        expect(len(values) == 4 * shape.numel(), at, f"{len(values)} bytes", 4 * shape.numel())
        moment = torch.frombuffer(bytearray(values), dtype=torch.float32) if values else torch.zeros(0)
        check_moment(moment, at, engine.settings.nonfinite, positive=True)
        found[i] = moment.view(shape).to(local_of(param.tensor).device)
    return found


def _shards(engine: Engine) -> dict[str, Any]:
    cut = [param.sharding if param.sharding and not param.sharding.is_streamed else None for param in engine.params]
    return {_SHARDS: [of.describe() if of else None for of in cut]} if any(cut) else {}


def _check_shards(engine: Engine, saved: Any, name: str) -> None:
    """Checks which shards a file has. Sizes are not enough, because another rank's rows would fit."""
    ours: Any = _shards(engine).get(_SHARDS)
    if saved == ours:
        return
    listed = isinstance(saved, list) and isinstance(ours, list) and len(saved) == len(ours)
    i = next(i for i in range(len(ours)) if saved[i] != ours[i]) if listed else 0
    got, wanted = (f"parameter {i} as {shards[i]}" if shards else "plain parameters" for shards in (saved, ours))
    raise ValueError(
        f"{name}: got {got}, wanted {wanted}: a file is for the rank and mesh that saved it; use "
        "torch.distributed.checkpoint to change them"
    )


def _plain(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_plain(part) for part in value]
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.item()
    if isinstance(value, (bool, int, float)):
        return value
    return int(value) if isinstance(value, Integral) else float(value) if isinstance(value, Real) else value  # of NumPy


def _refuse(value: object) -> object:
    raise ValueError(f"param_groups: got {value!r} ({type(value).__name__}), wanted plain values to save in a file")
