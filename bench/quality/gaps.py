"""Validation losses as gaps to float32 state, and the noise of such gaps.

Float32 is trained several times per seed, from inits that differ by a thousandth: too little to be better or worse, but enough
to diverge. A gap means something only if it exceeds the scatter of these losses within a seed. (A change of 1e-6 is measured,
too, but such a run often stays near the first, where a format's rounding would not.) A variant's gap is relative to the mean of
its own seed's float32 runs. Formats may scatter more than float32, so to be called worse or better, a gap must exceed both the
noise and the variant's own scatter.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quality.variants import Variant

MN = 1e3  # millinats per nat


@dataclass(frozen=True)
class Noise:
    """The noise at one beta2, in millinats."""

    sigma: float  # standard deviation of a float32 loss within its seed, pooled over seeds
    freedom: int
    runs: Mapping[int, int]  # float32 runs of each seed

    def band(self, seeds: Collection[int], is_float32: bool = False) -> float:
        """The bound below which, in 95 of 100 cases, a mean of pure noise over the gaps of these seeds stays. is_float32: the
        run itself counts in the mean of its seed."""
        sign = -1 if is_float32 else 1
        variance = sum(1 + sign / self.runs[seed] for seed in seeds) / len(seeds) ** 2
        return student(self.freedom) * self.sigma * math.sqrt(variance)


@dataclass
class Row:
    """A variant at one beta2, in millinats."""

    id: str
    label: str
    is_float32: bool = False  # its runs define the noise
    gaps: dict[int, float] = field(default_factory=dict)  # by seed
    updates: list[dict[str, float]] = field(default_factory=list)

    @property
    def mean(self) -> float:
        return statistics.fmean(self.gaps.values())

    @property
    def deviation(self) -> float | None:
        return statistics.stdev(self.gaps.values()) if len(self.gaps) > 1 and not self.diverged else None

    @property
    def interval(self) -> float | None:
        """Half of the 95 % interval of the mean, from its own gaps."""
        count = len(self.gaps)
        return None if self.deviation is None else student(count - 1) * self.deviation / math.sqrt(count)

    @property
    def diverged(self) -> bool:
        return not all(map(math.isfinite, self.gaps.values()))

    def verdict(self, noise: Noise | None) -> str:
        """Whether the mean is noise: "yes", or "worse" or "better", each with its bound, or "open" if it exceeds float32's
        noise but not its own scatter over seeds."""
        if self.diverged:
            return "worse: diverged"
        if noise is None:
            return "not known"
        band, size = noise.band(self.gaps, self.is_float32), abs(self.mean)
        if size <= band:
            return f"yes, ≤ {band:.1f}"
        if self.interval is None or size <= self.interval:
            return f"open, > {band:.1f}" + ("" if self.interval is None else f", ≤ {self.interval:.1f}")
        return f"{'worse' if self.mean > 0 else 'better'}, > {max(band, self.interval):.1f}"


FEW = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78}  # of Student's t, where the expansion fails


def student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t (from 5 degrees of freedom by the Cornish-Fisher expansion, within 1 %)."""
    if freedom in FEW:
        return FEW[freedom]
    z, n = 1.959964, float(freedom)
    return float(z + (z**3 + z) / (4 * n) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2))


def analyse(
    runs: list[dict[str, Any]], beta2: float, variants: Sequence[Variant]
) -> tuple[list[Row], Noise | None, dict[int, float]]:
    """Rows in the order of `variants`, the noise (None if there are too few runs), and the float32 loss of each seed."""
    at = [run for run in runs if run["beta2"] == beta2]
    plain = {variant.id for variant in variants if variant.noise}
    by_seed: dict[int, list[float]] = {}
    for run in at:
        if run["variant"] in plain:
            by_seed.setdefault(run["seed"], []).append(run["loss"])
    base = {seed: statistics.fmean(losses) for seed, losses in by_seed.items()}
    rows = []
    for variant in variants:
        row = Row(variant.id, variant.label, variant.noise)
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
    return rows, Noise(MN * (squares / freedom) ** 0.5, freedom, {seed: len(losses) for seed, losses in by_seed.items()}), base
