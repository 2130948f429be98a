"""Divides a budget between devices, for parameters on several of them.

`host` is one amount for all. Each device first gets the forecast bytes of its state that exceed `device`; the CPU gets those of
all its state. The remainder is divided in proportion to the bytes of state. If `host` is too small, the CPU comes last, because
only its state can go to `disk`; without a disk, all shares shrink alike, and the first step refuses. The shares never add up to
more than `host`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from lowtide import _core
from lowtide.devices.places import HOST, Place
from lowtide.engine.family import Family
from lowtide.engine.groups import CoreGroup, GroupSizes, moment_bytes, sizes_of
from lowtide.engine.params import Param
from lowtide.memory.budgets import Memory, budget_at, size_of
from lowtide.memory.forecast import Budget, Forecast, forecast

_ENOUGH = 2**62  # bytes; no limit, but state is laid out as under a limit
Owner = tuple[int, Memory | None]  # the group that sets a budget, and the budget; or `_OPTIMIZER`
_OPTIMIZER: Owner = (-1, None)


class Shares(NamedTuple):
    """The budgets of an optimizer at each place."""

    of_all: Mapping[Place, Memory | None]  # for groups without their own
    of_groups: Mapping[Owner, Mapping[Place, Memory]]
    told: Mapping[Place, str]  # the whole amount, for errors at a place that has a part of `host`
    automatic: bool  # whether any depends on free memory
    moments: int = 0  # bytes of row moments under any budget, which cores do not know

    def own(self, group: CoreGroup, place: Place) -> Memory | None:
        """The part of a group's own budget for its parameters at `place`; None: no parameters there."""
        return self.of_groups.get((group.of, group.memory), {}).get(place)

    @property
    def divided(self) -> bool:
        """True if cores have other budgets than users gave."""
        return bool(self.moments) or len(self.of_all) > 1


UNLIMITED = Shares({HOST: None}, {}, {}, False)  # for the CPU only


class _Takes(NamedTuple):
    """Bytes of the state at one place."""

    beyond: int  # bytes that do not fit in `device`
    all: int


def shares_of(
    family: Family, memory: Memory | None, groups: Sequence[CoreGroup], params: Sequence[Param], at: Sequence[Place]
) -> Shares:
    """Divides the budgets of an optimizer with these parameters, whose own budget is `memory`, between the cores at these
    places. A single place gets everything. Raises ValueError or TypeError for an invalid size, and like `Memory.check_disk`."""
    found: dict[Owner, dict[Place, set[int]]] = {_OPTIMIZER: {place: set() for place in at}}
    for i, param in enumerate(params):
        owner = (param.group, param.memory) if param.memory else _OPTIMIZER
        if param.place:
            found.setdefault(owner, {}).setdefault(param.place, set()).add(i)

    for each in (memory, *(own for _, own in found)):
        if each:
            each.check_disk()
    told: dict[Place, list[str]] = {}

    def divided(own: Memory, owner: Owner) -> dict[Place, Memory]:
        there = found[owner]
        rows = {place: moment_bytes(groups, params, some) for place, some in there.items()}
        if len(there) < 2:
            return {place: own.part(place, own.host) if place.mirrored else own.beside(rows[place], place) for place in there}
        if own.host is None:
            return {place: own.part(place, None).beside(rows[place], place) for place in there}
        host = size_of("host", own.host)
        takes = {place: _takes(family, own, sizes_of(groups, params, some), place, rows[place]) for place, some in there.items()}
        shares = _shares(host, takes, own.disk is not None)
        names = " and ".join(place.name for place in there)
        of_group = f" of parameter group {owner[0]}" if owner[1] else ""
        for place, share in shares.items():
            whole = f"memory{of_group} has host={own.host!r} for {names} together"
            told.setdefault(place, []).append(f"{whole}, of which {place.name} has {share} bytes")
        return {place: own.part(place, share).beside(rows[place], place) for place, share in shares.items()}

    everywhere: dict[Place, Memory | None] = dict.fromkeys(found[_OPTIMIZER])
    if memory:
        everywhere.update(divided(memory, _OPTIMIZER))
    of_groups = {owner: divided(owner[1], owner) for owner in found if owner[1]}
    owned = [part.budget(place) for parts in of_groups.values() for place, part in parts.items()]
    every = [*owned, *(budget_at(part, place) for place, part in everywhere.items())]
    automatic = any(budget.automatic for budget in every if budget)
    moments = moment_bytes(groups, params)
    return Shares(everywhere, of_groups, {place: "; ".join(each) for place, each in told.items()}, automatic, moments)


