"""Meshes change nothing: weights, state and resumed training are those of one process, to the bit."""

from __future__ import annotations

import distributed_jobs as jobs
import pytest
from distributed_jobs import Layout
from distributed_support import differing, shared_ranks, size

ROWS = [Layout("rows", (n,)) for n in (1, 2, 3, 4)] + [Layout("rows", (2, 2))]
COLUMNS = [Layout("columns", (n,)) for n in (1, 2, 3)] + [Layout("columns", (2, 2))]
REPLICAS = [Layout("plain"), Layout("replicas", (2,))]


@pytest.mark.parametrize(
    ("rule", "state"),
    [
        ("adamw", "dynamic8"),
        ("adamw", "bf16"),
        ("adamw", "fp32"),
        ("lion", "dynamic8"),
        ("sgd", "dynamic8"),
        ("schedulefree", "dynamic8"),
    ],
)
@pytest.mark.share
def test_any_mesh_gives_the_same_bits(rule: str, state: str, figure) -> None:
    ranks = shared_ranks()
    compared, meshes = 0, 0
    for family in (ROWS, COLUMNS, REPLICAS) if rule == "adamw" else (ROWS[::2],):
        expected = None
        for layout in family:
            for found in ranks.run(layout.world, jobs.uninterrupted, layout, rule, state):
                expected = expected or found
                assert differing(found, expected) == [], f"{layout}"
                compared += size(found)
            meshes += 1
    figure(f"{rule} {state}: {meshes} meshes, {len(jobs.SHAPES)} parameters, {compared} bytes compared, 0 differ")


@pytest.mark.parametrize("rule", ["adamw", "schedulefree"])
def test_a_mesh_gives_the_bits_of_no_mesh(rule: str, figure) -> None:
    """All but what a mesh stores in another format, as docs/distributed.md says: the long row."""
    plain = Layout("plain")
    alone = shared_ranks().run(1, jobs.uninterrupted, plain, rule, "dynamic8")[0]
    for layout in (Layout("rows", (3,)), Layout("rows", (2, 2))):
        found = shared_ranks().run(layout.world, jobs.uninterrupted, layout, rule, "dynamic8")[0]
        same = [name for name in alone if name.split(".")[0] != "row"]
        assert [name for name in same if alone[name] != found[name]] == []
        assert "row.exp_avg_sq_scale" in alone and "row.exp_avg_sq_scale" not in found
        assert "uneven.exp_avg_sq_scale" in found and "edge.exp_avg_sq_scale" in found, "judged by the whole"
        figure(f"{rule}, {layout}: {sum(len(alone[name]) for name in same)} bytes compared, 0 differ")


def test_a_plan_of_shards_is_what_the_report_says(tmp_path, figure) -> None:
    compared, on_disk = 0, 0
    for layout in (Layout("rows", (3,)), Layout("columns", (2,)), Layout("replicas", (2,))):
        for state in ("dynamic8", "fp32"):
            for paged in (False, True):
                disk = str(tmp_path) if paged else None
                for got, wanted in shared_ranks().run(layout.world, jobs.planned, layout, state, disk):
                    assert got == wanted, f"{layout} {state}"
                    compared += 1
                    on_disk += got["disk"] > 0
    assert on_disk > 0
    figure(f"{compared} ranks planned ({on_disk} with state on disk): RAM, disk and traffic off by 0 bytes")
