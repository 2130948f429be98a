"""Meshes change nothing: weights, state and resumed training are those of one process, to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import distributed_jobs as jobs
import pytest
from distributed_jobs import Layout
from distributed_support import Ranks

ROWS = [Layout("rows", (n,)) for n in (1, 2, 3, 4)] + [Layout("rows", (2, 2))]
COLUMNS = [Layout("columns", (n,)) for n in (1, 2, 3)] + [Layout("columns", (2, 2))]
REPLICAS = [Layout("replicas", (2,))]


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    processes = Ranks()
    yield processes
    processes.close()


def differing(a: dict[str, bytes], b: dict[str, bytes]) -> list[str]:
    assert a.keys() == b.keys()
    return [name for name in a if a[name] != b[name]]


def size(found: dict[str, bytes]) -> int:
    return sum(map(len, found.values()))


@pytest.mark.parametrize("rule", ["adamw", "lion", "sgd"])
@pytest.mark.parametrize("state", ["dynamic8", "bf16", "fp32"])
def test_any_mesh_gives_the_same_bits(rule: str, state: str, ranks: Ranks, figure) -> None:
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
