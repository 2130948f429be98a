"""The cores of one optimizer, and all that Python knows about its parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter, is_, itemgetter
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch

from lowtide import _core
from lowtide.checks.values import expect
from lowtide.devices import places, sharding
from lowtide.devices.flattened import shard_of
from lowtide.devices.pieces import local_moments
from lowtide.devices.places import HOST, Place
from lowtide.devices.sharding import ROW_MOMENT, Recut, local_of
from lowtide.engine.cores import Core, Cores, KeptErrors, all_states, carry, has_residual
from lowtide.engine.family import Family
from lowtide.engine.groups import CoreGroup, all_core_groups, are_fixed, are_same, core_groups, fixed_options, refused, register
from lowtide.engine.host_steps import settle
from lowtide.engine.mirrors import MirrorCore
from lowtide.engine.row_moments import RowMoments
from lowtide.engine.params import Param, examine, examine_all, parameter, wanted_places
from lowtide.engine.shares import UNLIMITED, Shares, outgrown, shares_of
from lowtide.engine.unread import Copies
from lowtide.memory.budgets import Memory, budget_at
from lowtide.memory.forecast import beside_moments
from lowtide.options import overrides
from lowtide.options.options import GROUP_OPTIONS, Settings, check_kinds
from lowtide.report.fields import CoreReport
from lowtide.report.log import logger

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_ALL = 2**63 - 1
Found = TypeVar("Found")
_OPTIONS, _MEMORY, _TENSOR = map(attrgetter, ("options", "memory", "tensor"))
_MASTER = itemgetter("master")
_NOTHING_KEPT = {None, "stochastic"}  # masters without a residual


class Members(NamedTuple):
    """A parameter group as it was when its parameters were registered."""

    tensors: list[torch.Tensor]
    memory: Memory | None  # its own budget
    fixed: dict[str, Any]  # `fixed_options`, without overrides


class Engine:
    """Holds no parameter group, because the optimizer may replace them: methods that need options take them as `groups`. Other
    files read fields without an underscore but never assign them. If a method that replaces cores or parameters raises, nothing
    has changed."""

    def __init__(self, family: Family, settings: Settings, entry: Callable[..., Any] | None = None) -> None:
        """entry: makes the entries of Optimizer.state; None: makes plain dicts."""
        self.family, self.settings = family, settings
        self.lock = RLock()  # held by every call, so that calls of other threads wait
        self.params: list[Param] = []  # by number
        self.tensors: list[torch.Tensor] = []  # their tensors
        self.foreign: dict[int, torch.Tensor] = {}  # by number; cannot be stepped: frozen, or on meta
        self.groups: list[CoreGroup] = []  # by number in the core
        self.members: list[Members] = []  # by number of the parameter group
        self.meshes: list[DeviceMesh] = []  # meshes of the DTensors
        self.core: Core  # made with the first group, once the place of parameters is known
        self.cores: dict[Place, _core.Optimizer] = {}  # the cores behind it, one per device
        self.place: Place | None = None  # the core's place; None: several places, or none yet
        self.on_host = True  # all places are
        self.captured = False  # a step was captured in a graph
        self.awaited: list[int] = []  # parameters whose entry in Optimizer.state is missing or incomplete
        self.assigned: set[int] = set()  # parameters whose entries had values replaced since they were shown
        self.away: set[int] = set()  # parameters whose state `Optimizer.state` shows on the host: users moved it there
        self.aside: set[int] = set()  # parameters whose entries have shown zeros since `put_aside`, and may have been copied
        self.moments = RowMoments()
        self.copies = Copies(self.lock)  # of state, to be read before the state changes
        self.entry = entry
        self._threads = torch.get_num_threads()
        self.shows_sizes = True  # whether state is shown that views cannot show; its codes are read-only
        self.shows_unstepped = False  # whether parameters have entries before their first step
        self.in_ram = True  # whether all state is in RAM, without a limit
        self.may_capture = False  # whether a parameter's device has a queue that may be recorded
        self.renewed = False  # whether `Optimizer.state` has views of replaced cores
        self._told: dict[int, list[Any]] = {}  # the options that the core has, by parameter group
        self._overrides = overrides.changes  # the count when last read
        self._fresh = False  # no step is known, so dtypes may still decide on residuals
        self._movable = 0  # the size of `away` once users have moved all state
        self._with_state = 0  # stepped parameters, as the core last counted; -1: count again
        self._shares = Shares({}, {}, {}, False)  # each core's share of the budgets
        self._steps, self._skipped = 0, 0  # outside of the current core

    def add_group(self, groups: Sequence[dict[str, Any]], memory: Memory | None) -> None:
        """Adds the last parameter group, whose own budget is `memory`. Builds new cores if that changes the devices' shares of
        the optimizer's budget. Raises ValueError, TypeError or NotImplementedError for an unusable parameter or option;
        MemoryError; OSError."""
        number, first, group = len(groups) - 1, len(self.params), groups[-1]
        tensors = list(group["params"])
        added, plain = [], True
        for i, (tensor, met) in enumerate(zip(tensors, overrides.look(tensors), strict=True)):
            here = places.is_plain(tensor)
            param = Param(tensor, number, i, HOST if here else None, memory=memory, dtype=tensor.dtype)
            added.append(param.with_overrides(met, memory) if met else param)
            plain &= here
        if not plain:
            settled = {param.place for param in self.params if param.place}
            added = examine_all(added, None, settled, self.family.MAY_WAIT)
        members = [*self.members, Members(tensors, memory, fixed_options(self.family, group))]
        made = core_groups(self.family, number, group, memory, added, first, len(self.groups))
        params, shares = self._settle(groups, [*self.groups, *made], [*self.params, *added], first)
        before = self._shares.of_all
        divides = before and any(share != before[place] for place, share in shares.of_all.items() if place in before)
        groups_now = [*self.groups, *made]
        limited = memory is None and self.settings.memory
        if divides or (limited and outgrown(self.cores, first, self.family, groups_now, params, shares)):
            got = "parameters on another device after a step was captured in a graph"
            expect(not self.captured, "add_param_group", got, "them before: replays find state where it was")
            self._rebuild(groups, params, members, [*range(first), *[-1] * len(added)])
            return
        cores = {}
        for place in wanted_places(params, self.cores):
            cores[place] = self.cores.get(place) or self._new_core(place, shares)
        part = shares.own if shares.divided else None
        try:
            for place, core in cores.items():
                if self.groups and place not in self.cores:
                    register(core, self.family, place, self.groups, 0, params[:first], 0, part)
                register(core, self.family, place, made, len(self.groups), params[first:], first, part)
        except BaseException:
            if self.groups:  # the old cores cannot remove the group
                self._rebuild(groups[:-1], self.params, self.members)
            raise
        self._adopt(cores, params, [*self.groups, *made], shares, members)

    def append(self, number: int, tensor: torch.Tensor) -> None:
        """Adds one parameter to parameter group `number`, without overrides. Later groups must be empty."""
        param = Param(tensor, number, len(self.members[number].tensors), memory=self.members[number].memory, dtype=tensor.dtype)
        later = sum(len(each.tensors) for each in self.members[number + 1 :])
        expect(not later, param.where, f"it after {later} parameters of later groups", "parameters in the order of the groups")
        here, of = examine(tensor, param.where)
        here = here.by_host() if here.by_host() in self.cores else here
        wanted = f"{', '.join(str(place.device) for place in self.cores)} as the parameters before it, and one device"
        expect([here] == [*self.cores], param.where, f"a tensor on {here.device}", wanted)
        group = next(n for n, each in enumerate(self.groups) if each.of == number)  # the first core group: no overrides
        try:
            added = self.cores[here].add_param(group, tensor, tensor.requires_grad, shard_of(tensor, of))
        except (TypeError, ValueError, NotImplementedError) as error:
            raise refused(self.family, number, param, self.groups[group].rule, error) from None
        self.groups[group].params.append(added)
        self.members[number].tensors.append(tensor)
        self.params.append(param.moved(here, of))
        self.tensors.append(tensor)
        self.meshes = sharding.meshes_of([each.sharding for each in self.params])
        self.awaited.append(added)

    def replace(
        self, groups: Sequence[dict[str, Any]], kept: Sequence[int], sources: Sequence[int] | None, sizes: bool = True
    ) -> None:
        """Adopts the tensors that the groups have now. kept: the number that each group had when it was added. sources: the
        parameter whose state, steps and overrides each tensor takes over. None: all start afresh; overrides stay in groups with
        as many tensors as before. sizes: False stops showing state that views cannot show. All ranks that hold parts of a
        parameter must make the call. Raises ValueError, TypeError, NotImplementedError, MemoryError or OSError."""
        made: list[Param] = []
        members: list[Members] = []
        where: list[str] = []
        present = overrides.look(self.tensors)  # with overrides made since the last step
        for number, (group, old) in enumerate(zip(groups, kept, strict=True)):
            before = self.members[old]
            first, tensors = sum(len(each.tensors) for each in self.members[:old]), list(group["params"])
            alike = len(tensors) == len(before.tensors)
            for i, (tensor, met) in enumerate(zip(tensors, overrides.look(tensors), strict=True)):
                source = sources[len(made)] if sources else first + i
                heir = met
                for had in (present[source], self.params[source].overridden) if sources or alike else ():
                    heir = had.joined(heir) if had else heir
                made.append(Param(tensor, number, i).with_overrides(heir, before.memory))
                where.append(f"param_groups[{number}]['params'][{i}]")
            members.append(Members(tensors, before.memory, fixed_options(self.family, group)))
        distinct = len({id(param.tensor) for param in made}) == len(made)
        expect(distinct, "param_groups", "the same tensor more than once", "each once")
        got = "other tensors than those registered after a step was captured in a graph"
        expect(not self.captured, "param_groups", got, "them before: replays find memory where it was")
        now = examine_all(made, where, (), self.family.MAY_WAIT)
        for i, source in enumerate(sources or ()):
            got = f"a {now[i].tensor.dtype} tensor on {now[i].tensor.device} in the place of one that has taken steps"
            wanted = "one that can be stepped, because its state stays, or a new optimizer"
            expect(now[i].place is not None or not self.core_of(source).step_count(source), where[i], got, wanted)
        self._rebuild(groups, now, members, sources or [-1] * len(now))
        self.shows_sizes &= sizes

    def follow(self, groups: Sequence[dict[str, Any]], keys: Iterable[str]) -> None:
        """Tells the core about changes since the last step: overrides, moves, first gradients of foreign parameters, the number
        of threads, and the options in `keys`. Raises ValueError, TypeError, NotImplementedError, MemoryError or OSError for
        changes that it cannot follow."""
        if self._fresh:  # dtypes decide on residuals, which no later step can change
            self._fresh = not self.has_stepped()
            if self._fresh and any(param.tensor.dtype != param.dtype for param in self.params):
                with suppress(TypeError, ValueError, NotImplementedError):
                    self.follow_moves(groups)
        if self._overrides != overrides.changes:
            self._follow_overrides(groups)
        if self.foreign and (numbers := self._foreign_gradients()):
            self._take_in(groups, numbers)
        names = [*keys]
        for number, group in enumerate(groups):
            options = [*map(group.get, names)]
            told = self._told.get(number)
            if told and len(told) == len(options) and (all(map(is_, options, told)) or are_same(options, told)):
                continue
            self._told.pop(number, None)
            self._push(number, groups)
            own = (each.overrides for each in self.groups if each.of == number)
            if are_fixed(options) and are_fixed(value for each in own for key, value in each.items() if key != "memory"):
                self._told[number] = options
        if (threads := torch.get_num_threads()) != self._threads:
            self.core.set_threads(threads)
            self._threads = threads

    def _check_fixed(self, of: int, group: Mapping[str, Any]) -> None:
        """Raises ValueError if an option of parameter group `of` changed that is fixed when the group is added."""
        missing = sorted(GROUP_OPTIONS.keys() - group.keys())
        expect(not missing, f"param_groups[{of}]", f"no {missing}", "the keys as they were")
        was, now = self.members[of].fixed, fixed_options(self.family, group)
        if changed := [key for key in was if now[key] != was[key]]:
            got, wanted = (", ".join(f"{key}={options[key]!r}" for key in changed) for options in (now, was))
            raise ValueError(f"param_groups[{of}]: got {got}, wanted {wanted}: fixed when the group is added")

    def _push(self, of: int, groups: Sequence[dict[str, Any]]) -> None:
        """Tells the core about changes in parameter group `of`."""
        group, family = groups[of], self.family
        self._check_fixed(of, group)
        for number, core_group in enumerate(self.groups):
            if core_group.of != of:
                continue
            hyper = None
            try:
                options = core_group.options_of(groups)
                if (rounding := options["rounding"]) != core_group.options["rounding"]:
                    check_kinds({"rounding": rounding}, f"parameter group {of}")
                hyper = family.hyper_of(core_group.rule, options)
                if core_group.params and family.has_moments(core_group.rule, options) != core_group.has_moments:
                    if not self.in_ram:  # budgets hold row moments, too
                        self._rebuild(groups, self.params, self.members)
                        return
                    core_group.has_moments = not core_group.has_moments
                before = core_group.push(self.core, number, hyper, rounding)
            except (TypeError, ValueError) as error:
                if hyper is not None and family.changed_states(core_group.pushed, hyper):
                    self.follow_states(groups, carry=True)  # as in torch.optim, which has no state before the first step
                    return
                raise family.error(f"parameter group {of}", core_group.rule, error) from None
            # SGD's state depends on its momentum: the step after a change from or to 0 may allocate it.
            if before is not None and bool(before.get("momentum")) != bool(hyper.get("momentum")):
                self.await_states({*self.awaited, *core_group.params})
                if not before.get("momentum"):
                    family.momentum_began(self.core_of, core_group.params)

    def follow_between_steps(self, groups: Sequence[dict[str, Any]]) -> None:
        """Follows overrides and, before the first step, moves. Parameters that cannot be stepped may get memory later; the step
        refuses those that have none."""
        if self._overrides != overrides.changes:
            self._follow_overrides(groups)
        if not self.captured and not self.has_stepped():
            with suppress(TypeError, ValueError, NotImplementedError):
                self.follow_moves(groups)

    def _follow_overrides(self, groups: Sequence[dict[str, Any]]) -> None:
        """Builds new cores if an override that matters was set or withdrawn."""
        changes = overrides.changes
        now = []
        for param, met in zip(self.params, overrides.look(self.tensors), strict=True):
            overridden = param.overridden.joined(met) if param.overridden else met
            now.append(param.with_overrides(overridden, self.members[param.group].memory) if overridden else param)
        if any((was.override or {}) != (has.override or {}) for was, has in zip(self.params, now)) and self.cores:
            got = "another one after a step was captured in a graph"
            expect(not self.captured, "override", got, "it before: replays find state where it was")
            for number, group in enumerate(groups):  # a new core would accept what _push refuses
                self._check_fixed(number, group)
            self._rebuild(groups, now, self.members)
        else:
            self.params = now
        self._overrides = changes

    def _take_in(self, groups: Sequence[dict[str, Any]], numbers: Sequence[int]) -> None:
        """Builds new cores that step these foreign parameters, which have a gradient now. Raises ValueError, TypeError or
        NotImplementedError, with the name of the parameter, if one cannot be stepped."""
        now = list(self.params)
        for number in numbers:
            where = f"{parameter(groups, number)}, which has a gradient"
            now[number] = now[number].moved(*examine(self.tensors[number], where))
        expect(not self.captured, f"parameter {numbers[0]}", "its first gradient after a step was captured", "it before that")
        self._rebuild(groups, now, self.members)

    def follow_moves(self, groups: Sequence[dict[str, Any]]) -> bool:
        """Builds new cores for parameters whose device or dtype has changed since registration, and returns whether there were
        any. Only before the first step, as in torch.optim: state does not move by itself, and a dtype determines what `master`
        keeps. Raises ValueError, TypeError or NotImplementedError for a parameter that cannot be stepped there."""
        if self.captured or self.has_stepped():
            return False
        now, plain = [], True
        for i, param in enumerate(self.params):
            stays = param.place == HOST and param.dtype == param.tensor.dtype and places.is_plain(param.tensor)
            plain &= stays
            now.append(param if stays or not param.place else param.moved(*examine(param.tensor, f"parameter {i}")))
        if plain:
            return False
        now, _ = self._settle(groups, self.groups, now)
        if all(a.place == b.place and b.tensor.dtype == b.dtype for a, b in zip(self.params, now, strict=True)):
            return False
        self._rebuild(groups, now, self.members)
        return True

    def moving(self, groups: Sequence[dict[str, Any]], call: Callable[..., Found], *arguments: Any) -> Found:
        """Calls the core. If it finds parameters on other devices than before, follows them and calls again."""
        try:
            return call(*arguments)
        except ValueError as error:
            if not self.follow_moves(groups):
                raise self._told_of_moments(error) from None
        return call(*arguments)

    def place_states(self) -> None:
        """Places state that waits for the first step. Raises ValueError, MemoryError or OSError."""
        try:
            self.core.place_states()
        except ValueError as error:
            raise self._told_of_moments(error) from None

    def _told_of_moments(self, error: ValueError) -> ValueError:
        """The error, with the bytes of row moments if a budget that holds them may be its reason."""
        waits = any(param.tensor.requires_grad and not self.core_of(i).has_state(i) for i, param in enumerate(self.params))
        return ValueError(beside_moments(str(error), self._shares.moments)) if self._shares.moments and waits else error

    def follow_states(self, groups: Sequence[dict[str, Any]], carry: bool) -> Callable[[], None]:
        """Builds new cores for options of these groups that determine which states exist (amsgrad, centered, nesterov, a
        momentum). carry: keeps existing state; otherwise starts without. Returns a function that restores the old cores."""
        got = "amsgrad, centered, nesterov or momentum changed after a step was captured in a graph"
        expect(not self.captured, "param_groups", got, "them as they were: replays find state where it was")
        before = {**vars(self)}
        self._rebuild(groups, self.params, self.members, None if carry else [-1] * len(self.params))
        return lambda: vars(self).update(before)

    def has_stepped(self) -> bool:
        """True if any parameter has stepped. Waits until devices have decided on their last step."""
        for core in self.cores.values():
            if any(map(core.step_count, range(len(self.params)))):
                return True
        return False

    def _settle(
        self, groups: Sequence[dict[str, Any]], of: Sequence[CoreGroup], params: Sequence[Param], kept: int = 0
    ) -> tuple[list[Param], Shares]:
        """Assigns places and budgets to these parameters. of: their core groups. kept: how many parameters have places already.
        Raises NotImplementedError for places that the class does not support."""
        now, wanted, shares = params, wanted_places(params, self.cores), UNLIMITED
        plain = wanted == [HOST] and not self.settings.memory and not any(map(_MEMORY, of))
        if not plain:
            now = settle(self.family, self.settings.memory, groups, of, params, kept)
            wanted = wanted_places(now, wanted)
        if len(wanted) > 1 and not self.family.SEVERAL:
            got = " and ".join(place.name for place in wanted)
            raise NotImplementedError(f"{self.family.name}: got parameters on {got}, wanted all of them on one device")
        try:
            for place in wanted:
                self.family.check_members(place, now)
        except NotImplementedError as error:
            raise self.family.error(f"parameter group {len(groups) - 1}", "", error) from None
        if not plain:
            shares = shares_of(self.family, self.settings.memory, of, now, wanted)
        return [*now], shares

    def _new_core(self, place: Place, shares: Shares) -> _core.Optimizer:
        """Makes a core without groups, under the optimizer's budget at its place."""
        settings = self.settings
        backend, queue, reads, target, allocator = place.core_arguments(settings.arithmetic)
        make = partial(MirrorCore, place) if place.mirrored else _core.Optimizer
        return make(
            self.family.core_rule,
            self.family.core_nonfinite(settings.nonfinite),
            self._threads,
            settings.cpu_target,
            budget_at(shares.of_all[place], place),
            backend,
            queue,
            reads,
            target,
            allocator,
            settings.seed,
        )

    def _rebuild(
        self,
        groups: Sequence[dict[str, Any]],
        params: Sequence[Param],
        members: list[Members],
        sources: Sequence[int] | None = None,
    ) -> None:
        """Replaces the cores by new ones for these parameters when overrides change, parameters become steppable, wrappers swap
        tensors, or an option changes which states exist. sources: for each parameter, the old number whose state and steps it
        takes over, -1 for none; None: the same numbers."""
        made = all_core_groups(self.family, groups, [each.memory for each in members], params)
        now, shares = self._settle(groups, made, params)
        wanted = wanted_places(now, self.cores)
        cores = {place: self._new_core(place, shares) for place in wanted}
        for place, core in cores.items():
            register(core, self.family, place, made, 0, now, 0, shares.own if shares.divided else None)
        places = [cores[param.place or wanted[0]] for param in now]
        heirs = {number: source for number, source in enumerate(sources or range(len(now))) if source >= 0}
        self._check_heirs(groups, heirs, now, made, places)
        self.copies.read(self)
        old = self.core
        old.onload()
        with KeptErrors() as kept:
            for number, source in heirs.items():
                recut = Recut(self.params[source].sharding, now[number].sharding, f"state of parameter {number}")
                carry(self.core_of(source), source, places[number], number, recut, kept)
            moments = self._carried_moments(now, heirs)
            report = old.report()
            self.count(report["steps"], report["skipped_steps"])
            fixed = [Members(of.tensors, of.memory, fixed_options(self.family, group)) for of, group in zip(members, groups)]
            self._adopt(cores, [param.taken() for param in now], made, shares, fixed)
            self.moments = moments
            self.away, self.aside = set(), set()
            self._told.clear()
            self.renewed = True

    def _check_heirs(
        self, groups: Sequence[dict[str, Any]], heirs: Mapping[int, int], now: Sequence[Param], made: Sequence[CoreGroup],
        cores: Sequence[_core.Optimizer],
    ) -> None:  # fmt: skip
        """Raises ValueError if a parameter's state does not fit its heir. heirs: by number, whose state it takes over. made, cores:
        the groups of the heirs and, by number, their cores."""
        was, has = ({i: each for each in of for i in each.params} for of in (self.groups, made))
        for number, source in heirs.items():
            param, old, before, after = now[number], self.core_of(source), was[source], has[number]
            wanted = f"{self.params[source].dtype} with master={before.options['master']!r}"
            got = f"{param.tensor.dtype} with master={after.options['master']!r}"
            fits = got == wanted or not has_residual(old, source)
            why = "whose residual the state keeps: export_fp32 gives float32 weights for a new optimizer"
            expect(fits, f"param_groups[{param.group}]['params'][{param.index}]", got, f"{wanted}, {why}")
            if old.step_count(source) and all_states(old, source) != all_states(cores[number], number):
                same_rule, options = before.rule == after.rule, after.options_of(groups)
                names = self.family.changed_states(before.pushed, after.pushed) if same_rule else self.family.FIXED
                changed = ", ".join(f"{key} = {options[key]}" for key in names)
                error = f"{self.family.name}: got {changed}, wanted the value of the first step: it decides which states exist"
                raise refused(self.family, after.of, param if after.overrides else None, "", ValueError(error))

    def _carried_moments(self, now: Sequence[Param], heirs: Mapping[int, int]) -> RowMoments:
        made = RowMoments()
        for number, source in heirs.items():
            had = self.row_moment(source)
            if had is not None:
                recut = Recut(self.params[source].sharding, now[number].sharding, f"state of parameter {number}")
                made.put(number, recut(ROW_MOMENT, had.cpu()).to(local_of(now[number].tensor).device))
        return made

    def row_moment(self, number: int) -> torch.Tensor | None:
        """This rank's row moments of a parameter, float32 [..., rows, 1], live; None: it has none."""
        return self.moments.get(number, self.core_of(number).step_count(number))

    def with_moments(self, groups: Sequence[dict[str, Any]]) -> set[int]:
        """The parameters to which these options give row moments. Others may have some until a step drops them."""
        scaled = (each for each in self.groups if self.family.has_moments(each.rule, each.options_of(groups)))
        return {i for each in scaled for i in each.params}

    def begin_moments(self, groups: Sequence[dict[str, Any]]) -> None:
        """Gives parameters zeros before their first step."""
        for i in self.with_moments(groups) - self.foreign.keys():
            if self.row_moment(i) is None:
                self.moments.put(i, self.no_moment(i))

    def no_moment(self, number: int) -> torch.Tensor:
        """Row moments before the first step."""
        param = self.params[number]
        return torch.zeros(local_moments(param.tensor, param.sharding), device=local_of(param.tensor).device)

    def _adopt(
        self, cores: dict[Place, _core.Optimizer], params: list[Param], groups: list[CoreGroup], shares: Shares, members: list[Members]
    ) -> None:
        home, several = next(iter(cores)), len(cores) > 1
        goes_on = cores[home] is self.cores.get(home)
        steps_beside = self.core.steps_beside if goes_on and isinstance(self.core, Cores) else 0
        self.awaited += range(len(self.params), len(params))
        self.params, self.tensors = params, [*map(_TENSOR, params)]
        self.foreign, cut = {}, []
        for i, param in enumerate(params):
            if param.place is None:
                self.foreign[i] = param.tensor
            if param.sharding:
                cut.append(param.sharding)
        self.meshes = sharding.meshes_of(cut) if cut else []
        self.cores, self.groups, self.members, self._with_state = cores, groups, members, -1
        plain = [*cores] == [HOST]
        self.place, self.on_host = None if several else home, plain or all(place.on_host for place in cores)
        self.in_ram = self.on_host and not self.settings.memory and not any(map(_MEMORY, groups))
        self.may_capture = not plain and any(place.device.type != "cpu" for place in cores)
        self._fresh = bool({*map(_MASTER, map(_OPTIONS, groups))} - _NOTHING_KEPT)
        self._shares = shares
        self.core = cores[home]
        if several:
            hyper = [group.pushed for group in groups]
            self.core = Cores(cores, params, hyper, shares.automatic, shares.told, steps_beside)

    def core_of(self, number: int) -> _core.Optimizer:
        """The core that answers for a parameter. Other cores have it as a tensor without elements."""
        return self.cores[self.params[number].place or next(iter(self.cores))]

    def are_registered(self, groups: Sequence[Mapping[str, Any]]) -> bool:
        """True if these groups have the registered parameters. Only compares addresses, to be fast."""
        if len(groups) != len(self.members):
            return False
        for group, of in zip(groups, self.members):
            params = group.get("params")
            if type(params) is not list or not _core.same_objects(params, of.tensors):
                return False
        return True

    def _foreign_gradients(self) -> list[int]:
        """The foreign parameters that have a gradient now, by number."""
        with torch._C.DisableTorchFunctionSubclass():  # attribute reads are slow in subclasses of Tensor
            return [i for i, param in self.foreign.items() if param.grad is not None]

    def options_of(self, groups: Sequence[dict[str, Any]]) -> dict[int, Mapping[str, Any]]:
        """The options of each parameter, by number: its overrides and those of these groups."""
        found: dict[int, Mapping[str, Any]] = {}
        for each in self.groups:
            found.update(dict.fromkeys(each.params, each.options_of(groups)))
        return found

    def stand_ins(self) -> list[torch.Tensor]:
        """The parameters as the core of the first place has them: empty tensors stand for foreign ones."""
        home = next(iter(self.cores))
        return [param.tensor if param.place else places.stand_in(home) for param in self.params]

    def set_seed(self, seed: int) -> None:
        self.settings.seed = seed
        self.core.set_seed(seed)

    def note_capture(self) -> None:
        """Notes that a graph captures a step."""
        self.captured = True

    def count(self, steps: int = 0, skipped: int = 0) -> None:
        """Adds steps, or skipped steps, that the core has not counted."""
        self._steps += steps
        self._skipped += skipped

    def signed(self, number: int) -> dict[str, bool]:
        """Every state that the parameter can have, and whether it is signed."""
        return dict(self.core_of(number).states_of(number))

    def queue(self) -> int:
        """The queue on which torch works now on the parameters' device. 0 with several devices, where the joined core asks
        each."""
        return self.place.queue() if self.place else 0

    def room(self) -> int:
        """Bytes that state may take, from which the core decides on residency; -1: not needed or unknown, and with several
        devices."""
        return self.place.room() if self._shares.automatic and self.place else -1

    @property
    def capturing(self) -> bool:
        """True if a graph would record a step."""
        return any(place.capturing() for place in self.cores)

    def demote(self, size: int | None = None) -> int:
        """Moves state to the host until `size` bytes of device memory are free again; None: as many as possible."""
        with self.lock:
            freed = self.core.demote(_ALL if size is None else size)
        if freed:
            logger.info("%d bytes of device memory were freed by moving state to the host", freed)
        return freed

    def prefetch(self, size: int, place: Place | None = None) -> int:
        """Reads up to `size` bytes of streaming state ahead and returns the device memory taken for it. place: only on that
        device, behind torch's work of this thread there."""
        core, queue = (self.cores[place], place.queue()) if place else (self.core, self.queue())
        with self.lock:  # threads of backward call this
            taken = core.prefetch(size, queue)
        logger.debug("%d bytes of state are read ahead", taken)
        return taken

    def take_gradient(self, number: int) -> bool:
        """Like `MirrorCore.take`. False if the CPU does not step the parameter."""
        place = self.params[number].place
        core = self.cores[place] if place else None
        with self.lock:
            return isinstance(core, MirrorCore) and core.take(number)

    def drop_gradients(self) -> None:
        """Drops the gradients that were taken."""
        for core in self.cores.values():
            if isinstance(core, MirrorCore):
                core.drop()

    def holders(self) -> list[torch.Tensor]:
        """The tensors that hold the gradients as `.grad`, by number: the parameters, or host tensors if gradients were
        taken."""
        cores = [core for core in self.cores.values() if isinstance(core, MirrorCore)]
        taken = {number: holder for core in cores for number, holder in core.holders().items()}
        return [taken.get(number, param) for number, param in enumerate(self.tensors)] if taken else self.tensors

    def report(self) -> CoreReport:
        """The core's report, with steps of earlier cores added."""
        with self.lock:
            found: CoreReport = self.core.report()
        for moment in self.moments.all():
            found["state_bytes"] += moment.nbytes
            found["allocated_bytes" if moment.device.type == "cpu" else "device_bytes"] += moment.nbytes
        found["steps"] += self._steps
        found["skipped_steps"] += self._skipped
        return found

    def skipped_steps(self) -> int:
        """The number of steps known to be skipped. Does not wait for a device."""
        with self.lock:
            return self._skipped + self.core.skipped_steps()

    def new_states(self) -> list[int]:
        """Parameters that have received the state they awaited but are not yet `adopted`."""
        if self.core.stepped_count() == self._with_state:
            return []
        return [i for i in self.awaited if self.core_of(i).step_count(i) > 0]

    def adopted(self, numbers: Sequence[int]) -> None:
        """Marks the entries of these parameters in `Optimizer.state` as complete."""
        self._with_state = self.core.stepped_count()
        came = set(numbers)
        self.awaited = [i for i in self.awaited if i not in came]

    def await_states(self, numbers: Iterable[int]) -> None:
        """Expects the next step to give state to these parameters and no others."""
        self.awaited = sorted(numbers)
        self._with_state = -1

    def bring_to_ram(self) -> None:
        """Brings back state that `offload` moved out of RAM, for readers of its memory."""
        for place, core in self.cores.items():
            if place.on_host:
                core.onload()
        self.aside = set()

    def put_aside(self) -> None:
        """Moves all state out of RAM and device memory. Raises like `Cores.offload`."""
        shown = {i for i in range(len(self.params)) if self.core_of(i).has_state(i) and not self.core_of(i).is_paged(i)}
        self.core.offload()
        self.aside = shown

    def has_entry(self, number: int) -> bool:
        """True if `Optimizer.state` and state dicts have an entry for a parameter: from its first step on, as in
        torch.optim."""
        asked = self.shows_unstepped and self.tensors[number].requires_grad and number not in self.foreign
        return asked or self.core_of(number).step_count(number) > 0

    def move_shown(self, number: int, away: bool) -> None:
        """Follows users who moved a parameter's state in `Optimizer.state` to the host (away) or back. Once they have moved all
        of it, the core moves its own. Raises like `Optimizer.offload` or `onload`, and then nothing has moved."""
        with self.lock:
            if away and not self.away:
                places = ((i, param.place) for i, param in enumerate(self.params))
                self._movable = sum(
                    bool(place and not place.on_host and self.has_entry(i) and self.core_of(i).is_paged(i)) for i, place in places
                )
            now = self.away | {number} if away else self.away - {number}
            if not now:
                self.core.onload()
            elif len(now) == self._movable:
                self.core.offload(devices=True) if isinstance(self.core, Cores) else self.core.offload()
            self.away = now

    def __del__(self) -> None:
        try:
            self.copies.read(self)
        except Exception:  # a copy that cannot be read raises when it is used
            pass

    def showed(self) -> None:
        """Marks all entries of `Optimizer.state` as current."""
        self.assigned.clear()
        self.renewed = False

    def show_unstepped(self, shown: bool) -> None:
        """Sets whether parameters have entries before their first step."""
        self.shows_unstepped = shown
