"""Accelerate's FSDP2 puts placeholders, and then shards, into the groups of an optimizer that was made before."""

from __future__ import annotations

import accelerate_jobs as jobs
import pytest
from distributed_support import differing, shared_ranks, size

pytest.importorskip("accelerate")
STEPS, CUT = 20, 8


def test_losses_are_those_of_torch(figure):
    """State in float32 on two ranks. Both compute in float32 in another order, which moves a loss by a few of its last bits
    in a step; over 20 steps rounding errors add up to less than 1e-4 of it."""
    ranks = shared_ranks()
    (theirs, _), _ = ranks.run(2, jobs.train, "torch", STEPS)
    (ours, _), _ = ranks.run(2, jobs.train, "fp32", STEPS)
    assert theirs[0] > 1.5 * theirs[-1] or theirs[-1] < theirs[0]
    worst = max(abs(a - b) / b for a, b in zip(ours, theirs, strict=True))
    assert worst < 1e-4
    figure(f"{STEPS} steps, loss {theirs[0]:.4f} to {theirs[-1]:.4f}; at most {worst:.1e} of it from torch.optim.AdamW")


@pytest.mark.parametrize("which", ["fp32", "dynamic8"])
def test_a_checkpoint_of_two_ranks_goes_on_with_one(which, tmp_path, figure):
    """Accelerate saves and loads it. Bits of the uninterrupted run in every weight and state."""
    ranks = shared_ranks()
    (losses, expected), other = ranks.run(2, jobs.train, which, STEPS, 0, CUT, str(tmp_path))
    assert differing(expected, other[1]) == []
    for world in (1, 2):
        resumed, found = ranks.run(world, jobs.train, which, STEPS, 0, CUT, str(tmp_path), True)[0]
        assert resumed == losses[CUT:] and differing(found, expected) == []
    figure(f"{which}: {size(expected)} bytes on 1 and 2 ranks, 0 differ; {STEPS - CUT} equal losses")


def test_prepared_in_the_middle_of_training(figure):
    """The state of the steps before goes along: bits of a run on whole parameters, which no wrapper touched."""
    ranks = shared_ranks()
    losses, expected = ranks.run(1, jobs.train, "fp32", 12, -1)[0]
    for found in ranks.run(2, jobs.train, "fp32", 12, 5):
        assert found[0] == losses and differing(found[1], expected) == []
    figure(f"{size(expected)} bytes, 0 differ")
