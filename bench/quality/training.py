"""One training run: a variant, a seed and a beta2 give a validation loss and figures about the updates."""

from __future__ import annotations

import dataclasses
import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch.func import functional_call

from quality.corpus import Corpus, windows
from quality.model import LanguageModel, Size, build
from quality.variants import Variant
from quality.watch import Watch


@dataclass(frozen=True)
class Settings:
    """The same for every run."""

    size: Size = Size()
    steps: int = 600
    batch: int = 4
    context: int = 64
    lr: float = 2e-3
    warmup: int = 40
    last_lr: float = 0.05  # of lr, at the end of a cosine
    beta1: float = 0.9
    eps: float = 1e-8
    weight_decay: float = 0.05
    clip: float = 1.0
    validation_windows: int = 1024
    watch_every: int = 5  # steps


def lr_at(settings: Settings, step: int) -> float:
    if step < settings.warmup:
        return settings.lr * (step + 1) / settings.warmup
    done = (step - settings.warmup) / (settings.steps - settings.warmup)
    return settings.lr * (settings.last_lr + (1 - settings.last_lr) * (1 + math.cos(math.pi * done)) / 2)


def forward(model: LanguageModel, tokens: torch.Tensor, weights: torch.dtype) -> torch.Tensor:
    """The loss, computed in float32 whatever format keeps the weights: the formats are compared, not the arithmetic."""
    if weights == torch.float32:
        loss: torch.Tensor = model(tokens)
    else:
        loss = functional_call(model, {name: param.float() for name, param in model.named_parameters()}, (tokens,))
    return loss


def train(settings: Settings, variant: Variant, seed: int, beta2: float, corpus: Corpus) -> dict[str, Any]:
    """Init and order of the data follow from `seed` alone."""
    start = time.process_time()
    model = build(settings.size, seed)
    if variant.init_change:
        change = torch.Generator().manual_seed(1000 * variant.draw + seed)
        with torch.no_grad():
            for param in model.parameters():
                param.mul_(1 + variant.init_change * torch.randn(param.shape, generator=change))
    model.to(variant.weights)
    params = list(model.parameters())
    betas = (settings.beta1, beta2)
    optimizer = variant.make(params, lr=settings.lr, betas=betas, eps=settings.eps, weight_decay=settings.weight_decay)
    # Rounded weights move in steps of their own, so there is no update to compare.
    watch = None
    if variant.weights == torch.float32:
        watch = Watch(params, betas, settings.eps, settings.weight_decay, settings.steps, settings.watch_every)
    order = torch.Generator().manual_seed(seed)
    for step in range(settings.steps):
        lr = lr_at(settings, step)
        for group in optimizer.param_groups:
            group["lr"] = lr
        tokens = windows(corpus.train, settings.batch, settings.context + 1, order)
        forward(model, tokens, variant.weights).backward()
        torch.nn.utils.clip_grad_norm_(params, settings.clip)
        if watch:
            watch.before()
        optimizer.step()
        if watch:
            watch.after(lr)
        optimizer.zero_grad()
    return {
        "variant": variant.id,
        "seed": seed,
        "beta2": beta2,
        "loss": validation_loss(settings, model, variant.weights, corpus),
        "updates": dataclasses.asdict(watch.found) if watch else None,
        "cpu_seconds": round(time.process_time() - start, 2),
    }


@torch.no_grad()
def validation_loss(settings: Settings, model: LanguageModel, weights: torch.dtype, corpus: Corpus) -> float:
    """Nats per byte over the same windows for all."""
    tokens = windows(corpus.validation, settings.validation_windows, settings.context + 1, torch.Generator().manual_seed(99))
    losses = [float(forward(model, part, weights)) * len(part) for part in tokens.split(64)]
    return sum(losses) / len(tokens)
