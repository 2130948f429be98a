"""The calls `lowtide.stream` and `lowtide.unstream`."""

from __future__ import annotations

import inspect
import logging
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from lowtide import _core
from lowtide.checks.values import expect
from lowtide.devices.places import has_kernels, place_on
from lowtide.memory.budgets import Memory, size_of
from lowtide.memory.forecast import GRADIENT_BUCKET, STREAMED_STATE, path_of
from lowtide.optimizers.adam import AdamW
from lowtide.optimizers.classes import CLASSES
from lowtide.optimizers.optimizer import Optimizer
from lowtide.planning.forecasts import forecast
from lowtide.planning.schedule import Schedule
from lowtide.report.log import logger
from lowtide.streaming.device import DeviceWeights, Needs, accelerator, check_shardable, may_pin, units_for_device
from lowtide.streaming.weights import (
    StreamedWeights, StreamingReport, Unit, check_separate, layers_of, no_bytes, place_on_cpu, place_without_values, put_back, units_of, with_memory
)  # fmt: skip

_LEAST_STATE = 16 << 20  # bytes of a device through which state streams
_STREAMED: weakref.WeakKeyDictionary[nn.Module, StreamedWeights | DeviceWeights] = weakref.WeakKeyDictionary()
_RESIDENT: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # models passed to `stream` that fit whole


def stream(
    model: nn.Module,
    memory: Memory | Mapping[str, Any] | str,
    optimizer: type[Optimizer] = AdamW,
    *,
    layers: Iterable[nn.Module] | None = None,
    **options: Any,
) -> tuple[nn.Module, Optimizer]:
    """Makes a model on the CPU trainable in limited memory. Weights, state and losses are bit for bit those of a run without
    limits.

    Without `memory.device`, the CPU trains in `memory.host` bytes. The weights move into a file in `memory.disk`, from which
    layers are read when they compute; state that does not fit goes there, too. If everything fits, nothing moves.

    With it, torch's accelerator trains. If weights, gradients and part of the state fit there, the model moves to the device.
    Otherwise weights and gradients are in host memory, torch's `fully_shard` brings each layer to the device when it computes,
    and the CPU steps; state that does not fit into `memory.host` goes to `memory.disk`, and weights that do not, into a file there,
    from which layers are read ahead. Parameters become other objects then, before and after `unstream`: take them from the model.
    Until backward, those outside of layers are copies on the device. Feed tensors on the device. Hooks on
    parameters are lost then, and products of `Muon`, made on the CPU, may round differently.

    Args:
        model: changed in place, and returned. Parameters on meta get memory but no values: initialize or load them next.
            Without `memory.device`, frozen parameters may be bitsandbytes' Params4bit.
        memory: `host` and `device` are bytes for weights, gradients and state together; activations and the rest of the process
            come on top. `disk` is a directory. Other fields go to the optimizer.
        optimizer: a Lowtide class.
        layers: modules that compute one after another, each of which takes its turn in memory; None: the entries of the
            `nn.ModuleList` with the most bytes.
        options: options of the optimizer, such as `lr=1e-5`. step_in_backward defaults to True: gradients then last for one
            layer. With False, all are kept in memory, for accumulation and clipping.

    Returns the model and its optimizer. `unstream(model)` takes the weights back into memory. Do not replace `param.data` in
    between. Raises ValueError for a budget that is too small, naming the bytes that would do, for a model without layers, or
    for `memory.device` without an accelerator or in one of several processes; OSError if the disk has no room; MemoryError.
    Nothing has changed then. During training, OSError names the layer that could not be read or written; resume from a
    checkpoint then.
    """
    where, given = "stream", Memory.of(memory)
    if given is None or (given.host is None and given.device is None):
        raise ValueError(f"{where}: got memory={memory!r}, wanted host=BYTES in it, or device=BYTES")
    if not (isinstance(optimizer, type) and issubclass(optimizer, Optimizer)):
        raise TypeError(f"{where}: optimizer: got {optimizer!r}, wanted a class such as lowtide.AdamW")
    expect(model not in _STREAMED, where, "a model that streams", "unstream(model) first")
    for name, param in model.named_parameters():
        movable = _can_move(param) and param.device.type in ("cpu", "meta")
        expect(movable, f"{where}: {name}", f"a {type(param).__name__} on {param.device}", "a torch.nn.Parameter on cpu or meta")
    options.setdefault("step_in_backward", True)
    make: Callable[..., Optimizer] = optimizer
    check_separate(model)
    chosen = layers_of(model, layers)
    make([nn.Parameter(torch.zeros(1))], **options)  # raises for bad options before anything moves
    if given.device is not None:
        return model, _to_device(model, make, given, chosen, options, _state_bytes(model, optimizer, options))
    assert given.host is not None
    *units, kept = units_of(model, chosen)
    host, weights = size_of("host", given.host), sum(unit.bytes for unit in units)
    always = kept.bytes + _gradient_bytes([*units, kept], options["step_in_backward"])
    if given.disk is None or weights + always + _state_bytes(model, optimizer, options) <= host:
        room = host - weights - always
        got, what = _core.format_bytes(host), _core.format_bytes(weights + always)
        expect(room >= 0, f"{where}: memory: host", got, f"{what} of weights and gradients, and room for state, or disk=DIRECTORY")
        return model, _resident(model, make, given.replaced(host=room), options)
    limit = _weights_in_memory(units, always, host)
    streamed, placed = StreamedWeights.move(model, chosen, _file_for(units, given), limit)
    try:
        made = make(model.parameters(), memory=given.replaced(host=host - always - limit), **options)
    except BaseException:
        streamed.move_back(placed)
        raise
    streamed.watch(model, made, options["step_in_backward"] is not False)
    _RESIDENT.discard(model)
    _STREAMED[model] = streamed
    _tell(model, len(units))
    return model, made


