"""A step as people take it: the norm of all gradients is clipped, the parameters are stepped, the gradients are dropped."""

from __future__ import annotations

from typing import Any

import torch

MAX_NORM = 1e9  # torch multiplies gradients by min(1, MAX_NORM / norm): they stay as they are for the next line


class Sequence:
    """Clips with the optimizer's own clip_grad_norm_, else with torch's."""

    def __init__(self, optimizer: Any, params: list[torch.nn.Parameter]) -> None:
        self._optimizer, self._params, self._grads = optimizer, params, [param.grad for param in params]
        self._clips_itself = hasattr(optimizer, "clip_grad_norm_")

    def prepare(self) -> None:
        """Puts back the gradients, which backward would have made. Not a part of what is timed."""
        for param, grad in zip(self._params, self._grads, strict=True):
            param.grad = grad

    def __call__(self) -> None:
        if self._clips_itself:
            self._optimizer.clip_grad_norm_(MAX_NORM)
        else:
            torch.nn.utils.clip_grad_norm_(self._params, MAX_NORM, foreach=True)
        self._optimizer.step()
        self._optimizer.zero_grad()
