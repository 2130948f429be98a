"""lowtide.AdamW as the client optimizer of DeepSpeed's ZeRO, on two ranks of the CPU, against torch.optim.AdamW there."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import deepspeed_jobs as jobs
import lowtide
import pytest
import torch
from deepspeed_framework_jobs import FRAMEWORKS
from deepspeed_jobs import Case, Run
from distributed_support import Ranks
from support import bits, parameter, random_gradients

WORLD = 2
ROUNDING = 2.0**-24  # of float32, relative
Train: TypeAlias = Callable[..., list[Run]]
OFFLOADS = [(1, False), (2, False), (3, False), (2, True), (3, True)]
ids = [f"stage{stage}{'-offload' if offload else ''}" for stage, offload in OFFLOADS]
ways = pytest.mark.parametrize(("stage", "offload"), OFFLOADS, ids=ids)


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Train]:
    """The run of a case on every rank, computed once. Ranks of its own: DeepSpeed keeps much in globals."""
    ranks = Ranks(WORLD)

    @functools.cache
    def folder(case: Case, job: Callable[..., Run]) -> str:
        return str(tmp_path_factory.mktemp("zero"))

    @functools.cache
    def run(case: Case, load: bool = False, job: Callable[..., Run] = jobs.train) -> list[Run]:
        if load:
            run(case, job=job)
        return ranks.run(WORLD, job, case, folder(case, job), load)

    yield run
    ranks.close()


def floats(found: list[Run]) -> torch.Tensor:
    """All weights of all ranks."""
    return torch.cat([torch.frombuffer(bytearray(part), dtype=torch.float32) for run in found for part in run.weights])


@ways
@pytest.mark.share
def test_fp32_state_trains_as_torch_does(stage: int, offload: bool, train: Train, figure: Callable[[str], None]) -> None:
    runs = [train(Case(stage, optimizer, torch.float32, offload)) for optimizer in ("torch", "fp32")]
    (ours, theirs) = ([torch.tensor(run.losses) for run in found] for found in reversed(runs))
    loss = max(float(((a - b) / b).abs().max()) for a, b in zip(ours, theirs, strict=True))
    weight = float((floats(runs[1]) - floats(runs[0])).abs().max())
    assert runs[1][0].clipped == jobs.STEPS and runs[1][0].losses[-1] < 0.7 * runs[1][0].losses[0]
    # A step rounds the weights, which are below 1, and the update that they get: half a unit each, of each optimizer.
    # This reaches a loss as the roundings of its own sums of WIDTH products in three layers do.
    figure(f"weights: {weight:.2e} of {2 * jobs.STEPS * ROUNDING:.2e}; losses: {loss:.2e} of {3 * jobs.WIDTH * ROUNDING:.2e}")
    assert weight <= 2 * jobs.STEPS * ROUNDING
    assert loss <= 3 * jobs.WIDTH * ROUNDING


@ways
@pytest.mark.share
def test_eight_bit_state_trains_and_resumes_to_the_bit(
    stage: int, offload: bool, train: Train, figure: Callable[[str], None]
) -> None:
    case = Case(stage, "dynamic8", offload=offload)
    whole, resumed, theirs = train(case), train(case, load=True), train(case._replace(optimizer="torch"))
    for run, again in zip(whole, resumed, strict=True):
        assert again.weights == run.weights
        assert again.state == run.state
        assert again.losses == run.losses[jobs.CUT * jobs.ACCUMULATED :]
    codes = [entry for run in whole for entry in run.state if "exp_avg_scale" in entry]
    assert codes, "no partition has 8-bit state"
    ours, torchs = whole[0].losses[-1], theirs[0].losses[-1]
    held, elements = whole[0].report["state_bytes"], sum(whole[0].shapes)
    figure(f"loss {whole[0].losses[0]:.3f} -> {ours:.4f} (torch: {torchs:.4f}), {held / elements:.2f} bytes a weight")
    # In a run of this length torch's loss falls by more than half; 8 bits may cost a twentieth of that.
    assert torchs < 0.5 * whole[0].losses[0]
    assert abs(ours - torchs) < 0.05 * (whole[0].losses[0] - torchs)


@pytest.mark.parametrize("stage", [1, 3])
def test_state_on_a_disk_changes_no_bit(stage: int, train: Train, figure: Callable[[str], None]) -> None:
    in_ram, on_disk = (train(Case(stage, "dynamic8", budget=budget)) for budget in (False, True))
    moved = [run.report["moved_per_step"] for run in on_disk]
    figure(f"{moved[0]} bytes move per step")
    assert min(moved) > 0 and max(run.report["moved_per_step"] for run in in_ram) == 0
    assert [run.weights for run in on_disk] == [run.weights for run in in_ram]


@pytest.mark.share
@pytest.mark.parametrize("stage", [2, 3])
def test_state_goes_through_universal_checkpoints_if_it_has_no_codes(
    stage: int, train: Train, figure: Callable[[str], None]
) -> None:
    case = Case(stage, "fp32", universal=True)
    for run, again in zip(train(case), train(case, load=True), strict=True):
        assert again.weights == run.weights
        assert again.state == run.state
    figure(f"{len(run.state)} partitions: the same bits")
    with pytest.raises(AssertionError, match="KeyError: 'exp_avg'"):
        train(case._replace(optimizer="dynamic8"), load=True)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_frameworks_train_and_resume_to_the_bit_under_zero_3(name: str, train: Train, figure: Callable[[str], None]) -> None:
    case = Case(3, "dynamic8")
    whole, resumed = train(case, job=FRAMEWORKS[name]), train(case, load=True, job=FRAMEWORKS[name])
    for run, again in zip(whole, resumed, strict=True):
        assert again.weights == run.weights
        assert again.state == run.state
        assert again.losses[-1] == run.losses[-1]
        assert any("exp_avg_scale" in entry for entry in run.state), "no partition has 8-bit state"
    figure(f"{name}: loss {whole[0].losses[0]:.3f} -> {whole[0].losses[-1]:.3f}; resumed: the same bits")
    assert whole[0].losses[-1] < 0.9 * whole[0].losses[0]


# The rest does by hand to groups as ZeRO does. It shows errors, and agreement with a reading of DeepSpeed only.


def flat(*params: torch.Tensor) -> torch.Tensor:
    return torch.cat([param.detach().flatten() for param in params]).requires_grad_()


def partition(first: int, last: int, *params: torch.Tensor) -> torch.Tensor:
    made = flat(*params)
    made.ds_id = f"{first}_{last}"  # type: ignore[attr-defined]
    return made


@pytest.mark.parametrize("cls", [lowtide.LAMB, lowtide.LARS, lowtide.Muon])
def test_rules_of_whole_parameters_are_refused(cls: type[lowtide.Optimizer], seed: int) -> None:
    params = [parameter(8, 8), parameter(8, 8)]
    opt = cls(params)
    opt.param_groups[0]["params"] = [flat(*params)]
    with pytest.raises(ValueError, match=f"(?i){cls.__name__}.* whole"):
        opt.step()
    opt.param_groups[0]["params"] = params
    random_gradients(params)
    opt.step()


def test_partitions_come_before_the_first_step(seed: int) -> None:
    params = [parameter(300), parameter(300)]
    opt = lowtide.AdamW(params)
    random_gradients(params)
    opt.step()
    opt.param_groups[0]["params"] = [flat(*params)]
    with pytest.raises(ValueError, match="deepspeed.initialize first"):
        opt.step()


def test_partitions_come_in_the_order_of_the_groups(seed: int) -> None:
    params = [parameter(300), parameter(300)]
    opt = lowtide.AdamW([{"params": params[:1]}, {"params": params[1:]}])
    parts = [partition(n, n, params[n]) for n in (0, 1)]
    random_gradients(parts)
    opt.param_groups[0]["params"], opt.param_groups[1]["params"] = [], parts[1:]
    opt.step()
    before = bits(parts[1])
    opt.param_groups[0]["params"], opt.param_groups[1]["params"] = parts[:1], []
    with pytest.raises(ValueError, match="in the order of the groups"):
        opt.step()
    opt.param_groups[0]["params"], opt.param_groups[1]["params"] = [], parts[1:]
    opt.step()
    assert bits(parts[1]) != before


def test_only_the_groups_that_are_shown_are_stepped(seed: int) -> None:
    params = [parameter(300), parameter(300)]
    opt = lowtide.AdamW([{"params": params[:1]}, {"params": params[1:]}])
    random_gradients(params)
    groups, before = opt.param_groups, bits(params[0])
    opt.param_groups = groups[1:]
    opt.step()
    assert opt.param_groups == groups[1:]
    assert bits(params[0]) == before and params[0] not in opt.state and int(opt.state[params[1]]["step"]) == 1
    opt.param_groups = [{**groups[0]}]
    with pytest.raises(ValueError, match="some of those that were added"):
        opt.step()
    opt.param_groups = groups
    opt.step()
    assert [int(opt.state[param]["step"]) for param in params] == [1, 2]


def test_overrides_do_not_reach_partitions_and_say_so(seed: int) -> None:
    params = [parameter(5000), parameter(5000)]
    lowtide.override(params[0], state="fp32")
    opt = lowtide.AdamW(params)
    opt.param_groups[0]["params"] = [flat(*params)]
    random_gradients(opt.param_groups[0]["params"])
    with pytest.warns(UserWarning, match="a group of their own"):
        opt.step()


def test_groups_without_parameters_are_dropped_with_their_budget(tmp_path: Path, seed: int) -> None:
    param = parameter(20000)
    opt = lowtide.AdamW([{"params": []}, {"params": [param], "memory": lowtide.Memory(host="16KiB", disk=tmp_path, chunk="4KiB")}])
    opt.param_groups[:] = opt.param_groups[1:]
    opt.param_groups[0]["params"] = [flat(param)]
    random_gradients(opt.param_groups[0]["params"])
    opt.step()
    assert opt.report()["disk_bytes"] > 0
