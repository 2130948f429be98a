#!/usr/bin/env python3
"""Reinforcement learning of a small language model with every format of state and weights: does rounding cost reward?

    .venv/bin/python bench/quality/rl.py                           all missing results, then the report
    .venv/bin/python bench/quality/rl.py --variants fp32,dynamic8  only these; the report has all results
    .venv/bin/python bench/quality/rl.py --quick                   tiny: shows that it runs, measures nothing

A model learns to add two numbers from examples, many of which have a wrong digit, so that about half of its sampled answers are
right. From this one start, every run continues with GRPO (arXiv 2402.03300) on its own answers: a group of answers per problem,
one step per batch, no KL term. A seed determines the problems and the random numbers that sample answers, so runs of one seed
differ only in their format.

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
import statistics  # noqa: E402
import time  # noqa: E402
from collections.abc import Sequence  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from datetime import date  # noqa: E402
from functools import partial  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from common import machine, results  # noqa: E402
from quality import report  # noqa: E402
from quality.gaps import analyse  # noqa: E402
from quality.gradients import logits  # noqa: E402
from quality.model import LanguageModel, Size, build, digest  # noqa: E402
from quality.run import OUT, PACKAGES  # noqa: E402
from common.store import Store  # noqa: E402
from quality.training import change  # noqa: E402
from quality.variants import VARIANTS, Variant, by_seed, makeable  # noqa: E402

ARMS = (
    "fp32", "fp32_c", "fp32_d", "bf16_states_nearest", "bf16_states", "bf16_states_stochastic", "dynamic8", "dynamic8_nearest",
    "bnb_cpu", "bf16_nearest", "bf16_stochastic", "bf16_residual8", "bf16_residual16", "bf16_dynamic8",
)  # fmt: skip
HEAD = ("", "right, %", "greedily", "gap per seed", "mean ± sd", "noise?")


@dataclass(frozen=True)
class Start:
    """The supervised training that all runs start from."""

    size: Size = Size(width=128, layers=2, heads=4, hidden=384)
    digits: int = 2  # of each of the two numbers
    held_out: int = 1000  # problems that only measure
    wrong: float = 0.6  # share of examples with a random digit in a random place of the answer
    steps: int = 600
    batch: int = 128
    lr: float = 2e-3


@dataclass(frozen=True)
class Settings:
    """The settings of every run."""

    start: Start = Start()
    updates: int = 800
    problems: int = 8  # per update
    answers: int = 8  # per problem, a group
    lr: float = 3e-5
    warmup: int = 10
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip: float = 1.0
    measured_every: int = 200  # updates


QUICK = Settings(
    Start(Size(width=64, layers=1, hidden=64, pairs=256), digits=1, held_out=20, steps=150, batch=64, lr=5e-3),
    updates=10, lr=1e-3, measured_every=5,
)  # fmt: skip


def sums(start: Start) -> tuple[torch.Tensor, torch.Tensor]:
    """All problems with their answers, "47+85=132", as bytes: those to train on and those held out, in a fixed random order."""
    ends = range(10**start.digits)
    texts = [f"{a:0{start.digits}}+{b:0{start.digits}}={a + b:0{start.digits + 1}}" for a in ends for b in ends]
    order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(0))
    rows = torch.tensor([list(text.encode()) for text in texts])[order]
    return rows[start.held_out :], rows[: start.held_out]


def losses(model: LanguageModel, rows: torch.Tensor, weights: torch.dtype, digits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss of each byte of the answers in `rows`, in nats, and whether it is the likeliest: each (rows, digits + 1)."""
    found = logits(model, rows[:, :-1], weights)[:, -digits - 1 :]
    wanted = rows[:, -digits - 1 :]
    return F.cross_entropy(found.transpose(1, 2), wanted, reduction="none"), found.argmax(-1) == wanted


@torch.no_grad()
def success(model: LanguageModel, rows: torch.Tensor, weights: torch.dtype, digits: int) -> dict[str, float]:
    """The probability that a sampled answer is right, and the share of greedy answers that are: computed, not sampled."""
    nats, likeliest = losses(model, rows, weights, digits)
    return {"right": float((-nats.sum(-1)).exp().mean()), "greedy": float(likeliest.all(-1).float().mean())}


