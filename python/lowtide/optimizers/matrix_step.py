"""A step of Muon: the core computes directions, and this module moves matrices by them."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lowtide.devices.exchange import Exchange
from lowtide.devices.sharding import local_of
from lowtide.engine.engine import Engine
from lowtide.engine.groups import CoreGroup
from lowtide.optimizers.batches import IN_FLIGHT, Batch
from lowtide.optimizers.orthogonal import WORKING, orthogonal, ratio
from lowtide.report.log import warn

UnderWay = list[Generator[None]]  # batches whose pieces are travelling, oldest first


class MatrixStep:
    """Made for one step. matrices: by number, the core group of each parameter that is moved by its direction."""

    def __init__(self, engine: Engine, groups: Sequence[dict[str, Any]], matrices: Mapping[int, CoreGroup]) -> None:
        self._engine, self._groups, self._matrices = engine, groups, matrices
        self._failure: Exception | None = None
        self._steps = 0  # steps that the core has counted

    def take(self, batches: Sequence[Batch], scale: float, queue: int, free: int) -> None:
        """All ranks make the same calls. An error on this rank, in the core or in products, is raised after the others have
        received what they wait for: its share of directions and its updates, or zeros."""
        try:
            self._take(batches, scale, queue, free)
        except BaseException as error:  # KeyboardInterrupt, or what a signal handler raises
            if self._steps or not isinstance(error, Exception):
                warn(
                    f"Muon: got {type(error).__name__} in the middle of a step: some parameters have moved and others have not. To "
                    "continue as if it had not happened, load a checkpoint"
                )
            raise
        if self._failure:
            raise self._failure

    def _take(self, batches: Sequence[Batch], scale: float, queue: int, free: int) -> None:
        under_way: UnderWay = []
        for batch in batches:
            found = self._directions(batch, scale, queue, free)
            free = self._engine.room()
            if batch.exchange is None:
                for number, direction in found.items():
                    self._move(number, self._orthogonal(number, direction))
                continue
            while len(under_way) >= IN_FLIGHT:
                _go_on(under_way)
            begun = self._exchanged(batch, batch.exchange, found)
            next(begun, None)
            _go_on(under_way)
            under_way.append(begun)
        while under_way:
            _go_on(under_way)

    def _directions(self, batch: Batch, scale: float, queue: int, free: int) -> dict[int, Tensor]:
        """Steps all parameters of the batch in the core; returns the direction d of this rank's parts of matrices."""
        engine = self._engine
        here = {i: self._local(i) for i in batch.params if i in self._matrices}
        found = {i: torch.empty(of.shape, dtype=torch.float32, device=of.device) for i, of in here.items()}
        addresses = [found[i].data_ptr() if i in found else 0 for i in range(len(engine.params))]
        try:
            engine.core.step(scale, True, queue, free, batch.params, addresses)
            engine.count(steps=-(self._steps > 0))  # the core counts each batch
            self._steps += 1
        except Exception as error:
            if not engine.meshes:
                raise
            self._failure = self._failure or error
            if not getattr(error, "complete", False):
                found = {i: direction.zero_() for i, direction in found.items()}
        for i, direction in found.items():
            if momentum := self._matrices[i].pushed["momentum"]:
                direction.mul_(1 - momentum)  # the core's is d / (1 − μ)
        return found

    def _local(self, number: int) -> Tensor:
        param = self._engine.params[number]
        return param.tensor if param.sharding is None else local_of(param.tensor)

    def _orthogonal(self, number: int, direction: Tensor) -> Tensor:
        options = self._matrices[number].options_of(self._groups)
        return orthogonal(direction, options["ns_coefficients"], options["ns_steps"], options["eps"])

    def _move(self, number: int, update: Tensor) -> None:
        """update: this rank's part of the orthogonalized direction."""
        param, local, group = self._engine.tensors[number], self._local(number), self._matrices[number]
        shape, lr = param.shape, group.pushed["lr"]
        adjusted = lr * ratio(group.options_of(self._groups)["adjust_lr_fn"], shape[-2], shape[-1])
        # torch adds 16-bit to 16-bit tensors with roundings that depend on an element's position in memory. Plain parameters
        # match torch.optim.Muon; parts of DTensors must have the same bits in any sharding.
        moved = local if local is param else local.float()
        moved.mul_(1 - lr * group.pushed["weight_decay"])
        moved.add_(update, alpha=-adjusted)
        if moved is not local:
            local.copy_(moved)
        if local is not param:
            torch.autograd.graph.increment_version(param)

    def _exchanged(self, batch: Batch, exchange: Exchange, found: dict[int, Tensor]) -> Generator[None]:
        """Moves the matrices of a batch by their directions. Yields while messages are in transit, equally often on every
        rank."""
        here = self._local(batch.params[0]).device
        mesh = exchange.route.mesh.device_type  # the device that sends messages; parameters may be offloaded from it
        like = torch.empty(0, dtype=WORKING, device=here if here.type == mesh else mesh)
        flats = {}
        for n, part in enumerate(exchange.parts):
            of_matrix = exchange.piece(n).numel
            start, size = part.first * of_matrix, part.matrices * of_matrix
            flats[n] = found[part.number].view(-1)[start : start + size].to(like)
        sizes = {i: direction.shape for i, direction in found.items()}
        found.clear()
        for stage in exchange.gather:
            yield from stage.run(flats, like)
        for n in exchange.owned:
            flats[n] = self._update(exchange, n, flats[n])
        for stage in exchange.scatter:
            yield from stage.run(flats, like)
        updates: dict[int, list[Tensor]] = {i: [] for i in sizes}
        for n, part in enumerate(exchange.parts):
            updates[part.number].append(flats.pop(n))
        for i, flat in updates.items():
            self._move(i, torch.cat([like, *flat]).view(sizes[i]).to(here))

    def _update(self, exchange: Exchange, n: int, flat: Tensor) -> Tensor:
        """The pieces of a matrix's update, computed from its direction's; zeros if this rank cannot compute it (out of memory,
        for example): the others wait for them."""
        part = exchange.parts[n]
        try:
            whole = exchange.join(n, flat)
            update = self._orthogonal(part.number, whole if len(part.shape) == 3 else whole[0])
            return exchange.cut(n, update if len(part.shape) == 3 else update[None])
        except Exception as error:
            self._failure = self._failure or error
            return flat.zero_()


def _go_on(under_way: UnderWay) -> None:
    """Resumes every batch to its next wait, newest first, while older messages travel."""
    under_way[:] = [batch for batch in reversed(under_way) if next(batch, under_way) is None][::-1]
