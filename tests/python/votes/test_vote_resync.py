"""Workers that have gone apart: a checksum of the parameters names the one that differs, errors say which vote is the last
complete one, and resync() brings workers together in a new group, to where they would be without the loss."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import vote_resync_jobs as jobs
from distributed_support import shared_ranks


@pytest.mark.parametrize("kind", ["lion", "signum", "hook"])
def test_a_worker_that_changes_its_parameters_is_named(kind: str, figure: Callable[[str], None]) -> None:
    """Changed after vote 0, on rank 1: found in vote 3 with check_every=3, never with 0, which is the default."""
    answers = shared_ranks().run(3, jobs.changed_on_one, kind, 3)
    for votes, (name, text) in answers:
        assert votes == 3 and name == ("RuntimeError" if kind == "hook" else "ValueError"), (votes, name, text)
        assert "the parameters' values" in text and "ranks [1] from rank 0" in text, text
    assert shared_ranks().run(3, jobs.changed_on_one, kind, 0) == [(8, ("nothing", ""))] * 3
    figure(f"{kind}: rank 1 is named on all of 3 workers in the first vote that compares")


@pytest.mark.parametrize(
    ("kind", "dtype", "master"),
    [("lion", torch.float32, None), ("signum", torch.float32, None), ("lion", torch.bfloat16, "residual16")],
)
def test_survivors_a_step_apart_are_brought_together(
    kind: str, dtype: torch.dtype, master: str | None, figure: Callable[[str], None]
) -> None:
    """The loss is played: vote 3 is taken back on all ranks but the last, as if its commit had not arrived. Each keeps
    its momentum, which has taken the gradient in on all of them: so the bits are those of workers that lost nothing."""
    answers = shared_ranks().run(3, jobs.brought_together, kind, dtype, master)
    for rank, found in enumerate(answers):
        name, text = found["refused"]
        last = f"vote {3 if rank == 2 else 2} is the last one that is complete on rank {rank}"
        assert name == "ConnectionError" and last in text and "resync()" in text, text
        assert found["apart"] == (rank != 2) and found["together"] and found["reached"] == 4
        assert found["bits"] == found["undisturbed"] and found["votes"] == 7
    figure(f"{kind}, {dtype}, master {master}: 3 workers, one a vote ahead: 0 bits differ after resync() and 3 votes")


def test_a_worker_that_begins_takes_the_others_parameters() -> None:
    assert shared_ranks().run(3, jobs.joined) == [(3, True, 5)] * 3
