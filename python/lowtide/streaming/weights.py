"""Weights in a file that is their memory: layers are read before they compute, and written once they have stepped.

A parameter's address never changes and always holds its current values: what is not in memory is read where it is touched. So
no order of layers, hook or checkpoint can be wrong; hooks only choose when the disk works. One thread reads and writes, in the
order in which layers ask.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils import _pytree as pytree

from lowtide._core import MappedFile
from lowtide.checks.values import expect
from lowtide.streaming.schedule import Schedule

_PAGE, _LINE = 4096, 64  # bytes: of the system's memory, and of a processor's cache
_SMALL = 1 << 20  # bytes: modules outside of layers with less stay in memory


class Unit(NamedTuple):
    """A module whose weights move together."""

    name: str
    module: nn.Module | None
    params: list[nn.Parameter]  # frozen ones first, which are never written again

    @property
    def bytes(self) -> int:
        """The size of the unit in the file."""
        return _up(sum(_up(param.nbytes, _LINE) for param in self.params), _PAGE)

    @property
    def looked_up(self) -> bool:
        """Forward reads a few rows."""
        return isinstance(self.module, nn.Embedding)

    def first_trained(self) -> int:
        """The offset in the unit behind which its trained parameters are; its size if there are none."""
        offset = 0
        for param in self.params:
            if param.requires_grad:
                return offset // _PAGE * _PAGE
            offset += _up(param.nbytes, _LINE)
        return self.bytes


def _up(size: int, to: int) -> int:
    return -(-size // to) * to


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The entries of the module list with the most bytes of weights; ValueError if there is none."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module)]
    expect(bool(lists), "model", f"a {type(model).__name__} without an nn.ModuleList", "layers=, a list of its modules")
    return list(max(lists, key=lambda each: sum(param.nbytes for param in each.parameters())))


def units_of(model: nn.Module, layers: Sequence[nn.Module]) -> list[Unit]:
    """The units in the order of `model.modules()`: layers, and large modules outside of them. And, without a module, the other
    parameters, which stay in memory: small, or shared between units."""
    inside = {id(module): layer for layer in layers for module in layer.modules()}
    users: dict[int, set[int]] = {}
    for module in model.modules():
        for param in module._parameters.values():
            if param is not None:
                users.setdefault(id(param), set()).add(id(inside.get(id(module), module)))
    units: list[Unit] = []
    kept = {id(param): param for param in model.parameters()}
    for name, module in model.named_modules():
        is_layer = any(module is layer for layer in layers)
        if is_layer or id(module) not in inside:
            own = [p for p in (module.parameters() if is_layer else module.parameters(recurse=False)) if len(users[id(p)]) == 1]
            if is_layer or sum(param.nbytes for param in own) >= _SMALL:
                units.append(Unit(name, module, sorted(own, key=lambda param: param.requires_grad)))
                for param in own:
                    kept.pop(id(param), None)
    return [*units, Unit("", None, list(kept.values()))]


@dataclass
class StreamedWeights:
    """The units of one model, in a file."""

    file: MappedFile
    units: list[Unit]
    schedule: Schedule
    offsets: list[int] = field(default_factory=list)
    changed: dict[int, int] = field(default_factory=dict)  # the offsets in units behind which they are not written yet
    _asked: dict[int, Future[None]] = field(default_factory=dict)
    _failure: BaseException | None = None
    _handles: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._worker = ThreadPoolExecutor(1, "lowtide-weights")
        weakref.finalize(self, self._worker.shutdown, wait=False)

    @staticmethod
    def move(model: nn.Module, layers: Sequence[nn.Module], directory: str, limit: int) -> StreamedWeights:
        """Moves the parameters of `model` into a new file; those on meta get memory without values (zeros). Raises OSError or
        MemoryError before any has moved."""
        file = MappedFile(directory, max(_PAGE, sum(unit.bytes for unit in units_of(model, layers)[:-1])))
        empty = place_on_cpu(model, lambda param: torch.zeros((), dtype=param.dtype).expand(param.shape))
        *units, kept = units_of(model, layers)
        for param in kept.params:
            if id(param) in empty:
                param.data = param.detach().clone(memory_format=torch.contiguous_format)
        self = StreamedWeights(file, units, Schedule([unit.bytes for unit in units], limit))
        start = 0
        for number, unit in enumerate(units):
            place, self.offsets = start, [*self.offsets, start]
            for param in unit.params:
                values = file.tensor(place, param.nbytes).view(param.dtype).view(param.shape)
                place += _up(param.nbytes, _LINE)
                if id(param) not in empty:
                    values.copy_(param.detach())
                param.data = values
            start += unit.bytes
            self.changed[number] = 0
            self.schedule.here.add(number)
            self._let_go_to_limit()
        return self

    def watch(self) -> None:
        """Adds the hooks."""
        for number, unit in enumerate(self.units):
            assert unit.module
            self._handles.append(unit.module.register_forward_pre_hook(partial(_before, weakref.ref(self), number), prepend=True))
            self._handles.append(unit.module.register_forward_hook(partial(_after, weakref.ref(self), number)))

    def turn(self, number: int) -> None:
        """Unit `number` is about to compute: it is in memory when this returns, and the next one on its way. Raises OSError,
        naming the unit, if the disk refuses to read or write; the model cannot be used then."""
        backward = torch._C._current_graph_task_id() != -1
        if self._failure:
            raise self._failure
        looked_up = self.units[number].looked_up and not backward
        moves = self.schedule.turn(number, backward)
        if moves.bring is not None and not looked_up:
            self._ask(moves.bring)
        for gone in moves.let_go:
            self._let_go(gone)
        if moves.ahead is not None and (backward or not self.units[moves.ahead].looked_up):
            self._ask(moves.ahead)
        if backward:
            self._note_changed(number)
        if (asked := self._asked.pop(number, None)) is not None:
            asked.result()

    def after_step(self, *of_hook: Any) -> None:
        """A step after backward has touched all trained weights, and brought them into memory."""
        for number in range(len(self.units)):
            if self._note_changed(number):
                self.schedule.here.add(number)
        self._let_go_to_limit()

    def wait(self) -> None:
        """Waits for the disk; raises like `turn`."""
        self._worker.submit(int).result()
        if self._failure:
            raise self._failure

    def move_back(self, model: nn.Module) -> None:
        """Removes the hooks, and moves weights out of the file."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.wait()
        for param in model.parameters():
            param.data = param.detach().clone()

    def _let_go_to_limit(self) -> None:
        here, sizes = self.schedule.here, self.schedule.sizes
        for number in sorted(here, reverse=True):
            if sum(sizes[n] for n in here) <= self.schedule.limit:
                break
            here.discard(number)
            self._let_go(number)

    def _note_changed(self, number: int) -> bool:
        first, size = self.units[number].first_trained(), self.schedule.sizes[number]
        if first < size:
            self.changed[number] = min(first, self.changed.get(number, size))
        return first < size

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
            raise self._failure from error


def _before(of: weakref.ref[StreamedWeights], number: int, module: nn.Module, args: Any) -> None:
    del module, args
    if (weights := of()) is not None:
        weights.turn(number)


def _after(of: weakref.ref[StreamedWeights], number: int, module: nn.Module, args: Any, output: Any) -> None:
    """Has the unit read before backward comes to it."""
    del module, args
    for value in pytree.tree_leaves(output):
        if isinstance(value, torch.Tensor) and value.requires_grad:
            value.register_hook(partial(_backward, of, number))


def _backward(of: weakref.ref[StreamedWeights], number: int, gradient: torch.Tensor) -> None:
    del gradient
    if (weights := of()) is not None:
        weights.turn(number)


def place_on_cpu(model: nn.Module, values: Callable[[nn.Parameter], torch.Tensor]) -> dict[int, nn.Parameter]:
    """Gives parameters on meta `values` on the CPU. Returns the new parameters by their id."""
    by: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, param in module._parameters.items():
            if param is not None and param.is_meta:
                if id(param) not in by:
                    by[id(param)] = nn.Parameter(values(param), param.requires_grad)
                module._parameters[name] = by[id(param)]
    return {id(param): param for param in by.values()}
