"""Clipping parameters on a device: norms and steps have the CPU's bits. A stand-in replaces torch's part of a device, its
streams and tensors (stand_in.py), so this tests Lowtide's own kernels."""

import math
from collections.abc import Callable
from typing import Any

import lowtide
import pytest
import torch
from stand_in import StandIn
from support import bits, parameter
from twins import Twins

Figure = Callable[[str], None]
SHAPES = ((32, 300), (7, 100), (9,))


@pytest.mark.parametrize("kind", [2.0, "inf"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms_and_steps_are_those_of_the_cpu(device: StandIn, dtype: torch.dtype, kind: float | str, seed: int, figure: Figure) -> None:
    twins = Twins(device, SHAPES, dtypes=[dtype], lr=0.1)
    norms = [twins.clip(limit, kind) for limit in (0.5, 0.05, 1e9)]
    norm = twins.second.last_grad_norm
    assert norm.dtype == torch.float32 and norm.shape == () and norm.device == twins.there[0].device
    figure(f"norms {norms}, 0 bits of them and of the weights differ")


def test_the_option_gives_the_bits_of_the_cpu(device: StandIn, seed: int, figure: Figure) -> None:
    """By the option, and for a rule whose norms of parameters the host also needs."""
    for cls in (lowtide.AdamW, lowtide.LAMB):
        twins = Twins(device, SHAPES, cls, lr=0.01, max_grad_norm=0.5)
        norms = []
        for _ in range(3):
            twins.step(1)
            mine, theirs = twins.each(lambda opt: opt.last_grad_norm)
            assert bits(mine) == bits(theirs)
            norms.append(float(theirs))
        figure(f"{cls.__name__}: norms {norms}, 0 bits differ")


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
@pytest.mark.parametrize("by_option", [True, False])
def test_a_bad_gradient_is_skipped(device: StandIn, by_option: bool, bad: float, seed: int) -> None:
    """`error_if_nonfinite` waits for the norm before it raises."""
    twins = Twins(device, SHAPES, max_grad_norm=0.5 if by_option else None)
    twins.gradients()
    twins.here[1].grad[3, 3] = bad  # type: ignore[index]
    twins.give()
    before, opt = twins.weights(), twins.second
    if not by_option:
        with pytest.raises(RuntimeError, match=f"norm of {'nan' if math.isnan(bad) else 'inf'} of order 2"):
            opt.clip_grad_norm_(1.0, error_if_nonfinite=True)
        opt.clip_grad_norm_(1.0)
    opt.step()
    assert twins.weights() == before and opt.skipped_steps == 1
    assert bool((opt.last_grad_norm.isnan() if math.isnan(bad) else opt.last_grad_norm.isinf()).all())


def with_ones(device: StandIn) -> Twins:
    twins = Twins(device, SHAPES, amp_scaling=True)
    for param in twins.here:
        param.grad = torch.ones_like(param)
    twins.give()
    return twins


def test_fsdp1_without_its_group_is_refused_on_a_device(device: StandIn, seed: int) -> None:
    """Each rank would clip by the norm of its own part."""
    twins = with_ones(device)
    for param in twins.there:
        param._fsdp_flattened = True  # type: ignore[attr-defined]  # as FSDP1 marks what it shards
    called, told = lowtide.AdamW(twins.there), lowtide.AdamW(twins.there, max_grad_norm=1.0)
    before = twins.weights()
    for act in (lambda: called.clip_grad_norm_(0.5), told.step):
        with pytest.raises(ValueError, match="parameter 0 of FSDP1 and no process_group"):
            act()
    assert twins.weights() == before


@pytest.mark.parametrize("where", ["cpu", "meta"])
def test_a_frozen_parameter_elsewhere_may_come_first(device: StandIn, where: str, seed: int) -> None:
    frozen = torch.nn.Parameter(torch.zeros(4, device=where), requires_grad=False)
    twins = Twins(device, SHAPES, lr=0.1)
    twins.second = lowtide.AdamW([frozen, *twins.there], lr=0.1)
    twins.clip(0.5)


@pytest.mark.parametrize("when", ["before", "between"])
def test_parameters_may_move_apart(device: StandIn, when: str, seed: int) -> None:
    """Before the first clip, and between it and its step: to another device or, in an added group, to the CPU."""
    twins = Twins(device, SHAPES, lr=0.1)
    twins.gradients()
    if when == "before":
        grad: Any = twins.here[1].grad
        twins.there[1].data = device.tensor(twins.there[1].data, 1)
        twins.there[1].grad = device.tensor(grad, 1)
    wanted, norm = twins.each(lambda opt: opt.clip_grad_norm_(0.5))
    if when == "between":
        twins.each(lambda opt: opt.add_param_group({"params": [parameter(5)]}))
    twins.take()
    assert bits(wanted) == bits(norm)


def test_scales_that_are_not_finite_are_refused(device: StandIn, seed: int) -> None:
    twins = with_ones(device)
    before, opt = twins.weights(), twins.second
    opt.clip_grad_norm_(0.5)
    opt.found_inf, opt.grad_scale = torch.tensor(0.0), torch.tensor(1e-45)
    with pytest.raises(ValueError, match="grad_scale"):
        opt.step()
    assert twins.weights() == before
