"""Resets of state: an optimizer that forgets its moments at regular intervals (arXiv 2603.16731).

A quantized average stalls: once what a step adds is less than half a step of its grid, rounding to nearest loses it. An
average that starts again from nothing grows by a share of 1 / t in step t, and moves until that is below the resolution.

The interval here is the greater of 0.1 / (1 - b2) and 10 / (1 - b1) steps. 8 bits to nearest resolve half a step of 0.4 to
1.4 % near a block's largest, which the second moment's growth falls below after 70 to 250 steps, about a tenth of the time
that b2 = 0.999 looks back. The first moment needs 1 / (1 - b1) steps to fill; ten times that wastes no more than a tenth.
(4 bits stall after some 14 steps, less than a first moment needs to fill. No interval would serve both.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch


def interval(betas: tuple[float, float]) -> int:
    return round(max(0.1 / (1 - betas[1]), 10 / (1 - betas[0])))


class Resets(torch.optim.Optimizer):
    """Steps with `inner`, an optimizer that `make` makes anew every `interval` steps: no moment and no step count is left."""

    def __init__(
        self,
        make: Callable[..., torch.optim.Optimizer],
        params: Iterable[torch.Tensor],
        betas: tuple[float, float],
        **hyper: Any,
    ) -> None:
        super().__init__(params, {"betas": betas, **hyper})
        self._make, self._steps, self._interval = make, 0, interval(betas)
        self.inner = self._made()

    def _made(self) -> torch.optim.Optimizer:
        group = {key: value for key, value in self.param_groups[0].items() if key != "params"}
        return self._make(self.param_groups[0]["params"], **group)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if self._steps and self._steps % self._interval == 0:
            self.inner = self._made()
        self._steps += 1
        self.inner.param_groups[0]["lr"] = self.param_groups[0]["lr"]
        self.inner.step()
