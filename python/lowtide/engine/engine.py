"""One optimizer's core, and all that Python knows of it: parameters by number, groups, and where they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from lowtide import _core
from lowtide.checks.values import expect
from lowtide.devices import places, sharding
from lowtide.devices.places import HOST, Place
from lowtide.devices.sharding import Sharding, local_of
from lowtide.engine.cores import Core, Cores, register_all
from lowtide.engine.family import Family
from lowtide.engine.groups import CoreGroup, Format, Members
from lowtide.memory.budgets import Memory, budget_at, check_shared
from lowtide.options import overrides
from lowtide.options.options import Options
from lowtide.options.overrides import Overridden
from lowtide.report.fields import CoreReport
from lowtide.report.log import logger

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

RESIDUAL = "residual"  # of weights, beside the moments in a parameter's state
MOMENTUM = "momentum_buffer"  # comes and goes with SGD's momentum


class Examined(NamedTuple):
    """Parameters that an optimizer can have."""

    places: list[Place | None]  # None: of a foreign one, which cannot be stepped
    shardings: list[Sharding | None]


class Registered(NamedTuple):
    """The parameters of an optimizer that is to have other cores."""

    members: Sequence[list[torch.Tensor]]  # per parameter group
    params: Examined  # all of them, by number
    overridden: list[Overridden]  # likewise
    memories: list[Memory | None]  # per parameter group: its own budget


@dataclass
class Settings:
    """Options of the whole optimizer."""

    nonfinite: str = "skip"
    seed: int = 0
    amp_scaling: bool = False
    cpu_target: str = ""
    memory: Memory | None = None
    arithmetic: str = places.EXACT

    @classmethod
    def of(cls, options: Options) -> Settings:
        given: Mapping[str, Any] = options
        settings = cls(**{name: given[name] for name in cls.__annotations__ if name in given})
        settings.seed = int(settings.seed)
        return settings


class Entry(Protocol):
    def __call__(self, engine: Engine, number: int, shown: dict[str, torch.Tensor], /) -> dict[str, torch.Tensor]: ...


class Engine:
    """The core of an optimizer. It keeps no parameter group of the optimizer, which may replace them: methods that need
    their options take them."""

    def __init__(self, family: Family, settings: Settings) -> None:
        self.family, self.settings = family, settings
        self.threads = torch.get_num_threads()
        self.core: Core  # made with the first group, when it is known where parameters are
        self.cores: dict[Place, _core.Optimizer] = {}  # those behind it, one for each device
        self.place: Place | None = None  # of the core; None: of several, or of none yet
        self.on_host = True  # all of them are
        self.places: list[Place | None] = []  # of the parameters, by number; None: of foreign ones
        self.groups: list[CoreGroup] = []  # by number in the core
        self.members: list[list[torch.Tensor]] = []  # per parameter group: the parameters that the core has
        self.formats: list[Format] = []  # per parameter group: its own, without overrides
        self.memories: list[Memory | None] = []  # per parameter group: its own budget
        self.params: list[torch.Tensor] = []  # all of them, by number
        self.known: list[torch.Tensor] = []  # as the core has them: they, or what stands in for the foreign ones
        self.foreign: dict[int, torch.Tensor] = {}  # by number: those that cannot be stepped, being frozen or on meta
        self.shardings: list[Sharding | None] = []  # of those that are DTensors, by number
        self.overridden: list[Overridden] = []  # the overrides that they have met, by number
        self.meshes: list[DeviceMesh] = []  # of the DTensors
        self.awaited: list[int] = []  # numbers of parameters whose state is not there yet: a step may bring it
        self.with_state = 0  # parameters with state, as the core last counted them; -1: look again
        self.automatic = False  # whether a budget depends on what is free
        self.captured = False  # whether a step was captured in a graph
        self.steps_before = self.skipped_before = 0  # counted outside of the present core
        self.entry: Entry | None = None  # makes the entries of Optimizer.state out of views; None: they are plain dicts

    # Groups.

    def new_core(self, threads: int, place: Place) -> _core.Optimizer:
        """A core without groups, under the budget of the optimizer."""
        settings, target = self.settings, place.target(self.settings.arithmetic)
        place.require_backend()
        return _core.Optimizer(
            self.family.core_rule,
            self.family.core_nonfinite(settings.nonfinite),
            threads,
            settings.cpu_target,
            budget_at(settings.memory, place),
            place.kind.backend,
            place.queue(),
            place.reads,
            target,
            place.allocator(),
            settings.seed,
        )

    def check_params(self, params: Sequence[torch.Tensor], where: Sequence[str], of_others: Iterable[Place]) -> Examined:
        """Where these parameters are, and how they are cut. where: each one's name for errors; of_others: where those beside
        them are. ValueError, TypeError or NotImplementedError for one that cannot be stepped, unless it may stand aside."""
        now = Examined([None] * len(params), [None] * len(params))
        known = {*of_others}
        # Those that are stepped say at which places there is a core. A frozen one alone needs none.
        for i in sorted(range(len(params)), key=lambda i: places.may_stand_aside(params[i])):
            aside = places.may_stand_aside(params[i])
            try:
                of, here = examine(params[i], where[i])
            except (TypeError, ValueError, NotImplementedError):
                if not aside:
                    raise
                continue
            if not aside or not known or here in known:
                now.places[i], now.shardings[i] = here, of
                known.add(here)
        return now

    @property
    def settled(self) -> Iterable[Place]:
        """Where parameters are, if any is stepped."""
        return self.cores if any(self.places) else ()

    def add(self, groups: Sequence[dict[str, Any]], memory: Memory | None) -> None:
        """Takes in the last one of the optimizer's parameter groups. On an error nothing has changed."""
        number, group = len(groups) - 1, groups[-1]
        params: list[torch.Tensor] = group["params"]
        where = [f"parameter group {number}, parameter {i}" for i in range(len(params))]
        found, shardings = self.check_params(params, where, self.settled)
        overridden = [Overridden(entries) for entries in overrides.look(params)]
        wanted = self.wanted_places([*self.places, *found])
        several, home = len(wanted) > 1, wanted[0]
        known = stood_in(params, found, home)
        members = Members(known, shardings, [one.options() for one in overridden], memory)
        if several:
            owned = [(number, own) if own else (-1, None) for own in members.budgets()]
            self.check_budgets([*self.places, *found], [*owned_by(self.groups, self.memories, len(self.params)), *owned])
        first = len(self.params)
        arguments = (several, self.family, number, group, members, found, first)
        if self.groups:  # A core cannot forget a group: one added during training is tried out on another.
            register_all({place: self.new_core(1, place) for place in wanted}, *arguments)
        cores = {place: self.cores.get(place) or self._core_at(place, several, groups) for place in wanted}
        core_groups = register_all(cores, *arguments)
        self.overridden += overridden
        self.formats.append(Format.of(group))
        self.memories.append(memory)
        self.members.append(list(params))
        self.adopt(cores, Examined([*self.places, *found], [*self.shardings, *shardings]), [*self.groups, *core_groups])
        self.awaited += [i for i in range(first, len(self.params)) if not self.core.has_state(i)]

    def append(self, number: int, param: torch.Tensor) -> int:
        """Takes in one more parameter of parameter group `number`, without overrides; no later group may have any. Returns
        its number. On an error nothing has changed."""
        where = f"parameter group {number}, parameter {len(self.members[number])}"
        later = sum(map(len, self.members[number + 1 :]))
        expect(not later, where, f"it after {later} parameters of later groups", "parameters in the order of the groups")
        of, here = examine(param, where)
        wanted = f"{', '.join(str(place.device) for place in self.cores)} as the parameters before it, and one device"
        expect([here] == [*self.cores], where, f"a tensor on {here.device}", wanted)
        at = next(n for n, each in enumerate(self.groups) if each.of == number)  # the first has no overrides
        try:
            added = self.cores[here].add_param(at, param, param.requires_grad, of.shard if of else None)
        except (TypeError, ValueError, NotImplementedError) as error:
            raise self.family.error(where, self.groups[at].rule, error) from error
        self.groups[at].params.append(added)
        self.members[number].append(param)
        self.params.append(param)
        self.known.append(param)
        self.places.append(here)
        self.shardings.append(of)
        self.meshes = sharding.meshes_of(self.shardings)
        self.overridden += [Overridden(entries) for entries in overrides.look([param])]
        if not self.core.has_state(added):
            self.awaited.append(added)
        return added

    def wanted_places(self, found: Sequence[Place | None]) -> list[Place]:
        """The places at which parameters are stepped, that of the first one first; where there is none, that of before."""
        return [*dict.fromkeys(filter(None, found))] or [*self.cores][:1] or [HOST]

    def _core_at(self, place: Place, several: bool, groups: Sequence[dict[str, Any]]) -> _core.Optimizer:
        """A core for a place that had none, with the groups that there are."""
        core = self.new_core(self.threads, place)
        self.register({place: core}, several, groups, self.registered())
        for number, known in enumerate(self.groups):  # as the others were told, whatever the options are now
            core.set_rounding(number, known.rounding)
            core.set_hyper(number, known.pushed)
        return core

    def registered(self) -> Registered:
        """The parameters as they are."""
        return Registered(self.members, Examined(self.places, self.shardings), self.overridden, self.memories)

    def register(
        self, cores: Mapping[Place, _core.Optimizer], several: bool, groups: Sequence[dict[str, Any]], of: Registered
    ) -> list[CoreGroup]:
        """Has new cores take in all parameters. several: there are other cores beside them."""
        made: list[CoreGroup] = []
        found, shardings = of.params
        known = stood_in([param for params in of.members for param in params], found, next(iter(cores)))
        own = [one.options() for one in of.overridden]
        first = 0
        for number, params in enumerate(of.members):
            these = slice(first, first + len(params))
            members = Members(known[these], shardings[these], own[these], of.memories[number])
            made += register_all(cores, several, self.family, number, groups[number], members, found[these], first)
            first += len(params)
        return made

    def adopt(self, cores: dict[Place, _core.Optimizer], now: Examined, groups: list[CoreGroup]) -> None:
        """Goes on with these cores of the parameters in `members`."""
        home, several = next(iter(cores)), len(cores) > 1
        self.cores, self.groups, self.with_state = cores, groups, -1
        self.place, self.on_host = None if several else home, all(place.on_host for place in cores)
        self.params = [param for params in self.members for param in params]
        self.places, self.shardings = now.places, now.shardings
        self.known = stood_in(self.params, now.places, home)
        self.foreign = {i: param for i, param in enumerate(self.params) if now.places[i] is None}
        self.meshes = sharding.meshes_of(self.shardings)
        self.automatic = self._automatic()
        self.core = Cores(cores, now.places, groups, self.automatic) if several else cores[home]

    def _automatic(self) -> bool:
        budgets = [budget_at(self.settings.memory, place) for place in self.cores]
        if self.place:
            own = (group.overrides.get("memory") for group in self.groups)
            budgets += [each.budget(self.place) for each in (*self.memories, *own) if each]
        else:
            owned = owned_by(self.groups, self.memories, len(self.params))
            pairs = {(at, each) for at, (_, each) in zip(self.places, owned, strict=True) if at and each}
            budgets += [each.budget(at) for at, each in pairs]
        return any(budget.automatic for budget in budgets if budget)

    def check_budgets(self, found: Sequence[Place | None], owned: Sequence[tuple[int, Memory | None]]) -> None:
        """ValueError for a budget that parameters at different places cannot share."""
        at: dict[tuple[int, Memory | None], dict[Place, None]] = {}
        for place, budget in zip(found, owned, strict=True):
            if place:
                at.setdefault(budget, {})[place] = None
        for (number, memory), there in at.items():
            check_shared(memory or self.settings.memory, there, f"parameter group {number}" if memory else "optimizer")

    def foreign_gradients(self) -> list[int]:
        """Numbers of foreign parameters that have a gradient now."""
        with torch._C.DisableTorchFunctionSubclass():  # a subclass of Tensor reads its own attributes slowly
            if not [param for param in self.foreign.values() if param.grad is not None]:
                return []
            return [i for i, param in self.foreign.items() if param.grad is not None]

    def options_of(self, groups: Sequence[dict[str, Any]]) -> dict[int, Mapping[str, Any]]:
        """The options of each parameter, by number, with these parameter groups and its overrides."""
        return {i: each.options(groups) for each in self.groups for i in each.params}

    def set_seed(self, seed: int) -> None:
        if seed != self.settings.seed:
            self.settings.seed = seed
            self.core.set_seed(seed)

    # State.

    def shown(self, number: int) -> dict[str, torch.Tensor]:
        """Views of a parameter's state, as `Optimizer.state` has them."""
        views = self._views(number)
        return self.entry(self, number, views) if self.entry else views

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
        group = next(each for each in self.groups if number in each.params)
        of, local = self.shardings[number], local_of(self.params[number])
        state, least, master = group.format
        fullest, now = (
            _core.state_layout(
                group.rule or self.family.core_rule, group.pushed, state, least, group.rounding, master, list(local.shape),
                str(local.dtype).removeprefix("torch."), of.shard if of else None, fullest,
            ).tensors
            for fullest in (True, False)
        )  # fmt: skip
        if {RESIDUAL, MOMENTUM} <= {name for name, _, _ in fullest}:  # a residual keeps to the states that it lies with
            there = core.read_state(number) if core.has_state(number) else [name for name, _, _ in now]
            fullest = [one for one in fullest if one[0] in there]
        tensors = {name: torch.empty(sizes, dtype=getattr(torch, dtype), device="meta") for name, dtype, sizes in fullest}
        return {"step": torch.empty((), dtype=torch.int64, device="meta"), **tensors}

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
        taken = self.core.prefetch(size, self.queue())
        logger.debug("%d bytes of state are read ahead", taken)
        return taken

    def report(self) -> CoreReport:
        """The core's report, with the steps of cores before."""
        found: CoreReport = self.core.report()
        found["steps"] += self.steps_before
        found["skipped_steps"] += self.skipped_before
        return found

    def has_budget(self) -> bool:
        """Whether anything limits memory."""
        own = (group.overrides.get("memory") for group in self.groups)
        return any(memory is not None for memory in (self.settings.memory, *self.memories, *own))

    def new_states(self) -> list[int]:
        """Parameters that have got the state they waited for, since the last call."""
        if (count := self.core.state_count()) == self.with_state:
            return []
        self.with_state = count
        came = [i for i in self.awaited if self.core.has_state(i)]
        self.awaited = [i for i in self.awaited if not self.core.has_state(i)]
        return came

    def await_states(self, numbers: Sequence[int]) -> None:
        """The next step may give these parameters state."""
        self.awaited = sorted({*self.awaited, *numbers})
        self.with_state = -1


