"""Low-rank adapters (LoRA, arXiv 2106.09685): W x + B A x, where W stands still and A and B train."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from quality.model import LanguageModel, Layer

RANK = 16


class Adapted(nn.Module):
    """A layer and its adapter. A starts at random and B at zero, so that nothing changes before the first step."""

    def __init__(self, base: nn.Linear, source: torch.Generator) -> None:
        super().__init__()
        self.base = base
        self.a = nn.Parameter(torch.randn(RANK, base.in_features, generator=source) * base.in_features**-0.5)
        self.b = nn.Parameter(torch.zeros(base.out_features, RANK))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        whole: torch.Tensor = self.base(x) + F.linear(F.linear(x, self.a), self.b)
        return whole


def adapt(model: LanguageModel, seed: int) -> None:
    """Freezes the model and gives all matrices of its layers adapters."""
    model.requires_grad_(False)
    source = torch.Generator().manual_seed(seed)
    for layer in model.layers:
        assert isinstance(layer, Layer)
        for name in ("qkv", "out", "gate_up", "down"):
            setattr(layer, name, Adapted(getattr(layer, name), source))
