"""Claim: no sequence of gradients that a search finds makes an update much larger than exact Adam's largest, 7.27 lr.

The search is a control of itself: it finds exact Adam's bound with float32 state, and updates of more than 1000 lr in
torchao's optimizer, which stores second moments as zero."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from unittest import mock

import lowtide
import pytest
import torch

from bounded_updates import BETAS, BOUND, LR, climb, run_of

# float32 rounds; bfloat16 rounds each moment by 2^-9 of it, ten times over in the first. In formats of 8 bits a second
# moment may be rounded down by an entry in each step: a factor that this search has found to be below 3.
ALLOWED = {"fp32": 1 + 1e-5, "bf16": 1.05, "float8": 3.0, "dynamic8": 3.5}


@pytest.mark.parametrize("state", ALLOWED)
def test_no_update_is_far_above_the_bound(state: str, figure: Callable[[str], None]) -> None:
    torch.set_num_threads(1)
    options = {"lr": LR, "betas": BETAS, "eps": 1e-30, "state": state, "min_quantized_numel": 0}
    worst = climb(run_of(lambda params: lowtide.Adam(params, **options)), rounds=24)
    figure(f"{state}: the largest update found is {worst:.2f} lr, exact Adam's bound {BOUND:.2f} lr")
    assert worst <= BOUND * ALLOWED[state]
    assert worst >= BOUND * 0.99, "control: the search finds the worst of exact Adam"


@pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is None, reason="no bitsandbytes")
def test_in_bitsandbytes(figure: Callable[[str], None]) -> None:
    import bitsandbytes

    torch.set_num_threads(1)
    options = {"lr": LR, "betas": BETAS, "eps": 1e-30, "min_8bit_size": 1}
    worst = climb(run_of(lambda params: bitsandbytes.optim.Adam8bit(params, **options)), rounds=8)
    figure(f"bitsandbytes: the largest update found is {worst:.2f} lr")
    assert worst > BOUND, "control"


@pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="no torchao")
def test_in_torchao(figure: Callable[[str], None]) -> None:
    torch.set_num_threads(1)
    with mock.patch("torch.compile", lambda function, **_: function):  # the same formulas, without minutes of compiling
        from torchao.optim import Adam8bit

        options = {"lr": LR, "betas": BETAS, "eps": 1e-30}
        worst = climb(run_of(lambda params: Adam8bit(params, **options)), rounds=1)
    figure(f"torchao: the largest update found is {worst:.2f} lr")
    assert worst > 1000, "control"
