"""A LLaMA with random weights: from transformers if installed, otherwise a plain one with the same tensors."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from lowtide.planning.models import Decoder, elements
from torch import nn
from torch.utils.checkpoint import checkpoint


LLAMA_217M = Decoder(12, 1024, 2752, 16, 16, 32000)
LLAMA_TINY = Decoder(1, 32, 88, 2, 2, 64)


def rotated(x: torch.Tensor, theta: float = 1e4) -> torch.Tensor:
    """Rotary positions: rotates each half of a head's values with the other."""
    half = x.shape[-1] // 2
    speed = theta ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = torch.arange(x.shape[-2], device=x.device, dtype=torch.float32)[:, None] * speed
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Layer(nn.Module):
    def __init__(self, size: Decoder) -> None:
        super().__init__()
        width = size.hidden
        self.heads = size.heads
        self.before_attention, self.before_mlp = nn.RMSNorm(width, eps=1e-6), nn.RMSNorm(width, eps=1e-6)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(width, size.inner, bias=False), nn.Linear(width, size.inner, bias=False)
        self.down = nn.Linear(size.inner, width, bias=False)

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

    def __init__(self, size: Decoder) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size.vocabulary, size.hidden)
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.layers))
        self.norm = nn.RMSNorm(size.hidden, eps=1e-6)
        self.head = nn.Linear(size.hidden, size.vocabulary, bias=False)
        self.checkpointing = False

    def gradient_checkpointing_enable(self) -> None:
        """Computes each layer's activations again in backward. The name is transformers'."""
        self.checkpointing = True

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpointing and self.training else layer(x)
        logits = self.head(self.norm(x[:, :-1]))
        return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def of_transformers(size: Decoder, context: int) -> nn.Module:
    """The model of transformers with these numbers. `context` is the most tokens of a sequence."""
    from transformers import AutoConfig, AutoModelForCausalLM

    kind = "qwen3" if size.qk_norm else "qwen2" if size.qkv_bias and not size.o_bias else "llama"
    config = AutoConfig.for_model(
        kind, hidden_size=size.hidden, intermediate_size=size.inner, num_hidden_layers=size.layers,
        num_attention_heads=size.heads, num_key_value_heads=size.keys, head_dim=size.head or size.hidden // size.heads,
        vocab_size=size.vocabulary, max_position_embeddings=context, tie_word_embeddings=size.tied, attention_bias=size.o_bias,
        use_cache=False, bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    model: nn.Module = AutoModelForCausalLM.from_config(config)
    if (got := sum(param.numel() for param in model.parameters())) != (wanted := elements(size.shapes())):
        raise ValueError(f"{size}: transformers' {kind} got {got} parameters, wanted {wanted}")
    return model


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return model(tokens) if isinstance(model, Llama) else model(input_ids=tokens, labels=tokens).loss


def build(size: Decoder, context: int) -> nn.Module:
    """The model of transformers if that can be imported, otherwise the plain one, with torch's default type and device. Raises
    ImportError for numbers that the plain one does not have."""
    try:
        return of_transformers(size, context)
    except ImportError:
        if size != Decoder(size.layers, size.hidden, size.inner, size.heads, size.heads, size.vocabulary):
            raise
        return Llama(size)
