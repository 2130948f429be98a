"""The cores of one optimizer, and the parameters and groups that they have, by number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from lowtide import _core
from lowtide.checks.values import expect
from lowtide.devices import places, sharding
from lowtide.devices.flattened import shard_of
from lowtide.devices.places import HOST, Place
from lowtide.devices.sharding import Sharding
from lowtide.engine.cores import Core, Cores, register_all
from lowtide.engine.examined import Examined, Registered, examine, examine_all, stood_in
from lowtide.engine.family import Family
from lowtide.engine.groups import CoreGroup, Members, fixed_options
from lowtide.engine.host_steps import settle
from lowtide.engine.mirrors import MirrorCore
from lowtide.engine.shares import Shares, shares_of
from lowtide.memory.budgets import Memory, budget_at
from lowtide.options import overrides
from lowtide.options.options import Options
from lowtide.options.overrides import Overridden

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass
class Settings:
    """Options of the whole optimizer."""

    nonfinite: str = "skip"
    seed: int = 0
    amp_scaling: bool = False
    max_grad_norm: float | None = None
    cpu_target: str = ""
    memory: Memory | None = None
    arithmetic: str = places.EXACT

    @classmethod
    def of(cls, options: Options) -> Settings:
        given: Mapping[str, Any] = options
        settings = cls(**{name: given[name] for name in cls.__annotations__ if name in given})
        settings.seed = int(settings.seed)
        return settings


class Registry:
    """Keeps no parameter group of the optimizer, which may replace them: methods that need their options take them. Base class
    of `Engine`, which adds the state."""

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
        self.fixed: list[dict[str, Any]] = []  # per parameter group: `fixed_options`, without overrides
        self.memories: list[Memory | None] = []  # per parameter group: its own budget
        self.params: list[torch.Tensor] = []  # all of them, by number
        self.dtypes: list[torch.dtype] = []  # of the parameters, by number, when a core took them in
        self.fresh = False  # some have a master, which their dtype decides, and no step was seen after which it must stay
        self.known: list[torch.Tensor] = []  # as the core has them: they, or what stands in for the foreign ones
        self.foreign: dict[int, torch.Tensor] = {}  # by number: those that cannot be stepped, being frozen or on meta
        self.shardings: list[Sharding | None] = []  # of those that are DTensors, by number
        self.overridden: list[Overridden] = []  # the overrides that they have met, by number
        self.meshes: list[DeviceMesh] = []  # of the DTensors
        self.awaited: list[int] = []  # numbers of parameters that have no entry in Optimizer.state yet, or not their whole one
        self.with_state = 0  # stepped parameters, as the core last counted them; -1: look again
        self.shares = Shares({}, {}, {})  # what each core has of the budgets
        self.automatic = False  # whether a budget depends on what is free
        self.captured = False  # whether a step was captured in a graph
        self.steps_before = self.skipped_before = 0  # counted outside of the present core

    def new_core(self, threads: int, place: Place, shares: Shares) -> _core.Optimizer:
        """A core without groups, under the budget of the optimizer at its place."""
        settings, target = self.settings, place.target(self.settings.arithmetic)
        place.require_backend()
        make = partial(MirrorCore, place) if place.mirrored else _core.Optimizer
        return make(
            self.family.core_rule,
            self.family.core_nonfinite(settings.nonfinite),
            threads,
            settings.cpu_target,
            budget_at(shares.of_all[place], place),
            place.kind.backend,
            place.queue(),
            place.reads,
            target,
            place.allocator(),
            settings.seed,
        )

    @property
    def settled(self) -> Iterable[Place]:
        """Where parameters are, if any is stepped."""
        return self.cores if any(self.places) else ()

    def with_group(self, groups: Sequence[dict[str, Any]], memory: Memory | None) -> Registered:
        """The parameters, those of the last one of the optimizer's parameter groups among them. ValueError, TypeError or
        NotImplementedError for one that cannot be used."""
        number, params = len(groups) - 1, list(groups[-1]["params"])
        where = [f"parameter group {number}, parameter {i}" for i in range(len(params))]
        found, shardings = examine_all(params, where, self.settled, self.family.MAY_WAIT)
        overridden = [*self.overridden, *(Overridden(entries) for entries in overrides.look(params))]
        now = Examined([*self.places, *found], [*self.shardings, *shardings])
        return Registered([*self.members, params], now, overridden, [*self.memories, memory])

    def settle(self, groups: Sequence[dict[str, Any]], of: Registered, kept: int = 0) -> tuple[Registered, Shares]:
        """These parameters where they are stepped, and the budgets. kept: of so many it is settled. NotImplementedError where the
        class cannot have them on several devices."""
        of = settle(self.family, self.settings.memory, groups, of, kept)
        wanted = self.wanted_places(of.params.places)
        if len(wanted) > 1 and not self.family.SEVERAL:
            got = " and ".join(place.name for place in wanted)
            raise NotImplementedError(f"{self.family.name}: got parameters on {got}, wanted all of them on one device")
        return of, shares_of(self.family, self.settings.memory, groups, of, wanted)

    def add(self, groups: Sequence[dict[str, Any]], of: Registered, shares: Shares) -> None:
        """Takes in the last one of the optimizer's parameter groups; of: see `with_group`. The cores that there are keep the
        optimizer's budget as they have it. On an error nothing has changed."""
        first, number = len(self.params), len(groups) - 1
        wanted = self.wanted_places(of.params.places)
        several = len(wanted) > 1
        known = stood_in(of.members[-1], of.params.places[first:], wanted[0])
        own = [one.options() for one in of.overridden[first:]]
        members = Members(known, of.params.shardings[first:], own, of.memories[-1])
        arguments = (several, self.family, number, groups[-1], members, first, shares.own, of.params.places[first:])
        if self.groups:  # A core cannot forget a group: one added during training is tried out on another.
            register_all({place: self.new_core(1, place, shares) for place in wanted}, *arguments)
        cores = {place: self.cores.get(place) or self._core_at(place, several, groups, shares) for place in wanted}
        core_groups = register_all(cores, *arguments)
        self.fixed.append(fixed_options(self.family, groups[-1]))
        self.members, self.overridden, self.memories = [*of.members], of.overridden, of.memories
        before = self.dtypes
        self.adopt(cores, of.params, [*self.groups, *core_groups], shares)
        self.dtypes[:first] = before  # their core is the one that took them in
        self.awaited += range(first, len(self.params))

    def append(self, number: int, param: torch.Tensor) -> int:
        """Takes in one more parameter of parameter group `number`, without overrides; no later group may have any. Returns
        its number. On an error nothing has changed."""
        where = f"parameter group {number}, parameter {len(self.members[number])}"
        later = sum(map(len, self.members[number + 1 :]))
        expect(not later, where, f"it after {later} parameters of later groups", "parameters in the order of the groups")
        of, here = examine(param, where)
        here = here.by_host() if here.by_host() in self.cores else here
        wanted = f"{', '.join(str(place.device) for place in self.cores)} as the parameters before it, and one device"
        expect([here] == [*self.cores], where, f"a tensor on {here.device}", wanted)
        at = next(n for n, each in enumerate(self.groups) if each.of == number)  # the first has no overrides
        try:
            added = self.cores[here].add_param(at, param, param.requires_grad, shard_of(param, of))
        except (TypeError, ValueError, NotImplementedError) as error:
            raise self.family.error(where, self.groups[at].rule, error) from error
        self.groups[at].params.append(added)
        self.members[number].append(param)
        self.params.append(param)
        self.dtypes.append(param.dtype)
        self.known.append(param)
        self.places.append(here)
        self.shardings.append(of)
        self.meshes = sharding.meshes_of(self.shardings)
        self.overridden += [Overridden(entries) for entries in overrides.look([param])]
        self.awaited.append(added)
        return added

    def wanted_places(self, found: Sequence[Place | None]) -> list[Place]:
        """The places at which parameters are stepped, that of the first one first; where there is none, that of before."""
        return [*dict.fromkeys(filter(None, found))] or [*self.cores][:1] or [HOST]

    def _core_at(
        self, place: Place, several: bool, groups: Sequence[dict[str, Any]], shares: Shares
    ) -> _core.Optimizer:
        """A core for a place that had none, with the groups that there are."""
        core = self.new_core(self.threads, place, shares)
        self.register({place: core}, several, groups, self.registered(), shares)
        for number, known in enumerate(self.groups):  # as the others were told, whatever the options are now
            core.set_rounding(number, known.rounding)
            core.set_hyper(number, known.pushed)
        return core

    def registered(self) -> Registered:
        """The parameters as they are."""
        return Registered(self.members, Examined(self.places, self.shardings), self.overridden, self.memories)

    def register(
        self,
        cores: Mapping[Place, _core.Optimizer],
        several: bool,
        groups: Sequence[dict[str, Any]],
        of: Registered,
        shares: Shares,
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
            arguments = (self.family, number, groups[number], members, first, shares.own, found[these])
            made += register_all(cores, several, *arguments)
            first += len(params)
        return made

    def adopt(
        self, cores: dict[Place, _core.Optimizer], now: Examined, groups: list[CoreGroup], shares: Shares
    ) -> None:
        """Goes on with these cores of the parameters in `members`."""
        home, several = next(iter(cores)), len(cores) > 1
        goes_on = cores[home] is self.cores.get(home)
        steps_beside = self.core.steps_beside if goes_on and isinstance(self.core, Cores) else 0
        self.cores, self.groups, self.with_state = cores, groups, -1
        self.place, self.on_host = None if several else home, all(place.on_host for place in cores)
        self.params = [param for params in self.members for param in params]
        self.dtypes = [param.dtype for param in self.params]
        self.fresh = any(group.format.master for group in groups)
        self.places, self.shardings = now.places, now.shardings
        self.known = stood_in(self.params, now.places, home)
        self.foreign = {i: param for i, param in enumerate(self.params) if now.places[i] is None}
        self.meshes = sharding.meshes_of(self.shardings)
        self.shares, self.automatic = shares, shares.automatic()
        self.core = Cores(cores, now.places, groups, self.automatic, shares.told, steps_beside) if several else cores[home]

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
