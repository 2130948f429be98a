"""Clipping parameters on a device: norms and steps are the bits of the CPU's. Torch's part of a device, its streams and tensors, is a
stand-in (stand_in.py), so that this shows what Lowtide's own kernels compute."""

import math
from collections.abc import Callable

import lowtide
import pytest
import torch
from stand_in import StandIn
from support import bits, parameter, random_gradients

SHAPES = ((32, 300), (7, 100), (9,))


@pytest.mark.parametrize("kind", [2.0, "inf"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms_and_steps_are_those_of_the_cpu(
    device: StandIn, dtype: torch.dtype, kind: float | str, seed: int, figure: Callable[[str], None]
) -> None:
    here = [parameter(*shape, dtype=dtype) for shape in SHAPES]
    there = device.parameters(here)
    first, second = lowtide.AdamW(here, lr=0.1), lowtide.AdamW(there, lr=0.1)
    norms: list[float] = []
    for limit in (0.5, 0.05, 1e9):
        random_gradients(here)
        device.give_gradients(there, here)
        one, other = first.clip_grad_norm_(limit, kind), second.clip_grad_norm_(limit, kind)
        assert other.dtype == torch.float32 and other.shape == () and other.device == there[0].device
        first.step()
        second.step()
        device.synchronize()
        norms.append(float(other))
        assert bits(one) == bits(other)
        assert [bits(p) for p in here] == [bits(p) for p in there]
    figure(f"norms {norms}, 0 bits of them and of the weights differ")


def test_a_bad_gradient_is_skipped(device: StandIn, seed: int) -> None:
    here = [parameter(*shape) for shape in SHAPES]
    there = device.parameters(here)
    opt = lowtide.AdamW(there, max_grad_norm=0.5)
    random_gradients(here)
    assert here[1].grad is not None
    here[1].grad[3, 3] = math.nan
    device.give_gradients(there, here)
    before = [bits(p) for p in there]
    opt.step()
    device.synchronize()
    assert [bits(p) for p in there] == before and opt.skipped_steps == 1
    assert opt.last_grad_norm is not None and bool(opt.last_grad_norm.isnan())


def test_the_option_gives_the_bits_of_the_cpu(device: StandIn, seed: int, figure: Callable[[str], None]) -> None:
    """By the option; and of a rule whose norms of parameters the host needs, too."""
    here = [parameter(*shape) for shape in SHAPES]
    for cls in (lowtide.AdamW, lowtide.LAMB):
        there = device.parameters(here)
        first, second = (cls(params, lr=0.01, max_grad_norm=0.5) for params in (here, there))
        norms = []
        for _ in range(3):
            random_gradients(here)
            device.give_gradients(there, here)
            first.step()
            second.step()
            device.synchronize()
            assert first.last_grad_norm is not None and second.last_grad_norm is not None
            norms.append(float(second.last_grad_norm))
            assert bits(first.last_grad_norm) == bits(second.last_grad_norm)
            assert [bits(p) for p in here] == [bits(p) for p in there]
        figure(f"{cls.__name__}: norms {norms}, 0 bits differ")


def test_error_if_nonfinite_waits_for_the_norm(device: StandIn, seed: int) -> None:
    here = [parameter(*shape) for shape in SHAPES]
    there = device.parameters(here)
    opt = lowtide.AdamW(there)
    random_gradients(here)
    assert here[1].grad is not None
    here[1].grad[3, 3] = -math.inf
    device.give_gradients(there, here)
    with pytest.raises(RuntimeError, match="norm of inf of order 2"):
        opt.clip_grad_norm_(1.0, error_if_nonfinite=True)
    before = [bits(p) for p in there]
    opt.clip_grad_norm_(1.0)
    opt.step()
    device.synchronize()
    assert [bits(p) for p in there] == before and opt.skipped_steps == 1


def flattened(params: list[torch.nn.Parameter]) -> list[torch.nn.Parameter]:
    for param in params:
        param._fsdp_flattened = True  # type: ignore[attr-defined]  # as FSDP1 marks what it shards
    return params


def test_fsdp1_without_its_group_is_refused_on_a_device(device: StandIn, seed: int) -> None:
    """Each rank would clip by the norm of its own part."""
    there = flattened(device.parameters([parameter(*shape) for shape in SHAPES]))
    for param in there:
        param.grad = device.tensor(torch.ones(param.shape))
    called, told = lowtide.AdamW(there), lowtide.AdamW(there, max_grad_norm=1.0)
    before = [bits(p) for p in there]
    for act in (lambda: called.clip_grad_norm_(0.5), told.step):
        with pytest.raises(ValueError, match="parameter 0 of FSDP1 and no process_group"):
            act()
    device.synchronize()
    assert [bits(p) for p in there] == before


@pytest.mark.parametrize("where", ["cpu", "meta"])
def test_a_frozen_parameter_elsewhere_may_come_first(device: StandIn, where: str, seed: int) -> None:
    here = [parameter(*shape) for shape in SHAPES]
    frozen = torch.nn.Parameter(torch.zeros(4, device=where), requires_grad=False)
    there = device.parameters(here)
    random_gradients(here)
    device.give_gradients(there, here)
    first, second = lowtide.AdamW(here, lr=0.1), lowtide.AdamW([frozen, *there], lr=0.1)
    wanted, norm = first.clip_grad_norm_(0.5), second.clip_grad_norm_(0.5)
    first.step()
    second.step()
    device.synchronize()
    assert bits(wanted) == bits(norm) and [bits(p) for p in here] == [bits(p) for p in there]


@pytest.mark.parametrize("when", ["before", "between"])
def test_parameters_may_move_apart(device: StandIn, when: str, seed: int) -> None:
    """Before the first clip, and between it and its step, to another device or, as a group that is added, to the CPU."""
    here = [parameter(*shape) for shape in SHAPES]
    there = device.parameters(here)
    first, second = lowtide.AdamW(here, lr=0.1), lowtide.AdamW(there, lr=0.1)
    random_gradients(here)
    device.give_gradients(there, here)
    if when == "before":
        assert here[1].grad is not None
        there[1].data = device.tensor(there[1].data, 1)
        there[1].grad = device.tensor(here[1].grad, 1)
    wanted, norm = first.clip_grad_norm_(0.5), second.clip_grad_norm_(0.5)
    if when == "between":
        for opt in (first, second):
            opt.add_param_group({"params": [parameter(5)]})
    first.step()
    second.step()
    device.synchronize()
    assert bits(wanted) == bits(norm)
    assert [bits(p) for p in here] == [bits(p) for p in there]


def test_scales_that_are_not_finite_are_refused(device: StandIn, seed: int) -> None:
    there = device.parameters([parameter(*shape) for shape in SHAPES])
    for param in there:
        param.grad = device.tensor(torch.ones(param.shape))
    opt = lowtide.AdamW(there, amp_scaling=True)
    before = [bits(p) for p in there]
    opt.clip_grad_norm_(0.5)
    opt.found_inf, opt.grad_scale = torch.tensor(0.0), torch.tensor(1e-45)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="grad_scale"):
        opt.step()
    device.synchronize()
    assert [bits(p) for p in there] == before