def _to_device(
    model: nn.Module, make: Callable[..., Optimizer], given: Memory, layers: Sequence[nn.Module], options: Mapping[str, Any], state: int
) -> Optimizer:
    """Makes the optimizer of a model that trains on the accelerator. state: bytes of its state."""
    where, size, device = "stream: memory", _core.format_bytes, accelerator()
    if given.device is None or given.device == "auto":
        raise ValueError(f"{where}: device: got 'auto', wanted bytes, or a share: nobody knows yet what activations will take")
    units, kept = units_for_device(model, layers, units_of(model, layers)[:-1])
    needs, in_backward = Needs.of(model, units, kept), options["step_in_backward"]
    limit = size_of("device", given.device, place_on(device))
    host = None if given.host is None else size_of("host", given.host)
    gradients = _gradient_bytes([*units, kept], in_backward)
    disk = "" if given.disk else ", or disk=DIRECTORY"
    beside, steps_there = limit - needs.weights - gradients, has_kernels(device) and given.step != "host"
    if beside >= (min(state, _LEAST_STATE) if steps_there else 0):
        left = state - beside if steps_there else state
        fits = host is None or given.disk is not None or left <= host
        expect(fits, f"{where}: host", size(host or 0), f"{size(left)} of state that {device} has no room for{disk}")
        return _resident(model, make, given.replaced(device=beside if steps_there else None), options, device)
    check_shardable(model)
    expect(needs.device <= limit, f"{where}: device", size(limit), f"{size(needs.device)}: a layer, its gradients and the last one's")
    always = needs.weights + gradients
    less = gradients - _gradient_bytes([*units, kept], True)
    hint = f", or {size(less)} less with step_in_backward=True" if in_backward is False and less else ""
    least = always + (min(state, STREAMED_STATE) if given.disk else state)
    at_once: int | None = None  # bytes of weights in host memory, if they are on the disk
    pinned, beside = False, gradients
    if host is not None and host < least:
        expect(bool(given.disk), f"{where}: host", size(host), f"{size(least)} of weights, gradients and state{disk}{hint}")
        beside += kept.bytes
        at_once = _weights_in_memory(units, beside, host)
    else:
        pinned = may_pin(in_backward is not False) and (host is None or host >= least - needs.weights + needs.pinned)
    taken = beside + (at_once if at_once is not None else needs.pinned if pinned else needs.weights)
    placed, streamed = place_without_values(model), None
    try:
        units, kept = units_for_device(model, layers, units_of(model, layers)[:-1])
        empty = {id(each.now) for each in placed}
        for unit in [kept] if at_once is not None else [*units, kept]:
            with_memory(unit, empty)
        file = None
        if at_once is not None:
            file = StreamedWeights(_file_for(units, given), [*units], Schedule([unit.bytes for unit in units], at_once))
        streamed = DeviceWeights(model, units, needs, device, pinned, file, placed)
        memory = given.replaced(device=None, step=None, host=None if host is None else host - taken)
        made = make(model.parameters(), memory=memory, **options)
    except BaseException:
        if streamed:
            streamed.move_back(placed)
        put_back(placed)
        raise
    streamed.watch(made, in_backward is not False)
    _RESIDENT.discard(model)
    _STREAMED[model] = streamed
    _tell(model, len(units))
    return made


