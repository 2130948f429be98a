"""Compares every update of a run with the one that exact state would have made from the same gradients.

A loss curve hardly shows what state does (docs/evidence.md), so this looks at updates: parameters before and after a step,
whatever the optimizer, against Adam's moments kept in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
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


class Watch:
    """Call `before()` before a step, with final gradients, and `after()` after it. Watches one step in `every`."""

    def __init__(
        self, params: Sequence[torch.Tensor], betas: tuple[float, float], eps: float, decay: float, steps: int, every: int = 1
    ) -> None:
        self._params, self._betas, self._eps, self._decay, self._steps = params, betas, eps, decay, steps
        self._every = every
        count = sum(param.numel() for param in params)
        self._m, self._v, self._old = (torch.zeros(count, device=params[0].device) for _ in range(3))
        self._step = 0
        self._wrong = self._whole = 0.0
        self.found = Updates()

    def _flat(self) -> torch.Tensor:
        return torch.cat([param.detach().flatten() for param in self._params])

    @torch.no_grad()
    def before(self) -> None:
        grad = torch.cat([param.grad.flatten() for param in self._params if param.grad is not None])
        self._m.lerp_(grad, 1 - self._betas[0])
        self._v.mul_(self._betas[1]).addcmul_(grad, grad, value=1 - self._betas[1])
        self._step += 1
        if self._looks():
            self._old = self._flat()

    def _looks(self) -> bool:
        return self._step > SETTLED and self._step % self._every == 0

    @torch.no_grad()
    def after(self, lr: float) -> None:
        if not self._looks():
            return
        moved = (self._old - self._flat()).div_(lr).sub_(self._old, alpha=self._decay)
        correction1, correction2 = (1 - beta**self._step for beta in self._betas)
        exact = self._m / self._v.sqrt().div_(correction2**0.5).add_(self._eps) / correction1
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
