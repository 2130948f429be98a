"""Fine-tunes a model that was trained on Python's source on the headers of C++, with every format of state and weights.

Two losses are taken afterwards: on new text, what was learned, and on the old, what was forgotten. Each run differs from
others by the order of its data and nothing else, and is compared with float32 at the same order. The rate is constant after
a short warm-up, so that a weight's format meets small steps from the first to the last.
"""

from __future__ import annotations

import dataclasses
import hashlib
import pickle
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
from quality.lora import RANK, adapt
from quality.model import LanguageModel
from quality.store import Store
from quality.training import Settings, change, descend, difference, train, trained, validation_loss
from quality.tunes import TUNES
from quality.variants import VARIANTS, Variant, by_seed, makeable, why_not

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
        return {
            "tune": dataclasses.asdict(settings), "weights": digest, "old": self.old.sha256, "new": self.new.sha256,
            "beta2": BETA2, "lora": {"rank": RANK, "rate": LORA_RATE},
        }  # fmt: skip


def settings_of(before: Settings, **options: Any) -> Settings:
    same = {name: getattr(before, name) for name in SAME}
    tuned = {"steps": 300, "lr": before.lr / RATE, "warmup": 20, "last_lr": 1.0, "validation_windows": 128}
    return Settings(**same, **{**tuned, **options})


def prepare(weights: Path, before: Settings, train_first: bool) -> Start:
    """Trains the weights if they are not there and `train_first`. FileNotFoundError if they are not there then; ValueError for those
    of another model or, as far as the file tells, of another training."""
    start = Start(weights, before, corpus.load(), corpus.headers())
    if not weights.exists() and train_first:
        if not weights.parent.is_dir():
            raise FileNotFoundError(f"{weights}: got a folder that is not there, wanted one to keep the weights in")
        print(f"{weights}: not there, trained first", file=sys.stderr, flush=True)
        train(before, VARIANTS[0], 0, 0.95, start.old, keep=weights)
    load(start)
    return start


def load(start: Start) -> LanguageModel:
    model = LanguageModel(start.before.size)
    try:
        kept = torch.load(start.weights, weights_only=True)
        model.load_state_dict(kept["weights"] if "settings" in kept else kept)
    except (RuntimeError, pickle.UnpicklingError, KeyError, TypeError, AttributeError, EOFError) as error:
        got = str(error).partition("\n")[0]
        raise ValueError(f"{start.weights}: got {got}, wanted weights of this study's model of width {start.before.size.width}") from error
    wanted = dataclasses.asdict(start.before)
    if other := difference(kept.get("settings", wanted), wanted):
        raise ValueError(f"{start.weights}: got weights of another training ({other}), wanted another file or --scale")
    return model


def tune(settings: Settings, start: Start, variant: Variant, order: int) -> dict[str, Any]:
    begun = time.process_time()
    model = load(start)
    if variant.lora:
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
    store.make("start", lambda: losses(settings, start, load(start)))
    store.make_all((run_name(variant, order), partial(tune, settings, start, variant, order)) for order, variant in by_seed(makeable(variants)))


def collect(settings: Settings, start: Start, store: Store, packages: list[str]) -> dict[str, Any]:
    """All stored results, as one report."""
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
