"""bitsandbytes' AdamW8bit on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from . import Unavailable


def make(params: Sequence[torch.Tensor]) -> Callable[[], object]:
    """A step of bitsandbytes.optim.AdamW8bit(params, lr=1e-4)."""
    try:
        import bitsandbytes
    except Exception as error:  # its import runs native code and raises whatever that does
        raise Unavailable(f"bitsandbytes does not import: {error}") from error
    return bitsandbytes.optim.AdamW8bit(params, lr=1e-4).step
