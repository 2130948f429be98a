"""The ranks' job in test_packbits_listings.py."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from lowtide.compat.deepspeed import all_reduce_majority, packbits
from packbits_listings import adapted


class Squares(torch.nn.Module):
    """Parameters of sizes that are multiples of 8 and others; its gradients are what the batch says."""

    def __init__(self, sizes: tuple[tuple[int, ...], ...]) -> None:
        super().__init__()
        self.parts = torch.nn.ParameterList([torch.zeros(size) for size in sizes])

    def forward(self, batch: Any) -> torch.Tensor:
        random = torch.Generator().manual_seed(int(batch))
        losses = [(part * (torch.randn(part.shape, generator=random) + 0.3)).sum() for part in self.parts]
        return torch.stack(losses).sum()


def train_step(sizes: tuple[tuple[int, ...], ...]) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """By parameter: this rank's ballot, the gradient that the document's trainer leaves, and the majority of all."""
    rank, world = dist.get_rank(), dist.get_world_size()
    names: dict[str, Any] = {}
    exec(adapted("Distributed Training Integration"), names)
    model = Squares(sizes)
    model(rank).backward()
    ballots = [packbits(part.grad, part.numel(), rank) for part in model.parts if part.grad is not None]
    model.zero_grad()
    names["XPUDistributedTrainer"](model, rank, world).train_step(rank)
    votes = [all_reduce_majority(b.clone(), part.numel()) for b, part in zip(ballots, model.parts, strict=True)]
    return [(b, part.grad, vote) for b, part, vote in zip(ballots, model.parts, votes, strict=True) if part.grad is not None]
