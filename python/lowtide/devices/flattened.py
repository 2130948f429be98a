"""Parameters that FSDP1 (torch.distributed.fsdp.FullyShardedDataParallel) has flattened: vectors, each a part of a
FlatParameter or, with `use_orig_params`, of an original parameter. Only the FlatParameter knows which part."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from itertools import compress, count, repeat
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from lowtide.devices.sharding import Sharding

Shard = tuple[list[int], bool, list[int]]  # see Sharding.shard

_known: Any = WeakIdKeyDictionary()  # parameter: its shard, or None
_MARK = "_fsdp_flattened"


def first_flattened(params: Sequence[torch.Tensor]) -> int | None:
    """The index of the first flattened parameter. Makes no Python call per parameter, because every norm needs it."""
    return next(compress(count(), map(getattr, params, repeat(_MARK), repeat(False))), None)


def shard_of(param: torch.Tensor, of: Sharding | None) -> Shard | None:
    """Describes, in the core's form, the whole that this rank holds a part of; None for a whole parameter. of: the layout of a
    DTensor on a mesh. A part of a FlatParameter belongs to the vector that all ranks hold together; blocks begin with the
    part."""
    if of:
        return of.shard
    if not getattr(param, _MARK, False):
        return None
    if param not in _known:
        _known[param] = None
        _look()
    shard: Shard | None = _known[param]
    return shard


def _look() -> None:
    """Finds all existing FlatParameters, because original parameters do not know theirs."""
    for each in gc.get_objects():
        if issubclass(type(each), torch.Tensor) and getattr(each, "_is_flat_param", False):
            _note(each)


def _note(flat: Any) -> None:
    begin = 0  # offset of an original parameter among all elements
    first = 0  # offset of this rank's elements
    of_torch = vars(flat)  # private attributes of torch
    if "_shard_param_infos" not in of_torch:  # it is under construction
        return
    infos, padding = iter(of_torch["_shard_param_infos"]), of_torch["_is_padding_mask"]
    parts = []
    for numel, is_padding in zip(of_torch["_numels_with_padding"], padding, strict=True):
        if not is_padding:
            info = next(infos)
            if info.in_shard:
                first = begin + info.intra_param_start_idx - info.offset_in_shard
            parts.append((numel, info.intra_param_start_idx or 0))
        begin += numel
    count = int(of_torch["_padded_unsharded_size"].numel()) if "_padded_unsharded_size" in of_torch else begin
    cut = flat.ndim == 1 and first + flat.numel() <= count
    _known[flat] = ([count], False, [first]) if cut else None
    for param, (numel, start) in zip(of_torch["_params"] or (), parts):  # empty without use_orig_params
        _known[param] = ([numel], False, [start]) if param.ndim == 1 and start + param.numel() <= numel else None
