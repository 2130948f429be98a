"""The compared optimizers: one module each, all with the same four functions.

    why_not(quick) -> str | None      None if it can run here, else the reason
    optimizer(params, rule, options) -> object with .step() and .state, as torch.optim's
    describe() -> dict                what its report should say of itself, beyond versions
    PACKAGE                           its distribution package
"""

from __future__ import annotations

from typing import Any

import torch

LEARNING_RATE = {"adamw": 1e-3, "lion": 1e-4}


def state_bytes(optimizer: Any) -> int:
    """Bytes of the state tensors, each memory counted once; step counts (tensors of one element) are not state."""
    found: dict[int, int] = {}
    for entry in optimizer.state.values():
        for value in entry.values():
            if isinstance(value, torch.Tensor) and value.numel() > 1:
                found[value.data_ptr()] = value.nbytes
    return sum(found.values())
