"""max_grad_spike: a step is skipped if the norm of its gradients exceeds the median of recent steps that many times."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lowtide
import pytest
import torch
import torch.distributed as dist
from distributed_models import give, parts
from distributed_support import shared_ranks
from several_devices_support import Machine, spread
from stand_in import StandIn
from support import RULES, WAYS, bits, carried, copies_of, parameter, random_gradients, refused, snapshot, state_bits
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict, set_optimizer_state_dict
from twins import Twins

Figure = Callable[[str], None]
FEWEST, KEPT = 16, 128  # norms that tell a spike, and norms that are kept
NORMS = "lowtide_norms"


def norms_of(opt: lowtide.Optimizer) -> tuple[float, ...]:
    return opt.param_groups[0][NORMS]


def give_norm(params: list[Any], norm: float) -> None:
    """Random gradients of this norm, up to rounding."""
    random_gradients(params)
    times = norm / float(torch.nn.utils.get_total_norm([param.grad for param in params]))
    for param in params:
        param.grad.mul_(times)


def steps(params: list[Any], opt: Any, norms: list[float]) -> None:
    for norm in norms:
        give_norm(params, norm)
        opt.step()


def made(**options: Any) -> tuple[list[torch.nn.Parameter], Any]:
    params = [parameter(40, 256), parameter(300)]
    return params, lowtide.AdamW(params, lr=1e-2, **{"max_grad_spike": 10, **options})


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(number)
    x = torch.randn(32, 16, generator=random)
    return x, x[:, :4].sin() + 0.1 * torch.randn(32, 4, generator=random)


def trained(numbers: list[int], planted: int, **options: Any) -> tuple[list[float], list[bytes], int]:
    """The losses of batches after the last one, the weights' bits, and the number of skipped steps. planted: the batch whose
    targets are wrong."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 4))
    opt = lowtide.AdamW(model.parameters(), lr=1e-2, state="fp32", **options)
    losses = []
    for number in numbers:
        x, y = batch(number)
        loss = torch.nn.functional.mse_loss(model(x), y * (1e4 if number == planted else 1))
        losses.append(float(loss.detach()))
        opt.zero_grad()
        loss.backward()
        opt.step()
    return losses, [bits(param) for param in model.parameters()], opt.skipped_steps


@pytest.mark.filterwarnings("ignore:a step was skipped")
@pytest.mark.parametrize("limit", [None, 1.0], ids=["unclipped", "clipped"])
def test_a_planted_batch_leaves_nothing_behind(limit: float | None, figure: Figure) -> None:
    """The run continues bit for bit like one without the batch. Without the option, moments remember the batch for long: Adam's
    second moment shrinks by 0.999 per step, so steps stay small."""
    planted, numbers = 100, [*range(200)]
    with_batch = trained(numbers, planted, max_grad_norm=limit, max_grad_spike=10)
    without = trained([n for n in numbers if n != planted], planted, max_grad_norm=limit)
    hit = trained(numbers, planted, max_grad_norm=limit)
    after = [sum(losses[-99:]) / 99 for losses, _, _ in (with_batch, without, hit)]
    figure(f"mean loss after the batch: {after[0]:.6f} skipped, {after[1]:.6f} without it, {after[2]:.6f} taken")
    assert with_batch[1] == without[1] and with_batch[0][planted + 1 :] == without[0][planted:]
    assert (with_batch[2], without[2]) == (1, 0) and (after[2] > after[1] if limit is None else True)


@pytest.mark.parametrize("limit", [None, 0.5])
@pytest.mark.parametrize("called", [False, True])
def test_steps_that_are_no_spikes_are_the_same(limit: float | None, called: bool, seed: int) -> None:
    params, opt = made(max_grad_norm=limit)
    others = copies_of(params)
    plain = lowtide.AdamW(others, lr=1e-2, max_grad_norm=limit)
    for _ in range(20):
        random_gradients(params)
        for param, other in zip(params, others, strict=True):
            assert param.grad is not None
            other.grad = param.grad.clone()
        for each in (opt, plain):
            if called:
                each.clip_grad_norm_(0.25)
            each.step()
    assert [bits(p) for p in params] == [bits(p) for p in others] and opt.skipped_steps == 0
    assert len(norms_of(opt)) == 20 and float(opt.last_grad_norm) == pytest.approx(norms_of(opt)[-1], rel=2**-24)
    assert NORMS not in plain.param_groups[0] and NORMS not in repr(opt)


