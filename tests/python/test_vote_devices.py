"""Votes of parameters on a device: the bits of the CPU's, for workers of gloo that each have a device of their own.

Torch's part of a device is a stand-in (stand_in.py), so this shows what Lowtide's kernels and copies do, and nothing of
torch's streams. The CPU's votes are compared with plain torch elsewhere (test_votes.py)."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
import vote_device_jobs as jobs
from distributed_support import shared_ranks
from emulated_cuda import prepare
from stand_in import missing
from support import DTYPES

Figure = Callable[[str], None]
TIES = ("hash", "plus", "minus", "zero", "previous")
MOST = {"xpu": 1200, "cuda": 600}  # votes on tensors
PASSES = {"xpu": 100, "cuda": 40}  # of each hook
CASES = {"xpu": 160, "cuda": 60}  # of each number of workers; votes are three times as many
SIZES = (0, 1, 7, 8, 63, 64, 65, 511, 1000, 1023, 1024, 1025, 2049)


@pytest.fixture(params=["xpu", "cuda"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, figure: Figure) -> str:
    """A kind of device that the workers can have; skipped, with the reason, where there is none."""
    reason = prepare(monkeypatch) if request.param == "cuda" else missing("sycl")
    if reason:
        figure(f"skipped: {reason}")
        pytest.skip(reason)
    return str(request.param)


def cases_of(seed: int, count: int) -> list[jobs.Case]:
    """Every rule of ties with every type, and the rest at random."""
    choose = random.Random(seed)
    cases = []
    for number, (ties, dtype) in zip(range(count), itertools.cycle(itertools.product(TIES, DTYPES)), strict=False):
        rule = choose.choice(("lion", "signum"))
        momentum, spoilt = choose.choice((0.0, 0.9)), number % 5 == 1
        sizes = [choose.choice(SIZES) for _ in range(choose.randint(1, 3))] + [65] * spoilt
        cases.append(
            jobs.Case(
                seed=seed % 2**20 * 1000 + number, rule=rule, ties=ties, dtype=dtype, weighted=choose.random() < 0.3,
                state=choose.choice(("fp32", "bf16", "dynamic8")), momentum=momentum,
                shapes=tuple((size,) for size in sizes),
                folds=2 if rule == "signum" and momentum and choose.random() < 0.3 else 0,
                bad=1 if spoilt else -1,
            )
        )  # fmt: skip
    return cases


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_votes_of_optimizers(kind: str, world: int, seed: int, share: float, figure: Figure) -> None:
    cases = cases_of(seed, max(15, int(CASES[kind] * share)))
    answers = shared_ranks().run(world, jobs.votes_of, kind, cases)
    for found in answers:
        assert not found["differing"], found["differing"][:3]
    assert found["votes"] >= 3 * len(cases) and found["skipped"] > 0
    figure(f"{kind}, {world} workers: {found['votes']} votes on {found['signs']} signs, 0 bits differ from the CPU's")


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_votes_on_tensors(kind: str, world: int, seed: int, share: float, figure: Figure) -> None:
    choose = random.Random(seed)
    rules = itertools.cycle(itertools.product(TIES[:-1], DTYPES))
    count = max(24, int(MOST[kind] * share))
    cases = [(seed % 2**20 + i, choose.choice(SIZES), dtype, ties) for i, (ties, dtype) in zip(range(count), rules, strict=False)]
    answers = shared_ranks().run(world, jobs.shards_of, kind, cases)
    for found in answers:
        assert not found["differing"], found["differing"][:3]
    assert found["votes"] == count and found["nan"] > 0
    figure(f"{kind}, {world} workers: {count} votes on {found['signs']} signs, 0 bits differ; {found['nan']} are NaN")


@pytest.mark.parametrize("world", [1, 2, 4])
def test_votes_of_hooks(kind: str, world: int, seed: int, share: float, figure: Figure) -> None:
    """DistributedDataParallel has no such device: the hooks are called as it calls them."""
    hooks = [("SignVote", {"ties": ties}) for ties in TIES]
    hooks += [("ErrorFeedbackSign", {"residual": residual}) for residual in ("fp32", "bf16", "dynamic8")]
    passes = max(10, int(PASSES[kind] * share))
    answers = shared_ranks().run(world, jobs.hooks_of, kind, seed % 2**20, passes, hooks)
    for found in answers:
        assert not found["differing"], found["differing"][:3]
    assert found["votes"] == passes * len(hooks) and found["nan"] >= 2 * len(hooks)
    figure(f"{kind}, {world} workers: {found['votes']} votes on {found['signs']} signs, 0 bits differ; {found['nan']} are NaN")


def test_what_cannot_vote_there(kind: str) -> None:
    name = f"{kind}:"
    for rank, found in enumerate(shared_ranks().run(2, jobs.refusals, kind)):
        two, mixed, model, broken, untouched, after, moved = found
        assert two[0] == mixed[0] == model[0] == "NotImplementedError"
        assert f"{name}0 and {name}1" in two[1] and f"{name}0 and cpu" in mixed[1]
        assert "one device" in model[1] and "bias on cpu" in model[1] and f"weight on {name}0" in model[1]
        assert broken[0] == ("IndexError" if rank == 1 else "RuntimeError"), broken
        assert untouched[1] == "True" and after[0] == "nothing" and moved[1] == "True"
