"""A step of Muon, batch by batch: the core previews directions, which changes nothing, torch turns them into updates, and one
call of the core changes state and weights together."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lowtide.devices.exchange import Exchange
from lowtide.devices.sharding import local_of
from lowtide.engine.engine import Engine
from lowtide.engine.groups import CoreGroup
from lowtide.optimizers.batches import IN_FLIGHT, Batch
from lowtide.optimizers.orthogonal import WORKING, orthogonal, ratio, row_scaled, schedule
from lowtide.report.log import warn

UnderWay = list[Generator[None]]  # batches whose pieces are travelling, oldest first
_LACKING = -1  # bits of a NaN that no arithmetic gives; marks "its rank could not compute this"


class MatrixStep:
    """Made for one step. matrices: the core group, by number, of each parameter that moves by its direction."""

    def __init__(
        self, engine: Engine, groups: Sequence[dict[str, Any]], matrices: Mapping[int, CoreGroup], scale: float
    ) -> None:
        self._engine, self._groups, self._matrices, self._scale = engine, groups, matrices, scale
        self._failure: BaseException | None = None
        self._left: list[int] = []  # matrices that stay unchanged on every rank

    def take(self, batches: Sequence[Batch]) -> None:
        """Takes the step. An exception before any parameter has moved leaves all unchanged. After that, the rest of the step is
        taken, if possible, before the exception is raised; a warning says if it is not. All ranks make the same calls. A rank
        that fails sends what others wait for, marked as lacking: those matrices stay unchanged on every rank, and all raise."""
        before = {i: self._count(i) for batch in batches for i in batch.params}
        try:
            exchanged = [batch for batch in batches if batch.exchange is not None]
            self._take_all([batch for batch in batches if batch.exchange is None], before, waited=bool(exchanged))
            self._take_exchanged(exchanged)
            if self._failure is None and self._left:
                names = ", ".join(self._engine.params[i].where for i in self._left)
                raise RuntimeError(f"Muon: another rank could not compute the updates of {names}: its error says why")
            if self._failure is not None:
                raise self._failure
        except BaseException as error:
            old = [i for i, count in before.items() if self._count(i) == count]
            if 0 < len(old) < len(before):
                warn(
                    f"Muon: got {type(error).__name__} in a step that {len(before) - len(old)} parameters have taken and {len(old)} "
                    'have not, each with its state: see state[p]["step"]. To continue as if it had not begun, load a checkpoint'
                )
            raise
        finally:
            if len(batches) > 1:  # the core counts each batch as a step
                moved = sum(any(self._count(i) != before[i] for i in batch.params) for batch in batches)
                self._engine.count(steps=min(1 - moved, 0))

    def _count(self, number: int) -> int:
        return self._engine.core_of(number).step_count(number)

    def _take_all(self, batches: Sequence[Batch], before: Mapping[int, int], waited: bool) -> None:
        """Steps batches of whole matrices. waited: other ranks wait for what this rank sends later."""
        try:
            for batch in batches:
                self._take(batch)
        except BaseException as error:  # even KeyboardInterrupt and what a signal handler raises, between two batches, too
            self._failure = error
            begun = any(self._count(i) != count for i, count in before.items())
            if not isinstance(error, Exception) if waited else not begun:
                raise
            for batch in batches:
                if all(self._count(i) == before[i] for i in batch.params):
                    with contextlib.suppress(Exception) if waited else contextlib.nullcontext():
                        self._take(batch)

    def _take(self, batch: Batch) -> None:
        found = self._directions(batch)
        made = {i: self._made(i, d, self._moment(i) if self._has_moments(i) else None) for i, d in found.items()}
        moments = {i: moment for i, (_, moment) in made.items() if moment is not None}
        self._commit(batch.params, {i: update for i, (update, _) in made.items()}, moments)

    def _take_exchanged(self, batches: Sequence[Batch]) -> None:
        under_way: UnderWay = []
        for batch in batches:
            assert batch.exchange is not None
            while len(under_way) >= IN_FLIGHT:
                _go_on(under_way)
            begun = self._exchanged(batch, batch.exchange)
            next(begun, None)
            _go_on(under_way)
            under_way.append(begun)
        while under_way:
            _go_on(under_way)

    def _directions(self, batch: Batch) -> dict[int, Tensor]:
        """The directions d of this rank's parts of the batch's matrices, rounded to `WORKING` where torch multiplies."""
        engine = self._engine
        numbers = [i for i in batch.params if i in self._matrices]
        if not numbers:
            return {}
        found = {i: torch.empty(self._local(i).shape, dtype=torch.float32, device=self._memory(i)) for i in numbers}
        addresses = [found[i].data_ptr() if i in found else 0 for i in range(len(engine.params))]
        engine.core.step(self._scale, True, engine.queue(), engine.room(), numbers, addresses)
        for i, direction in found.items():
            if momentum := self._matrices[i].pushed["momentum"]:
                direction.mul_(1 - momentum)  # the core gives d / (1 − μ)
            found[i] = direction.to(WORKING).to(self._local(i).device)
        return found

    def _commit(self, numbers: list[int], updates: Mapping[int, Tensor], moments: Mapping[int, Tensor]) -> None:
        """Steps these parameters and their state; `updates` move matrices, and `moments` are their next row moments, which others lose."""
        engine, moves, held = self._engine, [], []
        for i, update in updates.items():
            shape, options = engine.tensors[i].shape, self._options(i)
            held.append(update.to(self._memory(i)).contiguous())  # until the call returns
            moves.append((i, held[-1].data_ptr(), ratio(options["adjust_lr_fn"], shape[-2], shape[-1])))
            engine.moments.begin(i, self._count(i) + 1, moments.get(i))
        if numbers or not self._matrices:
            engine.core.step(self._scale, True, engine.queue(), engine.room(), numbers, updates=moves)
        for i in updates:
            engine.row_moment(i)  # which now are these

    def _local(self, number: int) -> Tensor:
        param = self._engine.params[number]
        return param.tensor if param.sharding is None else local_of(param.tensor)

    def _memory(self, number: int) -> torch.device:
        """Where the core reads and writes: host memory if the CPU steps the parameter."""
        place = self._engine.params[number].place
        return torch.device("cpu") if place is None or place.on_host else place.device

    def _options(self, number: int) -> Mapping[str, Any]:
        return self._matrices[number].options_of(self._groups)

    def _has_moments(self, number: int) -> bool:
        return self._engine.family.has_moments(self._matrices[number].rule, self._options(number))

    def _moment(self, number: int) -> Tensor:
        """This rank's row moments of a matrix before the step."""
        moment = self._engine.row_moment(number)
        return self._engine.no_moment(number) if moment is None else moment

    def _made(self, number: int, direction: Tensor, moment: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The update of a whole matrix, or of a stack, and its next row moments."""
        options = self._options(number)
        coefficients = schedule(options["ns_coefficients"], options["ns_steps"])
        assert coefficients is not None  # as checked when the group was added, or the option changed
        update = orthogonal(direction, coefficients, options["eps"])
        return (update, None) if moment is None else row_scaled(update, moment, float(options["row_beta2"]))

    def _exchanged(self, batch: Batch, exchange: Exchange) -> Generator[None]:
        """Steps a batch of matrices. Yields while messages are in transit, equally often on every rank."""
        here = self._local(batch.params[0]).device
        mesh = exchange.route.mesh.device_type  # the device that sends messages; parameters may be offloaded from it
        like = torch.empty(0, dtype=WORKING, device=here if here.type == mesh else mesh)
        rows: dict[int, list[Tensor]] = {i: [] for i in batch.params if self._has_moments(i)}
        try:
            found = self._directions(batch)
            moments = {i: self._moment(i) for i in rows}
        except Exception as error:
            self._failure = self._failure or error
            found = {i: _lacking(like.new_empty(self._local(i).shape)) for i in batch.params}
            moments = {i: self._engine.no_moment(i) for i in rows}
        parts = enumerate(exchange.parts)
        flats = {n: exchange.own(n, found[part.number], moments.get(part.number), like) for n, part in parts}
        sizes = {i: direction.shape for i, direction in found.items()}
        found.clear()
        for stage in exchange.gather:
            yield from stage.run(flats, like)
        for n in exchange.owned:
            flats[n] = self._update(exchange, n, flats[n])
        for stage in exchange.scatter:
            yield from stage.run(flats, like)
        pieces: dict[int, list[Tensor]] = {i: [] for i in sizes}
        for n, part in enumerate(exchange.parts):
            piece, own = exchange.split(n, flats.pop(n))
            pieces[part.number].append(piece)
            if own is not None:
                rows[part.number].append(own)
        updates = {i: torch.cat([like, *flat]).view(sizes[i]) for i, flat in pieces.items()}
        came = {i: torch.cat(flat) for i, flat in rows.items() if flat}  # a matrix without elements keeps its row moments
        moments = {i: came[i].view(had.shape).to(had.device) if i in came else had for i, had in moments.items()}
        marks = torch.stack([_is_lacking(update) for update in updates.values()]).tolist()  # waits for a device
        left = [i for i, lacks in zip(updates, marks, strict=True) if lacks]
        self._left += left
        try:
            going = [i for i in batch.params if i not in left]
            self._commit(going, *({i: each[i] for i in going if i in each} for each in (updates, moments)))
        except Exception as error:
            self._failure = self._failure or error

    def _update(self, exchange: Exchange, n: int, flat: Tensor) -> Tensor:
        """The pieces of a matrix's update and row moments, computed from its direction's; marked as lacking if those are, or if this
        rank cannot compute it (out of memory, for example): the others wait for them."""
        part = exchange.parts[n]
        try:
            whole, moments = exchange.join(n, flat)
            lacks = _is_lacking(whole)
            if len(part.shape) == 3:
                update, moments = self._made(part.number, whole, moments)
            else:
                update, moment = self._made(part.number, whole[0], None if moments is None else moments[0])
                update, moments = update[None], None if moment is None else moment[None]
            pieces = exchange.cut(n, update, moments)
            pieces.view(torch.int16).masked_fill_(lacks, _LACKING)  # on a device, without waiting for it
            return pieces
        except Exception as error:
            self._failure = self._failure or error
            return _lacking(flat)


def _lacking(flat: Tensor) -> Tensor:
    flat.view(torch.int16).fill_(_LACKING)
    return flat


def _is_lacking(flat: Tensor) -> Tensor:
    """A bool on the tensor's device."""
    return (flat.view(torch.int16) == _LACKING).any()


def _go_on(under_way: UnderWay) -> None:
    """Resumes every batch up to its next wait, newest first, while older messages travel."""
    under_way[:] = [batch for batch in reversed(under_way) if next(batch, under_way) is None][::-1]
