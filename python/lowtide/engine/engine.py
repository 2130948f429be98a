"""One optimizer's core, and all that Python knows of it: parameters by number, groups, where they are, and their state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol
from weakref import ref

import torch

from lowtide import _core
from lowtide.devices.flattened import shard_of
from lowtide.devices.places import HOST, Place
from lowtide.devices.sharding import local_of
from lowtide.engine.elsewhere import Elsewhere, Shown, as_shown, read_only
from lowtide.engine.family import Family
from lowtide.engine.mirrors import MirrorCore
from lowtide.engine.registry import Registry, Settings
from lowtide.report.fields import CoreReport
from lowtide.report.log import logger

RESIDUAL = "residual"  # of weights, beside the moments in a parameter's state
MOMENTUM = "momentum_buffer"  # comes and goes with SGD's momentum


class Entry(Protocol):
    def __call__(self, engine: Engine, number: int, views: dict[str, torch.Tensor], /) -> Shown: ...


class Engine(Registry):
    """The core of an optimizer, and its state."""

    def __init__(self, family: Family, settings: Settings) -> None:
        super().__init__(family, settings)
        self.shows_sizes = True  # of state that no view can show; and codes are read-only
        self.entry: Entry | None = None  # makes the entries of Optimizer.state out of views; None: `Shown`
        self.assigned: set[int] = set()  # parameters in whose entries something was replaced since they were shown
        self.shows_unstepped = False  # parameters have entries before their first step

    # State.

    def shown(self, number: int) -> Shown:
        """The entry of a parameter in `Optimizer.state`."""
        views, place = self._views(number), self.places[number]
        if self.shows_sizes and place and (not place.on_host or self.has_budget()):  # else all of it is in RAM
            tensors = self._tensors(number, fullest=False)
            away = {name: like for name, like in tensors.items() if name not in views}
            views |= {name: Elsewhere(like, HOST.device if place.on_host else place.device, self._reader(number, name)) for name, like in away.items()}
        if self.entry:
            return self.entry(self, number, views)
        shown = as_shown(views)
        return Shown(read_only(shown) if self.shows_sizes else shown, self.params[number], number, self.assigned)

    def has_entry(self, number: int) -> bool:
        """Whether `Optimizer.state` and state dicts have an entry of a parameter: as torch.optim's, from its first step on."""
        asked = self.shows_unstepped and self.params[number].requires_grad and number not in self.foreign
        return asked or self.core.step_count(number) > 0

    def _reader(self, number: int, name: str) -> Callable[[], torch.Tensor]:
        """Returns copies of that tensor of a parameter's state while it is there; keeps neither alive."""
        engine, param = ref(self), ref(self.params[number])

        def read() -> torch.Tensor:
            alive = engine()
            if not alive or number >= len(alive.params) or alive.params[number] is not param():
                raise RuntimeError("got state of an optimizer or a parameter that is gone, wanted Optimizer.state of now")
            found = alive.core.read_state(number).get(name)
            if found is None:
                wanted = "a step, or state_dict(), before"
                raise RuntimeError(f"got {name!r} of parameter {number}, which has no state yet, wanted {wanted}")
            return found

        return read

    def _views(self, number: int) -> dict[str, torch.Tensor]:
        entry = self.core.state(number)
        of = self.shardings[number]
        return of.wrap(entry) if of else entry

    def live(self, number: int) -> dict[str, torch.Tensor]:
        """The live state of a parameter, copied if it streams; empty if there is none and it has not been stepped."""
        if self.core.is_paged(number):
            copies = self.core.read_state(number)
            of = self.shardings[number]
            return of.wrap(copies) if of else copies
        entry = self._views(number)
        return entry if self.core.has_state(number) or int(entry["step"]) else {}

    def signed(self, number: int) -> dict[str, bool]:
        """Every state that the parameter can have, and whether it takes both signs."""
        return dict(self.core.states_of(number))

    def layout(self, number: int) -> dict[str, torch.Tensor]:
        """Tensors like those of the state that a parameter has or, having none, can be given, whatever its momentum."""
        core = self.core
        live = core.state(number)
        if core.has_state(number) and len(live) > 1:
            return live
        if number in self.foreign:
            return {"step": torch.empty((), dtype=torch.int64, device="meta")}
        tensors = self._tensors(number, fullest=True)
        if {RESIDUAL, MOMENTUM} <= set(tensors):  # a residual keeps to the states that it lies with
            there = core.read_state(number) if core.has_state(number) else self._tensors(number, fullest=False)
            tensors = {name: like for name, like in tensors.items() if name in there}
        return {"step": torch.empty((), dtype=torch.int64, device="meta"), **tensors}

    def _tensors(self, number: int, fullest: bool) -> dict[str, torch.Tensor]:
        """Tensors on "meta" like those of the state that a parameter has with the hyper-parameters of now, or, `fullest`,
        with any."""
        group = next(each for each in self.groups if each.has(number))
        of, local = self.shardings[number], local_of(self.params[number])
        state, least, master = group.format
        found = _core.state_layout(
            group.rule or self.family.core_rule, group.pushed, state, least, group.rounding, master, list(local.shape),
            str(local.dtype).removeprefix("torch."), shard_of(self.params[number], of), fullest,
        )  # fmt: skip
        return {
            name: torch.empty(sizes, dtype=getattr(torch, dtype), device="meta") for name, dtype, sizes in found.tensors
        }

    def wanted_bytes(self) -> int:
        """Bytes of state that the parameters which are trained now have from their first step on."""
        trained = (i for i, param in enumerate(self.params) if param.requires_grad and i not in self.foreign)
        return sum(like.nbytes for i in trained for like in self._tensors(i, fullest=False).values())

    # Where state is, and what has happened.

    def queue(self) -> int:
        """The queue that torch works on now, on the parameters' device. 0 with several: their core asks for each."""
        return self.place.queue() if self.place else 0

    def room(self) -> int:
        """Bytes that state may take, for the core's decisions about residency; -1: not asked for, or not known. Likewise."""
        return self.place.room() if self.automatic and self.place else -1

    @property
    def capturing(self) -> bool:
        """Whether a step would be recorded in a graph."""
        return any(place.capturing() for place in self.cores)

    def demote(self, size: int | None = None) -> int:
        """Moves state to the host until `size` bytes (None: all that can go) of device memory are free again."""
        freed = self.core.demote(2**63 - 1 if size is None else size)
        if freed:
            logger.info("%d bytes of device memory were freed by moving state to the host", freed)
        return freed

    def prefetch(self, size: int) -> int:
        """Reads up to `size` bytes of streaming state ahead; returns the bytes of device memory taken for it."""
        return _logged(self.core.prefetch(size, self.queue()))

    def prefetch_at(self, place: Place, size: int) -> int:
        """As `prefetch`, on one of the devices, after what torch works on there on this thread."""
        return _logged(self.cores[place].prefetch(size, place.queue()))

    def take_gradient(self, number: int) -> bool:
        """As `MirrorCore.take`; False for a parameter that the CPU does not step."""
        place = self.places[number]
        core = self.cores[place] if place else None
        return isinstance(core, MirrorCore) and core.take(number)

    def drop_gradients(self) -> None:
        """Lets the gradients go that were taken."""
        for core in self.cores.values():
            if isinstance(core, MirrorCore):
                core.drop()

    def holders(self) -> list[torch.Tensor]:
        """Tensors whose `.grad` are the gradients, by number: the parameters, or those of the host where gradients were taken."""
        cores = [core for core in self.cores.values() if isinstance(core, MirrorCore)]
        taken = {number: holder for core in cores for number, holder in core.holders().items()}
        return [taken.get(number, param) for number, param in enumerate(self.params)] if taken else self.params

    def report(self) -> CoreReport:
        """The core's report, with the steps of cores before."""
        found: CoreReport = self.core.report()
        found["steps"] += self.steps_before
        found["skipped_steps"] += self.skipped_before
        return found

    def skipped_steps(self) -> int:
        """Steps that were skipped, as far as is known without waiting for a device."""
        return self.skipped_before + self.core.skipped_steps()

    def has_budget(self) -> bool:
        """Whether anything limits memory."""
        own = (group.overrides.get("memory") for group in self.groups)
        return any(memory is not None for memory in (self.settings.memory, *self.memories, *own))

    def new_states(self) -> list[int]:
        """Parameters that have got the state they waited for, until they are `adopted`."""
        if self.core.stepped_count() == self.with_state:
            return []
        return [i for i in self.awaited if self.core.step_count(i) > 0]

    def adopted(self, numbers: Sequence[int]) -> None:
        """`Optimizer.state` has the entries of these parameters now."""
        self.with_state = self.core.stepped_count()
        came = set(numbers)
        self.awaited = [i for i in self.awaited if i not in came]

    def await_states(self, numbers: Iterable[int]) -> None:
        """The next step may give these parameters state, and no others."""
        self.awaited = sorted(numbers)
        self.with_state = -1


def _logged(taken: int) -> int:
    logger.debug("%d bytes of state are read ahead", taken)
    return taken
