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
