"""SignVote and ShardVote: what DistributedDataParallel and FSDP2 make of gradients is the majority of those that ranks
compute without them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import vote_hook_jobs as jobs
from distributed_support import shared_ranks

CASES: dict[str, tuple[str, torch.dtype, int, dict[str, Any]]] = {
    "plain": ("plain", torch.float32, 1, {}),
    "bfloat16": ("plain", torch.bfloat16, 1, {}),
    "float16": ("plain", torch.float16, 1, {}),
    "views": ("plain", torch.float32, 1, {"gradient_as_bucket_view": True}),
    "accumulated": ("plain", torch.float32, 3, {}),
    "accumulated_views": ("plain", torch.bfloat16, 2, {"gradient_as_bucket_view": True}),
    "static_graph": ("plain", torch.float32, 1, {"static_graph": True}),
    "unused": ("branches", torch.float32, 1, {"find_unused_parameters": True}),
}


@pytest.mark.parametrize(
    ("name", "world"), [(name, world) for name in CASES for world in ((2, 4) if "16" in name else (1, 2, 3, 4))]
)
@pytest.mark.share
def test_gradients_are_majorities(name: str, world: int, figure: Callable[[str], None]) -> None:
    for found in shared_ranks().run(world, jobs.votes_of_signs, *CASES[name]):
        assert found["wrong"] == 0 and found["votes"] == 4 and found["compared"] > 10_000
        assert bool(found["ties"]) == (world % 2 == 0 or (name == "unused" and world > 1))
        assert (found["unused"] > 0) == (name == "unused")
        assert max(found["buckets"]) >= 3
    figure(
        f"{name}, {world} workers: {found['compared']} elements equal, {found['ties']} ties; buckets of each pass: "
        f"{found['buckets']}"
    )


def test_buckets_are_laid_anew(figure: Callable[[str], None]) -> None:
    """Control: the passes above differ in their buckets."""
    found = shared_ranks().run(2, jobs.votes_of_signs, *CASES["plain"])[0]
    assert found["buckets"][0] != found["buckets"][-1]
    figure(f"buckets of each pass: {found['buckets']}")


@pytest.mark.parametrize("world", [3, 4])
def test_weighted_votes(world: int, figure: Callable[[str], None]) -> None:
    """1, 2 and 3 votes tie where the last stands alone; 1, 2, 3 and 2 where halves do."""
    for found in shared_ranks().run(world, jobs.votes_of_signs, *CASES["plain"], weighted=True):
        assert found["wrong"] == 0 and found["ties"] > 1000
    figure(f"{world} workers: {found['compared']} elements equal, {found['ties']} ties that are 0")


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("ties", ["hash", "plus", "minus", "zero", "previous"])
def test_buckets_change_no_bit(ties: str, world: int, seed: int, share: float, figure: Callable[[str], None]) -> None:
    """Buckets are voted on one by one, as they come: the result is that of one vote on all gradients."""
    for wrong, compared, skipped in shared_ranks().run(world, jobs.buckets, ties, max(8, int(40 * share)), seed):
        assert wrong == 0 and skipped >= 2
    figure(f"{ties}, {world} workers: {compared} elements in {len(jobs.CUTS)} sets of buckets, {wrong} differ; {skipped} passes NaN")


def test_workers_with_other_buckets() -> None:
    for first, second in shared_ranks().run(3, jobs.other_buckets):
        assert first[0] == "ValueError" and "2" in first[1], first
        assert second == ("nothing", "")


@pytest.mark.parametrize(("world", "wanted"), [(2, "one_phase"), (3, "two_phase")])
def test_nothing_is_measured_beside_computing(world: int, wanted: str) -> None:
    for large, small, waiting in shared_ranks().run(world, jobs.algorithms):
        assert large == wanted and "measured" in small and "measured" in waiting


@pytest.mark.parametrize("alone", [False, True])
def test_a_pass_that_is_broken_off(alone: bool) -> None:
    """The next one has nothing of its parts; where one worker alone is there, all are refused, and the pass after it is right."""
    for errors, wrong in shared_ranks().run(3, jobs.broken_off, alone):
        assert errors == (["ValueError", "nothing"] if alone else ["nothing"]) and wrong == 0, errors


@pytest.mark.parametrize("where", ["pack", "values"])
def test_a_worker_that_fails_in_the_middle_of_a_pass(where: str) -> None:
    """The others hear of it at once, no gradient is replaced anywhere, and the next pass goes on."""
    for rank, (error, untouched, after) in enumerate(shared_ranks().run(2, jobs.one_cannot, where)):
        assert ("none left" if rank == 0 else "[0] failed") in error, error
        assert untouched == [True] * 3 and after == "nothing"


@pytest.mark.parametrize("world", [2, 3])
def test_nan_on_one_rank(world: int, figure: Callable[[str], None]) -> None:
    for found in shared_ranks().run(world, jobs.not_finite):
        assert found["nans"] == [False, True, False, False] and found["equal"] and found["votes"] == 4
        assert all(values <= {-1.0, 0.0, 1.0} for values in found["values"][::2])
    figure(f"{world} workers: a NaN on one is NaN on all, in that pass only")


@pytest.mark.parametrize("world", [2, 4])
def test_two_models(world: int) -> None:
    assert shared_ranks().run(world, jobs.two_models) == [0] * world


def test_fsdp2_between_nodes(figure: Callable[[str], None]) -> None:
    for found in shared_ranks().run(4, jobs.sharded):
        assert found["wrong"] == 0 and found["calls"] >= 3 and found["ties"] > 100
    figure(f"2 x 2 ranks: {found['calls']} votes on {found['elements']} elements of shards, {found['ties']} ties")


def test_every_fsdp2_module_votes(figure: Callable[[str], None]) -> None:
    for odd, equal, votes in shared_ranks().run(4, jobs.registered):
        assert odd == [] and equal and votes >= 3
    figure(f"2 x 2 ranks: {votes} modules within each other voted in one pass, and all gradients are signs")
