"""torch.optim.AdamW(fused=True), the baseline of every step."""

from __future__ import annotations

from typing import Any

import torch
from step.contenders import LEARNING_RATE

PACKAGE = "torch"


def why_not(quick: bool) -> str | None:
    return None


def describe() -> dict[str, Any]:
    return {}


def optimizer(params: list[torch.nn.Parameter], rule: str, options: dict[str, Any]) -> Any:
    return torch.optim.AdamW(params, lr=LEARNING_RATE[rule], fused=True)
