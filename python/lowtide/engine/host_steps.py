"""Decides which parameters on a device the CPU steps (`Memory(step=)`).

Under a budget with step="auto", state that does not fit on the device either streams through the device in every step or is
stepped where it is. Parameters go to the CPU from the last one on, because its gradients come first in backward, as long as
that shortens the longer of two times:

    device: (streamed state + the gradients and weights copied for the CPU) / rate of the link
    CPU:    (these copies + the weights copied back) / rate of the link + the longer of its steps and its disk

Regardless of times, they go to the CPU until streamed state takes at most half of the host memory, if there is a disk for the
rest.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import torch

from lowtide import _core
from lowtide.devices.places import Place, has_kernels, place_of
from lowtide.devices.sharding import local_of
from lowtide.engine.family import Family
from lowtide.engine.groups import CoreGroup, GroupSizes, sizes_of
from lowtide.engine.params import Param
from lowtide.engine.shares import state_on_device
from lowtide.memory.budgets import Memory
from lowtide.memory.forecast import Budget, forecast, path_of

_LINK_BYTES = 64 << 20


class Speeds(NamedTuple):
    """Bytes per second."""

    link: float  # between the device and pinned host memory, per direction, both in use
    step: float  # of state that the CPU steps
    disk: float = math.inf  # the slower of reading and writing; math.inf: no disk


class Load(NamedTuple):
    """Bytes of a parameter's state and weights."""

    number: int
    state: int
    weights: int


def ends(streams: float, copied: float, steps: float, link: float) -> tuple[float, float]:
    """Seconds until the device and the host have done their parts of a step, if everything overlaps that can. streams: bytes of
    state that pass through the device. copied: bytes of the weights that the CPU steps; their gradients take as many. steps:
    seconds of the CPU's steps and disk. link: bytes per second."""
    come = 2 * copied / link
    return streams / link + come, come + copied / link + steps


def settle(
    family: Family,
    memory: Memory | None,
    options: Sequence[Mapping[str, Any]],
    groups: Sequence[CoreGroup],
    params: Sequence[Param],
    kept: int,
    speeds: Callable[..., Speeds] | None = None,
) -> list[Param]:
    """The parameters, with the places where they are stepped. The first `kept` have one already. memory: the optimizer's
    budget. options: the options of the parameter groups. speeds: measures like `speeds_of`."""
    places = [param.place for param in params]
    undecided: dict[tuple[int, Memory, Place], list[int]] = {}
    for i, param in enumerate(params):
        if (found := param.place) is None or found.device.type == "cpu":
            continue
        raw = place_of(local_of(param.tensor), "parameter") if found.mirrored and has_kernels(found.device) else found
        budget = param.memory or memory
        way = budget.steps_at(raw) if budget else "device"
        if way == "auto" and budget:
            undecided.setdefault((param.group if param.memory else -1, budget, raw), []).append(i)
        if i >= kept:
            places[i] = raw.by_host() if way == "host" else raw
    for (_, budget, place), numbers in undecided.items():
        trained = [i for i in numbers if params[i].tensor.requires_grad]
        loads = _loads(family, groups, params, trained)
        before = {i for i in trained if i < kept and params[i].place == place.by_host()}
        sizes = sizes_of(groups, params, {*trained})
        for i in _chosen(family, options, budget, place, sizes, loads, kept, before, speeds or speeds_of):
            places[i] = place.by_host()
    # A frozen parameter needs no core of its own.
    stepped = {place for place, param in zip(places, params, strict=True) if place and param.tensor.requires_grad}
    for i in range(kept, len(places)):
        if (here := places[i]) and here not in stepped and here.by_host() in stepped:
            places[i] = here.by_host()
    return [param if at == param.place else replace(param, place=at) for at, param in zip(places, params, strict=True)]


