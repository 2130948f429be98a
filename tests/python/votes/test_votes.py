"""DistributedLion and Signum against workers simulated in plain torch: the same bits on every rank, whatever the number
of workers, the rule of ties, the weights, the format of parameters and which of them have gradients."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lowtide
import pytest
import torch
import torch.distributed as dist
import vote_jobs
from distributed_support import alike, on_ranks, shared_ranks
from lowtide.distributed import DistributedLion
from support import bits, raised
from vote_reference import SHAPES, Case, Simulation, generator

TIES = ("hash", "plus", "minus", "zero", "previous")
RULES = {
    "lion": ("lion", {"lr": 1e-2, "betas": (0.9, 0.99), "weight_decay": 0.1}),
    "signum": ("signum", {"lr": 1e-2, "momentum": 0.9, "weight_decay": 0.01}),
    "signsgd": ("signum", {"lr": 1e-2, "momentum": 0.0}),
}


def cases_of(name: str, world: int, seed: int) -> list[Case]:
    """Every rule of ties with gradients of few values, and one change of each other option."""
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
    """Control: each change in the cases above changes parameters."""
    base = dict(hyper=RULES["lion"][1], world=2, seed=seed, coarse=True)
    plain = Simulation(Case(**base)).run()
    for change in ({"ties": "plus"}, {"vote_seed": 5}, {"weights": (2, 1)}, {"rule": "signum"}, {"missing": True}):
        other = Simulation(Case(**{**base, **change})).run()
        assert any(bits(a) != bits(b) for a, b in zip(plain, other, strict=True)), change


@pytest.mark.parametrize("rule", ["lion", "signum"])
@on_ranks(2)
def test_budgets_change_no_bit(rule: str, tmp_path: Path, seed: int) -> str:
    folder = tmp_path / str(dist.get_rank())
    folder.mkdir()
    told = []
    for state in ("dynamic8", "bf16", "fp32"):
        found = []
        for memory in (None, lowtide.Memory(host="96KiB", disk=folder)):
            params = [torch.nn.Parameter(torch.ones(shape)) for shape in ((300, 400), (50, 256), (4000,), (9,))]
            opt = vote_jobs.CLASSES[rule](params, lr=1e-2, state=state, memory=memory, min_quantized_numel=0)
            for step in range(6):
                for number, param in enumerate(params):
                    random = generator(seed, dist.get_rank(), step, number)
                    param.grad = torch.randn(param.shape, generator=random) if (step + number) % 3 else None
                opt.step()
            found.append(vote_jobs.snapshot(params, opt))
        disk = opt.report()["disk_bytes"]
        assert found[0] == found[1] and disk > 10_000, state
        told.append(f"{state}: {sum(map(len, found[0]))} bytes equal with {disk} bytes on disk")
    return f"{rule} {', '.join(told)}"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("policy", ["skip", "raise", "propagate"])
@pytest.mark.parametrize("rule", ["lion", "signum"])
@on_ranks(3)
def test_gradients_that_are_not_finite(rule: str, policy: str, value: float) -> str:
    """Two good steps, one with `value` in a gradient of rank 1, one good."""
    case = Case(rule=rule, hyper={"lr": 1e-2}, world=3, steps=4)
    params, opt = vote_jobs.build(case, nonfinite=policy)

    def step(number: int, spoilt: bool = False) -> tuple[str, str]:
        vote_jobs.set_gradients(case, params, number)
        if spoilt and dist.get_rank() == 1:
            params[0].grad[3, 4] = value  # type: ignore[index]
        return raised(opt.step)

    assert [step(number)[0] for number in range(2)] == ["nothing"] * 2
    before = vote_jobs.snapshot(params, opt)
    kind, text = step(2, spoilt=True)
    assert kind == ("ValueError" if policy == "raise" else "nothing") and ("ranks [1]" in text) == (policy == "raise"), text
    if policy != "propagate":
        assert vote_jobs.snapshot(params, opt) == before and opt.last_outcome.nonfinite_ranks == [1]
    assert opt.param_groups[0]["votes"] == (3 if policy == "propagate" else 2) and opt.skipped_steps == (policy == "skip")
    step(3)
    after = alike(vote_jobs.snapshot(params))
    good = Simulation(case)
    for number in (0, 1, 3):
        good.step([[vote_jobs.gradient(case, r, number, i) for i in range(len(SHAPES))] for r in range(3)])
    assert policy == "propagate" or after == [bits(param) for param in good.params]
    return f"{rule}, {policy}, {value}: alike on 3 ranks, {opt.skipped_steps} skipped"


# One option that differs on one rank, and the word of the error that names it.
DIFFERENT: dict[str, tuple[dict[str, Any], str]] = {
    "lr": ({"lr": 3e-3}, "lr"), "betas": ({"betas": (0.8, 0.99)}, "beta"), "weight_decay": ({"weight_decay": 0.5}, "weight_decay"),
    "maximize": ({"maximize": True}, "maximize"), "nonfinite": ({"nonfinite": "propagate"}, "nonfinite"),
    "ties": ({"vote": {"ties": "plus"}}, "ties"), "seed": ({"vote": {"seed": 9}}, "seed"),
    "algorithm": ({"vote": {"algorithm": "one_phase"}}, "algorithm"), "shapes": ({}, "shapes"),
    "values": ({}, "broadcast_parameters"), "step": ({}, "step"),
}  # fmt: skip


@pytest.mark.parametrize("what", DIFFERENT)
@on_ranks(3)
def test_workers_that_differ(what: str) -> None:
    """The last rank has another option (or parameters, or steps); all go on once it has been corrected."""
    case = Case(hyper={"lr": 1e-2}, world=3)
    odd = dist.get_rank() == 2
    params, opt = vote_jobs.build(case, **(DIFFERENT[what][0] if odd else {}))
    if odd and what == "shapes":
        params = [torch.nn.Parameter(torch.randn(7, 13)), *params[1:-1], torch.nn.Parameter(torch.randn(70, 64))]
        opt = DistributedLion(params, **case.hyper, vote=case.vote(2), state="fp32")
    if odd and what == "values":
        with torch.no_grad():
            params[3].add_(1)
    for group in opt.param_groups if odd and what == "step" else ():
        group["votes"] = 5
    for number, param in enumerate(params):
        param.grad = torch.full_like(param, 1.0 + number)
    before = vote_jobs.snapshot(params)
    kind, text = raised(opt.step)
    assert kind == "ValueError" and DIFFERENT[what][1] in text and "2" in text, (kind, text)
    assert vote_jobs.snapshot(params) == before
    right = {"lr": 1e-2, "betas": (0.9, 0.99), "weight_decay": 0.0, "step": 0, "values": None}
    if what not in right:
        return
    if what == "values":
        lowtide.distributed.broadcast_parameters(params)
    for group in opt.param_groups if what != "values" else ():
        group["votes" if what == "step" else what] = right[what]
    opt.step()
