"""State with one value per element of the parameter, for FSDP1 (torch.distributed.fsdp.FullyShardedDataParallel).

FSDP1 cuts and joins tensors with as many elements as the parameter has on this rank. With `use_orig_params`, all tensors for
all parameters in one FlatParameter must have one type (torch/distributed/fsdp/_optim_utils.py). Codes and scales meet neither
condition, so state dicts of these parameters spread them:

    {"step": int64 (), NAME: float32 decoded values, NAME_scale: float32 the scale of each element's block,
     "residual": float32 the residual as a number, and the numbers of carried.py: float64 ()}

All but the numbers have the parameter's shape, and the groups have "lowtide_spread": True. A value and its scale determine the code, so a block
with one scale is restored bit for bit. If a block gets values with several scales, because parameters were cut elsewhere, they
are encoded again, to nearest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch

from lowtide import _core
from lowtide.checks.values import check_floats, check_moment, expect, read_step
from lowtide.devices.sharding import local_of, rows_of
from lowtide.engine.cores import RESIDUAL
from lowtide.engine.engine import Engine
from lowtide.state import views
from lowtide.state.blockwise import BLOCK
from lowtide.state.carried import as_tensors, read_carried
from lowtide.state.entries import NOTHING, Entry
from lowtide.state.format import SCALE
from lowtide.state.vectors import encode
from lowtide.state.views import MOMENTUM

_PIECE = 1 << 20  # elements processed at a time


def entries_of(engine: Engine, groups: Sequence[dict[str, Any]]) -> dict[torch.Tensor, dict[str, torch.Tensor]]:
    """The state of all parameters that have any, in new tensors, because FSDP1 accepts no empty entries. Parameters with the
    same moments have the same names, as FSDP1 requires: scales if any can have them (0: this one has none), and likewise
    residuals."""
    raw = [views.local_state(engine, i) for i in range(len(engine.params))]
    rows = sorted(i for i in engine.with_moments(groups) if engine.row_moment(i) is not None)
    expect(not rows, "state_dict", f"row moments of parameters {rows[:8]} beside FSDP1's parameters", "none: row_beta2=None, or FSDP2")
    # Decided by the options, not by this rank's parts: another rank may have larger parts with other formats.
    scaled = any(_core.code_sizes(group.options["state"], True, 1, BLOCK)[2] for group in engine.groups if group.params)
    residual = any(RESIDUAL in views.layout(engine, i) for i in range(len(engine.params)))
    return {param: _spread(engine, i, raw[i], scaled, residual) for i, param in enumerate(engine.tensors) if raw[i]}


def _spread(
    engine: Engine, number: int, raw: Mapping[str, torch.Tensor], scaled: bool, residual: bool
) -> dict[str, torch.Tensor]:
    of, shape = engine.params[number].sharding, local_of(engine.tensors[number]).shape
    length = rows_of(shape)[1]
    entry: dict[str, torch.Tensor] = {}
    for k, (name, _) in enumerate(engine.core_of(number).states_of(number)):
        if name not in raw:
            continue
        entry[name] = engine.core_of(number).export_state(number, k)
        scales = raw.get(f"{name}{SCALE}")
        if scales is not None and length:
            run = _run(length, scales.shape[1])
            entry[f"{name}{SCALE}"] = scales.cpu().repeat_interleave(run, 1)[:, :length].reshape(shape)
        elif scaled:
            entry[f"{name}{SCALE}"] = torch.zeros(shape)
    if residual:
        entry[RESIDUAL] = raw[RESIDUAL].cpu().float() if RESIDUAL in raw else torch.zeros(shape)
    if of:
        entry = {name: of.whole_of("", value) for name, value in entry.items()}
    return {"step": raw["step"].clone(), **entry, **as_tensors(engine.core_of(number).carried(number))}


def read_entry(engine: Engine, number: int, entry: Mapping[str, Any] | None, where: str) -> Entry:
    """Reads and checks an entry of such a dict, in the core's form. Raises ValueError if it does not fit."""
    shape = local_of(engine.tensors[number]).shape
    live, signs = views.layout(engine, number), engine.signed(number)
    names = [name for name in signs if name in live]
    if not entry:
        stepped = engine.core_of(number).has_state(number) and engine.tensors[number].requires_grad and shape.numel()
        expect(not stepped or entry is not None, where, "no entry", "one (empty for a frozen parameter)")
        return NOTHING
    step = read_step(entry, where)
    if set(entry) == {"step"} and MOMENTUM in live:
        return Entry(step, {}, False)
    carried = read_carried(engine.core_of(number).carried(number), entry, where)
    entry = {name: value for name, value in entry.items() if name not in (carried or ())}
    known = {"step", RESIDUAL, *names, *(f"{name}{SCALE}" for name in names)}
    expect(set(entry) <= known and set(names) <= set(entry), where, f"keys {sorted(map(str, entry))}", sorted(known))
    floats: dict[str, torch.Tensor] = {}
    for name in entry.keys() - {"step"}:
        value = entry[name]
        if of := engine.params[number].sharding:
            value = of.unwrap("", value, torch.empty(shape, device="meta"), where)
        check_floats(value, f"{where}, {name}", shape)
        check_moment(value, f"{where}, {name}", engine.settings.nonfinite, not signs.get(name, name == RESIDUAL))
        floats[name] = value.detach().to("cpu", torch.float32).reshape(rows_of(shape))
    tensors: dict[str, torch.Tensor] = {}
    for name in names:
        if f"{name}{SCALE}" in live:
            scales = floats.get(f"{name}{SCALE}", torch.zeros_like(floats[name]))
            codes, of_blocks = _codes(engine.core_of(number).state_codec(number), signs[name], floats[name], scales)
            tensors[name] = codes.reshape(live[name].shape)
            tensors[f"{name}{SCALE}"] = of_blocks
        else:
            tensors[name] = floats[name].reshape(shape).to(live[name].dtype)
    residual = floats.get(RESIDUAL)
    if RESIDUAL in live:
        wanted = "a residual: build the optimizer with the master of the saved one"
        expect(residual is not None, where, f"keys {sorted(map(str, entry))}", wanted)
        assert residual is not None
        kind = live[RESIDUAL].dtype
        fits = torch.equal(residual, residual.clamp(torch.iinfo(kind).min, torch.iinfo(kind).max).round())
        expect(fits, f"{where}, {RESIDUAL}", "other numbers", f"those of {kind}: {wanted}")
        tensors[RESIDUAL] = residual.reshape(shape).to(kind)
    else:
        wanted = "none: build the optimizer with the master of the saved one"
        expect(residual is None or not residual.count_nonzero(), f"{where}, {RESIDUAL}", "a residual", wanted)
    return Entry(step, tensors, False, carried)


