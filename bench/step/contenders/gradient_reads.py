"""One read of all gradients, in place of a step. The option "call": "check", Lowtide's search for values that are not finite;
"norm", its norm; "torch", torch.nn.utils.get_total_norm."""

from __future__ import annotations

from typing import Any

import torch
from step.contenders import lowtide

PACKAGE = "lowtide"
why_not = lowtide.why_not
describe = lowtide.describe


class Reads:
    def __init__(self, params: list[torch.nn.Parameter], call: str) -> None:
        self.state: dict[torch.Tensor, dict[str, torch.Tensor]] = {}
        grads = [param.grad for param in params]
        made = None if call == "torch" else lowtide.optimizer(params, "adamw", {})
        self.step = {
            "check": lambda: made.engine.core.check(),
            "norm": lambda: made.clip_grad_norm_(1.0),
            "torch": lambda: torch.nn.utils.get_total_norm(grads, foreach=True),
        }[call]


def optimizer(params: list[torch.nn.Parameter], rule: str, options: dict[str, Any]) -> Reads:
    return Reads(params, **options)
