"""State dicts of the package schedulefree in Lowtide's AdamWScheduleFree: runs that go on, and dicts that do not fit."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import lowtide
import pytest
import schedulefree
import torch
from support import bits, copies_of, drop, parameter, put, refused, step_alike, through_file

SHAPES = ((48, 256), (7,))
STEPS = 20
LR = 2e-3
OPTIONS: list[dict[str, Any]] = [
    {},
    {"weight_decay": 0.1, "betas": (0.5, 0.99), "r": 1.0},
    {"warmup_steps": 3 * STEPS // 2, "weight_lr_power": 1.0},  # lasts beyond the run's move
]


def theirs(params: list[torch.nn.Parameter], **options: Any) -> Any:
    opt = schedulefree.AdamWScheduleFree(params, lr=LR, **options)
    opt.train()
    return opt


def steps(number: int, *made: tuple[list[torch.nn.Parameter], Any]) -> None:
    for _ in range(number):
        step_alike(*made)


def trained(**options: Any) -> tuple[list[torch.nn.Parameter], Any]:
    params = [parameter(*shape) for shape in SHAPES]
    opt = theirs(params, **options)
    steps(STEPS, (params, opt))
    return params, opt


@pytest.mark.parametrize("evaluating", [False, True], ids=["training", "evaluating"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_run_of_the_package_goes_on_here(
    options: dict[str, Any], evaluating: bool, seed: int, figure: Callable[[str], None]
) -> None:
    """`STEPS` steps there, as many here and there. Roundings are of 2^-24. Taking z - y rounds it, and in the mode of evaluation x
    was rounded before, and divides by β1 at least half: 4 of the weights. Each step then rounds the weight twice, and some 12 times an
    update of 4 LR at most, in either; z - y, a sum of 2 `STEPS` of these, thrice; and z there, as large as the weights, once."""
    params, opt = trained(**options)
    if evaluating:
        opt.eval()
    saved, again = through_file(opt.state_dict()), copies_of(params)
    mine = lowtide.AdamWScheduleFree(again, state="fp32")
    mine.load_state_dict(saved)
    assert [group["train_mode"] for group in mine.param_groups] == [not evaluating]
    assert not {"k", "weight_sum", "lr_max", "scheduled_lr"} & set(mine.param_groups[0])
    assert {key: mine.param_groups[0][key] for key in options} == options
    entry = mine.state_dict()["state"][0]
    assert float(entry["weight_sum"]) == saved["param_groups"][0]["weight_sum"] and int(entry["step"]) == STEPS
    for each in (opt, mine):
        each.train()
    steps(STEPS, (params, opt), (again, mine))
    largest = max(float(param.detach().abs().max()) for param in params)
    bound = 2.0**-24 * (4 * largest + STEPS * (3 * largest + (2 * 12 + 3 * 2 * STEPS) * 4 * LR))
    for mode in ("train", "eval"):
        apart = max(float((p.detach() - q.detach()).abs().max()) for p, q in zip(params, again, strict=True))
        figure(f"{options}, weights to {mode}: {apart:.1e} apart, bound {bound:.1e}")
        assert apart < bound
        for each in (opt, mine):
            each.eval()


def test_dynamic8_state_is_that_of_float32_encoded() -> None:
    params, opt = trained()
    found = []
    for state in ("fp32", "dynamic8"):
        mine = lowtide.AdamWScheduleFree(copies_of(params), state=state)
        mine.load_state_dict(opt.state_dict())
        found.append(mine._core.export_state(0, 0))
    assert bits(found[0]) == bits(opt.state[params[0]]["z"] - params[0].detach())
    # Half the widest step of the dynamic map is 1/128 of a block's largest.
    assert float((found[0] - found[1]).abs().max()) <= float(found[0].abs().max()) / 128


def test_bfloat16_weights_take_float32_differences() -> None:
    params = [parameter(48, 256, dtype=torch.bfloat16)]
    opt = theirs(params)
    steps(3, (params, opt))
    mine = lowtide.AdamWScheduleFree(copies_of(params), state="fp32")
    mine.load_state_dict(opt.state_dict())
    assert bits(mine._core.export_state(0, 0)) == bits(opt.state[params[0]]["z"].float() - params[0].detach().float())


def test_parameters_without_a_gradient_and_dicts_before_a_step_begin_here() -> None:
    params = [parameter(16), parameter(16)]
    opt = theirs(params)
    mine = lowtide.AdamWScheduleFree(copies_of(params))
    mine.load_state_dict(opt.state_dict())
    params[0].grad = torch.randn(16)
    opt.step()
    mine = lowtide.AdamWScheduleFree(copies_of(params))
    mine.load_state_dict(opt.state_dict())
    first, second = mine.param_groups[0]["params"]
    assert int(mine.state[first]["step"]) == 1 and second not in mine.state


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put(["state", 0, "z"], lambda z: z[:3]), ["state of parameter 0, z", "(3, 256)", "(48, 256)"]),
        (put(["state", 0, "z"], lambda z: z * math.nan), ["z_minus_y", "nan"]),
        (drop("state", 0, "z"), ["no 'z'"]),
        (drop("state", 1, "exp_avg_sq"), ["parameter 1", "no 'exp_avg_sq'"]),
        (put(["state", 0, "x"], 0), ["unknown keys ['x']"]),
        (put(["param_groups", 0, "k"], -1), ["k", "-1"]),
        (put(["param_groups", 0, "k"], 0), ["k", "1 or more"]),
        (put(["param_groups", 0, "weight_sum"], math.nan), ["weight_sum", "nan"]),
        (put(["param_groups", 0, "lr_max"], -1.0), ["lr_max", "-1"]),
        (put(["param_groups", 0, "train_mode"], 1), ["train_mode", "True or False"]),
        (put(["param_groups", 0, "warmup_steps"], 0.1), ["warmup_steps", "0.1", "whole number"]),
        (drop("param_groups", 0, "betas"), ["betas", "schedulefree.AdamWScheduleFree"]),
    ],
)  # fmt: skip
def test_spoilt_dicts_of_schedulefree_are_refused_whole(change: Callable[[Any], None], words: list[str]) -> None:
    params, opt = trained()
    saved = copy.deepcopy(opt.state_dict())
    change(saved)
    mine = lowtide.AdamWScheduleFree(copies_of(params), state="fp32")
    with refused(mine, *words):
        mine.load_state_dict(saved)


@pytest.mark.parametrize("cls", [schedulefree.SGDScheduleFree, schedulefree.RAdamScheduleFree])
def test_other_classes_of_the_package_are_refused(cls: Any) -> None:
    params = [parameter(16)]
    opt = cls(params, lr=LR)
    opt.train()
    steps(2, (params, opt))
    mine = lowtide.AdamWScheduleFree(copies_of(params))
    with refused(mine, "schedulefree.AdamWScheduleFree"):
        mine.load_state_dict(opt.state_dict())


def test_another_rule_refuses_the_dict() -> None:
    params, opt = trained()
    mine = lowtide.AdamW(copies_of(params))
    with refused(mine, "a group from the package schedulefree, wanted a state_dict of lowtide's 'adamw'"):
        mine.load_state_dict(opt.state_dict())


def test_weights_without_values_are_refused() -> None:
    params, opt = trained()
    mine = lowtide.AdamWScheduleFree([torch.nn.Parameter(param.detach().to("meta")) for param in params])
    with pytest.raises(ValueError, match="weights on meta, wanted the weights that were saved"):
        mine.load_state_dict(opt.state_dict())