def begin(start: Start, file: Path) -> dict[str, Any]:
    """Trains on examples and writes the weights to `file`."""
    began = time.process_time()
    rows, held_out = sums(start)
    model = build(start.size, 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=start.lr, fused=True)
    order = torch.Generator().manual_seed(0)
    for step in range(start.steps):
        optimizer.param_groups[0]["lr"] = start.lr * (1 - step / start.steps)
        shown = rows[torch.randint(len(rows), (start.batch,), generator=order)]
        places = torch.randint(-start.digits - 1, 0, (start.batch, 1), generator=order)
        digits = torch.randint(ord("0"), ord("9") + 1, (start.batch, 1), generator=order)
        wrong = torch.rand(start.batch, 1, generator=order) < start.wrong
        shown = torch.where(wrong, shown.scatter(1, places % rows.shape[1], digits), shown)
        nats, _ = losses(model, shown, torch.float32, start.digits)
        optimizer.zero_grad()
        nats.mean().backward()
        optimizer.step()
    temporary = file.with_suffix(".tmp")
    torch.save(model.state_dict(), temporary)
    temporary.replace(file)
    found = success(model, held_out, torch.float32, start.digits)
    return {**found, "sha256": digest(model), "cpu_seconds": round(time.process_time() - began, 2)}


@torch.no_grad()
def answered(
    model: LanguageModel, problems: torch.Tensor, weights: torch.dtype, digits: int, order: torch.Generator
) -> torch.Tensor:
    """Rows of problems with sampled answers. Each byte takes one random number, whatever the policy: runs of one seed answer
    alike until their policies differ."""
    for _ in range(digits + 1):
        chances = logits(model, problems, weights)[:, -1].softmax(-1).double().cumsum(-1)
        drawn = torch.rand(len(problems), 1, generator=order, dtype=torch.float64) * chances[:, -1:]
        problems = torch.cat((problems, torch.searchsorted(chances, drawn, right=True).clamp_(max=chances.shape[1] - 1)), dim=1)
    return problems


def policy_loss(
    model: LanguageModel, tried: torch.Tensor, rewards: torch.Tensor, weights: torch.dtype, digits: int
) -> torch.Tensor:
    """GRPO's. `rewards` (problems, answers) count in standard deviations of their group, and as 0 in a group of equal ones."""
    advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-6)
    nats, _ = losses(model, tried, weights, digits)
    return (nats * advantages.view(-1, 1)).mean()


def reinforce(settings: Settings, start: Path, variant: Variant, seed: int) -> dict[str, Any]:
    """One run. `loss` is the share of wrong sampled answers to held-out problems."""
    began = time.process_time()
    digits = settings.start.digits
    rows, held_out = sums(settings.start)
    model = build(settings.start.size, 0)
    model.load_state_dict(torch.load(start))
    change(model, variant, seed)
    model.to(variant.weights)
    params = list(model.parameters())
    hyper = {"lr": settings.lr, "betas": settings.betas, "eps": settings.eps, "weight_decay": settings.weight_decay}
    optimizer = variant.make(params, **hyper)
    order = torch.Generator().manual_seed(seed)
    curve = [success(model, held_out, variant.weights, digits)["right"]]
    for update in range(settings.updates):
        for group in optimizer.param_groups:
            group["lr"] = settings.lr * min(1.0, (update + 1) / settings.warmup)
        chosen = rows[torch.randint(len(rows), (settings.problems,), generator=order)].repeat_interleave(settings.answers, 0)
        tried = answered(model, chosen[:, : -digits - 1], variant.weights, digits, order)
        rewards = (tried == chosen).all(-1).float().view(settings.problems, settings.answers)
        model.zero_grad()
        policy_loss(model, tried, rewards, variant.weights, digits).backward()
        torch.nn.utils.clip_grad_norm_(params, settings.clip)
        optimizer.step()
        if (update + 1) % settings.measured_every == 0:
            curve.append(success(model, held_out, variant.weights, digits)["right"])
    end = success(model, held_out, variant.weights, digits)
    return {
        "variant": variant.id, "seed": seed, "beta2": settings.betas[1], "loss": 1 - end["right"], "updates": None, **end,
        "curve": [round(each, 4) for each in curve], "cpu_seconds": round(time.process_time() - began, 2),
    }  # fmt: skip


