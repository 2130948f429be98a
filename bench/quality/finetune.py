"""Fine-tunes a model that was trained on Python's source on the headers of C++, with every format of state and weights.

Two losses are taken afterwards: on new text, what was learned, and on the old, what was forgotten. Each run differs from
others by the order of its data and nothing else, and is compared with float32 at the same order. The rate is constant after
a short warm-up, so that a weight's format meets small steps from the first to the last.
"""

from __future__ import annotations

import dataclasses
import hashlib
import sys
import time
from collections.abc import Sequence
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch
from common import machine

from quality import corpus
from quality.lora import adapt
from quality.model import LanguageModel
from quality.store import Store
from quality.training import Settings, change, descend, train, trained, validation_loss
from quality.tunes import LORA, TUNES
from quality.variants import VARIANTS, Variant, why_not

BETA2 = 0.999
RATE = 5  # times lower than the highest before
LORA_RATE = 10  # times the rate of a full fine-tune
SAME = ("size", "batch", "context", "eps", "autocast")  # as before the fine-tune


@dataclasses.dataclass(frozen=True)
class Start:
    """Weights to start from, and the texts."""

    weights: Path
    before: Settings  # of the training that made the weights
    old: corpus.Corpus
    new: corpus.Corpus

    def conditions(self, settings: Settings) -> dict[str, Any]:
        digest = hashlib.sha256(self.weights.read_bytes()).hexdigest()
        return {"tune": dataclasses.asdict(settings), "weights": digest, "old": self.old.sha256, "new": self.new.sha256}


def settings_of(before: Settings, **options: Any) -> Settings:
    same = {name: getattr(before, name) for name in SAME}
    tuned = {"steps": 300, "lr": before.lr / RATE, "warmup": 20, "last_lr": 1.0, "validation_windows": 128}
    return Settings(**same, **{**tuned, **options})


def prepare(weights: Path, before: Settings) -> Start:
    """Trains the weights first if they are not there."""
    start = Start(weights, before, corpus.load(), corpus.headers())
    if not weights.exists():
        print(f"{weights}: not there, trained first", file=sys.stderr, flush=True)
        train(before, VARIANTS[0], 0, 0.95, start.old, keep=weights)
    return start


def load(start: Start) -> LanguageModel:
    model = LanguageModel(start.before.size)
    model.load_state_dict(torch.load(start.weights, weights_only=True))
    return model


def tune(settings: Settings, start: Start, variant: Variant, order: int) -> dict[str, Any]:
    begun = time.process_time()
    model = load(start)
    if variant.rule == LORA:
        adapt(model, order)
        settings = dataclasses.replace(settings, lr=settings.lr * LORA_RATE)
    change(model, variant, order)
    model.to(variant.weights)
    descend(settings, model, variant, order, BETA2, start.new.train)
    return {
        "variant": variant.id,
        "seed": order,
        "beta2": BETA2,
        "trained": sum(param.numel() for param in trained(model)),
        **losses(settings, start, model, variant.weights),
        "cpu_seconds": round(time.process_time() - begun, 2),
    }


def losses(settings: Settings, start: Start, model: LanguageModel, weights: torch.dtype = torch.float32) -> dict[str, float]:
    texts = {"learned": start.new, "forgotten": start.old}
    return {name: validation_loss(settings, model, weights, text) for name, text in texts.items()}


def run_name(variant: Variant, order: int) -> str:
    return f"tune-{variant.id}-{order}"


def run_all(variants: Sequence[Variant], settings: Settings, start: Start, store: Store) -> None:
    """Every variant at one order before the next order: what is stopped early has compared them all."""
    reasons = {variant.id: why_not(variant) for variant in variants}
    for id, reason in reasons.items():
        if reason:
            print(f"{id}: left out: {reason}", file=sys.stderr)
    for order in range(max(variant.seeds for variant in variants)):
        for variant in variants:
            if reasons[variant.id] or order >= variant.seeds:
                continue
            name = run_name(variant, order)
            if store.make(name, partial(tune, settings, start, variant, order)):
                print(f"{name}: {store.get(name)}", file=sys.stderr, flush=True)


def collect(settings: Settings, start: Start, store: Store, packages: list[str]) -> dict[str, Any]:
    """All stored results, as one report."""
    store.make("start", lambda: losses(settings, start, load(start)))
    names = [run_name(variant, order) for variant in TUNES for order in range(variant.seeds)]
    runs = [found for name in names if (found := store.get(name))]
    done = {run["variant"] for run in runs}
    texts = {"old": start.old, "new": start.new}
    return {
        "date": date.today().isoformat(),
        "machine": machine.describe(packages),
        "before": dataclasses.asdict(start.before),
        "settings": dataclasses.asdict(settings),
        "weights": start.conditions(settings)["weights"],
        "parameters": sum(param.numel() for param in load(start).parameters()),
        "texts": {name: corpus.describe(text) for name, text in texts.items()},
        "start": store.get("start"),
        "absent": {variant.id: why_not(variant) or "not run yet" for variant in TUNES if variant.id not in done},
        "runs": runs,
    }
