"""FlashOptim's FlashAdamW. Its 8-bit state, low bits of weights and fused step are Triton kernels for GPUs; without them (its
own options) it runs on a CPU, with state as wide as the parameters."""

from __future__ import annotations

from typing import Any

import torch
from step.contenders import LEARNING_RATE

PACKAGE = "flashoptim"


def why_not(quick: bool) -> str | None:
    try:
        import flashoptim  # noqa: F401
    except Exception as error:  # that of Triton, which it needs, comes in many types
        return f"cannot be imported: {error}"
    return None


def cannot(options: dict[str, Any]) -> str | None:
    """Why these options cannot be measured on a CPU, in its own words."""
    param = torch.nn.Parameter(torch.zeros(64))
    param.grad = torch.zeros(64)
    try:
        optimizer([param], "adamw", options).step()
    except Exception as error:
        return f"says: {error}"
    return None


def describe() -> dict[str, Any]:
    return {}


def optimizer(params: list[torch.nn.Parameter], rule: str, options: dict[str, Any]) -> Any:
    import flashoptim

    return flashoptim.FlashAdamW(params, lr=LEARNING_RATE[rule], weight_decay=1e-2, **options)
