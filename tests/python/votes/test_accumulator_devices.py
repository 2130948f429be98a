"""SignAccumulator for parameters on a device: the means of the CPU's. Skipped without one (stand_in.py)."""

from __future__ import annotations

import random
from collections.abc import Callable

import lowtide.distributed
import pytest
import torch
from stand_in import StandIn
from support import DTYPES, bits

SIZES = (0, 1, 7, 64, 65, 1000, 1025, 2049)


def test_the_means_of_the_cpu(device: StandIn, seed: int, share: float, figure: Callable[[str], None]) -> None:
    choose = random.Random(seed)
    elements = means = spoilt = 0
    for number in range(max(6, int(300 * share))):
        most = choose.choice((1, 2, 3, 7, 15, 100))
        dtype = DTYPES[number % len(DTYPES)]
        here = [torch.nn.Parameter(torch.zeros(choose.choice(SIZES), dtype=dtype)) for _ in range(3)]
        there = device.parameters(here)
        counts = [lowtide.distributed.SignAccumulator(params, most) for params in (here, there)]
        assert counts[0].nbytes == counts[1].nbytes
        for _ in range(2):  # zeros continue in turns
            for turn in range(choose.randint(1, min(most, 9))):
                for param in here:
                    grad = torch.randint(-1, 2, param.shape).to(dtype)
                    param.grad = None if choose.random() < 0.2 else grad
                if number % 5 == 4 and turn == 0:
                    here[0].grad = torch.full_like(here[0], float("inf"))
                device.give_gradients(there, here)
                for one in counts:
                    one.add()
                assert all(param.grad is None for param in (*here, *there))
                device.synchronize()
            for one in counts:
                one.finish()
            device.synchronize()
            for param, other in zip(here, there, strict=True):
                assert (param.grad is None) == (other.grad is None)
                if param.grad is None:
                    continue
                assert param.grad.dtype == other.grad.dtype == dtype and bits(param.grad) == bits(other.grad), number
                elements += param.numel()
                means += 1
                spoilt += bool(param.grad.isnan().any())
                param.grad = other.grad = None  # a stand-in's converted tensor is the CPU's
    assert elements > 1000 and spoilt > 0
    figure(f"{device.kind}: {means} means of {elements} elements, 0 bits differ from the CPU's; {spoilt} are NaN")


def test_a_gradient_elsewhere_is_refused(cuda: StandIn) -> None:
    """Torch refuses such a gradient on a device that it knows, unless memory was exchanged behind its back."""
    param = cuda.parameters([torch.zeros(5)])[0]
    counts = lowtide.distributed.SignAccumulator([param])
    param.grad = torch.ones(5)
    with pytest.raises(ValueError, match=f"gradient of parameter 0: got cpu, wanted {cuda.name()}"):
        counts.add()
    assert param.grad is not None
