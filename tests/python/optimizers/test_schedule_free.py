"""Schedule-Free AdamW compared with the package schedulefree, its two kinds of weights, and runs that continue from either."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lowtide
import pytest
import torch
from schedulefree import AdamWScheduleFree as Theirs
from support import (
    WAYS, bits, carried, copies_of, disk_that_refuses, parameter, random_gradients, refused, state_bits, step_alike,
    take_steps,
)  # fmt: skip

STEPS = 60
SHAPES = ((48, 256), (7,))
OPTIONS: list[dict[str, Any]] = [
    {},
    {"weight_decay": 0.1, "warmup_steps": 20},
    {"r": 1.0, "weight_lr_power": 0.0, "betas": (0.95, 0.99)},
    {"warmup_steps": 7, "weight_lr_power": 1.0, "r": 0.5, "weight_decay": 0.05, "betas": (0.5, 0.9)},
]


def falling(step: int) -> float:
    """A scheduled learning rate that rises and then falls to a tenth."""
    return 2e-3 * (1 if step < 10 else 1.5 if step < 20 else 0.1)


def trained(steps: int = 5, dtype: torch.dtype = torch.float32, **options: Any) -> tuple[list[torch.nn.Parameter], lowtide.AdamWScheduleFree]:
    params = [parameter(*shape, dtype=dtype) for shape in SHAPES]
    opt = lowtide.AdamWScheduleFree(params, **options)
    for step in range(steps):
        random_gradients(params)
        opt.param_groups[0]["lr"] = 1e-3 * (1 + step)
        opt.step()
    return params, opt


def distance(some: list[torch.nn.Parameter], exact: list[torch.nn.Parameter]) -> float:
    return max(float((p.detach().double() - q.detach()).abs().max()) for p, q in zip(some, exact, strict=True))


@pytest.mark.parametrize("schedule", [None, falling], ids=["constant", "falling"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_weights_are_the_packages(
    options: dict[str, Any], schedule: Callable[[int], float] | None, seed: int, figure: Callable[[str], None]
) -> None:
    """Weights to train and to evaluate against the package's in float64. Roundings are of 2^-24: some 12 in an update of each step,
    of 4 lr at most here, two in the weight, and in d, a sum of `STEPS` updates at most, three a step, of which a share comes to
    the weights: with sums of those shares below `STEPS` that is another 3 `STEPS` of 4 lr. The package's float32 is no nearer."""
    params = [parameter(*shape) for shape in SHAPES]
    exact = [torch.nn.Parameter(param.detach().double()) for param in params]
    theirs = copies_of(params)
    lr = 2e-3
    made = [
        (params, lowtide.AdamWScheduleFree(params, lr=lr, state="fp32", **options)),
        (theirs, Theirs(theirs, lr=lr, foreach=False, **options)),
        (exact, Theirs(exact, lr=lr, foreach=False, **options)),
    ]
    assert made[0][1].defaults.items() >= {key: made[1][1].defaults[key] for key in ("r", "warmup_steps", "weight_lr_power")}.items()
    for _, opt in made:
        opt.train()
    largest = 0.0
    for step in range(STEPS):
        random_gradients(params)
        grads = [param.grad.clone() for param in params if param.grad is not None]
        for own, opt in made:
            for param, grad in zip(own, grads, strict=True):
                param.grad = grad.clone().to(param.dtype)  # the package divides in place
            if schedule:
                opt.param_groups[0]["lr"] = schedule(step)
            opt.step()
        if step == STEPS // 2:
            for _, opt in made:
                opt.eval()
                opt.train()
        largest = max(largest, *(float(param.detach().abs().max()) for param in params))
    bound = 2.0**-24 * STEPS * (2 * largest + (12 + 3 * STEPS) * 4 * 3e-3)
    for kind in ("train", "eval"):
        mine, others = distance(params, exact), distance(theirs, exact)
        figure(f"{options}, {kind}: {mine:.1e} from float64, the package in float32 {others:.1e}, bound {bound:.1e}")
        assert mine < bound
        for _, opt in made:
            opt.eval()


def test_defaults_are_the_packages() -> None:
    param = parameter(3)
    mine, theirs = lowtide.AdamWScheduleFree([param]).param_groups[0], Theirs([param]).param_groups[0]
    for key in ("lr", "betas", "eps", "weight_decay", "warmup_steps", "r", "weight_lr_power"):
        assert mine[key] == theirs[key], key