def examine(param: torch.Tensor, where: str) -> tuple[Sharding | None, Place]:
    """How a parameter is cut, and where it is. ValueError, TypeError or NotImplementedError for one that cannot be
    stepped."""
    local = local_of(param)
    places.check_parameter(local, where)
    if places.may_stand_aside(param):
        shared = any(size > 1 and stride == 0 for size, stride in zip(local.shape, local.stride(), strict=True))
        expect(not shared, where, f"strides {local.stride()}", "a tensor whose elements have an address each")
        expect(local.numel() == 0 or local.data_ptr() != 0, where, "a tensor without memory", "one with memory")
    of = sharding.sharding_of(param, where)
    return of, places.place_of(local, where)


def stood_in(params: Sequence[torch.Tensor], found: Sequence[Place | None], home: Place) -> list[torch.Tensor]:
    """Parameters as a core has them: those of no place as empty tensors at `home`."""
    return [param if at else places.stand_in(home) for param, at in zip(params, found, strict=True)]


def owned_by(
    groups: Sequence[CoreGroup], memories: Sequence[Memory | None], count: int
) -> list[tuple[int, Memory | None]]:
    """The budget of each of `count` parameters, by number: with the number of the parameter group that has it, or (-1, None)
    for the optimizer's. memories: those of the parameter groups."""
    found: list[tuple[int, Memory | None]] = [(-1, None)] * count
    for group in groups:
        if memory := group.overrides.get("memory", memories[group.of]):
            for i in group.params:
                found[i] = group.of, memory
    return found
