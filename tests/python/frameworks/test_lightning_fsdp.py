"""Lightning's FSDP strategy on two ranks of the CPU: its own setup of optimizers, steps, checkpoints and their loading."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from distributed_support import differing, shared_ranks, size

pytest.importorskip("pytorch_lightning")

import lightning_fsdp_jobs as jobs

WORLD = 2


def test_sharded_checkpoints_resume_to_the_bit(tmp_path: Path, figure: Callable[[str], None]) -> None:
    what = WORLD, jobs.train, "dynamic8", "sharded", str(tmp_path)
    runs, again = (shared_ranks().run(*what, resume) for resume in (False, True))
    compared = 0
    for (losses, found), (resumed, after) in zip(runs, again, strict=True):
        assert resumed == losses[jobs.BATCHES :]
        assert differing(found, after) == []
        compared += size(found)
    losses = runs[0][0]
    assert losses[-1] < losses[0]
    figure(f"{compared} bytes of {WORLD} ranks, 0 differ after resuming; loss {losses[0]:.3f} -> {losses[-1]:.3f}")


def test_full_checkpoints_resume_as_torch_does(tmp_path: Path, figure: Callable[[str], None]) -> None:
    """With torch's optimizer, too, Lightning goes on otherwise than without a checkpoint here; with Lowtide's, alike.

    A step rounds weights below 1 and their updates once more than torch's: of each, half a unit of 2^-24, in as many steps
    as there are losses; a loss has sums of 256 products of them."""
    worst = 0.0
    for resume in (False, True):
        ours, theirs = (
            shared_ranks().run(WORLD, jobs.train, which, "full", str(tmp_path / which), resume)[0][0]
            for which in ("fp32", "torch")
        )
        worst = max(worst, *(abs(a - b) / b for a, b in zip(ours, theirs, strict=True)))
    bound = 2 * jobs.EPOCHS * jobs.BATCHES * 256 * 2.0**-24
    figure(f"losses of both runs within {worst:.1e} of torch's, of {bound:.1e}")
    assert worst <= bound