def _resident(
    model: nn.Module, make: Callable[..., Optimizer], memory: Memory, options: Mapping[str, Any], device: str | torch.device = "cpu"
) -> Optimizer:
    """Moves the model to the device, where all of it fits, and makes its optimizer."""
    placed = place_on_cpu(model, lambda param: torch.zeros_like(param, device=device))
    try:
        made = make(model.to(device).parameters(), memory=memory, **options)
    except BaseException:
        model.to("cpu")
        put_back(placed)
        raise
    _RESIDENT.add(model)
    return made


def _tell(model: nn.Module, count: int) -> None:
    if logger.isEnabledFor(logging.INFO):  # only then, because the report waits for the disk
        report, size = streaming_report(model), _core.format_bytes
        logger.info(
            "%s streams %d layers, %s of weights, at most %s in host memory at once: a step reads %s, writes %s, and copies %s to a device",
            type(model).__name__, count, size(report["weight_bytes"]), size(report["memory_bytes"]), size(report["planned_read_bytes"]),
            size(report["planned_written_bytes"]), size(report["to_device_bytes"]),
        )  # fmt: skip


def _can_move(param: nn.Parameter) -> bool:
    """True for plain parameters, and for frozen ones of a class that adds to a tensor, such as bitsandbytes' Params4bit: their
    bytes move, and all that they refer to stays."""
    return type(param) is nn.Parameter or not (param.requires_grad or param.is_meta or is_traceable_wrapper_subclass(param))


def unstream(model: nn.Module) -> None:
    """Takes the weights of a streaming model into host memory, removes its hooks, and ends the process group if `stream` began
    it. The optimizer goes on, on the CPU. A model that moved to a device whole stays there. Raises ValueError for a model that
    was not passed to `stream`, MemoryError, and OSError if weights cannot be read; the model then still streams."""
    if model in _RESIDENT:
        _RESIDENT.remove(model)
        return
    _streamed(model, "unstream").move_back()
    del _STREAMED[model]


def streaming_report(model: nn.Module) -> StreamingReport:
    """The bytes that a model's weights take and move; zeros if everything fits. Waits for the disk. Raises ValueError for a
    model that was not passed to `stream`, and OSError if the disk has failed."""
    if model in _RESIDENT:
        return no_bytes()
    return _streamed(model, "streaming_report").report()


def _streamed(model: nn.Module, where: str) -> StreamedWeights | DeviceWeights:
    if (streamed := _STREAMED.get(model)) is None:
        raise ValueError(f"{where}: got a {type(model).__name__} that does not stream, wanted a model that stream() has had")
    return streamed


def _weights_in_memory(units: Sequence[Unit], beside: int, host: int) -> int:
    """The bytes of units that may be in host memory at once. beside: bytes of other weights and of gradients."""
    sizes = [unit.bytes for unit in units]
    least, room = Schedule.least(sizes), host - beside - STREAMED_STATE
    wanted = f"{_core.format_bytes(least + beside + STREAMED_STATE)}: three layers, their gradients, and buffers for state"
    expect(room >= least, "stream: memory: host", _core.format_bytes(host), wanted)
    return min(sum(sizes), room)


def _file_for(units: Sequence[Unit], given: Memory) -> _core.MappedFile:
    assert given.disk is not None
    return _core.MappedFile(path_of("memory: disk", given.disk), max(sum(unit.bytes for unit in units), 1))


def _gradient_bytes(units: Sequence[Unit], in_backward: bool | int | str) -> int:
    """The most bytes of gradients that exist at once."""
    each = [unit.gradient_bytes for unit in units]
    if in_backward is False:
        return sum(each)
    return min(sum(each), max(each) + (GRADIENT_BUCKET if in_backward is True else size_of("step_in_backward", in_backward)))


def _state_bytes(model: nn.Module, optimizer: type[Optimizer], options: Mapping[str, Any]) -> int:
    rule = next((rule for cls in optimizer.__mro__ for rule, known in CLASSES.items() if cls is known), None)
    if rule is None:
        raise TypeError(f"stream: optimizer: got {optimizer.__name__}, wanted one of {', '.join(cls.__name__ for cls in CLASSES.values())}")
    planned = inspect.signature(forecast).parameters
    found: int = forecast(model, rule, **{name: value for name, value in options.items() if name in planned}).state_bytes
    return found
