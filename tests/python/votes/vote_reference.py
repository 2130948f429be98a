"""W workers of a voting optimizer simulated in one process, in plain torch: gradients that every process can compute,
state in float32, counts of votes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from lowtide import sign

# Odd sizes, several blocks with a ragged end, no dimension, no elements.
SHAPES = ((7, 13), (1000,), (3, 65), (), (0, 5), (64, 70))
BLOCK, ALIGNMENT = 64, 1024


@dataclass
class Case:
    rule: str = "lion"  # or "signum"
    hyper: dict[str, Any] = field(default_factory=dict)
    world: int = 2
    steps: int = 6
    seed: int = 0
    dtype: torch.dtype = torch.float32
    ties: str = "hash"
    vote_seed: int = 0
    weights: tuple[int, ...] = ()  # of ranks; (): each 1
    algorithm: str = "two_phase"
    options: dict[str, Any] = field(default_factory=dict)
    missing: bool = False  # some parameters have no gradient on some ranks, one on none
    coarse: bool = False  # gradients of few values: ties and zeros everywhere
    decaying: bool = False  # the learning rate halves every step

    def weight(self, rank: int) -> int:
        return self.weights[rank] if self.weights else 1

    def vote(self, rank: int) -> dict[str, Any]:
        return {
            "ties": self.ties, "seed": self.vote_seed, "weight": self.weight(rank), "algorithm": self.algorithm,
        }  # fmt: skip


def generator(*of: int) -> torch.Generator:
    number = 0
    for each in of:
        number = (number * 1_000_003 + each + 17) % 2**62
    return torch.Generator().manual_seed(number)


def initial(case: Case) -> list[torch.Tensor]:
    return [torch.randn(shape, generator=generator(case.seed, i)).to(case.dtype) for i, shape in enumerate(SHAPES)]


def gradient(case: Case, rank: int, step: int, number: int) -> torch.Tensor | None:
    if case.missing and (number == 2 or (number + rank + step) % 3 == 0):
        return None
    random = generator(case.seed, rank, step, number, 5)
    if case.coarse:
        values = torch.randint(-1, 2, SHAPES[number], generator=random).float()
        if values.numel() > 2 * BLOCK:  # a block that is zero on all ranks, and one that is so on some
            flat = values.view(-1)
            flat[:BLOCK] = 0
            if rank % 2:
                flat[BLOCK : 2 * BLOCK] = 0
        return values.to(case.dtype)
    return torch.randn(SHAPES[number], generator=random).to(case.dtype)


def f32(x: float) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float32)


def aligned(numel: int) -> int:
    return -(-numel // ALIGNMENT) * ALIGNMENT


def tie_bits(count: int, seed: int, step: int) -> torch.Tensor:
    """+1 and -1: what two voters who disagree about everything come to."""
    full = torch.full((count // 8,), 255, dtype=torch.uint8)
    return sign.unpack(sign.majority([full, ~full], count, ties="hash", seed=seed, step=step), count)


def elect(
    ballots: list[torch.Tensor | None], weights: list[int], zero_is_plus: bool, tie: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """The vote on one parameter, by counting: the result (+1, -1, and 0 without votes or as `tie` says), where anyone
    voted, and the number of ties."""
    numel = tie.numel()
    total, votes = torch.zeros(numel, dtype=torch.int64), torch.zeros(numel, dtype=torch.int64)
    for ballot, weight in zip(ballots, weights, strict=True):
        if ballot is None:
            continue
        c = ballot.reshape(-1)
        blocks = torch.nn.functional.pad(c != 0, (0, -numel % BLOCK)).view(-1, BLOCK)
        live = blocks.any(1).repeat_interleave(BLOCK)[:numel]
        total += torch.where((c > 0) | ((c == 0) & zero_is_plus), 1, -1) * live * weight
        votes += live * weight
    tied = (votes > 0) & (total == 0)
    return torch.where(tied, tie, torch.sign(total.float())), votes > 0, int(tied.sum())


class Simulation:
    """All ranks; each must have `params`."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.params = initial(case)
        self.momenta = [[torch.zeros(shape) for shape in SHAPES] for _ in range(case.world)]
        self.count = sum(aligned(param.numel()) for param in self.params)
        self.previous = [torch.full((p.numel(),), -1.0) for p in self.params]
        self.ties = 0  # of signs, so far: for controls
        self.lr = case.hyper.get("lr", 1e-4)
        self.step_number = 0

    def direction(self, rank: int, number: int, grad: torch.Tensor) -> torch.Tensor:
        m, g, hyper = self.momenta[rank][number], grad.float(), self.case.hyper
        if self.case.rule == "lion":
            beta1, beta2 = hyper.get("betas", (0.9, 0.99))
            c = m * f32(beta1) + g * f32(1 - beta1)
            m.copy_(m * f32(beta2) + g * f32(1 - beta2))
            return c
        beta = hyper.get("momentum", 0.9)
        if beta == 0:
            return g
        m.copy_(m * f32(beta) + g * f32(1 - beta))
        return m

    def step(self, gradients: list[list[torch.Tensor | None]]) -> None:
        """gradients: by rank, then by parameter."""
        case, first = self.case, 0
        weights = [case.weight(rank) for rank in range(case.world)]
        for number, param in enumerate(self.params):
            numel = param.numel()
            ballots = [
                None if grads[number] is None else self.direction(rank, number, grads[number])
                for rank, grads in enumerate(gradients)
            ]
            if case.ties == "hash":
                tie = tie_bits(self.count, case.vote_seed, self.step_number)[first : first + numel]
            elif case.ties == "previous":
                tie = self.previous[number]
            else:
                tie = torch.full((numel,), {"plus": 1.0, "minus": -1.0, "zero": 0.0}[case.ties])
            result, live, tied = elect(ballots, weights, self.step_number % 2 == 0, tie)
            self.ties += tied
            self.previous[number] = torch.where(result > 0, 1.0, -1.0)
            p = param.reshape(-1).float()
            decay = f32(self.lr * case.hyper.get("weight_decay", 0.0))
            moved = p - (p * decay + f32(self.lr) * result)
            param.copy_(torch.where(live, moved, p).to(param.dtype).view(param.shape))
            first += aligned(numel)
        self.step_number += 1

    def run(self) -> list[torch.Tensor]:
        case = self.case
        for step in range(case.steps):
            if case.decaying:
                self.lr = case.hyper["lr"] * 0.5**step
            self.step([[gradient(case, r, step, i) for i in range(len(SHAPES))] for r in range(case.world)])
        return self.params
