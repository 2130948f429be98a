"""Parameters that an optimizer is handed: which of them can be stepped, where they are, and how they are cut."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from lowtide.checks.values import expect
from lowtide.devices import places, sharding
from lowtide.devices.places import Place
from lowtide.devices.sharding import Sharding, local_of
from lowtide.memory.budgets import Memory
from lowtide.options.overrides import Overridden


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


def examine_all(
    params: Sequence[torch.Tensor], where: Sequence[str], of_others: Iterable[Place], may_wait: bool = True
) -> Examined:
    """Where these parameters are, and how they are cut. where: each one's name for errors; of_others: where those beside
    them are; may_wait: parameters that train may be on meta until a step. ValueError, TypeError or NotImplementedError for
    one that cannot be stepped, unless it may stand aside."""
    now = Examined([None] * len(params), [None] * len(params))
    known = {*of_others}
    # Those that are stepped say at which places there is a core. A frozen one alone needs none.
    for i in sorted(range(len(params)), key=lambda i: places.may_stand_aside(params[i])):
        aside = places.may_stand_aside(params[i]) and (may_wait or not params[i].requires_grad)
        try:
            of, here = examine(params[i], where[i])
        except (TypeError, ValueError, NotImplementedError):
            if not aside:
                raise
            continue
        if not aside or not known or here in known or here.by_host() in known:
            now.places[i], now.shardings[i] = here, of
            known.add(here)
    return now


def stood_in(params: Sequence[torch.Tensor], found: Sequence[Place | None], home: Place) -> list[torch.Tensor]:
    """Parameters as a core has them: those of no place as empty tensors at `home`."""
    return [param if at else places.stand_in(home) for param, at in zip(params, found, strict=True)]
