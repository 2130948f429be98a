"""Counts the signs of micro-batches, for use where a sum of gradients does not fit."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from lowtide import _core
from lowtide.checks.values import expect
from lowtide.devices import arrays, places
from lowtide.devices.places import Place
from lowtide.distributed.buffers import signer_at
from lowtide.distributed.layout import address, check_gradients_of


class SignAccumulator:
    """Counts the signs of gradients over several backward passes. Takes ceil(log2(k + 1)) bits per element for `most` = k
    passes; a float32 sum takes 32.

        counts = SignAccumulator(model.parameters(), most=15)
        for batch in batches:
            loss(batch).backward()
            counts.add()          # and frees the gradients
        counts.finish()           # p.grad: (number of + minus number of -) / k
        optimizer.step()

    Counts keep no magnitudes. For noise much larger than the gradient, the majority of k signs has 2/π of the efficiency of the
    sign of the mean: the same certainty takes 1.57 times as many micro-batches. `Signum.fold` keeps magnitudes and needs no
    buffer. Takes dense gradients on the CPU or on devices, which count them on torch's current stream. Exact zeros count as +
    and - in alternate passes."""

    def __init__(self, params: Iterable[torch.Tensor], most: int = 15) -> None:
        self._params = [param for param in params if param.requires_grad]
        expect(bool(self._params), "params", "none that requires a gradient", "one")
        expect(isinstance(most, int) and 1 <= most <= 65535, "most", repr(most), "an integer from 1 to 65535")
        self._places = [check_gradients_of(param, f"parameter {number}") for number, param in enumerate(self._params)]
        self._most = most
        largest: dict[Place, int] = {}
        for param, place in zip(self._params, self._places, strict=True):
            largest[place] = max(largest.get(place, 0), param.numel())
        signers = {place: signer_at(place) for place in largest}
        self._rooms = {place: _core.CountRoom(signers[place], count, most) for place, count in largest.items()}
        self._counts = [
            _core.SignCounts(signers[place], param.numel(), most)
            for param, place in zip(self._params, self._places, strict=True)
        ]

    @property
    def nbytes(self) -> int:
        """Bytes of the counters."""
        return sum(counts.bytes() for counts in self._counts)

    def add(self) -> None:
        """Counts every existing `.grad` and sets it to None. Raises ValueError after `most` calls or for a gradient that cannot
        be counted, and then changes nothing."""
        found = []
        for number, (param, place, counts) in enumerate(zip(self._params, self._places, self._counts, strict=True)):
            if param.grad is None:
                continue
            there = check_gradients_of(param.grad, f"gradient of parameter {number}")
            expect(there == place, f"gradient of parameter {number}", there.device, place.device)
            if counts.added() >= self._most:
                raise ValueError(f"got more than {self._most} gradients to count, wanted finish() first, or a larger most=")
            found.append((param, param.grad.detach(), place, counts))
        threads = torch.get_num_threads()
        for param, grad, place, counts in found:
            grad = grad.contiguous()
            counts.add(address(grad), str(grad.dtype), self._rooms[place], threads, place.queue())
            param.grad = None

    @torch.no_grad()
    def finish(self) -> None:
        """Sets `.grad` of every parameter that had a gradient to the mean of its signs, and starts over. If any gradient was
        not finite, every mean is NaN, so that a check skips the step. Waits for devices."""
        bad = [room.take_nonfinite(place.queue()) for place, room in self._rooms.items()]
        for param, place, counts in zip(self._params, self._places, self._counts, strict=True):
            if not counts.added():
                continue
            mean = _mean(param, place, counts)
            if any(bad):
                mean.fill_(float("nan"))
            param.grad = mean.view(param.shape).to(param.dtype)
            counts.clear(place.queue())


def _mean(param: torch.Tensor, place: Place, counts: _core.SignCounts) -> torch.Tensor:
    """The mean of the counted signs, as float32 on the parameter's device."""
    found: torch.Tensor = arrays.read(param.detach(), "parameter").empty((param.numel(),), "float32")
    counts.read(address(found), torch.get_num_threads(), place.queue())
    # Look quotients up in a table computed on the host, because not every device divides exactly.
    means = torch.tensor(_core.means_of(counts.added()), dtype=torch.float32)
    places.look_up(means, found, out=found)
    return found
