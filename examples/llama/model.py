"""The model: a small LLaMA from ``transformers`` with random weights. Nothing is downloaded."""

from __future__ import annotations

import hashlib
import math

import torch
from torch import nn
from torch.nn import functional as F

from .config import Config


def build_model(config: Config, vocab: int) -> nn.Module:
    """A LlamaForCausalLM whose weights depend only on the seed."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()  # its remarks concern pretrained weights
    torch.manual_seed(config.seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocab,
            hidden_size=config.width,
            intermediate_size=config.ffn_width,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.heads,
            max_position_embeddings=config.context,
            tie_word_embeddings=False,
            use_cache=False,
            # The defaults of LlamaConfig are ids of another tokenizer.
            bos_token_id=None,
            eos_token_id=0,
            pad_token_id=None,
        )
    )
    if config.dtype == "bf16":
        # Only parameters: the table of rotary frequencies is a buffer, and 8 bits of mantissa would distort positions.
        for parameter in model.parameters():
            parameter.data = parameter.data.to(torch.bfloat16)
    return model.train()


def learning_rate_factor(config: Config, step: int) -> float:
    """Linear warm-up, then a cosine down to `final_lr` times the learning rate."""
    if step < config.warmup:
        return (step + 1) / config.warmup
    progress = min(1.0, (step - config.warmup) / max(1, config.steps - config.warmup))
    return config.final_lr + (1 - config.final_lr) * 0.5 * (1 + math.cos(math.pi * progress))


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Matrices decay. Norms and other vectors do not, because shrinking a gain regularizes nothing."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]


def next_token_loss(model: nn.Module, windows: torch.Tensor) -> torch.Tensor:
    """The mean cross-entropy, in nats, of each next token, computed in fp32 for any type of weights."""
    logits = model(input_ids=windows[:, :-1], use_cache=False).logits
    return F.cross_entropy(logits.flatten(0, 1).float(), windows[:, 1:].flatten())


@torch.no_grad()
def validation_loss(model: nn.Module, windows: torch.Tensor, batch: int) -> float:
    """The mean loss over all windows. A short last batch counts by its number of windows."""
    model.eval()
    total = sum(float(next_token_loss(model, part)) * len(part) for part in windows.split(batch))
    model.train()
    return total / len(windows)


def weights_sha256(model: nn.Module) -> str:
    """A hash of every parameter's bits, to compare runs exactly."""
    digest = hashlib.sha256()
    values = model.state_dict()  # of a model whose weights stream to a device, plain tensors
    for name, _ in model.named_parameters():
        digest.update(name.encode())
        digest.update(values[name].cpu().contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()
