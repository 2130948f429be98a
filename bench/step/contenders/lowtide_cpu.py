"""Lowtide. `target` picks an instruction set, for the rows that compare them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

import lowtide


def make(
    params: Sequence[torch.Tensor], rule: str = "AdamW", target: str = "", **options: object
) -> Callable[[], object]:
    """A step of lowtide.<rule>(params, lr=1e-4, **options)."""
    optimizer = getattr(lowtide, rule)(params, lr=1e-4, cpu_target=target, **options)
    return optimizer.step
