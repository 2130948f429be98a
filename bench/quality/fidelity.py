"""Compares an optimizer's state with the averages that it represents, without a model. Gradients are generated, exact second
moments are kept in float64, and updates are compared with those by exact moments.

All parameters are rows of 256, one block of state each. In "average" and "rest", one element in 32 continues as before and
keeps its block's absmax up; the others are observed. (A block that dies as a whole decays exactly in any format, by its scale.)
Gradients are "even", of one size and random sign, or "noisy", normal. Noise moves the absmax and the values, which helps
rounding to nearest across its thresholds. A network's gradients are between the two. "beside" is "rest" with small silent
parameters beside a live one whose gradient has a mean, so that the absmax of the first moments stays up, or nearly.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from common import contenders

from quality.variants import Variant
from quality.watch import Watch

ROW = 256
LIVE = 32  # one element in this many continues
KINDS = ("even", "noisy")
LR = 1e-3


@dataclass(frozen=True)
class Sizes:
    rows: int = 8  # for each change of the gradient
    warm: float = 3.0  # the first three in units of 1 / (1 - beta2), the memory of the average
    respond: float = 1.0
    decay: float = 5.0
    rest_before: int = 200  # steps with gradients
    rest_from: int = 100  # steps without gradients: from this one ...
    rest_to: int = 3000  # ... to this one, a parameter should hardly move
    hostile: int = 500


QUICK = dataclasses.replace(Sizes(), warm=0.2, respond=0.1, decay=0.2, rest_to=120, hostile=60)
CHANGES = (0.0, 0.1, 1.0, 2.0, 10.0)  # factors of the gradients after a steady phase
BESIDE = ((1.0, 0.0), (1.0, 1.0), (0.5, 1.0), (0.3, 1.0), (0.0, 1.0))  # mean and standard deviation of live gradients


def measure(variant: Variant, beta2: float, sizes: Sizes) -> dict[str, Any]:
    """Ratios are stored / exact second moments (mean over elements). Drift and updates are in units of lr."""
    found: dict[str, Any] = {"variant": variant.id, "beta2": beta2}
    for kind in KINDS:
        found[kind] = _average(variant, beta2, sizes, kind) | _rest(variant, beta2, sizes, kind)
    found["beside"] = {f"{mean:g} ± {noise:g}": _beside(variant, beta2, sizes, mean, noise) for mean, noise in BESIDE}
    return found | {name: _largest_update(variant, beta2, sizes, name) for name in ("spread", "spike")}


def _optimizer(variant: Variant, param: torch.nn.Parameter, beta2: float) -> torch.optim.Optimizer:
    return variant.make([param], lr=LR, betas=(0.9, beta2), eps=1e-8, weight_decay=0.0)


def scales(rows: int, decades: float, source: torch.Generator) -> torch.Tensor:
    """Sizes of gradients, log-uniform below 1 within each row."""
    return 10 ** (-decades * torch.rand(rows, ROW, generator=source))


def _gradient(rows: int, kind: str, source: torch.Generator) -> torch.Tensor:
    grad = torch.randn(rows, ROW, generator=source)
    return grad.sign_() if kind == "even" else grad


def _average(variant: Variant, beta2: float, sizes: Sizes, kind: str) -> dict[str, Any]:
    """Steady gradients that suddenly become `CHANGES` times as large. Read after `respond` or, if none come, after `decay`."""
    source = torch.Generator().manual_seed(1)
    rows = sizes.rows * len(CHANGES)
    scale = scales(rows, 2, source)
    scale[:, ::LIVE] = 1.0
    factor = torch.tensor(CHANGES).repeat_interleave(sizes.rows)[:, None]
    param = torch.nn.Parameter(torch.zeros(rows, ROW))
    optimizer = _optimizer(variant, param, beta2)
    exact = torch.zeros(rows, ROW, dtype=torch.float64)
    look_back = 1 / (1 - beta2)
    warm, respond, decay = (round(times * look_back) for times in (sizes.warm, sizes.respond, sizes.decay))
    after: dict[int, torch.Tensor] = {}
    for step in range(1, warm + decay + 1):
        grad = _gradient(rows, kind, source).mul_(scale)
        if step > warm:
            grad.view(rows, -1, LIVE)[:, :, 1:] *= factor[:, :, None]
        param.grad = grad
        optimizer.step()
        exact.mul_(beta2).add_(grad.double().square(), alpha=1 - beta2)
        if step in (warm + respond, warm + decay):
            assert variant.moments is not None
            ratio = variant.moments(optimizer, param).detach().double() / exact
            ratio = ratio.reshape(rows, -1, LIVE)[:, :, 1:]
            after[step] = ratio.reshape(len(CHANGES), -1).mean(dim=1)
    responses = dict(zip(map(str, CHANGES), after[warm + respond].tolist(), strict=True))
    return {"decay": float(after[warm + decay][0]), "respond": responses}


def _rest(variant: Variant, beta2: float, sizes: Sizes, kind: str) -> dict[str, float]:
    """How far parameters drift long after their gradients have stopped."""
    source = torch.Generator().manual_seed(2)
    # "even" is also of one sign, so that the absmax of both moments is constant.
    live = (1.0, 0.0) if kind == "even" else (0.0, 1.0)
    mean, most = _drift(variant, beta2, sizes, live, torch.ones(sizes.rows * 2, ROW), source)
    return {"rest_mean": mean, "rest_max": most}


def _beside(variant: Variant, beta2: float, sizes: Sizes, mean: float, noise: float) -> list[float]:
    """The mean and largest drift of parameters whose gradients were up to two decades smaller than the live ones."""
    source = torch.Generator().manual_seed(4)
    return list(_drift(variant, beta2, sizes, (mean, noise), scales(sizes.rows * 2, 2, source), source))


def live_and_silent(scale: torch.Tensor, live: tuple[float, float], stopped: bool, source: torch.Generator) -> torch.Tensor:
    """Gradients of this scale, or zeros once they have stopped, beside live ones with this mean and deviation."""
    grad = torch.randn(scale.shape, generator=source)
    alive = grad[:, ::LIVE] * live[1] + live[0]
    grad *= 0.0 if stopped else scale
    grad[:, ::LIVE] = alive
    return grad


def _drift(
    variant: Variant, beta2: float, sizes: Sizes, live: tuple[float, float], scale: torch.Tensor, source: torch.Generator
) -> tuple[float, float]:
    """Mean and largest drift, in lr, of parameters beside live ones whose gradients have this mean and deviation."""
    param = torch.nn.Parameter(torch.zeros(scale.shape))
    optimizer = _optimizer(variant, param, beta2)
    start = param.detach().clone()
    for step in range(sizes.rest_before + sizes.rest_to):
        if step == sizes.rest_before + sizes.rest_from:
            start = param.detach().clone()
        param.grad = live_and_silent(scale, live, step >= sizes.rest_before, source)
        optimizer.step()
    drift = (param.detach() - start).abs().div_(LR).reshape(len(param), -1, LIVE)[:, :, 1:]
    return float(drift.mean()), float(drift.max())


def _largest_update(variant: Variant, beta2: float, sizes: Sizes, kind: str) -> dict[str, float]:
    """The largest update under gradients that are hard on a block: a "spread" over four decades within it, or a "spike" of 10^4
    times the others every 50 steps."""
    source = torch.Generator().manual_seed(3)
    rows = sizes.rows * 2
    scale = scales(rows, 4, source) if kind == "spread" else torch.ones(rows, ROW)
    param = torch.nn.Parameter(torch.zeros(rows, ROW))
    optimizer = _optimizer(variant, param, beta2)
    watch = Watch([param], partial(contenders.torch_fused, betas=(0.9, beta2), eps=1e-8), 0.0, sizes.hostile)
    for step in range(sizes.hostile):
        grad = torch.randn(rows, ROW, generator=source).mul_(scale)
        if kind == "spike" and step % 50 == 49:
            grad[torch.arange(rows), torch.randint(0, ROW, (rows,), generator=source)] = 1e4
        param.grad = grad
        watch.before()
        optimizer.step()
        watch.after(LR)
    return {"largest": watch.found.largest, "exact": watch.found.exact_largest}
