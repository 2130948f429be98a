"""A search for gradients that make an update as large as can be: hill climbing over sequences, for any Adam.

Each candidate is a block of 256 values: one is the target, another a companion that sets the scale of the block. The
search begins with the sequences that are worst for exact Adam, gradients that grow by beta2 / beta1 a step. Step counts
begin high, where bias corrections have gone. For exact Adam no sequence gives more than BOUND (Cauchy's inequality):
|m| <= sqrt(v) (1 - beta1) / sqrt((1 - beta2) (1 - beta1^2 / beta2))."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

BETAS = (0.9, 0.999)
BOUND = (1 - BETAS[0]) / math.sqrt((1 - BETAS[1]) * (1 - BETAS[0] ** 2 / BETAS[1]))
BLOCK, CANDIDATES, STEPS, LR = 256, 64, 48, 2.0**-7
LATE = 20_000  # steps: 0.999^20000 is 2e-9

Run = Callable[[torch.Tensor], torch.Tensor]


def run_of(make: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]) -> Run:
    """gradients [STEPS, CANDIDATES, BLOCK] -> the largest update of each candidate, in units of lr."""

    def run(gradients: torch.Tensor) -> torch.Tensor:
        p = torch.nn.Parameter(torch.zeros(gradients.shape[1:]))
        optimizer = make([p])
        p.grad = torch.zeros_like(p)
        optimizer.step()
        saved = optimizer.state_dict()
        step = saved["state"][0]["step"]
        saved["state"][0]["step"] = step * 0 + LATE
        optimizer.load_state_dict(saved)
        worst = torch.zeros(gradients.shape[1])
        for gradient in gradients:
            before = p.detach().clone()
            p.grad = gradient.clone()
            optimizer.step()
            worst = worst.maximum((p.detach() - before).abs().amax(dim=1) / LR)
            with torch.no_grad():
                p.zero_()  # the next difference is exact
        return worst

    return run


def climb(run: Run, rounds: int) -> float:
    """The largest update found, in units of lr."""
    random = torch.Generator().manual_seed(5)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random)

    def gradients(logs: torch.Tensor, signs: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(STEPS, CANDIDATES, BLOCK)
        out[:, :, :2] = (2.0**logs * signs).permute(1, 0, 2)
        return out

    growth = torch.arange(STEPS) * math.log2(BETAS[1] / BETAS[0])
    logs = torch.stack([growth.expand(CANDIDATES, STEPS), normal(CANDIDATES, 1).expand(-1, STEPS) * 6], dim=2).clone()
    logs[CANDIDATES // 2 :] += normal(CANDIDATES // 2, STEPS, 2)
    signs = torch.ones_like(logs)
    best = run(gradients(logs, signs))
    for number in range(rounds):
        size = 4 * 0.9**number + 0.1
        touched = torch.rand(logs.shape, generator=random) < 0.2
        tried = (logs + size * normal(*logs.shape) * touched).clamp(-30, 20)
        turned = signs * (1 - 2 * (torch.rand(logs.shape, generator=random) < 0.02))
        found = run(gradients(tried, turned))
        better = found > best
        logs[better], signs[better], best[better] = tried[better], turned[better], found[better]
        if number % 8 == 7:  # the worse half begins again from the better one
            order = best.argsort(descending=True)
            half = CANDIDATES // 2
            for tensor in (logs, signs, best):
                tensor[order[half:]] = tensor[order[:half]]
    return float(best.max())
