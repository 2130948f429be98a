"""A small language model over bytes. Its embedding has rarely used rows, which are hard for 8-bit state.

It has LLaMA's parts (RMSNorm, rotary positions, SwiGLU, no biases, a separate head) and, beside the embedding of a byte, an
embedding of the hashed pair of this byte and the previous one. Pairs follow Zipf's law, so most rows of that table get a
gradient once in hundreds of steps. Rows have 256 elements, one block of state. As in large models, no block has rows of two
tokens.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

BYTES = 256


@dataclass(frozen=True)
class Size:
    width: int = 64
    layers: int = 2
    heads: int = 2
    hidden: int = 192  # width of the SwiGLU
    pairs: int = 2048  # rows of the table of pairs
    pair_width: int = 256


class Layer(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.before_attention, self.before_mlp = nn.RMSNorm(size.width), nn.RMSNorm(size.width)
        self.qkv = nn.Linear(size.width, 3 * size.width, bias=False)
        self.out = nn.Linear(size.width, size.width, bias=False)
        self.gate_up = nn.Linear(size.width, 2 * size.hidden, bias=False)
        self.down = nn.Linear(size.hidden, size.width, bias=False)

    def forward(self, x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.before_attention(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(rotated(q, turn), rotated(k, turn), v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        gate, up = self.gate_up(self.before_mlp(x)).chunk(2, dim=-1)
        mlp: torch.Tensor = self.down(F.silu(gate) * up)
        return x + mlp


def rotated(x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Rotary positions (Su et al., arXiv 2104.09864). The two halves of a head are the coordinates that rotate."""
    cos, sin = turn
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class LanguageModel(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = size
        self.byte = nn.Embedding(BYTES, size.width)
        self.pair = nn.Embedding(size.pairs, size.pair_width)
        self.from_pair = nn.Linear(size.pair_width, size.width, bias=False)
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.layers))
        self.norm = nn.RMSNorm(size.width)
        self.head = nn.Linear(size.width, BYTES, bias=False)

    def forward(self, seen: torch.Tensor) -> torch.Tensor:
        """Logits (batch, length, BYTES) of the byte after each byte of `seen` (batch, length)."""
        before = F.pad(seen[:, :-1], (1, 0))
        pairs = ((before * BYTES + seen) * 40503 >> 4) % self.size.pairs
        x = self.byte(seen) + self.from_pair(self.pair(pairs))
        turn = self._turn(seen.shape[1], seen.device)
        for layer in self.layers:
            x = layer(x, turn)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits

    def _turn(self, length: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        half = self.size.width // self.size.heads // 2
        angle = torch.arange(length, device=device)[:, None] * 10000.0 ** (-torch.arange(half, device=device) / half)
        return angle.cos(), angle.sin()


def build(size: Size, seed: int) -> LanguageModel:
    """Draws weights from `seed` alone."""
    model = LanguageModel(size)
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, param in model.named_parameters():
            if param.dim() == 2:
                param.normal_(0, 0.02 if param.shape[0] in (BYTES, size.pairs) else param.shape[1] ** -0.5, generator=source)
    return model


def digest(model: torch.nn.Module) -> str:
    """The SHA-256 of all weights, which must be on the CPU and not bfloat16."""
    return hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values())).hexdigest()