def test_the_mode_is_no_argument() -> None:
    with pytest.raises(TypeError) as caught:
        lowtide.AdamWScheduleFree([parameter(3)], train_mode=False)  # type: ignore[call-arg]
    got, _, wanted = str(caught.value).partition("wanted one of")
    assert "unknown argument 'train_mode'" in got and "train_mode" not in wanted
    assert lowtide.AdamWScheduleFree([parameter(3)], warmup_steps=3.0).param_groups[0]["train_mode"] is True  # type: ignore[arg-type]


def test_steps_in_backward_refuse_weights_to_evaluate_as_others_do() -> None:
    param = parameter(64, 256)
    opt = lowtide.AdamWScheduleFree([param], step_in_backward=True)
    param.square().sum().backward()
    opt.step()
    opt.eval()
    was = bits(param)
    with pytest.raises(ValueError, match=r"^step: got the weights to evaluate, wanted the weights to train: call train\(\) first$"):
        param.square().sum().backward()
    assert bits(param) == was


def test_an_evaluation_refuses_steps_and_ends() -> None:
    params, opt = trained()
    before = [bits(param) for param in params]
    opt.train()
    assert [bits(param) for param in params] == before, "it was training"
    opt.eval()
    there = [bits(param) for param in params]
    assert there != before
    assert [group["train_mode"] for group in opt.param_groups] == [False]
    opt.eval()
    assert [bits(param) for param in params] == there
    random_gradients(params)
    with refused(opt, "weights to evaluate"):
        opt.step()
    assert [bits(param) for param in params] == there
    version = params[0]._version
    opt.train()
    assert params[0]._version > version, "autograd knows that weights changed"
    opt.step()


def test_a_weight_of_its_own_reaches_a_step_by_its_group() -> None:
    """A group added during an evaluation takes part in it. Parameters without a gradient follow, too."""
    params, opt = trained()
    opt.eval()
    added = parameter(5, 300)
    opt.add_param_group({"params": [added], "lr": 1e-2})
    assert [group["train_mode"] for group in opt.param_groups] == [False, False]
    opt.train()
    params[0].data = params[0].detach().clone()  # memory of its own, and no gradient when it is next moved
    opt.zero_grad()
    was = bits(params[0])
    opt.eval()
    assert bits(params[0]) != was


@pytest.mark.parametrize("evaluating", [False, True], ids=["training", "evaluating"])
@pytest.mark.parametrize("name", [*WAYS, "override"])
@pytest.mark.parametrize("master", [None, "stochastic"])
def test_a_run_goes_on_with_the_same_bits(master: Any, name: str, evaluating: bool, tmp_path: Path) -> None:
    """After learning rates that current options do not reveal, in either mode, and after two switches at that step."""
    params, opt = trained(dtype=torch.bfloat16 if master else torch.float32, master=master)
    opt.eval()
    opt.train()
    if evaluating:
        opt.eval()
    again, other = carried("copy" if name == "override" else name, params, opt, tmp_path, master=master)
    if name == "override":  # a new core takes the place of the optimizer's
        lowtide.override(again[1], lr=opt.param_groups[0]["lr"])
    assert [bits(param) for param in again] == [bits(param) for param in params]
    if evaluating:
        random_gradients(again)
        with refused(other, "weights to evaluate"):
            other.step()
    for _ in range(3):
        for each in (opt, other):
            each.train()
        step_alike((params, opt), (again, other))
    for each in (opt, other):
        each.eval()
    assert [bits(param) for param in again] == [bits(param) for param in params]
    assert state_bits(other) == state_bits(opt)


