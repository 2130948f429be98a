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
from lowtide.devices.places import HOST, Place, has_kernels, place_on
from lowtide.memory.budgets import Memory, size_of
from lowtide.memory.forecast import GRADIENT_BUCKET, path_of
from lowtide.optimizers.adam import AdamW
from lowtide.optimizers.classes import CLASSES
from lowtide.optimizers.optimizer import Optimizer
from lowtide.planning.forecasts import Forecasts, forecast
from lowtide.planning.layers import layers_of, units_for_device, units_of
from lowtide.planning.schedule import Schedule
from lowtide.planning.units import Division, divide
from lowtide.report.log import logger
from lowtide.streaming.device import DeviceWeights, accelerator, check_shardable, may_pin
from lowtide.streaming.weights import (
    Placed, StreamedWeights, StreamingReport, check_separate, no_bytes, place_on_cpu, place_without_values, put_back, with_memory
)  # fmt: skip

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
    for `memory.device` without an accelerator or in one of several processes; OSError if the disk has no room for the weights;
    MemoryError. Nothing has changed then. During training, OSError says that the disk has no room for the state, or names the
    layer that could not be read or written; resume from a checkpoint then.
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
    device = None if given.device is None else accelerator()
    limits = [None if size is None else size_of(tier, size, place) for tier, size, place in _limits(given, device)]
    in_backward = options["step_in_backward"]
    layout = units_for_device(model, chosen) if device else units_of(model, chosen)
    found = divide(
        layout, _state(model, optimizer, options, None).state_bytes, bucket_of(in_backward), limits, given.disk is not None,
        steps_there=device is not None and has_kernels(device) and given.step != "host", pins=may_pin(in_backward is not False),
    )  # fmt: skip
    if found.short:
        tier, needed, of = found.short
        expect(False, f"{where}: memory: {tier}", _core.format_bytes(limits[tier == "host"] or 0), f"{_core.format_bytes(needed)}{of}")
    memory = given.replaced(device=found.left[0], host=found.left[1])
    if device is None and not (state := _state(model, optimizer, options, memory)).fits:
        raise ValueError(f"{where}: {state.problem}, of the {_core.format_bytes(found.taken)} less that weights and gradients leave")
    if not found.streams:
        return model, _resident(model, make, memory, options, device or "cpu")
    streamed: StreamedWeights | DeviceWeights
    if device:
        check_shardable(model)
        streamed, placed = _on_device(model, chosen, device, found, given)
    else:
        streamed, placed = StreamedWeights.move(model, chosen, _file_for(given, found), found.limit or 0)
    try:
        made = make(model.parameters(), memory=memory.replaced(step=None), **options)
    except BaseException:
        streamed.move_back(placed)
        put_back(placed)
        raise
    streamed.watch(model, made, in_backward is not False)
    _RESIDENT.discard(model)
    _STREAMED[model] = streamed
    _tell(model, len(layout.units))
    return model, made


def _limits(given: Memory, device: torch.device | None) -> Sequence[tuple[str, int | str | None, Place]]:
    """The budgets of a device and of host memory, with their names and places."""
    if given.device == "auto":
        raise ValueError("stream: memory: device: got 'auto', wanted bytes, or a share: nobody knows yet what activations will take")
    return ("device", given.device, place_on(device) if device else HOST), ("host", given.host, HOST)


def _on_device(
    model: nn.Module, layers: Sequence[nn.Module], device: torch.device, found: Division, given: Memory
) -> tuple[DeviceWeights, list[Placed]]:
    """Makes the layers stream to the device, from host memory or from the disk."""
    placed = place_without_values(model)
    try:
        layout = units_for_device(model, layers)
        empty = {id(each.now) for each in placed}
        for unit in [*(layout.units if found.limit is None else ()), layout.kept]:
            with_memory(unit, empty)
        file = None
        if found.limit is not None:
            file = StreamedWeights(_file_for(given, found), [*layout.units], Schedule(layout.sizes, found.limit))
        return DeviceWeights(model, layout, found, device, file, placed), placed
    except BaseException:
        put_back(placed)
        raise


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
    """Takes the weights of a streaming model into host memory, in the parameters that it had before, removes its hooks, and ends the process
    group if `stream` began it. The optimizer goes on, on the CPU. A model that moved to a device whole stays there. Raises ValueError for a model that
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


def _file_for(given: Memory, found: Division) -> _core.MappedFile:
    assert given.disk is not None
    return _core.MappedFile(path_of("memory: disk", given.disk), max(found.weights.disk, 1))


def bucket_of(in_backward: bool | int | str) -> int | None:
    """Bytes of gradients that wait for a step in backward; None: all wait for its end."""
    if in_backward is False:
        return None
    return GRADIENT_BUCKET if in_backward is True else size_of("step_in_backward", in_backward)


def _state(model: nn.Module, optimizer: type[Optimizer], options: Mapping[str, Any], memory: Memory | None) -> Forecasts:
    """The state of the model's optimizer."""
    rule = next((rule for cls in optimizer.__mro__ for rule, known in CLASSES.items() if cls is known), None)
    if rule is None:
        raise TypeError(f"stream: optimizer: got {optimizer.__name__}, wanted one of {', '.join(cls.__name__ for cls in CLASSES.values())}")
    planned = inspect.signature(forecast).parameters
    found: Forecasts = forecast(model, rule, memory=memory, **{name: value for name, value in options.items() if name in planned})
    return found
