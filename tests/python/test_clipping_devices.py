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
