"""Validation losses as gaps to float32 state, and the noise that such gaps have by themselves.

Float32 is trained several times for each seed, from inits that differ by a thousandth: too little to be better or worse,
enough for ways of their own. How these losses scatter within a seed is what a difference must exceed to mean anything.
(A change of 1e-6 is measured, too, but such a run often stays beside the first, where a format's rounding would not.)
A variant's gap is to the mean of its own seed's float32 runs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from quality.variants import Variant

MN = 1e3  # millinats in a nat


@dataclass(frozen=True)
class Noise:
    """At one beta2, in millinats."""

    sigma: float  # standard deviation of a float32 loss within its seed, pooled over seeds
    freedom: int
    runs_per_seed: float

    def band(self, seeds: int) -> float:
        """In 95 of 100 cases a mean over `seeds` gaps that are nothing but noise is smaller."""
        return student(self.freedom) * self.sigma * math.sqrt((1 + 1 / self.runs_per_seed) / seeds)


@dataclass
class Row:
    """A variant at one beta2, in millinats."""

    id: str
    label: str
    gaps: dict[int, float] = field(default_factory=dict)  # by seed
    updates: list[dict[str, float]] = field(default_factory=list)

    @property
    def mean(self) -> float:
        return statistics.fmean(self.gaps.values())

    @property
    def deviation(self) -> float | None:
        return statistics.stdev(self.gaps.values()) if len(self.gaps) > 1 else None


FEW = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78}  # of Student's t, where the expansion does not hold


def student(freedom: int) -> float:
    """97.5 % quantile of Student's t (from 5 degrees of freedom on the Cornish-Fisher expansion, within 1 %)."""
    if freedom in FEW:
        return FEW[freedom]
    z, n = 1.959964, float(freedom)
    return float(z + (z**3 + z) / (4 * n) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2))


def analyse(
    runs: list[dict[str, Any]], beta2: float, variants: Sequence[Variant]
) -> tuple[list[Row], Noise | None, dict[int, float]]:
    """Rows in the order of `variants`, the noise (None while there are too few runs), and the float32 loss of each seed."""
    at = [run for run in runs if run["beta2"] == beta2]
    plain = {variant.id for variant in variants if variant.noise}
    by_seed: dict[int, list[float]] = {}
    for run in at:
        if run["variant"] in plain:
            by_seed.setdefault(run["seed"], []).append(run["loss"])
    base = {seed: statistics.fmean(losses) for seed, losses in by_seed.items()}
    rows = []
    for variant in variants:
        row = Row(variant.id, variant.label)
        for run in at:
            if run["variant"] == variant.id and run["seed"] in base:
                row.gaps[run["seed"]] = MN * (run["loss"] - base[run["seed"]])
                row.updates += [run["updates"]] if run["updates"] else []
        if row.gaps:
            rows.append(row)
    freedom = sum(len(losses) - 1 for losses in by_seed.values())
    if freedom < 5:
        return rows, None, base
    squares = sum((loss - base[seed]) ** 2 for seed, losses in by_seed.items() for loss in losses)
    runs_per_seed = statistics.fmean(len(losses) for losses in by_seed.values())
    return rows, Noise(MN * (squares / freedom) ** 0.5, freedom, runs_per_seed), base
