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
from typing_extensions import TypedDict

from lowtide import _core
from lowtide.checks.values import expect
from lowtide.memory.budgets import Memory, size_of
from lowtide.memory.forecast import GRADIENT_BUCKET, STREAMED_STATE, path_of
from lowtide.optimizers.adam import AdamW
from lowtide.optimizers.backward import StepInBackward
from lowtide.optimizers.classes import CLASSES
from lowtide.optimizers.optimizer import Optimizer
from lowtide.planning.forecasts import forecast
from lowtide.report.log import logger
from lowtide.planning.schedule import Schedule
from lowtide.streaming.weights import StreamedWeights, Unit, check_separate, layers_of, place_on_cpu, put_back, units_of

_STREAMED: weakref.WeakKeyDictionary[nn.Module, StreamedWeights] = weakref.WeakKeyDictionary()
_RESIDENT: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # models of `stream` that fit whole


def stream(
    model: nn.Module,
    memory: Memory | Mapping[str, Any] | str,
    optimizer: type[Optimizer] = AdamW,
    *,
    layers: Iterable[nn.Module] | None = None,
    **options: Any,
) -> tuple[nn.Module, Optimizer]:
    """Makes a model on the CPU trainable in `memory.host` bytes: its weights move into a file in `memory.disk`, from which layers
    are read when they compute, and the state that has no room goes there, too. Where all fits, nothing moves. Every bit of
    weights, state and losses is that of a run in memory.

    Args:
        model: changed in place, and returned. Parameters on meta get memory, and no values: initialize or load them next. Frozen
            parameters may be bitsandbytes' Params4bit.
        memory: `host`: bytes for weights, gradients and state together; activations and the rest of the process come on top.
            `disk`: a directory. Other fields are the optimizer's.
        optimizer: a class of Lowtide's.
        layers: modules that compute one after another, each of which takes its turn in memory; None: the entries of the
            `nn.ModuleList` with the most bytes.
        options: of the optimizer, as `lr=1e-5`. step_in_backward=True unless given: gradients then last for one layer;
            with False they are all kept in memory, for accumulation and clipping.

    Returns the model and its optimizer. `unstream(model)` takes the weights back into memory. Do not replace `param.data` in
    between. Raises ValueError for a budget that is too small, naming the bytes that would do, or for a model without layers;
    OSError if the disk has no room; MemoryError. Nothing has changed then. While training, OSError names the layer that could
    not be read or written; resume from a checkpoint then.
    """
    where, given = "stream", Memory.of(memory)
    if given is None or given.host is None:
        raise ValueError(f"{where}: got memory={memory!r}, wanted host=BYTES in it")
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
    make([nn.Parameter(torch.zeros(1))], **options)  # refuses options before anything moves
    *units, kept = units_of(model, chosen)
    sizes, host = [unit.bytes for unit in units], size_of("host", given.host)
    always = kept.bytes + _gradient_bytes([*units, kept], options["step_in_backward"])
    weights, least = sum(sizes), Schedule.least(sizes)
    if given.disk is None or weights + always + _state_bytes(model, optimizer, options) <= host:
        room = host - weights - always
        got, what = _core.format_bytes(host), _core.format_bytes(weights + always)
        expect(room >= 0, f"{where}: memory: host", got, f"{what} of weights and gradients, and room for state, or disk=DIRECTORY")
        placed = place_on_cpu(model, lambda param: torch.zeros_like(param, device="cpu"))
        try:
            whole = make(model.parameters(), memory=given.replaced(host=room), **options)
        except BaseException:
            put_back(placed)
            raise
        _RESIDENT.add(model)
        return model, whole
    room = host - always - STREAMED_STATE
    wanted = f"{_core.format_bytes(least + always + STREAMED_STATE)}: three layers, their gradients, and buffers for state"
    expect(room >= least, f"{where}: memory: host", _core.format_bytes(host), wanted)
    limit = min(weights, room)
    file = _core.MappedFile(path_of("memory: disk", given.disk), max(weights, 1))
    streamed, placed = StreamedWeights.move(model, chosen, file, limit)
    try:
        made = make(model.parameters(), memory=given.replaced(host=host - always - limit), **options)
    except BaseException:
        streamed.move_back(placed)
        raise
    if isinstance(in_backward := made.in_backward, StepInBackward):
        streamed.flush = in_backward.flush
    streamed.watch(model, made, after_backward=options["step_in_backward"] is False)
    _STREAMED[model] = streamed
    if logger.isEnabledFor(logging.INFO):  # the report waits for the disk
        report = streaming_report(model)
        logger.info(
            "%s streams %d layers, %s of weights, %s of them in memory: a step reads %s and writes %s", type(model).__name__, len(units),
            *(_core.format_bytes(report[name]) for name in ("weight_bytes", "memory_bytes", "planned_read_bytes", "planned_written_bytes")),
        )  # fmt: skip
    return model, made


def _can_move(param: nn.Parameter) -> bool:
    """True for plain parameters, and for frozen ones of a class that adds to a tensor, such as bitsandbytes' Params4bit: their
    bytes move, and whatever else they refer to stays."""
    return type(param) is nn.Parameter or not (param.requires_grad or param.is_meta or is_traceable_wrapper_subclass(param))


def unstream(model: nn.Module) -> None:
    """Takes the weights of a model that streams into memory, and removes its hooks. Its optimizer goes on. Raises ValueError for a
    model that `stream` has not had, MemoryError, and OSError if weights cannot be read; the model streams on then."""
    if model in _RESIDENT:
        _RESIDENT.remove(model)
        return
    _streamed(model, "unstream").move_back()
    del _STREAMED[model]


class StreamingReport(TypedDict):
    """Bytes of a model that streams."""

    weight_bytes: int  # that take turns in memory
    memory_bytes: int  # that memory holds at once, at most
    read_bytes: int  # from the file, since `stream`
    written_bytes: int
    planned_read_bytes: int  # by a step of one forward and one backward pass
    planned_written_bytes: int


def streaming_report(model: nn.Module) -> StreamingReport:
    """The bytes that a model's weights take and move; zeros where all fits. Waits for the disk. Raises ValueError for a model that
    `stream` has not had, OSError if the disk has refused weights."""
    if model in _RESIDENT:
        return StreamingReport(
            weight_bytes=0, memory_bytes=0, read_bytes=0, written_bytes=0, planned_read_bytes=0, planned_written_bytes=0
        )
    streamed = _streamed(model, "streaming_report")
    streamed.wait()
    schedule = streamed.schedule
    read, written = schedule.step_bytes([unit.bytes - unit.first_trained() for unit in streamed.units])
    return {
        "weight_bytes": sum(schedule.sizes), "memory_bytes": schedule.limit,
        "read_bytes": streamed.file.read_bytes, "written_bytes": streamed.file.written_bytes,
        "planned_read_bytes": read, "planned_written_bytes": written,
    }  # fmt: skip


def _streamed(model: nn.Module, where: str) -> StreamedWeights:
    if (streamed := _STREAMED.get(model)) is None:
        raise ValueError(f"{where}: got a {type(model).__name__} that does not stream, wanted a model that stream() has put on disk")
    return streamed


def _gradient_bytes(units: Sequence[Unit], in_backward: bool | int | str) -> int:
    """The bytes of gradients that are there at once, at most."""
    each = [sum(param.nbytes for param in unit.params if param.requires_grad) for unit in units]
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
