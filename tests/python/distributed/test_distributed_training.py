"""fully_shard, DistributedDataParallel and tensor parallelism: ranks agree, and resumed training is the training that
was not interrupted."""

from __future__ import annotations

from pathlib import Path

import distributed_models as models
import pytest
from distributed_support import differing, shared_ranks, size


@pytest.mark.parametrize(
    ("kind", "rule", "world"),
    [
        ("rows", "adamw", 3),
        ("rows", "lion", 2),
        ("hsdp", "adamw", 4),
        ("tensor", "adamw", 4),
        ("bf16", "adamw", 2),
        ("offload", "adamw", 2),
        ("ddp", "adamw", 2),  # of three, the order of sums changes when torch rebuilds its buckets
    ],
)
@pytest.mark.share
def test_models_resume(kind: str, rule: str, world: int, tmp_path: Path, figure) -> None:
    answers = shared_ranks().run(world, models.resume, kind, rule, str(tmp_path / "saved"))
    compared = 0
    for one, other, kinds in answers:
        assert differing(one, other) == []
        assert differing(one, answers[0][0]) == [], "ranks differ"
        assert kinds == ("Parameter Tensor" if kind == "ddp" else "DTensor DTensor")
        compared += size(one)
    figure(f"{kind}, {world} ranks: {len(answers[0][0])} tensors, {compared} bytes compared twice, 0 differ")


@pytest.mark.parametrize(
    ("kind", "nonfinite", "words"),
    [
        ("nan", "skip", None),
        ("nan", "raise", ("NaN", "another rank")),
        ("none", "skip", ("on some ranks and none on others",) * 2),
        ("other layout on one rank", "skip", ("redistribute", "another rank")),
        ("partial", "skip", ("redistribute", "redistribute")),
        ("placement", "propagate", ("redistribute", "redistribute")),
    ],
)
def test_what_one_rank_cannot_step_none_does(
    kind: str, nonfinite: str, words: tuple[str, str] | None, figure
) -> None:
    """`words`: in the error of rank 1, on which it goes wrong, and of the others; None: no error, a skipped step."""
    answers = shared_ranks().run(3, models.spoiled, kind, nonfinite)
    for rank, (error, skipped, unchanged, alike) in enumerate(answers):
        assert unchanged and alike, f"rank {rank}: {error}"
        assert skipped == (1 if words is None else 0)
        assert (words[0 if rank == 1 else 1] in error) if words else not error, f"rank {rank}: {error}"
    figure(f"{kind}, {nonfinite}: 3 ranks unchanged by the step; then as if it had not been")


def test_refusals(figure) -> None:
    wanted = {
        "partial parameter": "only Shard and Replicate",
        "moved state": "redistribute",
        "a local part as plain state": "the whole of it",
        "sharded state into a plain parameter": "a plain tensor",
    }
    for found in shared_ranks().run(2, models.refusals):
        assert found.keys() == wanted.keys()
        for name, word in wanted.items():
            assert word in found[name], f"{name}: {found[name]}"
    figure(f"{len(wanted)} refusals on 2 ranks, each with its reason")


def test_scaled_steps_and_copies(figure) -> None:
    answers = shared_ranks().run(2, models.scaled_and_copied)
    assert answers == [([(1, 0), (1, 1)], True)] * 2
    figure("2 ranks skip the step with an infinity on one of them; copies go on alike")
