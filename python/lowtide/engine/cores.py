"""Parameters on several devices: one core per device, joined into one.

Every core has all groups and all parameter numbers. It holds parameters of other devices as tensors without elements, which are
never stepped. So a parameter's number, and with it its random bits, does not depend on where the others are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from lowtide import _core
from lowtide.devices.places import Place
from lowtide.devices.sharding import Recut
from lowtide.engine.params import Param
from lowtide.report.fields import CoreReport

RESIDUAL = "residual"  # of weights; stored beside the moments in the state
_Result = TypeVar("_Result")


class KeptErrors:
    """Runs a block of calls to its end despite disk errors: the core keeps unwritten state in RAM and reports the error after
    the call. Raises the first such error at the end."""

    _first: OSError | None = None

    def call(self, function: Callable[..., _Result], *args: Any) -> _Result | None:
        """Returns the result of `function`. Raises whatever it raises, except an OSError of a call that completed."""
        try:
            return function(*args)
        except OSError as error:
            if not getattr(error, "complete", False):
                raise
            self._first = self._first or error
            return None

    def __enter__(self) -> KeptErrors:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        if kind is None and self._first is not None:
            raise self._first


class Cores:
    """Several cores with the methods of one, except those for signs. Methods ignore the queue and free memory that they are
    given, because each device has its own."""

    def __init__(
        self,
        cores: Mapping[Place, _core.Optimizer],
        params: Sequence[Param],
        hyper: Sequence[dict[str, float]],
        automatic: bool,
        told: Mapping[Place, str],
        steps_beside: int = 0,
    ) -> None:
        """hyper: the hyper-parameters that each group received last. automatic: whether a budget depends on free memory. told:
        see `Shares`. steps_beside: how many steps the first core took no part in."""
        self._cores, self._list = dict(cores), list(cores.values())
        at = {place: owner for owner, place in enumerate(cores)}
        self._owners = [at[param.place] if param.place else 0 for param in params]
        self._params = params
        self._hyper = list(hyper)
        self._automatic, self._told = automatic, told
        self.steps_beside = steps_beside

    def _room(self, place: Place) -> int:
        return place.room() if self._automatic else -1

    def _asked(self, only: Sequence[int] | None) -> list[tuple[Place, _core.Optimizer]]:
        """The cores that have any of these parameters. A hook of one device must not touch the other cores: other threads of
        backward use them, and this thread does not know their queues."""
        every = list(self._cores.items())
        return every if only is None else [every[owner] for owner in sorted({self._owners[number] for number in only})]

    def _told_of(self, place: Place, call: Callable[..., _Result], *arguments: Any, unplaced: bool = False) -> _Result:
        """Makes a call and returns its result. The core at `place` knows only its share of a budget, so errors get the whole
        amount added. unplaced: a budget can refuse the call only while state has no place yet."""
        try:
            return call(*arguments)
        except ValueError as error:
            if place not in self._told or (unplaced and not self._waits(place)):
                raise
            raise ValueError(f"{error} ({self._told[place]})") from None

    def _waits(self, place: Place) -> bool:
        """True if a parameter that is trained there has no state yet."""
        core, params = self._cores[place], enumerate(self._params)
        return any(param.place == place and param.tensor.requires_grad and not core.has_state(i) for i, param in params)

    def check(self, grad_scale: float = 1.0, stream: int = 0, assume_finite: bool = False, free_bytes: int = -1,
              only: Sequence[int] | None = None) -> int:
        """Like `_core.Optimizer.check`. Asks every core that would step, so that all step or none does."""
        found = [
            self._told_of(place, core.check, grad_scale, place.queue(), assume_finite, self._room(place), only, unplaced=True)
            for place, core in self._asked(only)
        ]
        return min((number for number in found if number >= 0), default=-1)

    def step(
        self, grad_scale: float = 1.0, assume_finite: bool = False, stream: int = 0, free_bytes: int = -1,
        only: Sequence[int] | None = None, directions: Sequence[int] | None = None,
        updates: Sequence[tuple[int, int, float]] | None = None, sums: tuple[Sequence[int], bool] | None = None,
    ) -> int:  # fmt: skip
        """Like `_core.Optimizer.step`. Waits for all devices to agree: if one refuses or has a non-finite gradient, none steps.
        If a device or disk fails later, the devices after it are not stepped."""
        bad = self.check(grad_scale, 0, assume_finite, -1, only)
        if bad >= 0:  # the step finds it again and counts it
            ((place, core),) = self._asked([bad])
            core.step(grad_scale, False, place.queue(), self._room(place), only)
            return bad
        asked = self._asked(only)
        # Device steps are queued first, so that devices work while the host steps.
        with KeptErrors() as kept:
            for place, core in sorted(asked, key=lambda each: each[0].on_host):
                step = partial(core.step, updates=updates, sums=sums)
                if kept.call(step, grad_scale, True, place.queue(), self._room(place), only, directions) == _core.OVERFLOW:
                    return _core.OVERFLOW  # the others have the same sums, and would count the step as skipped again
        self.steps_beside += directions is None and (not asked or asked[0][1] is not self._list[0])
        return -1

    def prepare_replay(self, grad_scale: float = 1.0, stream: int = 0) -> None:
        advice = "make an optimizer for each device, or step without a graph"
        raise ValueError(f"prepare_replay: got parameters on {self.names()}, wanted one device: {advice}")

    def names(self) -> str:
        return " and ".join(place.name for place in self._cores)

    def prefetch(self, size: int, stream: int = 0) -> int:
        taken = 0
        for place, core in self._cores.items():
            taken += core.prefetch(size - taken, place.queue())
        return taken

    def demote(self, size: int) -> int:
        freed = 0
        for core in self._list:
            freed += core.demote(max(size - freed, 0))
        return freed

    def synchronize(self) -> None:
        self._each(lambda core: core.synchronize())

    def set_evaluating(self, evaluating: bool, stream: int = 0) -> None:
        for place, core in self._cores.items():
            core.set_evaluating(evaluating, place.queue())

    def place_states(self) -> None:
        for place, core in self._cores.items():
            self._told_of(place, core.place_states)

    def onload(self) -> None:
        self._each(_core.Optimizer.onload)

    def offload(self, devices: bool = False) -> None:
        """Like `_core.Optimizer.offload`: moves all state or none. devices: only state on devices."""
        moved: list[_core.Optimizer] = []
        try:
            for place, core in self._cores.items():
                if not (devices and place.on_host):
                    self._told_of(place, core.offload)
                    moved.append(core)
        except BaseException:
            for core in moved:
                core.onload()
            raise

    def set_threads(self, threads: int) -> None:
        self._each(lambda core: core.set_threads(threads))

    def set_seed(self, seed: int) -> None:
        self._each(lambda core: core.set_seed(seed))

    def set_rounding(self, group: int, rounding: str) -> None:
        self._each(lambda core: core.set_rounding(group, rounding))  # all cores have all groups, so all accept it

    def set_hyper(self, group: int, hyper: dict[str, float | bool]) -> None:
        """Like `_core.Optimizer.set_hyper`. A core refuses values that do not suit the formats of its parameters."""
        told: list[_core.Optimizer] = []
        try:
            for core in self._list:
                core.set_hyper(group, hyper)
                told.append(core)
        except (TypeError, ValueError):
            for core in told:
                core.set_hyper(group, self._hyper[group])
            raise
        self._hyper[group] = hyper

    def stepped_count(self) -> int:
        return sum(core.stepped_count() for core in self._list)

    def skipped_steps(self) -> int:
        return sum(core.skipped_steps() for core in self._list)

    def cpu_target(self) -> str:
        return self._list[0].cpu_target()

    def report(self) -> CoreReport:
        """Sums over the cores. Steps are those of the first core and those without it; transfer is the first one that is
        set."""
        reports: list[CoreReport] = [core.report() for core in self._list]
        found = reports[0].copy()
        for name, first in found.items():
            if name != "steps":
                values: list[Any] = [report[name] for report in reports]  # type: ignore[literal-required]
                sums = next(filter(None, values), "") if isinstance(first, str) else sum(values)
                found[name] = sums  # type: ignore[literal-required]
        found["steps"] += self.steps_beside
        return found

    def save(self, path: str, metadata: str) -> None:
        _core.save_together(self._list, self._owners, path, metadata)

    def save_async(self, path: str, metadata: str, copy_bytes: int) -> _core.SaveHandle:
        return _core.save_together_async(self._list, self._owners, path, metadata, copy_bytes)

    def load(self, path: str) -> str:
        return _core.load_together(self._list, self._owners, path)

    def _each(self, call: Callable[[_core.Optimizer], object]) -> None:
        for core in self._list:
            call(core)


Core = _core.Optimizer | Cores


def all_states(core: _core.Optimizer, number: int) -> tuple[list[str], list[str]]:
    """Names of all that a parameter's rule keeps: its states, and its numbers beside them."""
    return [name for name, _ in core.states_of(number)], [*core.carried(number)]


