"""Vectors in state dicts have the same keys in one process and when cut by FSDP2, so that torch.distributed.checkpoint finds
them.

A vector whose state has a codec with scales is float32 if shards cut it (docs/distributed.md). Entries of such vectors, whole
or cut, therefore have both forms of each moment:

    {NAME: float32 values, NAME_codes: uint8, NAME_scale: float32 (1, blocks)}

For a whole vector, the codes and scales are the state, and the values are decoded from them. For a cut one, the values are the
state; the codes are zeros, and every scale is -1, which no state has. A reader takes the form of its own state and, if that is
missing, encodes the values to nearest. Entries without values (longer vectors, matrices) or without codes are read, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from lowtide import _core
from lowtide.checks.values import check_floats, expect
from lowtide.devices.sharding import local_of, rows_of
from lowtide.engine.engine import Engine
from lowtide.state import views
from lowtide.state.blockwise import BLOCK
from lowtide.state.elsewhere import CODES, Elsewhere, as_shown
from lowtide.state.format import SCALE, WANTED, eight_bits

MOST = 1 << 20  # elements; flat partitions, whole models in one vector, would multiply in size
_NO_SCALE = -1.0


def _is_cut(engine: Engine, number: int) -> bool:
    of = engine.params[number].sharding
    return of is not None and of.rows_cut


def _codec_of(engine: Engine, number: int) -> str | None:
    """The codec of the vector or, if it is cut, of the whole; None if dicts have one form of its moments."""
    tensor = engine.tensors[number]
    if tensor.ndim > 1 or tensor.numel() > MOST or number in engine.foreign or not isinstance(tensor, torch.nn.Parameter):
        return None  # universal checkpoints of ZeRO's flat partitions would lose the codes
    codec = views.whole_codec(engine, number) if _is_cut(engine, number) else engine.core_of(number).state_codec(number)
    return codec if _core.code_sizes(codec, True, 1, BLOCK)[2] else None


def codec_in_dicts(engine: Engine, number: int) -> str:
    """The codec of a parameter's codes in state dicts."""
    return _codec_of(engine, number) or engine.core_of(number).state_codec(number)


def as_saved(engine: Engine, number: int, entry: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The core's tensors of a parameter under the names that users see, in both forms for such vectors."""
    saved = as_shown(entry)
    codec = _codec_of(engine, number)
    if codec is None:
        return saved
    core, of, shape = engine.core_of(number), engine.params[number].sharding, engine.tensors[number].shape
    for k, (name, signed) in enumerate(core.states_of(number)):
        if name not in entry:
            continue
        device = local_of(entry[name]).device
        if f"{name}{SCALE}" in entry:
            values = core.export_state(number, k).to(device)
            saved[name] = of.whole_of("", values) if of else values
        else:
            codes, scales = _sizes(codec, signed, shape)
            saved[f"{name}{CODES}"] = torch.zeros(codes, dtype=torch.uint8, device=device)
            saved[f"{name}{SCALE}"] = torch.full(scales, _NO_SCALE, device=device)
    return saved


def in_one_form(engine: Engine, number: int, entry: Mapping[str, Any], codec: str, where: str) -> dict[str, Any]:
    """An entry with one form of each moment; of two forms, the one of the live state. codec: the codec of the saved codes.
    Raises ValueError for tensors that do not fit."""
    one, own, shape = dict(entry), _codec_of(engine, number), engine.tensors[number].shape
    for name, signed in engine.signed(number).items():
        of_codes, of_scales = f"{name}{CODES}", f"{name}{SCALE}"
        unscaled = _are_none(entry.get(of_scales))
        if not all(isinstance(entry.get(key), torch.Tensor) for key in (name, of_codes, of_scales)):
            wanted = "its values beside them, which flatten_optimizer_state_dict leaves out"
            expect(not unscaled, f"{where}, {name}", "the empty codes of a vector that shards cut", wanted)
            continue
        sizes = _sizes(own, signed, shape) if own else None
        alike = sizes is not None and eight_bits(codec) == eight_bits(str(own)) and entry[of_codes].shape == sizes[0]
        if _is_cut(engine, number):
            expect(alike, f"{where}, {name}", f"{codec} with codes of shape {tuple(entry[of_codes].shape)}", f"{own}: {WANTED}")
            del one[of_codes], one[of_scales]
            continue
        values = one.pop(name)
        if alike and unscaled:
            check_floats(values, f"{where}, {name}", shape)
            assert own
            encoded = encode(own, signed, values.detach().to("cpu", torch.float32).reshape(rows_of(shape)))
            one[of_codes], one[of_scales] = encoded[0].reshape(entry[of_codes].shape), encoded[1]
    return one


def _are_none(scales: object) -> bool:
    """True for the scales of a cut vector."""
    if not isinstance(scales, torch.Tensor) or isinstance(scales, Elsewhere) or scales.is_meta:
        return False
    local = local_of(scales)
    return local.layout == torch.strided and local.numel() > 0 and bool((local == _NO_SCALE).all())


def _sizes(codec: str, signed: bool, shape: torch.Size) -> tuple[torch.Size, torch.Size]:
    """The shapes of a vector's codes and scales."""
    _, codes, scales = _core.code_sizes(codec, signed, *rows_of(shape))
    assert scales
    return torch.Size(codes) if codes[1] < shape.numel() else shape, torch.Size(scales)


def encode(codec: str, signed: bool, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Encodes float32 values [rows, length] to codes [rows, bytes of a row] and scales [rows, blocks], to nearest."""
    rows, length = values.shape
    _, codes_shape, scales_shape = _core.code_sizes(codec, signed, rows, length)
    assert scales_shape
    values = values.contiguous()
    codes, scales = torch.empty(codes_shape, dtype=torch.uint8), torch.empty(scales_shape)
    if values.numel():
        _core.encode(codec, signed, values.data_ptr(), rows, length, codes.data_ptr(), scales.data_ptr())
    return codes, scales