def _run(length: int, scales: int) -> int:
    """How many elements share a scale in a row of this length with that many scales."""
    return BLOCK * -(-length // BLOCK) // scales


@cache
def _book(codec: str, signed: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The values of a codec in ascending order, with -0 before 0, and their codes."""
    _, codes_shape, scales_shape = _core.code_sizes(codec, signed, 1, BLOCK)
    assert scales_shape
    codes = torch.arange(codes_shape[1], dtype=torch.uint8)
    count = BLOCK
    if codes_shape[1] < BLOCK:  # two per byte
        count, codes = 16, torch.arange(codes_shape[1]).mul(2).remainder(16).mul(17).add(16).to(torch.uint8)
    values = torch.empty(BLOCK)
    scales = torch.ones(scales_shape)
    _core.decode(codec, signed, codes.data_ptr(), scales.data_ptr(), 1, BLOCK, values.data_ptr())
    values = values[:count]
    order = sorted(range(count), key=lambda code: (float(values[code]), not torch.signbit(values[code])))
    return values[order], torch.tensor(order, dtype=torch.uint8)


def _codes(
    codec: str, signed: bool, values: torch.Tensor, scales: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes, and one scale per block, of values [rows, length] with former scales of their blocks; see above."""
    rows, length = values.shape
    anew = encode(codec, signed, values)
    if not values.numel():
        return anew
    run, packed = _run(length, anew[1].shape[1]), anew[0].shape[1] < length
    codes = torch.stack((anew[0] & 15, anew[0] >> 4), 2).reshape(rows, length) if packed else anew[0]
    over = anew[1].shape[1] * run - length
    in_runs, of_runs, codes_of = (
        torch.nn.functional.pad(each, (0, over), value=fill).view(-1, run)
        for each, fill in ((values, 0), (scales, -1), (codes, 0))
    )
    found_scales = anew[1].view(-1)
    for start in range(0, len(in_runs), max(_PIECE // run, 1)):
        here = slice(start, start + max(_PIECE // run, 1))
        exact, found = _known_codes(codec, signed, in_runs[here], of_runs[here])
        codes_of[here] = torch.where(exact[:, None], found, codes_of[here])
        found_scales[here] = torch.where(exact, of_runs[here, 0], found_scales[here])
    codes = codes_of.view(rows, -1)[:, :length]
    return (codes[:, ::2] | codes[:, 1::2] << 4) if packed else codes.contiguous(), anew[1]


def _known_codes(
    codec: str, signed: bool, values: torch.Tensor, scales: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """For runs [runs, elements]: the codes, after whether a run has a single scale, above 0, for which all its values are
    codes. Scales below 0 mark elements beyond the end of a row."""
    book, codes = _book(codec, signed)
    scale, wide = scales[:, :1], book.double()
    at = torch.bucketize(values.double() / scale, (wide[1:] + wide[:-1]) / 2)
    if bool(torch.signbit(book[book == 0]).any()):  # bucketize finds -0 for both zeros
        at += (values == 0) & ~torch.signbit(values)
    at = at.clamp(max=len(book) - 1)
    same = (scales == scale) & (book[at] * scale == values)
    return ((same | (scales < 0)).all(1)) & (scale[:, 0] > 0), codes[at]
