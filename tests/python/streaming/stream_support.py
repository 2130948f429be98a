"""A model whose layers stream, and its training."""

from __future__ import annotations

import torch
from support import bits
from torch import nn
from torch.utils.checkpoint import checkpoint

import lowtide
from lowtide.devices.sharding import local_of

LAYERS, WIDTH = 7, 96


class Layer(nn.Module):
    def __init__(self, kind: torch.dtype) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH, dtype=kind)
        self.down = nn.Linear(4 * WIDTH, WIDTH, dtype=kind)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, str]:
        return x + self.down(torch.nn.functional.silu(self.up(x))), "and more"


class Net(nn.Module):
    """Layers between a table and a head; optionally checkpointed in one of torch's two ways."""

    def __init__(self, kind: torch.dtype = torch.float32, reentrant: bool | None = None, device: str = "cpu") -> None:
        super().__init__()
        torch.manual_seed(3)
        with torch.device(device):
            self.table = nn.Embedding(50, WIDTH, dtype=kind)
            self.layers = nn.ModuleList(Layer(kind) for _ in range(LAYERS))
            self.head = nn.Linear(WIDTH, 50, dtype=kind)
        self.reentrant = reentrant

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        for layer in self.layers:
            x = (layer(x) if self.reentrant is None else checkpoint(layer, x, use_reentrant=self.reentrant))[0]
        return self.head(x)


def train(net: nn.Module, opt: lowtide.Optimizer, steps: int, passes: int = 1, first: int = 0, device: str = "cpu") -> list[float]:
    losses = []
    for step in range(first, first + steps):
        for part in range(passes):
            tokens = torch.randint(50, (2, 9), generator=torch.Generator().manual_seed(10 * step + part)).to(device)
            loss = nn.functional.cross_entropy(net(tokens)[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())
            loss.backward()
            losses.append(loss.item())
        opt.step()
        opt.zero_grad()
    return losses


def values(net: nn.Module) -> list[bytes]:
    return [bits(local_of(param)) for param in net.parameters()]
