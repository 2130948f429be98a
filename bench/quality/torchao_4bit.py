"""torchao's AdamW with 4-bit state (torchao.optim.AdamW4bit, after arXiv 2309.01507), as its package computes it.

Blocks of 128 run flat over the tensor; a tensor of fewer than 4096 elements, or of another number than whole blocks, has
float32 state. First moments are entries of a signed dynamic map of 16, second moments of the 16 multiples of 1/16 without
zero, both rounded to nearest, times the block's absmax. The update uses the moments before they are rounded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torchao.optim import AdamW4bit
from torchao.optim.subclass_4bit import OptimState4bit


class AdamW(AdamW4bit):  # type: ignore[misc]
    """The step runs uncompiled: the same operations without the C++ compiler that torch.compile needs on a CPU.

    A learning rate may be a number, as training loops set it; torchao takes only a tensor."""

    def __init__(self, params: Iterable[torch.Tensor], **hyper: Any) -> None:
        super().__init__(params, **hyper)

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32)
        with torch.compiler.set_stance("force_eager"):
            return super().step(closure)

    def second_moment(self, param: torch.Tensor) -> torch.Tensor:
        moment = self.state[param]["exp_avg_sq"]
        decoded: torch.Tensor = moment.dequantize() if isinstance(moment, OptimState4bit) else moment
        return decoded