def has_residual(core: _core.Optimizer, number: int) -> bool:
    """True if the parameter's weights have a residual, from a step or assigned before the first one."""
    residual = core.read_state(number).get(RESIDUAL) if core.has_state(number) else None
    return residual is not None and (core.step_count(number) > 0 or bool(residual.count_nonzero()))


def carry(old: _core.Optimizer, source: int, new: _core.Optimizer, number: int, recut: Recut, kept: KeptErrors) -> None:
    """Copies the state of parameter `source` of `old` to parameter `number` of `new`, which takes it
    (`Engine._check_heirs`). Decodes and encodes it if the formats differ."""
    steps = old.step_count(source)
    tensors = old.read_state(source) if steps and old.has_state(source) or has_residual(old, source) else {}
    taken = [name for name in tensors if name != "step" and (steps or name == RESIDUAL)]
    if taken:
        new.allocate_state(number)
        live = new.read_state(number)
        if old.state_codec(source) != new.state_codec(number):
            for k, (name, _) in enumerate(old.states_of(source)):
                if name in tensors and name in live:  # SGD without momentum may have only a residual
                    kept.call(new.import_state, number, k, recut(name, old.export_state(source, k)))
            live = new.read_state(number)
            taken = [name for name in taken if name == RESIDUAL]
        made = {name: recut(name, tensors[name], live[name]) for name in taken if name in live}
        kept.call(new.write_state, number, {**live, **made})
    new.set_step_count(number, steps)
    if numbers := old.carried(source):
        new.set_carried(number, numbers)
    if beta1 := old.evaluating_beta1(source):
        new.mark_evaluating(number, True, beta1)
