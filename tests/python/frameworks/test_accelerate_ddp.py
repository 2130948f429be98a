"""Accelerate's DDP (MULTI_CPU) on two ranks: one process with the mean gradient, bit for bit; save_state and load_state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import accelerate_jobs as jobs
import pytest
from distributed_support import differing, shared_ranks, size

WORLD, STEPS, CUT = 2, 6, 3


@pytest.mark.parametrize("which", ["fp32", "dynamic8"])
def test_ranks_train_as_one_process_and_resume(which: str, tmp_path: Path, figure: Callable[[str], None]) -> None:
    """Halves of two gradients add up to their mean exactly, on any rank and in one process."""
    pytest.importorskip("accelerate")
    wanted = shared_ranks().run(1, jobs.train_alone, which, STEPS, WORLD)[0]
    compared = 0
    for resume in (False, True):
        for found in shared_ranks().run(WORLD, jobs.train_ddp, which, STEPS, CUT, str(tmp_path), resume):
            assert differing(wanted, found) == [], f"resumed: {resume}"
            compared += size(found)
    figure(f"{which}: {compared} bytes of {WORLD} ranks, trained and resumed, 0 differ from one process")
