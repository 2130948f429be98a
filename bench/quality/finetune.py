#!/usr/bin/env python3
"""Fine-tunes a small language model with every format of state and weights: does rounding cost what is learned?

    .venv/bin/python bench/quality/finetune.py                           all missing results, then the report
    .venv/bin/python bench/quality/finetune.py --variants fp32,dynamic8  only these; the report has all results
    .venv/bin/python bench/quality/finetune.py --lr 1e-5 2e-5            at these learning rates
    .venv/bin/python bench/quality/finetune.py --scale 25M               a model with 26 M parameters
    .venv/bin/python bench/quality/finetune.py --quick                   tiny: shows that it runs, measures nothing

A model is trained on Python's source code. From this one start, every run continues with the headers of C++. Two losses are taken
afterwards: on new text (what was learned) and on the old text (what was forgotten). A seed determines the order of the data, so
runs of one seed differ only in their format. After a short warm-up the rate is constant, so every step is small.

Each result is stored at once, so a stopped run resumes there, and two runs share the work. docs/benchmarks/method.md says how
to read the figures.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import argparse  # noqa: E402
import dataclasses  # noqa: E402
import json  # noqa: E402
import statistics  # noqa: E402
import time  # noqa: E402
from collections.abc import Sequence  # noqa: E402
from datetime import date  # noqa: E402
from functools import partial  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from common import machine, results  # noqa: E402
from common.store import Store  # noqa: E402
from quality import corpus, report  # noqa: E402
from quality.gaps import analyse  # noqa: E402
from quality.model import LanguageModel, Layer, digest  # noqa: E402
from quality.run import OUT, PACKAGES, QUICK, SCALES  # noqa: E402
from quality.training import Settings, change, descend, train, trained, validation_loss  # noqa: E402
from quality.variants import VARIANTS, Variant, by_seed, makeable  # noqa: E402

BETA2 = 0.999
SLOWER = 5  # times: the default rate, compared with the highest of the training before
RANK, LORA_RATE = 16, 10.0  # of adapters; their rate is this many times that of a full fine-tune
LORA = "LoRA"  # the rule of variants that train adapters
LOSSES = ("learned", "forgotten")
HEAD = ("", "share learned", *(f"{name}{kind}" for name in LOSSES for kind in (": gap per seed, mN", ", mean ± sd", ", noise?")))
ARMS = (
    "fp32", "fp32_c", "fp32_d", "dynamic8", "float8", "dynamic4", "bnb_cpu", "bf16_nearest", "bf16_stochastic", "bf16_residual8",
    "bf16_residual16", "bf16_dynamic8", "bf16_residual8_dynamic8", "bf16_residual16_dynamic8",
)  # fmt: skip
LORA_ARMS = ("fp32", "fp32_c", "fp32_d", "dynamic8")
_KNOWN = {variant.id: variant for variant in VARIANTS}
TUNES = (
    *(_KNOWN[id] for id in ARMS),
    *(
        dataclasses.replace(_KNOWN[id], id=f"lora_{id}", label=f"LoRA, {_KNOWN[id].label}", rule=LORA, lr=LORA_RATE)
        for id in LORA_ARMS
    ),
)


class Adapted(torch.nn.Module):
    """A layer with a low-rank adapter (LoRA, arXiv 2106.09685): W x + B A x, where only A and B train. B starts at zero."""

    def __init__(self, base: torch.nn.Linear, source: torch.Generator) -> None:
        super().__init__()
        self.base = base
        self.a = torch.nn.Parameter(torch.randn(RANK, base.in_features, generator=source) * base.in_features**-0.5)
        self.b = torch.nn.Parameter(torch.zeros(base.out_features, RANK))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        whole: torch.Tensor = self.base(x) + F.linear(F.linear(x, self.a), self.b)
        return whole


def adapt(model: LanguageModel, seed: int) -> None:
    """Freezes the model and gives all matrices of its layers adapters."""
    model.requires_grad_(False)
    source = torch.Generator().manual_seed(seed)
    for layer in model.layers:
        assert isinstance(layer, Layer)
        for name in ("qkv", "out", "gate_up", "down"):
            setattr(layer, name, Adapted(getattr(layer, name), source))


@dataclasses.dataclass(frozen=True)
class Start:
    """Trained weights, and the texts before and after."""

    before: Settings
    file: Path
    old: corpus.Corpus
    new: corpus.Corpus

    def load(self) -> LanguageModel:
        model = LanguageModel(self.before.size)
        model.load_state_dict(torch.load(self.file)["weights"])
        return model

    def losses(self, settings: Settings, model: LanguageModel, weights: torch.dtype = torch.float32) -> dict[str, float]:
        return {name: validation_loss(settings, model, weights, text) for name, text in zip(LOSSES, (self.new, self.old))}


def tune(start: Start, settings: Settings, variant: Variant, seed: int) -> dict[str, Any]:
    began = time.process_time()
    model = start.load()
    if variant.rule == LORA:
        adapt(model, seed)
    change(model, variant, seed)
    model.to(variant.weights)
    descend(settings, model, variant, seed, BETA2, start.new.train)
    return {
        "variant": variant.id, "seed": seed, "beta2": BETA2, "lr": settings.lr, "trained": sum(param.numel() for param in trained(model)),
        **start.losses(settings, model, variant.weights), "cpu_seconds": round(time.process_time() - began, 2),
    }  # fmt: skip


def section(result: dict[str, Any], lr: float, rule: str) -> list[str]:
    variants = [variant for variant in TUNES if variant.rule == rule]
    runs = [run for run in result["runs"] if run["lr"] == lr]
    cells: dict[str, list[str]] = {}
    notes = []
    for name in LOSSES:
        of = [{**run, "loss": run[name], "updates": None} for run in runs]
        rows, noise, base = analyse(of, BETA2, variants)
        losses = ", ".join(f"{loss:.4f}" for _, loss in sorted(base.items()))
        known = f"; runs of one seed scatter by {noise.sigma:.2f} mN ({noise.freedom} degrees of freedom)" if noise else ""
        notes.append(f"* {name}, fp32, each seed's mean: {losses} nats per byte{known}")
        for row in rows:
            if name == "learned":
                whole = {seed: result["start"][name] - loss for seed, loss in base.items()}
                shares = [1 - gap / 1000 / whole[seed] for seed, gap in row.gaps.items()]
                cells[row.label] = [row.label, f"{statistics.fmean(shares):.3f} ({min(shares):.3f} to {max(shares):.3f})"]
            cells[row.label] += report.gap_cells(row, noise)
    return ["", f"## {rule}, lr {lr:g}", "", *notes, "", *results.table(HEAD, list(cells.values()))] if cells else []


def markdown(result: dict[str, Any]) -> str:
    settings, start = result["settings"], result["start"]
    text = [
        "# Rounding in fine-tunes",
        "",
        report.made(result),
        f"* {result['parameters']} parameters; the start loses {start['learned']:.4f} nats per byte on the new text and "
        f"{start['forgotten']:.4f} on the old (sha256 {start['sha256'][:16]}…)",
        f"* {settings['steps']} steps of {settings['batch']} x {settings['context']} bytes, β2 {BETA2}, constant lr after {settings['warmup']} "
        f"steps (LoRA of rank {RANK}: {LORA_RATE:g} times), weight decay {settings['weight_decay']}, clip {settings['clip']}",
        *(
            f"* {name} text: {of['train']} bytes to train on, {of['validation']} to validate on, sha256 {of['sha256'][:16]}…"
            for name, of in result["texts"].items()
        ),
    ]
    for lr in sorted({run["lr"] for run in result["runs"]}):
        text += [line for rule in ("AdamW", LORA) for line in section(result, lr, rule)]
    return "\n".join(text) + "\n"


def study(
    before: Settings, changes: dict[str, Any], rates: Sequence[float], variants: Sequence[Variant], texts: dict[str, corpus.Corpus], folder: Path
) -> dict[str, Any]:  # fmt: skip
    """Makes the missing results of `variants` at `rates`, and returns all results at these rates."""
    described = machine.describe(PACKAGES)
    origin = machine.origin(described)
    starts = Store(folder, {"before": dataclasses.asdict(before), "old": texts["old"].sha256}, origin)
    start = Start(before, starts.folder / "start.pt", **texts)
    starts.wanted("start", lambda: train(before, _KNOWN["fp32"], 0, 0.95, start.old, keep=start.file))
    weights = digest(start.load())
    runs = []
    for rate in rates:
        settings = dataclasses.replace(before, warmup=20, last_lr=1.0, validation_windows=128, lr=rate, **changes)
        conditions = {"tune": dataclasses.asdict(settings), "weights": weights, "new": start.new.sha256, "beta2": BETA2}
        store = Store(folder, conditions | {"rank": RANK, "lora": LORA_RATE}, origin)
        store.make_all(
            (f"tune-{variant.id}-{seed}", partial(tune, start, settings, variant, seed)) for seed, variant in by_seed(variants)
        )
        runs += [json.loads(path.read_text()) for path in sorted(store.folder.glob("tune-*.json"))]
    origins = [run.pop("made") for run in runs]  # few differ
    return {
        "date": date.today().isoformat(),
        "machine": described,
        "before": dataclasses.asdict(before),
        "settings": dataclasses.asdict(settings),
        "parameters": sum(param.numel() for param in start.load().parameters()),
        "texts": {name: corpus.describe(text) for name, text in texts.items()},
        "start": {**start.losses(settings, start.load()), "sha256": weights},
        "origins": [made for place, made in enumerate(origins) if made not in origins[:place]],
        "runs": runs,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Fine-tunes a small model with every format.")
    ids = [variant.id for variant in TUNES]
    parser.add_argument("--variants", help=f"names, separated by commas (default: {','.join(ids)})")
    parser.add_argument("--scale", choices=SCALES, default="1M", help="parameters; results of each scale are kept apart")
    parser.add_argument("--seeds", type=int, default=5, help="of each variant (0: report what is there)")
    parser.add_argument("--lr", type=float, nargs="+", help=f"of all runs (default: the rate of the scale's training / {SLOWER})")
    parser.add_argument("--text", type=Path, metavar="DIR", help="standard library of another Python, for the training before")
    parser.add_argument("--quick", action="store_true", help="tiny runs: shows that it runs, measures nothing")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of results and of finetune.{json,md}")
    args = parser.parse_args()
    names = args.variants.split(",") if args.variants else ids
    if unknown := [name for name in names if name not in ids]:
        parser.error(f"--variants: got {', '.join(unknown)}, wanted some of {', '.join(ids)}")
    if args.seeds < 0:
        parser.error(f"--seeds: got {args.seeds}, wanted 0 or more")
    torch.set_num_threads(1)
    before = QUICK if args.quick else SCALES[args.scale]
    chosen = [dataclasses.replace(variant, seeds=args.seeds) for variant in TUNES if variant.id in names]
    try:
        texts = {"old": corpus.load(args.text), "new": corpus.headers()}
    except FileNotFoundError as error:
        parser.error(str(error))
    changes = {"steps": 30 if args.quick else 300}
    result = study(before, changes, args.lr or [before.lr / SLOWER], makeable(chosen), texts, args.out)
    results.write(args.out / "finetune.json", result, results.LOSS_DIGITS)
    text = markdown(result)
    (args.out / "finetune.md").write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