@pytest.mark.filterwarnings("ignore:a step was skipped")
@pytest.mark.parametrize("rule", [*RULES, "muon"])
def test_a_skipped_step_changes_nothing(rule: str, seed: int) -> None:
    cls, fixed = RULES.get(rule, (lowtide.Muon, {}))
    params = [parameter(40, 256), parameter(32, 64)]
    others = copies_of(params)
    opt, other = (cls(each, max_grad_spike=10, **fixed) for each in (params, others))
    for each in ((params, opt, [50.0]), (others, other, [])):
        torch.manual_seed(1)
        steps(*each[:2], [1.0] * FEWEST)
        steps(*each)
        torch.manual_seed(2)
        steps(*each[:2], [1.0] * 2)
    assert (opt.skipped_steps, other.skipped_steps) == (1, 0)
    assert [bits(p) for p in params] == [bits(p) for p in others] and state_bits(opt) == state_bits(other)


@pytest.mark.filterwarnings("ignore:a step was skipped")
def test_the_window(seed: int, figure: Figure) -> None:
    """It has the norms of the last 128 steps that were taken. Nothing is a spike before the sixteenth. Norms of 0 do not
    count."""
    params, opt = made(max_grad_norm=0.5)
    steps(params, opt, [1.0] * (FEWEST - 2) + [1e6])
    for param in params:
        param.grad = torch.zeros_like(param)
    opt.step()
    assert len(norms_of(opt)) == FEWEST - 1 and opt.skipped_steps == 0
    steps(params, opt, [1e3])  # the last that is no spike, whatever it is
    assert len(norms_of(opt)) == FEWEST and opt.skipped_steps == 0
    steps(params, opt, [10.1, 9.9, 1e30])
    assert opt.skipped_steps == 2 and len(norms_of(opt)) == FEWEST + 1
    steps(params, opt, [5.0] * (KEPT - 5))
    assert len(norms_of(opt)) == KEPT and norms_of(opt)[-1] == pytest.approx(5.0, rel=1e-5)
    steps(params, opt, [49.0, 51.0])
    figure(f"{len(norms_of(opt))} norms, {opt.skipped_steps} steps skipped")
    assert opt.skipped_steps == 3 and norms_of(opt)[-1] == pytest.approx(49.0, rel=1e-5)


