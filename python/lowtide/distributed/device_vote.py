"""Votes in device memory, for process groups that move it (NCCL, XCCL). Does on the device what the core's two phases do in
host memory. Only small records of the other rounds pass through the host."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lowtide import _core
from lowtide.devices import places
from lowtide.distributed.buffers import BLOCK, SignBuffers, SignPart
from lowtide.distributed.groups import Transport
from lowtide.distributed.layout import address
from lowtide.distributed.residuals import DeviceShardResidual

_INFINITY = 0x7F80  # bfloat16 as int16; bits of negative numbers are below 0
_ROW = 1024  # words of equal weight in a checksum


class DeviceVote:
    """One vote on `part`, whose tensors are on the device. The result stays in separate memory until `deliver`. A message holds
    the bits of a shard and their presence or scales; a result also holds the marks of ties. Work is ordered on torch's current
    stream. Only the constructor allocates, so nothing after it can fail on a single worker, except by losing the device."""

    def __init__(
        self, transport: Transport, part: SignBuffers | SignPart, rules: tuple[str, int, int], residual: DeviceShardResidual | None
    ) -> None:
        """rules: the tie rule, the seed and the number of the vote."""
        self._transport, self._part, self._rules, self._residual = transport, part, rules, residual
        size = transport.size
        self._each, self._first, self._count = _core.vote_shard(part.count, transport.rank, size)
        self._bits, self._extra = self._each // 8, self._each // (8 * BLOCK)  # bytes; scales take as many as presence
        message = self._bits + self._extra
        result = message + self._bits * (part.zeros is not None)
        place = part.of.place
        self._send, self._received = (places.new_bytes(place, size * message).view(size, -1) for _ in range(2))
        self._mine = places.new_bytes(place, result)
        self._results = places.new_bytes(place, size * result).view(size, -1)
        self.sent_bytes = (size - 1) * (message + result)

    def run(self, votes: Sequence[int]) -> tuple[int, bool]:
        """votes: the votes of every worker, 0 if it is left out. Returns a checksum of the result, and whether its scales are
        valid."""
        part, queue = self._part, self._part.of.place.queue()
        if not self._each:
            return 0, True
        with part.of.using(queue):
            if votes[self._transport.rank]:
                self._write_ballots()
            self._transport.exchange(self._send, self._received)
            if self._count and any(votes):
                self._decide(votes, queue)
            self._transport.collect(self._mine, self._results)
        found = [_checksum(self._results)]
        if part.scales is not None:
            scales = self._extras(self._results).contiguous().view(torch.int16)
            found.append(((scales < 0) | (scales >= _INFINITY)).sum())
        checksum, *bad = torch.stack(found).tolist()  # one wait for both
        return checksum % 2**64, not any(bad)

    def deliver(self) -> None:
        """Copies the result over the ballot."""
        part, results = self._part, self._results
        if not self._each:
            return
        with part.of.using(part.of.place.queue()):
            _from_rows(results[:, : self._bits], part.bits)
            _from_rows(self._extras(results), _bytes(self._extra_of(part)))
            if part.zeros is not None:
                _from_rows(results[:, self._bits + self._extra :], part.zeros)
            if self._residual:
                self._residual.take_next()

    def _extras(self, rows: torch.Tensor) -> torch.Tensor:
        return rows[:, self._bits : self._bits + self._extra]

    @staticmethod
    def _extra_of(part: SignBuffers | SignPart) -> torch.Tensor:
        extra = part.presence if part.scales is None else part.scales
        assert extra is not None
        return extra

    def _write_ballots(self) -> None:
        part = self._part
        _to_rows(_bytes(self._extra_of(part)), self._extras(self._send))
        bits = part.bits
        if part.presence is not None:  # clears the bits of blocks without presence
            shifts = torch.arange(8, dtype=torch.uint8, device=bits.device)
            there = ((part.presence.view(-1, 1) >> shifts) & 1).view(-1, 1)
            bits = (bits.view(-1, BLOCK // 8) * there).view(-1)
        _to_rows(bits, self._send[:, : self._bits])

    def _decide(self, votes: Sequence[int], queue: int) -> None:
        part, residual = self._part, self._residual
        ballots = [row.data_ptr() for row in self._received]
        extras = [ballot + self._bits for ballot in ballots]
        result = self._mine.data_ptr()
        if residual:
            _core.average_ballots(
                part.of.signer, self._count, ballots, extras, votes, residual.codec, residual.begin_next(queue), result,
                result + self._bits, queue,
            )  # fmt: skip
            return
        previous, zeros = address(part.previous), part.zeros is not None
        _core.vote_ballots(
            part.of.signer, self._count, ballots, extras, votes, *self._rules,
            part.first + self._first, previous and previous + self._first // 8, result,
            zeros and result + self._bits + self._extra, result + self._bits, queue,
        )  # fmt: skip


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8)


def _to_rows(flat: torch.Tensor, rows: torch.Tensor) -> None:
    """Copies consecutive bytes into the rows. Leaves the rest of the rows unchanged."""
    full, rest = divmod(flat.numel(), rows.shape[1])
    rows[:full].copy_(flat[: flat.numel() - rest].view(full, -1))
    if rest:
        rows[full, :rest].copy_(flat[flat.numel() - rest :])


def _from_rows(rows: torch.Tensor, flat: torch.Tensor) -> None:
    full, rest = divmod(flat.numel(), rows.shape[1])
    flat[: flat.numel() - rest].view(full, -1).copy_(rows[:full])
    if rest:
        flat[flat.numel() - rest :].copy_(rows[full, :rest])


def _checksum(rows: torch.Tensor) -> torch.Tensor:
    """An int64 that tells results of workers apart: the sum of 32-bit words, weighted by position."""
    words = rows.view(-1)[: rows.numel() // 4 * 4].view(torch.int32)
    whole = words.numel() // _ROW * _ROW
    sums = words[:whole].view(-1, _ROW).sum(1, dtype=torch.int64)
    weights = torch.arange(1, sums.numel() + 1, dtype=torch.int64, device=rows.device)
    within = torch.arange(1, _ROW + 1, dtype=torch.int64, device=rows.device)
    columns = words[:whole].view(-1, _ROW).sum(0, dtype=torch.int64)
    rest = words[whole:].to(torch.int64)
    return (sums * weights).sum() + (columns * within).sum() * 31 + (rest * within[: rest.numel()]).sum() * 961
