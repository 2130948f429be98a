"""NAdam while a scheduler cycles β1 or users change ψ: the product of μ covers the steps taken, like torch.optim's
"mu_product", and moves with the state."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lowtide
import pytest
import torch
from support import (
    WAYS, bits, carried, copies_of, parameter, random_gradients, refused, state_bits, step_alike, take_steps, through_file,
)  # fmt: skip
from torch.optim import lr_scheduler

STEPS = 24
SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 1e-3, 1e-2, step_size_up=3, base_momentum=0.7, max_momentum=0.95),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 1e-2, total_steps=2 * STEPS, base_momentum=0.7),
}
SHAPES = ((48, 256), (7,))


def trained(steps: int = 5, **options: Any) -> tuple[list[torch.nn.Parameter], lowtide.NAdam]:
    params = [parameter(*shape) for shape in SHAPES]
    opt = lowtide.NAdam(params, **options)
    for step in range(steps):
        take_steps(params, opt)
        opt.param_groups[0]["betas"] = (0.95 - 0.05 * step, 0.999)
    return params, opt


def farthest(some: list[torch.nn.Parameter], others: list[torch.nn.Parameter]) -> float:
    return max(float((p - q).detach().abs().max()) for p, q in zip(some, others, strict=True))


def alike(steps: int, *made: tuple[list[torch.nn.Parameter], torch.optim.Optimizer]) -> None:
    for _ in range(steps):
        step_alike(*made)


@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_steps_are_torchs(name: str, decoupled: bool, seed: int, figure: Callable[[str], None]) -> None:
    """Roundings of float32, of 2^-24 each: in each step some 4 in the update, torch's of the product among them, and one in
    the weight, here and there. Small weights leave them small beside the way. One parameter misses every third step."""
    params = [torch.nn.Parameter(torch.randn(300) / 100) for _ in range(2)]
    theirs = copies_of(params)
    start = copies_of(params)
    options = {"lr": 1e-3, "weight_decay": 0.01, "momentum_decay": 0.01, "decoupled_weight_decay": decoupled}
    a, b = lowtide.NAdam(params, state="fp32", **options), torch.optim.NAdam(theirs, **options)
    schedulers = [SCHEDULERS[name](opt) for opt in (a, b)]
    for step in range(STEPS):
        random_gradients(params)
        if step % 3 == 2:
            params[1].grad = None
        for p, q in zip(params, theirs, strict=True):
            q.grad = None if p.grad is None else p.grad.clone()
        for opt, scheduler in zip((a, b), schedulers, strict=True):
            opt.step()
            scheduler.step()
        assert a.param_groups[0]["betas"] == b.param_groups[0]["betas"]
    apart, way = farthest(params, theirs), farthest(params, start)
    figure(f"{name}: {apart / way:.1e} of the way from torch after {STEPS} steps")
    largest = max(float(p.detach().abs().max()) for p in params)
    assert apart < STEPS * 2.0**-24 * (4 * way + 2 * largest) < 1e-4 * way
    mine = a.torch_state_dict()["state"]
    for i, q in enumerate(theirs):
        torch.testing.assert_close(mine[i]["mu_product"], b.state[q]["mu_product"], rtol=STEPS * 2.0**-24, atol=0.0)


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("steps", [1, 5])
def test_resuming_is_exact(way: str, steps: int, paged: bool, tmp_path: Path, seed: int) -> None:
    """A resumed run keeps every bit, also after a scheduler changed β1 for the next step and goes on changing it."""
    options = {"memory": lowtide.Memory(host="8KiB", disk=tmp_path, chunk="4KiB")} if paged else {}
    params, opt = trained(steps, **options)
    others, back = carried(way, params, opt, tmp_path, **options)
    assert (back.report()["disk_bytes"] > 0) == paged
    back.param_groups[0]["params"] = others = copies_of(others)  # which carries state into a new core
    for beta in (0.8, 0.8, 0.9):
        for each in (opt, back):
            each.param_groups[0]["betas"] = (beta, 0.999)
        alike(1, (params, opt), (others, back))
        assert [bits(p) for p in params] == [bits(p) for p in others]
    assert state_bits(opt) == state_bits(back)


def test_a_dict_of_torch_goes_on_here_and_back(seed: int) -> None:
    params = [parameter(300)]
    theirs = torch.optim.NAdam(params)
    for step in range(4):
        alike(1, (params, theirs))
        theirs.param_groups[0]["betas"] = (0.95 - 0.05 * step, 0.999)
    copies, again = copies_of(params), copies_of(params)
    ours, back = lowtide.NAdam(copies, state="fp32"), torch.optim.NAdam(again)
    ours.load_state_dict(through_file(theirs.state_dict()))
    back.load_state_dict(through_file(ours.torch_state_dict()))
    assert torch.equal(back.state[again[0]]["mu_product"], theirs.state[params[0]]["mu_product"])
    before = copies_of(params)
    alike(1, (params, theirs), (copies, ours), (again, back))
    assert torch.equal(params[0], again[0])
    assert farthest(params, copies) < 2.0**-24 * (4 * farthest(params, before) + 2 * float(params[0].detach().abs().max()))


def test_a_step_that_is_skipped_leaves_the_product(device: Any, seed: int) -> None:
    """On a device, where the verdict on gradients comes after the step was counted. Its steps equal the CPU's."""
    params = [parameter(48, 256)]
    there = device.parameters(params)
    a, b = lowtide.NAdam(params), lowtide.NAdam(there)
    for step in range(4):
        grad = torch.randn(48, 256)
        if step == 1:
            grad[0, 0] = float("nan")
        params[0].grad = grad
        device.synchronize()
        device.give_gradients(there, params)
        for opt in (a, b):
            opt.param_groups[0]["betas"] = (0.9 - 0.1 * step, 0.999)
            opt.step()
    device.synchronize()
    assert a.skipped_steps == b.skipped_steps == 1
    first, second = (opt.state_dict()["state"][0] for opt in (a, b))
    assert first["mu_product"] == second["mu_product"] and bits(params[0]) == bits(there[0])


@pytest.mark.parametrize("way", WAYS[:2])
def test_products_of_overrides_go_to_optimizers_without_them(way: str, tmp_path: Path, seed: int) -> None:
    """One parameter had another β1 in each step, so its product does not follow from its group's options."""
    params = [parameter(*shape) for shape in SHAPES]
    lowtide.override(params[0], betas=(0.5, 0.999))
    opt = lowtide.NAdam(params)
    alike(3, (params, opt))
    _, back = carried(way, params, opt, tmp_path)
    assert [*map(back.engine.core.carried, range(2))] == [*map(opt.engine.core.carried, range(2))]


@pytest.mark.parametrize("value", [2.0, -0.5, float("nan"), True])
def test_products_that_cannot_be_are_refused(value: Any, tmp_path: Path, seed: int) -> None:
    params, opt = trained()
    saved = copy.deepcopy(opt.state_dict())
    saved["state"][0]["mu_product"] = torch.tensor(value) if value is not True else torch.ones(2)
    with refused(opt, "parameter 0, mu_product"):
        opt.load_state_dict(saved)
    plain = lowtide.AdamW([parameter(3)])
    alike(1, ([*plain.param_groups[0]["params"]], plain))
    strange = copy.deepcopy(plain.state_dict())
    strange["state"][0]["mu_product"] = torch.tensor(0.5)
    with refused(plain, "mu_product"):
        plain.load_state_dict(strange)
