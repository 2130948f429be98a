"""A step as people take it: the norm of all gradients is clipped, the parameters are stepped, the gradients are dropped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

MAX_NORM = 1e9  # torch multiplies gradients by min(1, MAX_NORM / norm): they stay as they are for the next line


def sequence(optimizer: Any, params: list[torch.nn.Parameter]) -> Callable[[], None]:
    """Clips with the optimizer's own clip_grad_norm_, else with torch's."""
    grads = [param.grad for param in params]
    own = getattr(optimizer, "clip_grad_norm_", None)

    def call() -> None:
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad  # backward would have made them
        if own:
            own(MAX_NORM)
        else:
            torch.nn.utils.clip_grad_norm_(params, MAX_NORM, foreach=True)
        optimizer.step()
        optimizer.zero_grad()
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad  # for lines that only step

    return call