def test_dicts_tell_the_sum_and_the_largest_rate() -> None:
    params = [parameter(*SHAPES[0])]
    opt = lowtide.AdamWScheduleFree(params)
    take_steps(params, opt, 3)
    opt.param_groups[0]["lr"] = 1e-3
    entry = opt.state_dict()["state"][0]
    assert float(entry["weight_sum"]) == pytest.approx(3 * 2.5e-3**2) and float(entry["lr_max"]) == 2.5e-3
    opt.load_state_dict(opt.state_dict())
    assert float(opt.state_dict()["state"][0]["weight_sum"]) == float(entry["weight_sum"])
    for key, value, words in (
        ("weight_sum", torch.tensor(-1.0), "weight_sum: got -1.0, wanted a number from 0"),
        ("lr_max", torch.ones(2), "lr_max"),
        ("switches", torch.tensor(0.5), "switches: got 0.5, wanted a whole number"),
        ("switches", torch.tensor(1e300, dtype=torch.float64), "switches: got 1e+300"),
    ):
        broken = opt.state_dict()
        broken["state"][0][key] = value
        with refused(opt, words):
            opt.load_state_dict(broken)
    partial = opt.state_dict()
    del partial["state"][0]["switches"]
    with refused(opt, "no switches beside lr_max, weight_sum"):
        opt.load_state_dict(partial)
    for value in ("False", torch.zeros(2), 1):
        broken = opt.state_dict()
        broken["param_groups"][0]["train_mode"] = value
        with refused(opt, "train_mode", "True or False"):
            opt.load_state_dict(broken)


def test_a_sum_that_no_double_holds_is_the_largest() -> None:
    params = [parameter(16)]
    opt = lowtide.AdamWScheduleFree(params, r=400.0, weight_lr_power=0.0)
    take_steps(params, opt, 10)
    opt.load_state_dict(opt.state_dict())
    take_steps(params, opt)
    assert bool(params[0].isfinite().all())


def test_checkpoints_of_torch_distributed_keep_the_sum() -> None:
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

    made = []
    for steps in (4, 0):
        model = torch.nn.Linear(32, 300)
        opt = lowtide.AdamWScheduleFree(model.parameters())
        for step in range(steps):
            opt.param_groups[0]["lr"] = 1e-3 * (1 + step)
            take_steps([*model.parameters()], opt)
        made.append((model, opt))
    (model, opt), (other, fresh) = made
    saved = get_optimizer_state_dict(model, opt)
    assert set(get_optimizer_state_dict(other, fresh)["state"]["weight"]) == set(saved["state"]["weight"])
    set_optimizer_state_dict(other, fresh, saved)
    for key in ("weight_sum", "lr_max"):
        entries = [each.state_dict()["state"][0][key] for each in (opt, fresh)]
        assert float(entries[0]) == float(entries[1])


@pytest.mark.parametrize("how", ["scheduled", "overridden"])
def test_weights_go_back_by_the_beta_by_which_they_came(how: str) -> None:
    """A scheduler cycles β1 during an evaluation, or an override does, for which the optimizer gets a separate core."""
    params, opt = trained(state="fp32")
    before = [param.detach().clone() for param in params]
    opt.eval()
    if how == "scheduled":
        opt.param_groups[0]["betas"] = (0.5, 0.999)
    else:
        lowtide.override(params[0], betas=(0.5, 0.999))
    opt.train()
    for param, was in zip(params, before, strict=True):
        torch.testing.assert_close(param.detach(), was, rtol=2.0**-23, atol=2.0**-24)


def test_weights_of_another_beta_than_the_dict_would_have_are_not_saved(tmp_path: Path) -> None:
    params, opt = trained()
    opt.eval()
    there, betas = [bits(param) for param in params], opt.param_groups[0]["betas"]
    opt.param_groups[0]["betas"] = (0.5, 0.999)
    for saves in (opt.state_dict, lambda: opt.save(tmp_path / "file"), lambda: copy.deepcopy(opt)):
        with pytest.raises(ValueError, match=r"a β1 of 0\.5 for parameters .* wanted the betas of that call, or train\(\) first"):
            saves()
    assert [bits(param) for param in params] == there and not [*tmp_path.iterdir()]
    opt.param_groups[0]["betas"] = betas
    opt.state_dict()
    opt.param_groups[0]["betas"] = (0.5, 0.999)
    opt.train()
    opt.state_dict()


@pytest.mark.parametrize("name", WAYS[:2])
def test_loaded_weights_go_back_by_the_beta_of_what_was_loaded(name: str, tmp_path: Path) -> None:
    """Into an optimizer of another β1 (0.9)."""
    params, opt = trained(betas=(0.5, 0.999))
    opt.eval()
    again, other = carried(name, params, opt, tmp_path)
    for each in (opt, other):
        each.train()
    assert [bits(param) for param in again] == [bits(param) for param in params]


