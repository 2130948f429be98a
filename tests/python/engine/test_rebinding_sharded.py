"""Sharded tensors in the place of parameters, as FSDP2 makes them: state, steps and options go with them, cut anew."""

from __future__ import annotations

import pytest
import rebinding_jobs as jobs
from distributed_jobs import Layout, uninterrupted
from distributed_support import differing, shared_ranks, size

def matrices(found: dict[str, bytes]) -> dict[str, bytes]:
    return {name: value for name, value in found.items() if not name.startswith("row")}


PLAIN, ROWS, COLUMNS = Layout("plain"), Layout("rows", (2,)), Layout("columns", (2,))


@pytest.mark.parametrize(
    ("rule", "state", "on_disk", "at"),
    [
        ("adamw", "dynamic8", False, 3),
        ("adamw", "dynamic8", True, 3),
        ("adamw", "dynamic8", False, 0),
        ("adamw_amsgrad", "dynamic4", False, 3),
        ("sgd", "bf16", False, 3),
        ("sgd_plain", "fp32", False, 3),
        ("ademamix", "float8", False, 3),
    ],
)
def test_whole_parameters_become_shards(rule, state, on_disk, at, tmp_path, figure):
    """Bits of an optimizer that kept the whole parameters, in weights and state; also by way of a third layout. A single
    row is left out: shards of it have other state."""
    ranks = shared_ranks()
    disk = str(tmp_path) if on_disk else None
    expected = matrices(ranks.run(1, uninterrupted, PLAIN, rule, state)[0])
    compared = 0
    for layouts in ([PLAIN, ROWS], [PLAIN, ROWS, PLAIN], [PLAIN, ROWS, Layout("replicas", (2,))]):
        if rule == "ademamix" and len(layouts) > 2:
            continue
        for before, after, end, keyed in ranks.run(2, jobs.rebound, layouts, rule, state, disk, at):
            assert keyed
            assert differing(matrices(before), matrices(after)) == []
            assert differing(matrices(end), expected) == [], layouts
            compared += size(before) + size(end)
    figure(f"{rule} {state}, after {at} steps: {compared} bytes compared, 0 differ")


def test_master_weights_go_along(figure):
    """The residuals behind bfloat16 weights are cut as the weights are."""
    ranks = shared_ranks()
    (before, after, _, _), _ = ranks.run(2, jobs.rebound, [PLAIN, ROWS], "adamw", "dynamic8", None, 3, "residual16")
    assert any(name.endswith(".residual") for name in before)
    assert differing(matrices(before), matrices(after)) == []
    figure(f"{size(before)} bytes, 0 differ")


@pytest.mark.parametrize("layout", [COLUMNS, ROWS])
def test_shards_that_cut_blocks_have_decoded_state(layout, figure):
    """Rows that are cut, and single rows, have float32 state: the values that the codes stood for, which torch's dict tells."""
    decoded, before, after = shared_ranks().run(2, jobs.decoded, layout)[0]
    assert ("uneven" in decoded) == (layout is COLUMNS) and "row" in decoded
    assert differing(before, after) == []
    figure(f"{len(decoded)} parameters have float32 state now; {size(before)} bytes of values, 0 differ")


def test_matrices_of_muon_become_shards(figure):
    """Momentum goes along to the bit. Steps orthogonalize in bfloat16: 2 of them may differ in that format's last places,
    2^-8 of a step each, of as many as the root of the longer side, times a ratio of at most 7."""
    before, after, worst = shared_ranks().run(2, jobs.muon, ROWS)[0]
    assert differing(matrices(before), matrices(after)) == []
    assert worst <= 2 * 7 * 2**-8
    figure(f"{size(before)} bytes, 0 differ; {worst:.1e} of a step from whole matrices after two")


def test_votes_go_on_with_other_tensors(figure):
    """As those of workers whose parameters stayed."""
    ranks = shared_ranks()
    stayed, swapped = (ranks.run(2, jobs.voted, way) for way in (False, True))
    assert stayed == swapped and stayed[0][0] == stayed[1][0]
    figure(f"{len(stayed[0][0])} bytes on 2 ranks, 0 differ")


def test_what_does_not_fit_is_refused_and_nothing_moves(figure):
    for found in shared_ranks().run(2, jobs.refused, ROWS):
        assert "got 4 tensors, wanted 5 as registered" in found[0]
        assert "of shape (2, 3000), wanted shape (37, 300)" in found[1]
    figure(found[1])
