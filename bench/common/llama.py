"""A LLaMA with random weights: from transformers if installed, otherwise a plain one with the same tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Size:
    width: int
    ffn: int
    layers: int
    heads: int
    vocab: int
    context: int


LLAMA_217M = Size(width=1024, ffn=2752, layers=12, heads=16, vocab=32000, context=1024)
LLAMA_TINY = Size(width=32, ffn=88, layers=1, heads=2, vocab=64, context=16)


def rotated(x: torch.Tensor, theta: float = 1e4) -> torch.Tensor:
    """Rotary positions: rotates each half of a head's values with the other."""
    half = x.shape[-1] // 2
    speed = theta ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = torch.arange(x.shape[-2], device=x.device, dtype=torch.float32)[:, None] * speed
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Layer(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        width = size.width
        self.heads = size.heads
        self.before_attention, self.before_mlp = nn.RMSNorm(width, eps=1e-6), nn.RMSNorm(width, eps=1e-6)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(width, size.ffn, bias=False), nn.Linear(width, size.ffn, bias=False)
        self.down = nn.Linear(size.ffn, width, bias=False)

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            project(x).view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for project in (self.q, self.k, self.v)
        )
        mixed = F.scaled_dot_product_attention(rotated(q), rotated(k), v, is_causal=True)
        return self.o(mixed.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before_attention(x))
        y = self.before_mlp(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """Called like transformers' model with `labels`. Returns the loss of the next tokens."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size.vocab, size.width)
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.layers))
        self.norm = nn.RMSNorm(size.width, eps=1e-6)
        self.head = nn.Linear(size.width, size.vocab, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x[:, :-1]))
        return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def of_transformers(size: Size) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(hidden_size=size.width, intermediate_size=size.ffn, num_hidden_layers=size.layers,
                    num_attention_heads=size.heads, num_key_value_heads=size.heads, vocab_size=size.vocab,
                    max_position_embeddings=size.context, tie_word_embeddings=False, use_cache=False)
    )  # fmt: skip


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return model(tokens) if isinstance(model, Llama) else model(input_ids=tokens, labels=tokens).loss


def build(size: Size) -> nn.Module:
    """The model of transformers if that can be imported, with torch's default type and device."""
    try:
        return of_transformers(size)
    except ImportError:
        return Llama(size)