def test_a_switch_that_changes_nothing_does_nothing() -> None:
    """The Trainer calls train() before every batch: no version rises, and state that was put aside stays there."""
    params, opt = trained()
    loss = (params[0] * params[0]).sum()
    opt.train()
    loss.backward()
    opt.eval()
    version = params[0]._version
    opt.eval()
    assert params[0]._version == version


def test_state_that_was_put_aside_stays_there(tmp_path: Path) -> None:
    params = [parameter(64, 256)]
    opt = lowtide.AdamWScheduleFree(params, memory=lowtide.Memory(host="1MiB", disk=tmp_path))
    take_steps(params, opt)
    opt.offload()
    aside = opt.report()["offloaded_bytes"]
    opt.train()
    assert opt.report()["offloaded_bytes"] == aside > 0
    opt.eval()
    assert opt.report()["offloaded_bytes"] == 0


def test_frozen_parameters_without_memory_are_left_alone() -> None:
    frozen = torch.nn.Parameter(torch.randn(8), requires_grad=False)
    param = parameter(64, 256)
    opt = lowtide.AdamWScheduleFree([frozen, param])
    random_gradients([param])
    frozen.data = torch.zeros(0)
    opt.step()
    opt.eval()
    opt.train()


def test_a_closure_is_not_called_for_weights_to_evaluate() -> None:
    _, opt = trained()
    opt.eval()

    def closure() -> float:
        raise AssertionError("called")

    with refused(opt, "weights to evaluate"):
        opt.step(closure)


@pytest.mark.parametrize("way", ["eval", "train"])
def test_a_disk_that_refuses_leaves_a_switch_to_be_repeated(way: str, tmp_path: Path) -> None:
    """Residuals on a disk that writes nothing: the test knows what has moved, and a second call moves the rest."""
    params = [parameter(64, 256, dtype=torch.bfloat16) for _ in range(3)]
    twins = copies_of(params)
    memory = lowtide.Memory(host="64KiB", disk=tmp_path, chunk="4KiB")
    opt = lowtide.AdamWScheduleFree(params, master="residual16", memory=memory)
    other = lowtide.AdamWScheduleFree(twins, master="residual16")
    for _ in range(3):
        step_alike((params, opt), (twins, other))
    if way == "train":
        opt.eval()
        other.eval()
    with disk_that_refuses():
        try:
            getattr(opt, way)()
        except OSError:
            pass
        else:
            pytest.fail("nothing was written to the disk")
    with refused(opt, "call it again"):
        copy.deepcopy(opt)
    getattr(opt, way)()
    getattr(other, way)()
    assert [bits(param) for param in params] == [bits(param) for param in twins]
    residuals = [bits(each.state_dict()["state"][1]["residual"]) for each in (opt, other)]
    assert residuals[0] == residuals[1]


FARTHEST = {"residual16": 2.0**-8, "residual8": 2.0**-8 + 6 * 2.0**-16, "stochastic": 7 * 2.0**-7}


@pytest.mark.parametrize("master", FARTHEST)
def test_bfloat16_weights_with_a_master(master: Any, figure: Callable[[str], None]) -> None:
    """Beside float32 weights: those with a residual are these rounded to nearest, with 8 bits of it off by 2^-16 more in each step
    and the move; stochastic rounding leaves up to a unit, 2^-7 of the least in its binade, each time."""
    params = [parameter(32, 256, dtype=torch.bfloat16)]
    full = [torch.nn.Parameter(params[0].detach().float())]
    opt, plain = lowtide.AdamWScheduleFree(params, master=master, state="fp32"), lowtide.AdamWScheduleFree(full, state="fp32")
    for mode in ("step", "eval", "train", "step"):
        for _ in range(5 if mode == "step" else 1):
            random_gradients(params)
            assert params[0].grad is not None
            full[0].grad = params[0].grad.float()
            for each in (opt, plain):
                getattr(each, mode)()
        apart = (params[0].detach().float() - full[0].detach()).abs() / full[0].detach().abs().clamp_min(1e-2)
        if mode == "eval":
            figure(f"{master}: averages {float(apart.max()) / FARTHEST[master]:.2f} of the bound from those of float32 weights")
            assert float(apart.max()) <= FARTHEST[master]
