"""Clipping parameters on a device: the norm is torch's there, and the step multiplies, as on the CPU. Torch's own work is that of a
CPU (stand_in.py), so that this shows which functions are called with what, and that the backend gets the factor."""

import math
from collections.abc import Callable

import lowtide
import pytest
from stand_in import StandIn
from support import bits, parameter, random_gradients

SHAPES = ((32, 300), (7, 100), (9,))


def test_steps_are_those_of_the_cpu(device: StandIn, seed: int, figure: Callable[[str], None]) -> None:
    """Both norms are of the same gradients, added up in float32 there: the factors differ by a few units of 2^-24 of a step,
    which is as long as the limit."""
    here = [parameter(*shape) for shape in SHAPES]
    there = device.parameters(here)
    first, second = lowtide.SGD(here, lr=1.0), lowtide.SGD(there, lr=1.0)
    apart, before = 0.0, [p.detach().clone() for p in here]
    for limit in (0.5, 0.05):
        random_gradients(here)
        device.give_gradients(there, here)
        one, other = first.clip_grad_norm_(limit), second.clip_grad_norm_(limit)
        assert float(one) == pytest.approx(float(other), rel=1e-6) and float(one) > 0.5
        first.step()
        second.step()
        device.synchronize()
        apart = max(apart, *(float((p.detach() - q.detach()).abs().max()) for p, q in zip(here, there, strict=True)))
    moved = math.hypot(*(float((p.detach() - b).norm()) for p, b in zip(here, before, strict=True)))
    assert 0.45 < moved < 0.56, "by 0.5, and then by 0.05 in another direction"
    figure(f"norms {float(one)} and {float(other)}, weights at most {apart:.1e} apart")
    assert apart < 1e-6


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
