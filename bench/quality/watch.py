"""Compares every update of a run with the one that exact state would have made from the same gradients.

A loss curve hardly shows what state does (docs/evidence.md), so this looks at updates: parameters before and after a step,
whatever the optimizer, against copies that an optimizer of the same rule with float32 state moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

SETTLED = 20  # first steps to ignore: Adam's first updates all have size 1
LARGE = 8.0  # |update| / lr; Adam's own stays below about 3.6 here with beta2 = 0.999


@dataclass
class Updates:
    """Figures over the watched steps of a run. Updates are in units of lr, without weight decay."""

    largest: float = 0.0
    large: int = 0  # elements moved by more than LARGE, summed over steps
    exact_largest: float = 0.0
    error: float = 0.0  # relative L2 difference from the exact update, over the last 80 % of the run


def _flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


class Watch:
    """Call `before()` before a step, with final gradients, and `after()` after it. Watches one step in `every`."""

    def __init__(
        self, params: Sequence[torch.Tensor], exact: Callable[..., torch.optim.Optimizer], decay: float, steps: int, every: int = 1
    ) -> None:
        """exact: makes the optimizer with float32 state, from parameters, lr= and weight_decay=."""
        self._params, self._decay, self._steps, self._every = params, decay, steps, every
        self._copies = [torch.zeros_like(param) for param in params]
        self._exact = exact(self._copies, lr=1.0, weight_decay=0.0)
        self._old = torch.empty(0)
        self._step = 0
        self._wrong = self._whole = 0.0
        self.found = Updates()

    @torch.no_grad()
    def before(self) -> None:
        for copy, param in zip(self._copies, self._params, strict=True):
            copy.zero_().grad = param.grad
        self._exact.step()
        self._step += 1
        if self._looks():
            self._old = _flat(self._params)

    def _looks(self) -> bool:
        return self._step > SETTLED and self._step % self._every == 0

    @torch.no_grad()
    def after(self, lr: float) -> None:
        if not self._looks():
            return
        moved = (self._old - _flat(self._params)).div_(lr).sub_(self._old, alpha=self._decay)
        exact = _flat(self._copies).neg_()
        size = moved.abs()
        largest = float(size.max())
        self.found.largest = max(self.found.largest, largest)
        self.found.exact_largest = max(self.found.exact_largest, float(exact.abs().max()))
        if largest > LARGE:
            self.found.large += int((size > LARGE).sum())
        if self._step > self._steps // 5:
            self._wrong += float((moved - exact).square_().sum())
            self._whole += float(exact.square().sum())
            self.found.error = (self._wrong / self._whole) ** 0.5
