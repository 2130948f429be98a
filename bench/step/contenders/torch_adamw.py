"""torch.optim.AdamW: fused (the baseline of all ratios) and foreach."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch


def make(params: Sequence[torch.Tensor], **options: object) -> Callable[[], object]:
    """A step of AdamW(params, lr=1e-4, **options), e.g. fused=True."""
    return torch.optim.AdamW(params, lr=1e-4, **options).step  # type: ignore[arg-type]
