"""One training run: a variant, a seed and a beta2 give a validation loss and figures about updates."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from quality.corpus import Corpus, windows
from quality.gradients import backward_of, forward
from quality.model import Size, build
from quality.muon import is_hidden
from quality.variants import Variant, of_rule
from quality.watch import Watch

# By rule, the parameters whose updates are compared. Rounded weights have no exact update, and Prodigy's and Schedule-Free's
# updates depend on the weights.
WATCHED: dict[str, Callable[[torch.Tensor], bool]] = {"AdamW": lambda param: True, "Muon": is_hidden, "NorMuon": is_hidden}


@dataclass(frozen=True)
class Settings:
    """The settings of every run."""

    size: Size = Size()
    steps: int = 600
    batch: int = 4
    context: int = 64
    lr: float = 2e-3
    warmup: int = 40
    last_lr: float = 0.05  # share of lr at the end of a cosine
    beta1: float = 0.9
    eps: float = 1e-8
    weight_decay: float = 0.05
    clip: float = 1.0
    validation_windows: int = 1024
    watch_every: int = 5  # steps
    watch_share: int = 1  # one parameter in this many is watched
    autocast: bool = False  # matrix products of training steps in bfloat16 (torch.autocast); validation is in float32


def difference(got: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """How two sets of settings, as dicts, differ; "" for no difference."""
    names = (name for name in {**wanted, **got} if got.get(name) != wanted.get(name))
    return "; ".join(f"{name} {got.get(name)} in place of {wanted.get(name)}" for name in names)


def lr_at(settings: Settings, step: int) -> float:
    if step < settings.warmup:
        return settings.lr * (step + 1) / settings.warmup
    done = (step - settings.warmup) / (settings.steps - settings.warmup)
    return settings.lr * (settings.last_lr + (1 - settings.last_lr) * (1 + math.cos(math.pi * done)) / 2)


def train(
    settings: Settings, variant: Variant, seed: int, beta2: float, corpus: Corpus, keep: Path | None = None, device: str = "cpu"
) -> dict[str, Any]:
    """Trains once. `seed` alone determines init and order of the data, on any device. keep: the file for settings and trained
    weights, written once they are complete."""
    start = time.process_time()
    model = build(settings.size, seed)
    change(model, variant, seed)
    model.to(device, variant.weights)
    watch = None
    if variant.weights == torch.float32 and variant.rule in WATCHED:
        watched = [param for param in list(model.parameters())[:: settings.watch_share] if WATCHED[variant.rule](param)]
        exact = partial(of_rule(variant.rule)[0].make, betas=(settings.beta1, beta2), eps=settings.eps)
        watch = Watch(watched, exact, settings.weight_decay, settings.steps, settings.watch_every)
    descend(settings, model, variant, seed, beta2, corpus.train, watch)
    if keep:
        there = keep.with_suffix(f".{os.getpid()}.tmp")
        torch.save({"settings": dataclasses.asdict(settings), "weights": model.state_dict()}, there)
        there.replace(keep)
    return {
        "variant": variant.id,
        "seed": seed,
        "beta2": beta2,
        "loss": validation_loss(settings, model, variant.weights, corpus),
        "updates": dataclasses.asdict(watch.found) if watch else None,
        "cpu_seconds": round(time.process_time() - start, 2),
    }


@torch.no_grad()
def change(model: torch.nn.Module, variant: Variant, seed: int) -> None:
    """Perturbs trained weights by the small amount that the variant asks for, to make a separate run."""
    if variant.init_change:
        source = torch.Generator().manual_seed(1000 * variant.draw + seed)
        for param in trained(model):
            param.mul_(1 + variant.init_change * torch.randn(param.shape, generator=source))


def trained(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    return [param for param in model.parameters() if param.requires_grad]


def descend(
    settings: Settings, model: torch.nn.Module, variant: Variant, seed: int, beta2: float, text: torch.Tensor, watch: Watch | None = None
) -> None:
    """Takes all steps of a run. `seed` determines the order of the data."""
    if variant.rule == "Prodigy":  # it finds its rate
        settings = dataclasses.replace(settings, lr=1.0)
    params = trained(model)
    hyper = {"lr": settings.lr, "betas": (settings.beta1, beta2), "eps": settings.eps, "weight_decay": settings.weight_decay}
    optimizer = variant.make(params, **hyper)
    order = torch.Generator().manual_seed(seed)
    take_gradients = backward_of(model, variant.weights, settings.autocast, settings.batch, settings.context + 1)
    for step in range(settings.steps):
        lr = variant.lr * (settings.lr if variant.rule == "Schedule-Free" and step >= settings.warmup else lr_at(settings, step))
        for group in optimizer.param_groups:
            group["lr"] = lr
        take_gradients(windows(text, settings.batch, settings.context + 1, order))
        torch.nn.utils.clip_grad_norm_(params, settings.clip)
        if watch:
            watch.before()
        optimizer.step()
        if watch:
            watch.after(lr)
    if variant.rule == "Schedule-Free":
        optimizer.eval()  # type: ignore[attr-defined]


@torch.no_grad()
def validation_loss(settings: Settings, model: torch.nn.Module, weights: torch.dtype, corpus: Corpus) -> float:
    """Nats per byte, over the same windows for all runs."""
    tokens = windows(corpus.validation, settings.validation_windows, settings.context + 1, torch.Generator().manual_seed(99))
    device = next(model.parameters()).device
    losses = [float(forward(model, part.to(device), weights)) * len(part) for part in tokens.split(64)]
    return sum(losses) / len(tokens)
