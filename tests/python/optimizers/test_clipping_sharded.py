"""Clipping over shards: the norm and the step's bits are those of one process, on any mesh; ranks refuse together."""

from __future__ import annotations

import clipping_jobs as jobs
import pytest
from distributed_support import shared_ranks

PLAIN = 1, "plain"
MESHES = [(n, kind) for kind in ("rows", "columns") for n in (1, 2, 3, 4)]
MESHES += [(3, "copies"), (4, "copies of rows"), (4, "rows of rows"), (4, "rows and columns")]


def test_any_mesh_gives_the_bits_of_one_process(figure) -> None:
    """Norms of both orders; torch's, added up in float32 and in another order, is as far away as rounding takes it."""
    alone, (norm, largest), torchs = shared_ranks().run(1, jobs.clipped, "plain", False)[0]
    compared, worst = 0, abs(torchs / norm - 1)
    for world, kind in MESHES:
        for mixed in (False, True):
            for found, _, theirs in shared_ranks().run(world, jobs.clipped, kind, mixed):
                assert found == alone, (world, kind, mixed)
                worst = worst if mixed else max(worst, abs(theirs / norm - 1))
                compared += 1
    norms = f"norms {norm:.6f} and {largest:.6f}"
    figure(f"{compared} ranks of {len(MESHES)} meshes: {norms}, 0 bits differ; torch's {worst:.1e} away")
    assert worst < 1e-6


@pytest.mark.parametrize("original", [True, False], ids=["original", "flat"])
def test_fsdp1_with_its_process_group(original: bool, figure) -> None:
    norms = set()
    for world in (1, 3):
        for bits, norm, wanted, error in shared_ranks().run(world, jobs.fsdp1, original):
            assert norm == pytest.approx(wanted, rel=1e-6)
            assert "got parameter 0 of FSDP1 and no process_group, wanted" in error
            norms.add((world, bits))
    figure(f"norm {norm:.6f}, torch {wanted:.6f}")
    assert len(norms) == 2, "one norm on all ranks"


@pytest.mark.parametrize("kind", ["other layout on one rank", "partial", "placement"])
def test_ranks_refuse_together(kind: str, figure) -> None:
    answers = shared_ranks().run(2, jobs.spoiled, kind)
    for rank, (early, late, unchanged) in enumerate(answers):
        assert unchanged and early
        said = "wanted those that it has measured" if rank == 1 else "another rank refused this step"
        assert said in late, (rank, late)
    if kind == "other layout on one rank":
        assert "another rank refused these gradients" in answers[0][0]
    figure(f"{len(answers)} ranks, both say why: {answers[1][0]}")


def test_the_option_on_all_ranks(figure) -> None:
    for world in (2, 3):
        for bad, skipped in ((False, 0), (True, 1)):
            for count, _ in shared_ranks().run(world, jobs.option, bad):
                assert count == skipped
    figure("a NaN on one rank skips the step on all")
