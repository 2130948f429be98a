"""Micro-batches as counts of signs, where there is no room for a sum of gradients."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from lowtide import _core
from lowtide.checks.values import expect
from lowtide.distributed.layout import address, check_gradients_of


class SignAccumulator:
    """Counts the signs of the gradients of several backward passes: ceil(log2(k + 1)) bits an element for `most` = k of
    them, where a float32 sum takes 32.

        counts = SignAccumulator(model.parameters(), most=15)
        for batch in batches:
            loss(batch).backward()
            counts.add()          # and frees the gradients
        counts.finish()           # p.grad: (number of + minus number of -) / k
        optimizer.step()

    It keeps no magnitudes: the majority of k signs is worth 2/π of the sign of the mean, for noise much larger than the
    gradient (1.57 times as many micro-batches for the same certainty). `Signum.fold` keeps magnitudes and needs no
    buffer at all. Dense gradients on the CPU. An exact zero counts as + in one pass and - in the next."""

    def __init__(self, params: Iterable[torch.Tensor], most: int = 15) -> None:
        self._params = [param for param in params if param.requires_grad]
        expect(bool(self._params), "params", "none that requires a gradient", "one")
        expect(isinstance(most, int) and 1 <= most <= 65535, "most", repr(most), "an integer from 1 to 65535")
        for number, param in enumerate(self._params):
            _check(param, f"parameter {number}")
        self._most = most
        self._counts = [_core.SignAccumulator(param.numel(), most, torch.get_num_threads()) for param in self._params]
        self._finite = True

    @property
    def nbytes(self) -> int:
        """Bytes of counters."""
        return sum(counts.bytes() for counts in self._counts)

    def add(self) -> None:
        """Counts every `.grad` that there is, and sets it to None. Raises ValueError after `most` times, or for a
        gradient that cannot be counted; nothing has changed then."""
        found = []
        for number, (param, counts) in enumerate(zip(self._params, self._counts, strict=True)):
            if param.grad is None:
                continue
            _check(param.grad, f"gradient of parameter {number}")
            if counts.added() >= self._most:
                raise ValueError(f"got more than {self._most} gradients to count, wanted finish() or most= above that")
            found.append((param, param.grad.detach(), counts))
        for param, grad, counts in found:
            grad = grad.contiguous()
            self._finite &= counts.add(address(grad), str(grad.dtype))
            param.grad = None

    @torch.no_grad()
    def finish(self) -> None:
        """Gives every parameter that had a gradient the mean of its signs as `.grad`, and begins anew. NaN everywhere
        if a gradient was not finite, so that whoever looks skips the step."""
        for param, counts in zip(self._params, self._counts, strict=True):
            if not counts.added():
                continue
            mean = torch.empty(param.numel())
            counts.mean(address(mean))
            if not self._finite:
                mean.fill_(float("nan"))
            param.grad = mean.view(param.shape).to(param.dtype)
            counts.reset()
        self._finite = True


def _check(tensor: torch.Tensor, where: str) -> None:
    place = check_gradients_of(tensor, where)
    if not place.on_host:
        raise NotImplementedError(f"{where}: got a tensor on {place.device}, wanted one on the CPU, where counters are")
