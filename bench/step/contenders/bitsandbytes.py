"""bitsandbytes' AdamW8bit; its CPU step is a chain of torch operations."""

from __future__ import annotations

from typing import Any

import torch
from step.contenders import LEARNING_RATE

PACKAGE = "bitsandbytes"


def why_not(quick: bool) -> str | None:
    try:
        import bitsandbytes  # noqa: F401
    except Exception as error:  # a failed import of its binary comes in many types
        return f"cannot be imported: {error}"
    return None


def describe() -> dict[str, Any]:
    return {}


def optimizer(params: list[torch.nn.Parameter], rule: str, options: dict[str, Any]) -> Any:
    import bitsandbytes

    return bitsandbytes.optim.AdamW8bit(params, lr=LEARNING_RATE[rule], weight_decay=1e-2)