def _shares(host: int, takes: Mapping[Place, _Takes], on_disk: bool) -> dict[Place, int]:
    """Divides `host` bytes between places. on_disk: the CPU's state may go to a disk."""
    needed = sum(each.beyond for each in takes.values())
    if needed <= host:
        total = max(sum(each.all for each in takes.values()), 1)
        return {place: each.beyond + (host - needed) * each.all // total for place, each in takes.items()}
    of_devices = sum(each.beyond for place, each in takes.items() if not place.on_host)
    if on_disk and of_devices <= host:
        return {place: host - of_devices if place.on_host else each.beyond for place, each in takes.items()}
    return {place: host * each.beyond // needed for place, each in takes.items()}


def _takes(family: Family, memory: Memory, sizes: Sequence[GroupSizes], place: Place, rows: int) -> _Takes:
    """rows: bytes of row moments."""
    if not place.on_host:
        state = state_on_device(family, sizes, memory.part(place, 0).beside(rows, place).budget(place))
        return _Takes(state.streamed_bytes, state.resident_bytes + state.streamed_bytes)
    needed = forecast(family.core_rule, Budget(_ENOUGH), sizes)[0].direct_bytes + (0 if place.mirrored else rows)
    return _Takes(needed, needed)


def state_on_device(family: Family, sizes: Sequence[GroupSizes], budget: Budget, host: int = -1) -> Forecast:
    """Forecasts these parameters under the budget of their device. If they do not fit, assumes that all state streams. host:
    bytes of host memory; -1: enough."""

    def found(there: int) -> Forecast:
        given = Budget(host, chunk=budget.chunk, device=there, transfer=budget.transfer)
        if host >= 0:
            given = given._replace(disk=budget.disk, disk_limit=budget.disk_limit)
        return forecast(family.core_rule, given, sizes)[0]

    there = budget.device
    here = found(_ENOUGH if budget.managed else max(there, 0))
    if here.fits and (there >= 0 or budget.managed):
        return here
    everything = found(_ENOUGH)
    state = everything.resident_bytes
    return replace(
        everything, fits=here.fits, problem=here.problem, device_bytes=0, host_bytes=state, resident_bytes=0, streamed_bytes=state
    )


def outgrown(
    cores: Mapping[Place, _core.Optimizer], first: int, family: Family, groups: Sequence[CoreGroup], params: Sequence[Param],
    shares: Shares,
) -> bool:  # fmt: skip
    """True if only new cores can make room: state that fitted whole has a fixed place in RAM, which leaves the optimizer's
    budget too little to stream the state of these parameters beside it. first: the first parameter that the cores do not have
    yet."""
    for place, core in cores.items():
        budget = budget_at(shares.of_all.get(place), place)
        of = {i for i, param in enumerate(params) if param.place == place and not param.memory}
        placed = {i for i in of if i < first and core.has_state(i) and not core.is_paged(i)}
        if place.on_host and budget and budget.host >= 0 and placed:
            room = max(budget.host - core.report()["allocated_bytes"], 0)
            if not forecast(family.core_rule, budget._replace(host=room), sizes_of(groups, params, of - placed))[0].fits:
                return True
    return False
