"""DistributedLion and Signum against workers simulated in plain torch: the same bits on every rank, whatever the number
of workers, the rule of ties, the weights, the format of parameters and which of them have gradients."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import vote_jobs
from distributed_support import shared_ranks
from support import bits
from vote_reference import SHAPES, Case, Simulation

TIES = ("hash", "plus", "minus", "zero", "previous")
RULES = {
    "lion": ("lion", {"lr": 1e-2, "betas": (0.9, 0.99), "weight_decay": 0.1}),
    "signum": ("signum", {"lr": 1e-2, "momentum": 0.9, "weight_decay": 0.01}),
    "signsgd": ("signum", {"lr": 1e-2, "momentum": 0.0}),
}


def cases_of(name: str, world: int, seed: int) -> list[Case]:
    """Every rule of ties with gradients of few values, and one change each of the rest."""
    rule, hyper = RULES[name]
    base = {"rule": rule, "hyper": hyper, "world": world, "seed": seed}
    cases = [Case(**base, ties=ties, coarse=True, vote_seed=seed % 1000) for ties in TIES]
    unequal = tuple(itertools.islice(itertools.cycle((3, 1, 0, 2)), world))
    cases += [
        Case(**base),
        Case(**base, weights=unequal, coarse=True, ties="zero"),
        Case(**base, dtype=torch.bfloat16),
        Case(**base, dtype=torch.float16, coarse=True),
        Case(**base, missing=True),
        Case(**base, missing=True, coarse=True, algorithm="one_phase", ties="previous"),
        Case(**base, algorithm="auto", coarse=True),
        Case(**base, decaying=True, options={"maximize": False}),
    ]
    return cases


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("name", RULES)
def test_bits_of_a_simulation(name: str, world: int, seed: int, figure: Callable[[str], None]) -> None:
    cases = cases_of(name, world, seed)
    answers = shared_ranks().run(world, vote_jobs.train_all, cases)
    ties = compared = 0
    for number, case in enumerate(cases):
        simulation = Simulation(case)
        wanted = [bits(param) for param in simulation.run()]
        for rank in range(world):
            found = answers[rank][number]
            wrong = [SHAPES[i] for i, pair in enumerate(zip(found, wanted, strict=True)) if pair[0] != pair[1]]
            assert not wrong, f"rank {rank}, parameters {wrong}, {case}"
            compared += sum(map(len, found))
        ties += simulation.ties
    assert compared > 100_000 and (ties > 1000 or world % 2)
    figure(f"{len(cases)} cases, {world} workers: {compared} bytes equal; {ties} ties")


def test_every_option_matters(seed: int) -> None:
    """Control: what the cases above change changes parameters."""
    base = dict(hyper=RULES["lion"][1], world=2, seed=seed, coarse=True)
    plain = Simulation(Case(**base)).run()
    for change in ({"ties": "plus"}, {"vote_seed": 5}, {"weights": (2, 1)}, {"rule": "signum"}, {"missing": True}):
        other = Simulation(Case(**{**base, **change})).run()
        assert any(bits(a) != bits(b) for a, b in zip(plain, other, strict=True)), change


@pytest.mark.parametrize("rule", ["lion", "signum"])
def test_budgets_change_no_bit(rule: str, tmp_path: Path, seed: int, figure: Callable[[str], None]) -> None:
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
    case = Case(rule=rule, hyper={"lr": 1e-2}, world=2, seed=seed, missing=True)
    states = ("dynamic8", "bf16", "fp32")
    for answers in shared_ranks().run(2, vote_jobs.budgets, case, str(tmp_path), states):
        for state, (free, tight, disk) in zip(states, answers, strict=True):
            assert free == tight and disk > 10_000, state
            figure(f"{rule} {state}: {sum(map(len, free))} bytes equal with {disk} bytes on disk")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("policy", ["skip", "raise", "propagate"])
@pytest.mark.parametrize("rule", ["lion", "signum"])
def test_gradients_that_are_not_finite(rule: str, policy: str, value: float, figure: Callable[[str], None]) -> None:
    case = Case(rule=rule, hyper={"lr": 1e-2}, world=3, steps=4)
    answers = shared_ranks().run(3, vote_jobs.not_finite, case, policy, 1, value)
    good = Simulation(case)
    for step in (0, 1, 3):
        good.step([[vote_jobs.gradient(case, r, step, i) for i in range(len(SHAPES))] for r in range(3)])
    for found in answers:
        assert found["after"] == answers[0]["after"]
        if policy == "propagate":
            assert found["raised"] == "nothing" and found["skipped"] == 0 and found["votes"] == 3
            continue
        assert found["raised"] == {"skip": "nothing", "raise": "ValueError"}[policy], found["text"]
        assert found["untouched"] and found["votes"] == 2 and found["ranks"] == [1]
        assert found["skipped"] == (policy == "skip")
        assert "ranks [1]" in found["text"] or policy == "skip"
        assert found["after"] == [bits(param) for param in good.params]
    figure(f"{rule}, {policy}, {value}: alike on 3 ranks, {answers[0]['skipped']} skipped")


WORDS = {
    "lr": "lr", "betas": "beta", "weight_decay": "weight_decay", "maximize": "maximize", "nonfinite": "nonfinite",
    "ties": "ties", "seed": "seed", "algorithm": "algorithm", "shapes": "shapes", "values": "broadcast_parameters",
    "step": "step",
}  # fmt: skip


@pytest.mark.parametrize("what", WORDS)
def test_workers_that_differ(what: str) -> None:
    case = Case(hyper={"lr": 1e-2}, world=3)
    for kind, text, untouched, after in shared_ranks().run(3, vote_jobs.differ, case, what):
        assert kind == "ValueError" and WORDS[what] in text and "2" in text, (kind, text)
        assert untouched and after in ("nothing", "not tried"), after
