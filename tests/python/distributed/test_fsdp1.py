"""FSDP1 (FullyShardedDataParallel) gathers, cuts and hands out the state of every format, and nothing changes by it."""

from __future__ import annotations

from pathlib import Path

import fsdp1_jobs as jobs
import pytest
import torch
from distributed_support import differing, shared_ranks, size
from fsdp1_jobs import Case

ORIGINAL = pytest.mark.parametrize("original", [True, False], ids=["original", "flat"])


@ORIGINAL
def test_steps_are_those_of_torch(original: bool, figure) -> None:
    """fp32 state: ours and torch's steps differ by rounding, 1e-2 of lr's size at most after ten steps."""
    case = Case(original, options={"state": "fp32"})
    worst = max(shared_ranks().run(3, jobs.like_torch, case))
    figure(f"largest difference of a weight after 10 steps of lr 0.01: {worst:.3g}")
    assert worst <= 1e-4


@pytest.mark.parametrize(
    ("original", "kind"),
    # Not original parameters, offloaded: torch 2.15 gathers all states into one buffer, and .cpu() copies it on devices
    # only, so that every moment would be the last one, torch's own as well.
    [(True, "full"), (True, "rank 0"), (True, "sharded")]
    + [(False, "full"), (False, "rank 0"), (False, "sharded"), (False, "offloaded")],
)
@pytest.mark.share
def test_state_comes_back_bit_for_bit(original: bool, kind: str, figure) -> None:
    compared = empty = 0
    for case in (
        Case(original, options={"state": "dynamic8"}),
        Case(original, options={"state": "fp32"}),
        Case(original, dtype=torch.bfloat16, options={"state": "bf16", "master": "residual16"}),
        Case(original, dtype=torch.bfloat16, options={"state": "dynamic8", "master": "residual8"}),
        Case(original, options={"state": "dynamic4", "min_quantized_numel": 0}),
        Case(original, options={"state": "float8", "rounding": "stochastic"}),
    ):
        for one, other, nothing in shared_ranks().run(3, jobs.round_trip, case, kind):
            assert differing(one, other) == [], case
            compared += size(one)
            empty += nothing
    assert bool(empty) == original
    figure(f"{compared} bytes compared, 0 differ; {empty} empty parameters on ranks")


def test_frozen_parameters_are_left_out(figure) -> None:
    case = Case(frozen=True, options={"state": "dynamic8"})
    compared = 0
    for one, other, _ in shared_ranks().run(2, jobs.round_trip, case, "full"):
        assert differing(one, other) == []
        compared += size(one)
    figure(f"{compared} bytes compared, 0 differ")


@pytest.mark.parametrize("state", ["fp32", "bf16", "dynamic8"])
@pytest.mark.share
def test_state_goes_to_other_numbers_of_ranks(state: str, tmp_path: Path, figure) -> None:
    """State without scales, and state whose blocks end at the cuts, is the same on any number of ranks. Where shards
    cut blocks elsewhere, values are rounded anew, to nearest: they move by half the widest gap of the signed map, or from
    -1 to its lowest entry, 0.00703 of the largest of their block."""
    exact = 0
    worst = 0.0
    for n, (source, target, aligned) in enumerate(
        [(2, 3, False), (3, 1, False), (2, 4, True), (4, 1, True)]
    ):
        if state != "dynamic8" and aligned:
            continue
        path = str(tmp_path / str(n))
        case = Case(aligned=aligned, tiny=False, options={"state": state})
        wanted = shared_ranks().run(source, jobs.saved, case, path)[0]
        for found in shared_ranks().run(target, jobs.loaded, case, path):
            for name, value in wanted.items():
                got = found[name]
                if aligned or state != "dynamic8" or name.count(".") == 1 or name.endswith("step"):
                    assert torch.equal(got, value), name
                    exact += value.numel()
                elif not name.endswith("_scale"):
                    reach = float(wanted[f"{name}_scale"].max()) or float("inf")
                    worst = max(worst, float((got - value).abs().max()) / reach)
    figure(f"{exact} values exact; others moved by {worst:.4f} of the largest scale at most")
    assert worst <= 0.00704


@ORIGINAL
@pytest.mark.parametrize("world", [2, 4])
def test_shards_of_whole_blocks_have_the_bits_of_one_process(original: bool, world: int, figure) -> None:
    """State without scales has no blocks. A FlatParameter has another number than the parameters in it, and so other
    random bits: those of one process are found to nearest only."""
    compared = 0
    nearest = {} if original else {"rounding": "nearest"}
    cases = [
        Case(original, aligned=True, options={"state": "dynamic8", **nearest}),
        Case(original, options={"state": "fp32"}),
    ]
    if original:  # 16-bit state below min_quantized_numel is float32: by the whole parameter, as in one process
        cases.append(Case(aligned=True, options={"state": "float8"}))
        cases.append(Case(dtype=torch.bfloat16, aligned=True, options={"state": "dynamic8", "master": "residual16"}))
    for case in cases:
        wanted = shared_ranks().run(1, jobs.as_whole, case, False)[0]
        for found in shared_ranks().run(world, jobs.as_whole, case, True):
            assert differing(wanted, found) == []
            compared += size(wanted)
    figure(f"{compared} bytes compared, 0 differ")


def test_flat_parameters_are_rounded_alike_on_any_number_of_ranks(figure) -> None:
    """Their random bits follow the place of an element in the whole FlatParameter, which is that of one rank."""
    compared = 0
    for options in ({"state": "dynamic8", "rounding": "stochastic"}, {"state": "float8"}, {"state": "bf16", "seed": 5}):
        case = Case(False, aligned=True, options=options)
        wanted = shared_ranks().run(1, jobs.as_whole, case, True)[0]
        other = shared_ranks().run(1, jobs.as_whole, case._replace(options={**options, "seed": 9}), True)[0]
        assert differing(wanted, other), "control: random bits matter"
        for world in (2, 4):
            for found in shared_ranks().run(world, jobs.as_whole, case, True):
                assert differing(wanted, found) == [], (options, world)
                compared += size(found)
    figure(f"{compared} bytes of 1, 2 and 4 ranks compared, 0 differ")


@ORIGINAL
def test_gathered_state_goes_to_one_process(original: bool, figure) -> None:
    compared = 0
    for case in (
        Case(original, options={"state": "fp32"}),
        Case(original, aligned=True, options={"state": "dynamic8"}),
    ):
        for wanted, found in shared_ranks().run(2, jobs.into_plain, case):
            assert differing(wanted, found) == [], case
            compared += size(wanted)
    figure(f"{compared} bytes compared, 0 differ")


def test_what_does_not_fit_is_refused_by_name(figure) -> None:
    words = {
        "missing": "exp_avg", "unknown": "strange", "shape": "shape", "codes": "floating-point", "infinite": "finite",
        "negative": "below 0", "residual": "master", "none": "no entry",
        "norms": "norms of whole parameters",
    }  # fmt: skip
    for found in shared_ranks().run(2, jobs.refusals, Case(options={"state": "dynamic8"})):
        for name, word in words.items():
            assert "parameter 0" in found[name] and (word in found[name] or name == "shape"), (name, found[name])
    figure(f"{len(words)} dicts refused, nothing changed")
