"""Live state as users see it: the entries of `Optimizer.state`, and tensors like those that a parameter has or could have."""

from __future__ import annotations

import math
from functools import partial

import torch

from lowtide import _core
from lowtide.devices.flattened import shard_of
from lowtide.devices.places import HOST
from lowtide.devices.sharding import ROW_MOMENT, local_of
from lowtide.engine.cores import RESIDUAL
from lowtide.engine.engine import Engine
from lowtide.state.elsewhere import Elsewhere, Shown, Source

MOMENTUM = "momentum_buffer"  # in SGD, exists only with momentum


def shown(engine: Engine, number: int) -> Shown:
    """The entry of a parameter in `Optimizer.state`. A class of optimizers may make it from an engine, a number and views
    (`Engine.entry`)."""
    place, of = engine.params[number].place, engine.params[number].sharding
    entry = engine.core_of(number).state(number)
    if engine.family.MOMENTS:
        entry = _with_moment(entry, engine.row_moment(number))
    entry = of.wrap(entry) if of else entry
    if engine.shows_sizes and place and not engine.in_ram:
        device = HOST.device if place.on_host or number in engine.away else place.device
        for name, like in _tensors(engine, number, fullest=False).items():
            if name not in entry:
                entry[name] = Elsewhere(like, device, Source(engine, number, name))
    if engine.entry:
        own: Shown = engine.entry(engine, number, entry)
        return own
    return Shown(entry, engine.tensors[number], number, engine.assigned, engine.shows_sizes, partial(engine.core_of(number).carried, number))


def local_state(engine: Engine, number: int, moments: bool = False) -> dict[str, torch.Tensor]:
    """A parameter's tensors on the CPU, copied if they are elsewhere. Empty before its first step unless state is allocated.
    moments: with its row moments, if it has some."""
    core = engine.core_of(number)
    with engine.lock:
        if not core.has_state(number) and not core.step_count(number):
            return {}
        found = core.read_state(number) if core.is_paged(number) else core.state(number)
        moment = engine.row_moment(number) if moments else None
        return _with_moment(found, None if moment is None else moment.cpu())


def _with_moment(entry: dict[str, torch.Tensor], moment: torch.Tensor | None) -> dict[str, torch.Tensor]:
    return entry if moment is None else {**entry, ROW_MOMENT: moment}


def live(engine: Engine, number: int, moments: bool) -> dict[str, torch.Tensor]:
    """Like `local_state`, but with DTensors for a DTensor parameter."""
    of, entry = engine.params[number].sharding, local_state(engine, number, moments)
    return of.wrap(entry) if of else entry


def layout(engine: Engine, number: int) -> dict[str, torch.Tensor]:
    """Tensors like the state that a parameter has or, if it has none, could get with any momentum."""
    core = engine.core_of(number)
    live = core.state(number)
    if core.has_state(number) and len(live) > 1:
        return live
    if number in engine.foreign:
        return {"step": torch.empty((), dtype=torch.int64, device="meta")}
    tensors = _tensors(engine, number, fullest=True)
    if {RESIDUAL, MOMENTUM} <= set(tensors):  # beside a residual, only states in use exist
        there = core.read_state(number) if core.has_state(number) else _tensors(engine, number, fullest=False)
        tensors = {name: like for name, like in tensors.items() if name in there}
    return {"step": torch.empty((), dtype=torch.int64, device="meta"), **tensors}


def _tensors(engine: Engine, number: int, fullest: bool) -> dict[str, torch.Tensor]:
    """Tensors on "meta" like the state that a parameter has with its current hyper-parameters or, if `fullest`, with any."""
    found = _layout(engine, number, fullest).tensors
    return {name: torch.empty(sizes, dtype=getattr(torch, dtype), device="meta") for name, dtype, sizes in found}


def whole_codec(engine: Engine, number: int) -> str:
    """The codec that a parameter would have if no shard cut it."""
    return _layout(engine, number, fullest=True, cut=False).codec


def _layout(engine: Engine, number: int, fullest: bool, cut: bool = True) -> _core.StateLayout:
    """The layout of a parameter's state. cut: of this rank's part, not of the whole."""
    group = next(each for each in engine.groups if each.has(number))
    param = engine.params[number]
    sized = local_of(param.tensor) if cut else param.tensor
    return _core.state_layout(
        group.rule or engine.family.core_rule, group.pushed, group.options, list(sized.shape),
        str(sized.dtype).removeprefix("torch."), shard_of(param.tensor, param.sharding) if cut else None, fullest,
    )  # fmt: skip


def wanted_bytes(engine: Engine) -> list[int]:
    """For each parameter group, the bytes of state that its currently trained parameters have from their first step on."""
    found = [0] * len(engine.members)
    for number, param in enumerate(engine.params):
        if param.place and param.tensor.requires_grad:
            layout = _layout(engine, number, fullest=False).tensors
            found[param.group] += sum(math.prod(sizes) * getattr(torch, dtype).itemsize for _, dtype, sizes in layout)
    return found
