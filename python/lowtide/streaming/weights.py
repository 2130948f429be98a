"""Weights in a file that is their memory: layers are read before they compute and written once they have stepped.

A parameter's address never changes and always holds its current values, because pages outside memory are read when touched. So
no order of layers, hook or checkpoint can give wrong values; hooks only choose when the disk works. One thread reads and
writes, in the order in which layers ask.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, cast

import torch
from torch import nn
from torch.utils import _pytree as pytree
from typing_extensions import TypedDict

from lowtide._core import MappedFile
from lowtide.checks.values import expect
from lowtide.devices.sharding import local_of
from lowtide.optimizers.backward import StepInBackward
from lowtide.optimizers.optimizer import Optimizer
from lowtide.planning.layers import units_of
from lowtide.planning.schedule import Schedule
from lowtide.planning.units import Unit, up


class StreamingReport(TypedDict):
    """Bytes of a streaming model. Those of the file are 0 if all weights are in host memory, those of the device without one."""

    weight_bytes: int  # weights that take turns in host memory or on the device
    memory_bytes: int  # the most of them in host memory at once
    read_bytes: int  # from the file, since `stream`
    written_bytes: int
    planned_read_bytes: int  # from the file, by one forward and one backward pass
    planned_written_bytes: int
    device_bytes: int  # the most weights and gradients on the device at once
    to_device_bytes: int  # weights copied by one forward and one backward pass
    to_host_bytes: int  # gradients


def no_bytes() -> StreamingReport:
    return cast("StreamingReport", dict.fromkeys(StreamingReport.__annotations__, 0))


def check_separate(model: nn.Module) -> None:
    """Raises ValueError for distinct parameters that share memory, and for buffers without memory."""
    ranges = [(param.data_ptr(), param.nbytes, name) for name, param in model.named_parameters() if not param.is_meta and param.nbytes]
    end, last = 0, ""
    for start, size, name in sorted(ranges):
        expect(start >= end, f"stream: {name}", f"a parameter in the memory of {last}", "parameters of their own, or one for both")
        end, last = start + size, name
    for name, buffer in model.named_buffers():
        expect(not buffer.is_meta, f"stream: {name}", "a buffer on meta", "values: accelerate.init_empty_weights() leaves buffers alone")


@dataclass
class StreamedWeights:
    """The units of one model, in a file."""

    file: MappedFile
    units: list[Unit]  # all, in the order of a forward pass
    schedule: Schedule
    offsets: list[int] = field(default_factory=list)
    changed: dict[int, int] = field(default_factory=dict)  # offsets in units from which on nothing is written yet
    in_backward: bool = False  # whether backward passes change weights
    addresses: list[list[int]] = field(default_factory=list)  # addresses of each unit's parameters
    flush: Callable[[], None] | None = None  # makes the optimizer step waiting gradients
    _asked: dict[int, Future[None]] = field(default_factory=dict)
    _unit_of: dict[int, int] = field(default_factory=dict)  # by id of its parameters
    _optimizer: weakref.ref[Optimizer] | None = None
    _failure: OSError | None = None
    _handles: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._process, self._lock = os.getpid(), threading.RLock()
        self._worker = ThreadPoolExecutor(1, "lowtide-weights")
        weakref.finalize(self, self._worker.shutdown, wait=False)

    @staticmethod
    def move(model: nn.Module, layers: Sequence[nn.Module], file: MappedFile, limit: int) -> tuple[StreamedWeights, list[Placed]]:
        """Moves the parameters of `model` into a file with room for all units. Parameters on meta get memory without values
        (zeros), and are listed in the result."""
        placed = place_without_values(model)
        try:
            empty = {id(each.now) for each in placed}
            layout = units_of(model, layers)
            with_memory(layout.kept, empty)
            self = StreamedWeights(file, layout.units, Schedule(layout.sizes, limit))
            for number, unit in enumerate(layout.units):
                self.take(number, [param for param in unit.params if id(param) in empty])
        except BaseException:
            put_back(placed)
            raise
        return self, placed

    def take(self, number: int, empty: Sequence[nn.Parameter]) -> None:
        """Moves a unit into the file, behind the units before it. empty: its parameters that have no values."""
        unit = self.units[number]
        self.offsets.append(place := sum(self.schedule.sizes[:number]))
        for tensor, has_values in [(local_of(param), not any(param is each for each in empty)) for param in unit.params]:
            values = self.file.tensor(place, tensor.nbytes).view(tensor.dtype)
            dense = has_values and _is_dense(tensor)
            values = values.as_strided(tensor.shape, tensor.stride()) if dense else values.view(tensor.shape)
            place += up(tensor.nbytes)
            if has_values:
                values.copy_(tensor.detach())
            tensor.data = values
        self.addresses.append(_addresses(unit))
        self.changed[number] = 0
        self.schedule.here.add(number)
        self._let_go_to_limit()

    def watch(self, model: nn.Module, optimizer: Optimizer, in_backward: bool) -> None:
        """Adds the hooks. in_backward: the optimizer steps weights in backward passes, otherwise all of them in its `step`."""
        me, self._optimizer, self.in_backward = weakref.ref(self), weakref.ref(optimizer), in_backward
        self._unit_of = {id(param): number for number, unit in enumerate(self.units) for param in unit.params}
        optimizer.by_parts = partial(_parts, me)
        if isinstance(steps := optimizer.in_backward, StepInBackward):
            self.flush = steps.flush
        for number, unit in enumerate(self.units):
            module = model.get_submodule(unit.name)
            self._handles.append(module.register_forward_pre_hook(partial(_turn, me, number), prepend=True))
            self._handles.append(module.register_forward_hook(partial(_after, me, number), prepend=True))

    def turn(self, number: int, stepping: bool = False) -> None:
        """Call this when unit `number` is about to compute or, behind backward, to be stepped. When it returns, the unit is in memory, and
        the next one on its way. Raises OSError, naming the unit, if the disk cannot read or write; the model is unusable then. Raises
        ValueError for weights that have left the file. In a forked child, which lacks the thread, pages are read when touched."""
        if os.getpid() != self._process:
            return
        backward = stepping or torch._C._current_graph_task_id() != -1
        self._check(number)
        with self._lock:
            moves = self.schedule.turn(number, backward)
            if backward and self.flush and any(gone > number for gone in moves.let_go):
                self.flush()
            if moves.bring is not None and (backward or not self.units[number].looked_up):
                self._ask(moves.bring)
            for gone in moves.let_go:
                self._let_go(gone)
            if moves.ahead is not None and (backward or not self.units[moves.ahead].looked_up):
                self._ask(moves.ahead)
            asked = self._asked.pop(number, None)
        if asked:
            asked.result()

    def _check(self, number: int) -> None:
        unit = self.units[number]
        if self._failure:
            raise OSError(*self._failure.args)
        if _addresses(unit) != self.addresses[number]:
            raise ValueError(
                f"{unit.name}: got weights that have left the file (by .to(), .half() or an assignment), wanted unstream(model) before"
            )

    def parts(self, tensors: Sequence[torch.Tensor], stepped: Sequence[int], whole: bool) -> Iterator[list[int]]:
        """Parts of a step of these tensors, and notes what each changes: units that take turns, each while it is in memory, then all others.
        whole: one part. Raises like `turn`."""
        by: dict[int, list[int]] = {}
        for number in stepped:
            by.setdefault(self._unit_of.get(id(tensors[number]), -1), []).append(number)
        for unit in () if whole else self.schedule.in_turn(self._trained()):
            if unit in by:
                self.turn(unit, stepping=True)
                self._note_changed(unit)
                yield by.pop(unit)
        behind = torch._C._current_graph_task_id() == -1
        self.in_backward |= not behind
        for unit in by.keys() - {-1}:
            self._note_changed(unit)
        if by or not stepped:
            yield sorted(chain.from_iterable(by.values()))
        if behind:  # the step has brought them into memory by touching them
            with self._lock:
                self.schedule.here.update(by.keys() - {-1})
                self._let_go_to_limit()

    def wait(self) -> None:
        """Waits for the disk. Raises like `turn`."""
        self._worker.submit(int).result()
        if self._failure:
            raise OSError(*self._failure.args)

    def report(self) -> StreamingReport:
        """Waits for the disk. Raises like `turn`."""
        self.wait()
        schedule, found = self.schedule, no_bytes()
        found["weight_bytes"], found["memory_bytes"] = sum(schedule.sizes), schedule.limit
        found["read_bytes"], found["written_bytes"] = self.file.read_bytes, self.file.written_bytes
        planned = schedule.step(self._trained(), bucket=0 if self.in_backward else None)
        found["planned_read_bytes"], found["planned_written_bytes"] = planned.read, planned.written
        return found

    def move_back(self, but: Sequence[Placed] = ()) -> None:
        """Removes the hooks and moves weights out of the file; those that came from meta go back there. If it raises, nothing
        has changed."""
        self.wait()
        gone = {id(each.module._parameters[each.name]) for each in but}
        copies = []
        units = self.units[: len(self.addresses)]
        for number, unit in enumerate(units):
            self._check(number)
            self.file.bring(self.offsets[number], unit.bytes)
            tensors = [(param, local_of(param).detach()) for param in unit.params]
            copies.append([tensor if id(param) in gone else tensor.clone() for param, tensor in tensors])
        for unit, values in zip(units, copies, strict=True):
            for param, value in zip(unit.params, values, strict=True):
                local_of(param).data = value
        put_back(but)
        for handle in self._handles:
            handle.remove()
        if self._optimizer and (optimizer := self._optimizer()):
            optimizer.by_parts = None

    def _trained(self) -> list[int]:
        return [unit.trained_bytes for unit in self.units]

    def _let_go_to_limit(self) -> None:
        for number in self.schedule.beyond():
            self._let_go(number)

    def _note_changed(self, number: int) -> None:
        with self._lock:
            self.changed[number] = min(self.units[number].first_trained(), self.changed.get(number, self.schedule.sizes[number]))

    def _ask(self, number: int) -> None:
        self._asked[number] = self._worker.submit(self._do, "reading", number, self.file.bring)

    def _let_go(self, number: int) -> None:
        self._asked.pop(number, None)
        first = self.changed.pop(number, None)
        self._worker.submit(self._do, "writing", number, partial(self._leave, first))

    def _leave(self, first: int | None, offset: int, size: int) -> None:
        kept = size if first is None else first
        self.file.let_go(offset, kept, changed=False)
        self.file.let_go(offset + kept, size - kept, changed=True)

    def _do(self, what: str, number: int, act: Callable[[int, int], None]) -> None:
        try:
            act(self.offsets[number], self.schedule.sizes[number])
        except OSError as error:
            text = f"{what} the weights of {self.units[number].name}: {error.strerror}"
            self._failure = OSError(error.errno, text) if error.errno else OSError(text)
            raise self._failure from None


def _turn(of: weakref.ref[StreamedWeights], number: int, *_: Any) -> None:
    """A hook: of a module before forward, or of a tensor in backward."""
    if (weights := of()) is not None:
        weights.turn(number)


def _after(of: weakref.ref[StreamedWeights], number: int, module: nn.Module, args: Any, output: Any) -> None:
    """Makes sure that the unit is read before backward reaches it."""
    del module, args
    for value in pytree.tree_leaves(output):
        if isinstance(value, torch.Tensor) and value.requires_grad:
            value.register_hook(partial(_turn, of, number))  # type: ignore[no-untyped-call]


def _parts(of: weakref.ref[StreamedWeights], tensors: list[torch.Tensor], stepped: list[int], whole: bool) -> Iterable[list[int]]:
    return [stepped] if (weights := of()) is None else weights.parts(tensors, stepped, whole)


def _addresses(unit: Unit) -> list[int]:
    return [local_of(param).data_ptr() for param in unit.params]


def _is_dense(param: torch.Tensor) -> bool:
    """True if the elements fill a range of memory."""
    order = sorted(zip(param.stride(), param.shape, strict=True))
    expected = 1
    for stride, size in order:
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


class Placed(NamedTuple):
    """A parameter in place of one on meta."""

    module: nn.Module
    name: str
    before: nn.Parameter
    now: nn.Parameter


def place_on_cpu(model: nn.Module, values: Callable[[nn.Parameter], torch.Tensor]) -> list[Placed]:
    """Gives parameters on meta `values` on the CPU."""
    by: dict[int, nn.Parameter] = {}
    placed: list[Placed] = []
    try:
        for module in model.modules():
            for name, param in module._parameters.items():
                if param is not None and param.is_meta:
                    if id(param) not in by:
                        by[id(param)] = nn.Parameter(values(param), param.requires_grad)
                    placed.append(Placed(module, name, param, by[id(param)]))
                    module._parameters[name] = by[id(param)]
    except BaseException:
        put_back(placed)
        raise
    return placed


def place_without_values(model: nn.Module) -> list[Placed]:
    """Gives parameters on meta tensors of one element on the CPU, spread over their shapes, until memory is found for them."""
    return place_on_cpu(model, lambda param: torch.zeros((), dtype=param.dtype).expand(param.shape))


def with_memory(unit: Unit, empty: Container[int]) -> None:
    """Gives the parameters with these ids memory for each element."""
    for param in unit.params:
        if id(param) in empty:
            param.data = param.detach().clone(memory_format=torch.contiguous_format)


def put_back(placed: Sequence[Placed]) -> None:
    """Undoes `place_on_cpu`."""
    for each in placed:
        each.module._parameters[each.name] = each.before
