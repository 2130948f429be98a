"""Sums over all parameters for steps with one estimate in common (Prodigy's d): over devices and shards. They are exact, so the order
of their parts does not matter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from lowtide import _core
from lowtide.devices.flattened import first_flattened
from lowtide.devices.sharding import Sharding, local_of
from lowtide.engine.engine import Engine
from lowtide.optimizers.clipping import all_reduced, parts_of
from lowtide.state.carried import estimate_of


class TermSums(NamedTuple):
    """As `_core.Optimizer.term_sums` gives them."""

    limbs: list[int]
    finite: bool

    def __add__(self, other: tuple[object, ...]) -> TermSums:
        limbs, finite = other
        return TermSums([a + b for a, b in zip(self.limbs, limbs, strict=True)], self.finite and bool(finite))  # type: ignore[call-overload]


def _share(engine: Engine, options: Mapping[str, Any]) -> None:
    """Gives the estimate to cores that were made since the last step."""
    shared = estimate_of(engine, options)
    for i in {param.place: i for i, param in enumerate(engine.params)}.values():  # one of each core shares it with the others
        engine.core_of(i).set_carried(i, shared)


def sums_of_all(engine: Engine, options: Mapping[str, Any], scale: float) -> TermSums | None:
    """The sums for a step of gradients times `scale`; None: the core's own step finds them. With DTensors every rank calls it. options:
    of any group."""
    if (flattened := first_flattened(engine.tensors)) is not None:
        wanted = "FSDP2 (fully_shard), or whole parameters: their sums over ranks are unknown here"
        raise ValueError(f"step: got parameter {flattened} of FSDP1 for {engine.family.name}, wanted {wanted}")
    if not engine.meshes and len(engine.cores) == 1:
        return None
    _share(engine, options)
    total: TermSums | None = None
    failure: BaseException | None = None
    device = local_of(engine.tensors[0]).device if engine.tensors else torch.device("cpu")
    for sharding, numbers in parts_of(engine, None):
        found = TermSums([0] * _core.TERM_SUM_LIMBS, True)
        if failure is None:
            try:
                for place, core in engine.cores.items():
                    every = range(len(engine.params)) if numbers is None else numbers
                    here = [i for i in every if engine.params[i].place == place]
                    found += core.term_sums(scale, here, 0 if place.on_host else place.queue())
            except Exception as error:  # any exception: other ranks are waiting
                failure = error
        over = sharding.spec.mesh if isinstance(sharding, Sharding) else sharding
        if over is not None:
            values = [*found.limbs, int(not found.finite), int(failure is not None)]
            *limbs, bad, failed = all_reduced(over, values, torch.distributed.ReduceOp.SUM, device)
            found = TermSums(limbs, not bad)
            if failed and failure is None:
                failure = ValueError("another rank refused this step (its error says why); nothing was changed")
        total = found if total is None else total + found
    if failure is not None:
        raise failure
    return total
