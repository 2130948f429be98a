"""Workers that cannot do what the others do, and gradients that only a loss scale keeps within float16."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sign_exchange_jobs
import torch
from distributed_support import shared_ranks


def test_two_kinds_of_optimizers_are_refused_on_all() -> None:
    """Lowtide reports the error; gloo would end the processes."""
    for first, second in shared_ranks().run(3, sign_exchange_jobs.two_kinds):
        assert "kind of optimizer" in first and "[1]" in first and second == ""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("loss_scale", [1.0, 2.0**16, 3.0 * 2**14])
def test_error_feedback_under_a_loss_scale(
    dtype: torch.dtype, loss_scale: float, figure: Callable[[str], None]
) -> None:
    # Without its scale, 2^-26 is no float16.
    gradient = 2.0**-26 if loss_scale > 1 else 2.0**-8
    for low, high in shared_ranks().run(2, sign_exchange_jobs.constant_gradients, dtype, gradient, loss_scale, 4):
        # One sign and one scale say it all; the scale is a power of two, and 3 * 2^-12 is exact in all types.
        assert low == high == gradient
    figure(f"{dtype}, {loss_scale}: a gradient of {gradient} arrives as it is")


def test_a_hook_that_is_interrupted_ends_backward() -> None:
    good, bad, _ = shared_ranks().run(3, sign_exchange_jobs.interrupted_hook)
    assert "SystemExit: enough" in bad, bad
    assert "ranks [1] failed" in good, good


def test_a_shard_that_cannot_be_read_fails_on_all() -> None:
    (own, first), (others, second) = shared_ranks().run(2, sign_exchange_jobs.misaligned_shard)
    assert own.startswith("ValueError") and "aligned" in own, own
    assert others.startswith("RuntimeError") and "ranks [0] failed" in others, others
    assert first == second == ""
