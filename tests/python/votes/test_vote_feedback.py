"""ErrorFeedbackSign: what one bit leaves out comes later, whatever residuals are kept in, over checkpoints and changes
of the number of workers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import vote_feedback_jobs as jobs
from distributed_support import shared_ranks
from vote_reference import aligned

PASSES = 100


# The share of the sum that rounding may lose: residuals of some 20 gradients, in each of 100 passes on two sides, at
# random.
ROUNDING = {"fp32": 1e-5, "bf16": 20 * 2**-9 * 200**0.5 / 100, "dynamic8": 20 * 2**-6 * 200**0.5 / 100}


@pytest.mark.parametrize(
    ("residual", "weights"), [("fp32", [1, 1, 1]), ("fp32", [1, 3]), ("bf16", [1, 1, 1]), ("dynamic8", [1, 1, 1])]
)
def test_sums_are_those_of_means(residual: str, weights: list[int], figure: Callable[[str], None]) -> None:
    world = len(weights)
    answers = shared_ranks().run(world, jobs.sums_of, residual, PASSES, True, weights)
    assert len({found["last"] for found in answers}) == 1, "ranks differ"
    found = answers[0]
    # Without what is left: that is bounded, and so 1 / PASSES of the sum.
    assert max(found["whole"]) < ROUNDING[residual] and max(found["errors"]) < 0.15
    numel = sum(torch.Size(shape).numel() for shape in jobs.SHAPES)
    width = {"fp32": 4, "bf16": 2, "dynamic8": 1}[residual]
    signs = sum(aligned(torch.Size(shape).numel()) for shape in jobs.SHAPES)
    assert numel * width <= found["bytes"] <= 1.02 * width * (numel + 2 * (signs / world + 1024))
    figure(
        f"{residual}, weights {weights}: {PASSES} passes within {max(found['errors']):.2%} of the sum of means, with "
        f"what is left {max(found['whole']):.5%}; {found['bytes']} bytes of residuals for {numel} elements"
    )


def test_without_feedback(figure: Callable[[str], None]) -> None:
    """Control."""
    found = shared_ranks().run(3, jobs.sums_of, "fp32", PASSES, False, [1, 1, 1])[0]
    assert max(found["errors"]) > 0.3
    figure(f"{PASSES} passes within {max(found['errors']):.2%} of the sum of means")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("residual", ["fp32", "bf16", "dynamic8"])
def test_resumes_bit_for_bit(residual: str, dtype: torch.dtype) -> None:
    words = ["residual: got 'none'", "average_state()", "other parameters", "got nothing", "shard", "got no"]
    for found in shared_ranks().run(3, jobs.resume, residual, dtype):
        assert all(found[key] for key in ("equal", "spoilt", "untouched", "resumed", "changed", "intact")), found
        for (kind, text), word in zip(found["refused"], words, strict=True):
            assert kind == "ValueError" and word in text, (kind, text)
        assert found["differing"][0] == "RuntimeError" and "loss_scale" in found["differing"][1]


@pytest.mark.parametrize(("weights", "then"), [([1, 1, 1, 1], 2), ([2, 1], 3)])
def test_another_number_of_workers(
    weights: list[int], then: int, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    path = str(tmp_path / "rank0")
    before = shared_ranks().run(len(weights), jobs.first_half, path, 10, weights)
    for moved, size, _ in before:
        assert moved <= size * 2**-20 and size > 1
    after = shared_ranks().run(then, jobs.second_half, path, range(10, 20))
    for kept, lost, refusal in after:
        assert kept == after[0][0] and max(kept) < max(lost)
        assert refusal[0] == "nothing" if then == len(weights) else "average_state" in refusal[1]
    figure(
        f"{len(weights)} -> {then} workers: the mean residual moved by {before[0][0]:.1e} of {before[0][1]:.1e}; sums "
        f"over both within {max(after[0][0]):.2%} (without taking over {max(after[0][1]):.2%})"
    )
