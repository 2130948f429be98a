"""Hashes of results, which must agree between all wheels and backends."""

from __future__ import annotations

import json
from collections.abc import Mapping

from wheels.work import Failure, say

Cells = Mapping[str, str]  # hashes by case
Hashes = Mapping[str, Cells]  # by instruction set or backend


def hashes_in(printed: str) -> Hashes:
    """The hashes that bits.py printed."""
    hashes: Hashes = json.loads(printed.splitlines()[-1])
    return hashes


def require_equal(what: str, hashes: Hashes, wanted: Cells) -> None:
    """Raises Failure if cells differ from those wanted, and says how many are equal."""
    for name, cells in hashes.items():
        if different := [cell for cell in wanted if cells.get(cell) != wanted[cell]]:
            raise Failure(f"{what}, {name}: {len(different)} of {len(wanted)} cells differ: {', '.join(different)}")
    say(f"{what}: {len(wanted)} cells equal on {', '.join(hashes)}")