def test_skips_speak(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """Like other skips: each in the log, the first and the tenth in a row by a warning. The first one warns even after an
    earlier warning about a non-finite gradient."""
    params, opt = made(max_grad_norm=0.5)
    with warnings.catch_warnings(record=True) as caught, caplog.at_level(logging.WARNING, logger="lowtide"):
        warnings.simplefilter("always")
        steps(params, opt, [1.0] * FEWEST + [math.nan, 1.0] + [200.0] * 12)
    assert opt.skipped_steps == opt.report()["skipped_steps"] == 13 and opt.report()["steps"] == FEWEST + 1
    words = [str(one.message) for one in caught]
    assert [each.partition(" skipped")[0] for each in words] == ["a step was", "a step was", "10 steps in a row were"]
    assert "is NaN or infinite" in words[0] and "raise max_grad_spike or forget them" in words[1]
    assert all(one.category is RuntimeWarning and one.filename == __file__ for one in caught)
    records = [record.getMessage() for record in caplog.records]
    assert len(records) == 13 and "is not finite" in records[0]
    assert "after step 17: the gradient norm is 200, above 10: 10 times the median of the last 17 (2 so far)" in records[1]


@pytest.mark.filterwarnings("ignore:a step was skipped")
@pytest.mark.parametrize("policy", ["skip", "raise", "propagate"])
def test_a_norm_that_is_not_finite_is_left_to_nonfinite(policy: str, seed: int) -> None:
    params, opt = made(nonfinite=policy)
    steps(params, opt, [1.0] * FEWEST)
    before, weights = norms_of(opt), [bits(p) for p in params]
    give_norm(params, 1.0)
    assert params[1].grad is not None
    params[1].grad[7] = math.inf
    if policy == "raise":
        with pytest.raises(ValueError, match="gradient of parameter 1"):
            opt.step()
    else:
        opt.step()
    assert ([bits(p) for p in params] == weights) == (policy != "propagate")
    assert norms_of(opt) == before and opt.skipped_steps == (policy == "skip")


def through_dcp(flat: bool, params: list[torch.nn.Parameter], opt: Any, folder: Path) -> tuple[Any, Any]:
    """Copies of the parameters, and an optimizer of theirs that has the state of `opt` by torch.distributed.checkpoint."""
    again = copies_of(params)
    other = lowtide.AdamW(again, lr=1e-2, max_grad_spike=10)
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    models = [torch.nn.ParameterList(each) for each in (params, again)]
    saved, mine = (get_optimizer_state_dict(model, each, options=options) for model, each in zip(models, (opt, other), strict=True))
    torch.distributed.checkpoint.save(saved, checkpoint_id=folder, no_dist=True)
    torch.distributed.checkpoint.load(mine, checkpoint_id=folder, no_dist=True)
    set_optimizer_state_dict(models[1], other, mine, options=options)
    return again, other


@pytest.mark.filterwarnings("ignore:a step was skipped")
@pytest.mark.parametrize("way", [*WAYS, "nested", "flat"])
def test_a_resumed_run_skips_the_same_steps(way: str, tmp_path: Path, seed: int, figure: Figure) -> None:
    """A spike comes three steps after the checkpoint, when a new window would be too short to tell."""
    params, opt = made()
    steps(params, opt, [*torch.rand(20).add(1).tolist()])
    if way in WAYS:
        others, other = carried(way, params, opt, tmp_path, lr=1e-2, max_grad_spike=10)
    else:
        others, other = through_dcp(way == "flat", params, opt, tmp_path)
    rest = [1.1, 1.2, 100.0, 1.3]
    for each in ((params, opt), (others, other)):
        torch.manual_seed(1)
        steps(*each, rest)
    assert [bits(p) for p in params] == [bits(p) for p in others] and state_bits(opt) == state_bits(other)
    assert norms_of(opt) == norms_of(other) and len(norms_of(opt)) == 23
    assert opt.skipped_steps == other.skipped_steps == 1
    figure(f"{way}: one spike skipped by both, 0 bits differ")


def test_dicts_without_norms_and_for_others(seed: int) -> None:
    """After a dict without norms, even torch's, the window starts empty. An optimizer without the option ignores norms."""
    params, opt = made()
    steps(params, opt, [1.0] * 3)
    plain = lowtide.AdamW(copies_of(params), lr=1e-2)
    plain.load_state_dict(opt.state_dict())
    assert NORMS not in plain.param_groups[0] and NORMS not in plain.state_dict()["param_groups"][0]
    assert NORMS not in opt.torch_state_dict()["param_groups"][0]
    for saved in (plain.state_dict(), opt.torch_state_dict()):
        steps(params, opt, [1.0])
        assert len(norms_of(opt)) > 0
        opt.load_state_dict(saved)
        assert norms_of(opt) == ()
    assert NORMS not in lowtide.AdamW(opt.param_groups, lr=1e-2).param_groups[0]


@pytest.mark.parametrize("garbage", ["many", [1.0, math.nan], [0.0], [-1.0], [1], [True], [math.inf], [1.0] * (KEPT + 1), {1.0: 2.0}])
def test_norms_that_cannot_be_are_refused(garbage: Any, seed: int) -> None:
    params, opt = made()
    steps(params, opt, [1.0] * 3)
    saved = opt.state_dict()
    saved["param_groups"][0][NORMS] = garbage
    with refused(opt, f"param_groups[0]['{NORMS}']", "128 positive finite floats at most"):
        opt.load_state_dict(saved)


def test_a_reset_of_all_forgets_norms(seed: int) -> None:
    params, opt = made()
    steps(params, opt, [1.0] * 3)
    opt.reset(params[:1])
    assert len(norms_of(opt)) == 3
    opt.reset()
    assert norms_of(opt) == ()
    others = copies_of(params)
    fresh = lowtide.AdamW(others, lr=1e-2, max_grad_spike=10)
    for each in ((params, opt), (others, fresh)):
        torch.manual_seed(1)
        steps(*each, [1.0] * FEWEST + [5.0])
    assert snapshot(opt)[0] == snapshot(fresh)[0] and state_bits(opt) == state_bits(fresh)


@pytest.mark.filterwarnings("ignore:a step was skipped")
@pytest.mark.parametrize("amp", [False, True])
@pytest.mark.parametrize("called", [False, True])
def test_norms_are_those_of_unscaled_gradients(amp: bool, called: bool, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """Even if clip_grad_norm_ measured scaled gradients. The scale changes on the way. A spike warns; it is no search for a
    scale."""
    params, opt = made(amp_scaling=amp)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=4)
    with caplog.at_level(logging.WARNING, logger="lowtide"):
        for norm in [1.0] * 20 + [50.0, 1.0]:
            give_norm(params, norm * scaler.get_scale())
            scaler.scale(torch.zeros(()))
            if called and not amp:
                scaler.unscale_(opt)
            if called:
                opt.clip_grad_norm_(math.inf)
            scaler.step(opt)
            scaler.update()
    assert scaler.get_scale() > 2.0**10 and opt.skipped_steps == len(caplog.records) == 1
    assert norms_of(opt) == pytest.approx([1.0] * 21, rel=1e-5)


@pytest.mark.filterwarnings("ignore:a step was skipped")
@pytest.mark.parametrize("rule", [lowtide.AdamW, lowtide.LAMB])
@pytest.mark.parametrize("options", [{}, {"max_grad_norm": 0.5}], ids=["spikes", "clipped"])
def test_a_device_skips_what_the_cpu_skips(device: StandIn, rule: Any, options: dict[str, float], seed: int, figure: Figure) -> None:
    twins = Twins(device, ((32, 300), (7, 100)), rule, lr=0.01, max_grad_spike=10, **options)
    for number in range(20):
        random_gradients(twins.here)
        for param in twins.here if number in (17, 18) else ():
            assert param.grad is not None
            param.grad.mul_(50.0)
        twins.give()
        if number % 2:
            twins.each(lambda opt: opt.clip_grad_norm_(1.0))
        twins.take()
    twins.compare_state()
    mine, theirs = twins.each(norms_of)
    assert mine == theirs and len(mine) == 18 and twins.each(lambda opt: opt.skipped_steps) == [2, 2]
    figure(f"{rule.__name__}: 2 of 20 steps skipped on both, {twins.compared} bytes alike")


@pytest.mark.filterwarnings("ignore:a step was skipped")
def test_several_devices_skip_together(machine: Machine, seed: int) -> None:
    twins = spread(machine, "adamw", ("cpu", "cuda:0", "cuda:1", "cpu", "cuda:0", "cpu"), max_grad_spike=10)
    twins.step(FEWEST)
    random_gradients(twins.here)
    for param in twins.here:
        assert param.grad is not None
        param.grad.mul_(50.0)
    twins.give()
    twins.take()
    twins.compare_state()
    mine, theirs = twins.each(norms_of)
    assert mine == theirs and twins.each(lambda opt: opt.skipped_steps) == [1, 1]


def in_parts() -> tuple[int, tuple[float, ...], list[bytes]]:
    params, _ = parts()
    opt = lowtide.AdamW(params, lr=1e-2, max_grad_spike=10, state="fp32")
    for number in range(19):
        give(params, number)
        if number == 17:
            for param in params:
                assert param.grad is not None
                param.grad.mul_(50.0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            opt.step()
    assert dist.is_initialized()
    return opt.skipped_steps, norms_of(opt), [bits(param.detach().full_tensor()) for param in params]


def test_shards_skip_together(figure: Figure) -> None:
    alone = shared_ranks().run(1, in_parts)[0]
    for world in (2, 3):
        assert shared_ranks().run(world, in_parts) == [alone] * world
    figure(f"1, 2 and 3 ranks: {alone[0]} of 19 steps skipped, 0 bits differ")
    assert alone[0] == 1 and len(alone[1]) == 18


@pytest.mark.parametrize(
    ("value", "kind"),
    [(0, ValueError), (1, ValueError), (1.0, ValueError), (-3.0, ValueError), (math.nan, ValueError), ("3", TypeError),
     (True, TypeError), (10**400, ValueError), ([3], TypeError)],
)  # fmt: skip
def test_values_that_cannot_be_had(value: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="AdamW: max_grad_spike: got .*, wanted a number above 1, or None"):
        lowtide.AdamW([parameter(4)], max_grad_spike=value)


def test_where_there_is_no_norm_of_all_gradients(seed: int) -> None:
    param = parameter(4)
    with pytest.raises(ValueError, match="max_grad_spike', wanted it among the options of the whole optimizer"):
        lowtide.AdamW([{"params": [param], "max_grad_spike": 10}])
    with pytest.raises(ValueError, match="step_in_backward: got max_grad_spike=10, wanted step_in_backward=False, or no clipping"):
        lowtide.AdamW([param], max_grad_spike=10, step_in_backward=True)
    with pytest.raises(ValueError, match="DistributedLion: max_grad_spike: got 10, wanted None"):
        lowtide.distributed.DistributedLion([param], max_grad_spike=10)
    params = [parameter(4), parameter(5)]
    opt = lowtide.SGD([{"params": [each]} for each in params], lr=0.1, max_grad_spike=10)
    random_gradients(params)
    opt.clip_grad_norm_(1.0)
    groups = opt.param_groups
    opt.param_groups = groups[:1]
    with pytest.raises(ValueError, match="max_grad_spike: got groups that are stepped one after another, wanted all of them"):
        opt.step()
    opt.param_groups = groups
    opt.step()


def test_a_captured_step_is_refused(cuda: Any, seed: int) -> None:
    twins = Twins(cuda, ((32, 300),), max_grad_spike=10)
    twins.step(1)
    twins.gradients()
    cuda.capturing = True
    for act in (twins.second.step, lambda: twins.second.clip_grad_norm_(1.0)):
        with pytest.raises(ValueError, match="got max_grad_spike=10 while a graph is captured, wanted None"):
            act()
    cuda.capturing = False
    twins.take()
