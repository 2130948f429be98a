"""Records of an optimizer's parameters: whether each can be stepped, its place, its sharding and its own options."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import torch

from lowtide.checks.values import expect
from lowtide.devices import places, sharding
from lowtide.devices.places import HOST, Place
from lowtide.devices.sharding import Sharding, local_of
from lowtide.memory.budgets import Memory, of_group as budget_in
from lowtide.options.overrides import Overridden

_PLACE = attrgetter("place")
_NUMBERED = re.compile(r"(parameter group (\d+), )?\bparameter (\d+)\b(?! \()")


def parameter(groups: Sequence[Mapping[str, Any]], number: int) -> str:
    """Names a parameter in messages, by number and, if it has one, by name."""
    names = [name for group in groups for name in group.get("param_names", [""] * len(group["params"]))]
    name = "".join(names[number : number + 1])  # wrappers may have kept only some groups
    return f"parameter {number} ({name})" if name else f"parameter {number}"


def name_in(error: ValueError, groups: Sequence[Mapping[str, Any]]) -> None:
    """Adds names, if parameters have any, to the parameter numbers in a message."""

    def named(found: re.Match[str]) -> str:
        if not found[1]:
            return parameter(groups, int(found[3]))
        of = groups[int(found[2]) :][:1]  # the number counts within its group, which may be new
        return found[1] + parameter(of, int(found[3]))

    if any("param_names" in group for group in groups):
        error.args = (_NUMBERED.sub(named, str(error)),)


@dataclass(slots=True)
class Param:
    """A parameter in an optimizer or a plan. Records are replaced, never changed, so a refused plan leaves nothing behind."""

    tensor: Any  # torch.Tensor; in plans also a substitute
    group: int  # number of its parameter group
    index: int  # index in that group
    place: Place | None = None  # where it is stepped; None: foreign, cannot be stepped
    sharding: Sharding | None = None  # of a DTensor
    overridden: Overridden | None = None  # the overrides that apply to it, if any
    override: Mapping[str, Any] | None = None  # the options that they set
    memory: Memory | None = None  # its own budget, from an override or its group; None: the optimizer's
    dtype: torch.dtype | None = None  # at registration in a core

    @property
    def where(self) -> str:
        """Its name in errors."""
        return f"parameter group {self.group}, parameter {self.index}"

    def moved(self, place: Place | None, sharding: Sharding | None) -> Param:
        return replace(self, place=place, sharding=sharding)

    def taken(self) -> Param:
        """The record as a core registers it now."""
        return replace(self, dtype=self.tensor.dtype)

    def with_overrides(self, overridden: Overridden | None, of_group: Memory | None) -> Param:
        """The record with these overrides. of_group: the budget of its group. Raises TypeError or ValueError for an unusable budget."""
        override = overridden.options() if overridden else {}
        memory = budget_in(override, f"{self.where}: override") if "memory" in override else of_group
        return replace(self, overridden=overridden, override=override, memory=memory)


def examine(param: torch.Tensor, where: str) -> tuple[Place, Sharding | None]:
    """The place and the sharding of a parameter. Raises ValueError, TypeError or NotImplementedError if it cannot be
    stepped."""
    local = local_of(param)
    places.check_parameter(local, where)
    if places.may_stand_aside(param):
        shared = any(size > 1 and stride == 0 for size, stride in zip(local.shape, local.stride(), strict=True))
        expect(not shared, where, f"strides {local.stride()}", "a tensor whose elements have separate addresses")
        expect(local.numel() == 0 or local.data_ptr() != 0, where, "a tensor without memory", "one with memory")
    return places.place_of(local, where), sharding.sharding_of(param, where)


def examine_all(params: Sequence[Param], where: Sequence[str] | None, of_others: Collection[Place], may_wait: bool) -> list[Param]:
    """The records with their current places and shardings. where: names for errors, unless the parameters' own. of_others:
    places of the other parameters. may_wait: trained parameters may be on meta until a step. Raises ValueError, TypeError or
    NotImplementedError for a parameter that cannot be stepped, unless it may stand aside."""
    now = list(params)
    known = {*of_others}
    aside = [places.may_stand_aside(param.tensor) and (may_wait or not param.tensor.requires_grad) for param in params]
    # Trained parameters determine which places have a core. A frozen one needs none.
    for i in sorted(range(len(params)), key=aside.__getitem__):
        try:
            here, of = examine(params[i].tensor, where[i] if where else params[i].where)
        except (TypeError, ValueError, NotImplementedError):
            if not aside[i]:
                raise
            continue
        if not aside[i] or not known or here in known or here.by_host() in known:
            now[i] = params[i].moved(here, of)
            known.add(here)
    return now


def wanted_places(params: Sequence[Param], before: Iterable[Place] = ()) -> list[Place]:
    """The places at which parameters are stepped, in the order of the parameters. If there is none, the first place of
    `before`, or else the host, because every optimizer has a core."""
    return [*dict.fromkeys(filter(None, map(_PLACE, params)))] or [*before][:1] or [HOST]