def share_of_host(
    loads: Sequence[Load], device: int, host: int, speeds: Speeds, fixed: int = 0, before: frozenset[int] = frozenset()
) -> set[int]:
    """The numbers of the parameters that the CPU steps. device, host: bytes for state. fixed: how many parameters, counted from
    the first, are already assigned; `before` are those on the CPU."""
    here = {load.number for load in loads if load.number in before}
    streams = sum(load.state for load in loads if load.number not in here) - device
    stepped = sum(load.state for load in loads if load.number in here)
    copied = sum(load.weights for load in loads if load.number in here)

    def end(streams: float, stepped: float, copied: float) -> float:
        streams = max(streams, 0)
        on_disk = max(stepped - max(host - streams, 0), 0)
        steps = max(stepped / speeds.step, 2 * on_disk / speeds.disk)
        return max(ends(streams, copied, steps, speeds.link))

    for load in reversed(loads):
        if streams <= 0:
            break
        if load.number < fixed or load.number in here or not load.state:
            continue
        then = streams - load.state, stepped + load.state, copied + load.weights
        if (streams > host // 2 and speeds.disk < math.inf) or end(*then) < end(streams, stepped, copied):
            here.add(load.number)
            streams, stepped, copied = then
    return here


def _chosen(
    family: Family,
    options: Sequence[Mapping[str, Any]],
    memory: Memory,
    place: Place,
    sizes: Sequence[GroupSizes],
    loads: Sequence[Load],
    kept: int,
    before: set[int],
    speeds: Callable[..., Speeds],
) -> set[int]:
    budget = memory.part(place, memory.host).budget(place)
    host = budget.host if budget.host >= 0 else 2**62
    room = budget.device
    if room < 0:  # room beside weights and gradients; all state may have to move to the host
        free = place.room()
        gradients = sum(load.weights for load in loads)
        room = max((free if free >= 0 else place.memory()) * 7 // 8 - gradients, 0)
        if sum(load.state for load in loads) > host:
            room = 0

    state = state_on_device(family, sizes, budget._replace(device=room))
    if not state.problem and not state.streamed_bytes:
        return before
    if not state.problem:  # chunks are larger than their state, and streaming takes room, too
        room = state.resident_bytes
        larger = (room + state.streamed_bytes) / sum(load.state for load in loads)
        loads = [load._replace(state=math.ceil(load.state * larger)) for load in loads]
    formats = sorted({str(group["state"]) for group in options})
    disk = "" if memory.disk is None else path_of("memory: disk", memory.disk)
    found_speeds = speeds(place.device, family.core_rule, family.hyper_of("", options[0]), formats, disk)
    return share_of_host(loads, room, host, found_speeds, kept, frozenset(before))


def _loads(family: Family, groups: Sequence[CoreGroup], params: Sequence[Param], numbers: Sequence[int]) -> list[Load]:
    """The loads in order of number. Parameters of equal group, shape and type are planned once."""
    bytes_of: dict[Any, int] = {}
    group_of = {i: number for number, group in enumerate(groups) for i in group.params}
    loads = []
    for i in numbers:
        local = local_of(params[i].tensor)
        key = group_of[i], tuple(local.shape), local.dtype
        if key not in bytes_of:
            sizes = sizes_of(groups, params, {i})
            bytes_of[key] = forecast(family.core_rule, Budget(2**62), sizes)[0].direct_bytes
        loads.append(Load(i, bytes_of[key], local.nbytes))
    return loads


def speeds_of(device: torch.device, rule: str, hyper: Mapping[str, float], formats: Sequence[str], disk: str) -> Speeds:
    """Measures speeds once per process. Takes a fraction of a second for the link, half a second per format, and a second for
    the disk. disk: a directory, or ""."""
    given = tuple(sorted(hyper.items()))
    rates = [rate for state in formats if (rate := _step_rate(rule, state, given, torch.get_num_threads())) > 0]
    return Speeds(link_rate(device), min(rates, default=math.inf), _disk_rate(disk) if disk else math.inf)


@cache
def _step_rate(rule: str, state: str, hyper: tuple[tuple[str, float], ...], threads: int) -> float:
    return _core.measure_step_rate(rule, state, dict(hyper), threads)


@cache
def _disk_rate(directory: str) -> float:
    found = _core.measure_disk_rates(directory)
    return float(min(found["read"], found["write"]))


@cache
def link_rate(device: torch.device) -> float:
    """Bytes per second that torch copies between the device and pinned host memory: the slower direction, the best of three."""
    module = torch.get_device_module(device)
    there = torch.zeros(_LINK_BYTES, dtype=torch.uint8, device=device)
    here = torch.zeros(_LINK_BYTES, dtype=torch.uint8, pin_memory=True)
    seconds = []
    for to, source in ((there, here), (here, there)):
        best = math.inf
        for _ in range(4):  # the first copy is slow
            module.synchronize(device)
            start = time.perf_counter()
            to.copy_(source, non_blocking=True)
            module.synchronize(device)
            best = min(best, time.perf_counter() - start)
        seconds.append(best)
    return _LINK_BYTES / max(seconds)
