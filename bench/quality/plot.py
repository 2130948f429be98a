"""The picture: gaps of validation loss beside their noise, and second moments after their gradients stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # draws to files; no display is needed or touched
import matplotlib.pyplot as plt  # noqa: E402

from quality.gaps import analyse  # noqa: E402
from quality.variants import of_rule  # noqa: E402

COLOURS = ("#1f77b4", "#d62728")  # of the betas
LIMIT = 32.0  # mN; what lies beyond is written at the edge


def draw(result: dict[str, Any], path: Path) -> None:
    """A line for each variant, from above in the order of VARIANTS; those of other rules than AdamW are not drawn."""
    betas = sorted({run["beta2"] for run in result["runs"]}, reverse=True)
    known = {run["variant"] for run in result["runs"]} | {unit["variant"] for unit in result["fidelity"]}
    shown = [variant for variant in of_rule("AdamW") if variant.id in known]
    place = {variant.id: len(shown) - number for number, variant in enumerate(shown)}
    figure, axes = plt.subplots(1, 3, figsize=(13, 0.36 * len(shown) + 1.9), sharey=True, layout="constrained", width_ratios=(3, 3, 2))
    for axis, beta2, colour in zip(axes, betas, COLOURS, strict=False):
        rows, noise, _ = analyse(result["runs"], beta2, shown)
        if noise:
            seeds = sorted(noise.runs)[:3]
            band = noise.band(seeds)
            axis.axvspan(-band, band, color="0.9")
            axis.set_title(f"β2 = {beta2}; grey: noise, 95 % of means of {len(seeds)}", fontsize=10)
        axis.axvline(0, color="0.5", lw=0.8)
        for row in rows:
            y = place[row.id]
            axis.plot(list(row.gaps.values()), [y] * len(row.gaps), "o", ms=4, mfc="none", color=colour)
            if abs(row.mean) < LIMIT:
                axis.plot([row.mean], [y], "|", ms=13, mew=2.2, color=colour)
            else:
                edge, side = (LIMIT, "right") if row.mean > 0 else (-LIMIT, "left")
                axis.text(0.97 * edge, y, f"{row.mean:+.0f} mN", ha=side, va="center", color=colour)
        axis.set_xlim(-LIMIT, LIMIT)
        axis.set_xlabel("validation loss − fp32, mN (○: seed, |: mean)")
    last = axes[2]
    for beta2, colour in zip(betas, COLOURS, strict=False):
        units = [unit for unit in result["fidelity"] if unit["beta2"] == beta2 and unit["variant"] in place]
        last.plot(
            [unit["even"]["decay"] for unit in units], [place[unit["variant"]] for unit in units], "D", ms=5, color=colour,
            label=f"β2 = {beta2}", alpha=0.8,
        )  # fmt: skip
    last.axvline(1, color="0.5", lw=0.8)
    last.set_xscale("log")
    last.set_title("v after gradients stopped (even)", fontsize=10)
    last.set_xlabel(f"stored / exact, {result['sizes']['decay']:g} / (1 − β2) steps")
    last.legend(fontsize=8)
    axes[0].set_yticks([place[variant.id] for variant in shown], [variant.label for variant in shown])
    axes[0].set_ylim(0.3, len(shown) + 0.7)
    for axis in axes:
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{result['parameters'] / 1e6:.2f} M parameters, {result['settings']['steps']} steps", fontweight="bold")
    figure.savefig(path, dpi=120)
    plt.close(figure)
