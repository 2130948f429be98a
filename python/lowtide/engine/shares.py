"""Each device's part of a budget whose parameters are on several.

`host` is one amount for all of them. Each device first has what its parameters' state takes beyond `device`, as planning
says; what is left goes to the devices by the bytes of their state. Where `host` is too small for all, the CPU, whose state
alone can go to `disk`, comes last; without a disk all get too little alike, and the first step refuses. Whatever happens,
the shares add up to no more than `host`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from lowtide import _core
from lowtide.checks.values import with_context
from lowtide.devices.places import Place
from lowtide.devices.sharding import local_of
from lowtide.engine.examined import Registered, stood_in
from lowtide.engine.family import Family
from lowtide.engine.groups import Members, register
from lowtide.memory.budgets import Budget, Memory, budget_at, size_of

_PAGE = 4096  # chunks are so many bytes, or a multiple
_ENOUGH = 2**62  # bytes: no limit, but state is put together as under one
Owner = tuple[int, Memory | None]  # a parameter group and the budget that it brings, or `_OPTIMIZER`
_OPTIMIZER: Owner = (-1, None)


class Shares(NamedTuple):
    """The budgets of an optimizer, at each place."""

    of_all: Mapping[Place, Memory | None]  # of groups without their own
    of_groups: Mapping[Owner, Mapping[Place, Memory]]
    told: Mapping[Place, str]  # for errors at a place that has a part of `host`: of what was given

    def own(self, number: int, place: Place, memory: Memory) -> Memory | None:
        """The part of a budget of parameter group `number` that parameters at `place` have; None: there are none."""
        return self.of_groups.get((number, memory), {}).get(place)

    def automatic(self) -> bool:
        """Whether any of them depends on what is free."""
        owned = (part.budget(place) for parts in self.of_groups.values() for place, part in parts.items())
        every = [*owned, *(budget_at(part, place) for place, part in self.of_all.items())]
        return any(budget.automatic for budget in every if budget)


class Sizes:
    """Takes groups as a core does, for planning the state of some parameters that are trained."""

    def __init__(self, some: Collection[int]) -> None:
        """some: their id()s."""
        self.groups: list[Any] = []  # as `_core.plan_memory` takes them
        self._some = some

    def add_group(
        self, hyper: dict[str, float], state: str, min_quantized_numel: int, memory: Budget | None, rounding: str,
        master: str, shared: int, rule: str,
    ) -> int:  # fmt: skip
        self.groups.append(([], state, min_quantized_numel, hyper, None, 0.0, -1, rule, master))
        return len(self.groups) - 1

    def add_param(self, group: int, param: Any, requires_grad: bool, whole: Any) -> None:
        if requires_grad and id(param) in self._some:
            local = local_of(param)
            self.groups[group][0].append((list(local.shape), whole, str(local.dtype).removeprefix("torch.")))


def planned(sizes: Sizes, family: Family, groups: Sequence[Mapping[str, Any]], of: Registered, place: Place) -> None:
    """Has `sizes` take all groups in."""
    first = 0
    for number, params in enumerate(of.members):
        these = slice(first, first + len(params))
        own = [overridden.options() for overridden in of.overridden[these]]
        members = Members(stood_in(params, of.params.places[these], place), of.params.shardings[these], own, None)
        register(sizes, family, place, number, groups[number], members, first, lambda _: None)
        first += len(params)


class _Takes(NamedTuple):
    """Bytes of the state at one place."""

    beyond: int  # those that `device` has no room for
    all: int


def shares_of(
    family: Family, memory: Memory | None, groups: Sequence[Mapping[str, Any]], of: Registered, at: Sequence[Place]
) -> Shares:
    """The budgets of an optimizer with these parameters, whose own budget is `memory`, and which has a core at each of these
    places. Nothing is divided where there is one. ValueError or TypeError for a size that means nothing."""
    found: dict[Owner, dict[Place, set[int]]] = {_OPTIMIZER: {place: set() for place in at}}
    params = [(number, param) for number, params in enumerate(of.members) for param in params]
    for (number, param), place, overridden in zip(params, of.params.places, of.overridden, strict=True):
        own: Memory | None = overridden.options().get("memory", of.memories[number])
        if place:
            found.setdefault((number, own) if own else _OPTIMIZER, {}).setdefault(place, set()).add(id(param))

    told: dict[Place, list[str]] = {}

    def divided(own: Memory, owner: Owner) -> dict[Place, Memory]:
        there = found[owner]
        if len(there) < 2:
            return {place: own.part(place, own.host) if place.mirrored else own for place in there}
        if own.host is None:
            return {place: own.part(place, None) for place in there}
        try:
            host = size_of("host", own.host)
        except (TypeError, ValueError) as error:
            if not owner[1]:
                raise
            raise with_context(f"parameter group {owner[0]}", error) from error
        takes = {place: _takes(family, own, groups, of, place, some) for place, some in there.items()}
        shares = _shares(host, takes, own.disk is not None)
        names = " and ".join(str(place.device) for place in there)
        of_group = f" of parameter group {owner[0]}" if owner[1] else ""
        for place, share in shares.items():
            whole = f"memory{of_group} has host={own.host!r} for {names} together"
            told.setdefault(place, []).append(f"{whole}, of which {place.device} has {share} bytes")
        return {place: own.part(place, share) for place, share in shares.items()}

    everywhere: dict[Place, Memory | None] = dict.fromkeys(found[_OPTIMIZER])
    if memory:
        everywhere.update(divided(memory, _OPTIMIZER))
    of_groups = {owner: divided(owner[1], owner) for owner in found if owner[1]}
    return Shares(everywhere, of_groups, {place: "; ".join(each) for place, each in told.items()})


def _shares(host: int, takes: Mapping[Place, _Takes], on_disk: bool) -> dict[Place, int]:
    """on_disk: the CPU's state may go to a disk."""
    needed = sum(each.beyond for each in takes.values())
    if needed <= host:
        total = max(sum(each.all for each in takes.values()), 1)
        return {place: each.beyond + (host - needed) * each.all // total for place, each in takes.items()}
    of_devices = sum(each.beyond for place, each in takes.items() if not place.on_host)
    if on_disk and of_devices <= host:
        return {place: host - of_devices if place.on_host else each.beyond for place, each in takes.items()}
    return {place: host * each.beyond // needed for place, each in takes.items()}


def _takes(
    family: Family, memory: Memory, groups: Sequence[Mapping[str, Any]], of: Registered, place: Place, some: set[int]
) -> _Takes:
    sizes = Sizes(some)
    planned(sizes, family, groups, of, place)

    def plan(near: int) -> Mapping[str, Any]:
        return _core.plan_memory(family.core_rule, Budget(near, ".", -1, budget.chunk_bytes), sizes.groups)[0]

    budget = memory.part(place, 0).budget(place)
    everything = int(plan(_ENOUGH)["direct_bytes"])
    if place.on_host:
        return _Takes(max(everything - budget.ram_bytes, 0), everything)
    if budget.managed:
        return _Takes(0, everything)
    found = plan(everything * 3 // 4)
    in_chunks = int(found["disk_bytes"] + found["resident_bytes"]) if found["fits"] else everything + _PAGE
    if budget.device_bytes >= max(in_chunks, everything):
        return _Takes(0, everything)
    # A device's state is in chunks, which may not fit where its bytes would.
    if budget.device_bytes >= 0 and (found := plan(min(budget.device_bytes, everything - 1)))["fits"]:
        return _Takes(int(found["disk_bytes"]), everything)
    # All of it may have to go to the host.
    return _Takes(max(in_chunks, everything), everything)