def markdown(result: dict[str, Any]) -> str:
    runs, settings, start = result["runs"], result["settings"], result["start"]
    rows, noise, _ = analyse(runs, settings["betas"][1], [variant for variant in VARIANTS if variant.id in ARMS])
    cells = []
    for row in rows:
        own = [run for run in runs if run["variant"] == row.id]
        shares = [f"{100 * statistics.fmean(run[key] for run in own):.1f}" for key in ("right", "greedy")]
        cells.append([row.label, *shares, *report.gap_cells(row, noise)])
    known = f" fp32 runs of one seed scatter by {noise.sigma:.1f} ({noise.freedom} degrees of freedom)." if noise else ""
    text = [
        "# Rounding in reinforcement learning",
        "",
        report.made(result),
        f"* {result['parameters']} parameters; the start answers {100 * start['right']:.1f} % of the held-out problems, greedily "
        f"{100 * start['greedy']:.1f} % (sha256 {start['sha256'][:16]}…)",
        f"* {settings['updates']} updates of {settings['problems']} problems x {settings['answers']} answers, lr {settings['lr']}, betas "
        f"{settings['betas']}, weight decay {settings['weight_decay']}, clip {settings['clip']}",
        "",
        f"Right: of sampled answers to held-out problems, at the end. Gaps: wrong answers in a thousand, minus fp32's.{known}",
        "",
        *results.table(HEAD, cells),
    ]
    return "\n".join(text) + "\n"


def study(settings: Settings, variants: Sequence[Variant], folder: Path) -> dict[str, Any]:
    """Makes the missing results of `variants`, and returns all results."""
    described = machine.describe(PACKAGES)
    origin = machine.origin(described)
    starts = Store(folder, {"start": dataclasses.asdict(settings.start)}, origin)
    file = starts.folder / "start.pt"
    start = starts.wanted("start", partial(begin, settings.start, file))
    store = Store(folder, {"settings": dataclasses.asdict(settings), "start": start["sha256"]}, origin)
    store.make_all(
        (f"rl-{variant.id}-{seed}", partial(reinforce, settings, file, variant, seed)) for seed, variant in by_seed(variants)
    )
    found = (store.get(f"rl-{id}-{seed}") for id in ARMS for seed in range(max(variant.seeds for variant in VARIANTS)))
    return {
        "date": date.today().isoformat(),
        "machine": described,
        "settings": dataclasses.asdict(settings),
        "parameters": sum(param.numel() for param in build(settings.start.size, 0).parameters()),
        "start": start,
        "runs": [run for run in found if run],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Reinforces a small model with every format.")
    parser.add_argument("--variants", help=f"names, separated by commas (default: {','.join(ARMS)})")
    parser.add_argument("--seeds", type=int, default=6, help="of each variant (0: report what is there)")
    parser.add_argument("--lr", type=float, help="of all runs; results of another one are kept apart")
    parser.add_argument("--quick", action="store_true", help="tiny runs: shows that it runs, measures nothing")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of results and of rl.{json,md}")
    args = parser.parse_args()
    names = args.variants.split(",") if args.variants else list(ARMS)
    if unknown := [name for name in names if name not in ARMS]:
        parser.error(f"--variants: got {', '.join(unknown)}, wanted some of {', '.join(ARMS)}")
    if args.seeds < 0:
        parser.error(f"--seeds: got {args.seeds}, wanted 0 or more")
    torch.set_num_threads(1)
    settings = QUICK if args.quick else Settings()
    settings = dataclasses.replace(settings, lr=args.lr or settings.lr)
    chosen = [dataclasses.replace(variant, seeds=args.seeds) for variant in VARIANTS if variant.id in names]
    result = study(settings, makeable(chosen), args.out)
    results.write(args.out / "rl.json", result, results.LOSS_DIGITS)
    text = markdown(result)
    (args.out / "rl.md").write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
