"""Pictures of the runs: losses over each other with their difference, and memory over time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # draws to files; no display is needed or touched
import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402

from .files import write_atomically  # noqa: E402

# Colours that stay apart for colour-blind readers and in grey print (Okabe-Ito).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
STYLES = ("-", (0, (4, 2)), "-.", ":", (0, (6, 1, 1, 1)), (0, (1, 1)))
MIB = 1 << 20


def smooth(values: list[float], window: int) -> np.ndarray:
    """Mean over up to ``window`` last values: unlike an exponential one it forgets the start."""
    total = np.cumsum([0.0, *values])
    index = np.arange(1, len(values) + 1)
    start = np.maximum(0, index - window)
    return (total[index] - total[start]) / (index - start)


def draw(report: dict[str, Any], folder: Path) -> list[Path]:
    """Draw all pictures; returns their paths."""
    paths = [folder / "loss.png", folder / "memory.png"]
    for path, figure in zip(paths, (_losses(report), _memory(report)), strict=True):
        write_atomically(path, lambda file, figure=figure: figure.savefig(file, format="png", dpi=130))
        plt.close(figure)
    return paths


def _subtitle(report: dict[str, Any]) -> str:
    config, first = report["config"], next(iter(report["runs"].values()))
    return (f"LLaMA, {first['parameters'] / 1e6:.2f} M parameters, {config['batch']} x {config['context']} tokens "
            f"per step, seed {config['seed']}\n{report['data']['source']}")  # fmt: skip


def _losses(report: dict[str, Any]) -> plt.Figure:
    runs = list(report["runs"].values())
    compare = len(runs) > 1
    figure, axes = plt.subplots(2 if compare else 1, 1, figsize=(9, 7 if compare else 5), sharex=True, squeeze=False,
                                height_ratios=[2.4, 1] if compare else None, layout="constrained")  # fmt: skip
    top = axes[0, 0]
    window = max(1, len(runs[0]["history"]["loss"]) // 20)
    for run, colour, style in zip(runs, COLOURS, STYLES, strict=False):
        losses = smooth(run["history"]["loss"], window)
        top.plot(np.arange(1, len(losses) + 1), losses, color=colour, linestyle=style, lw=1.6,
                 label=f"{run['title']}, training (mean of {window})")  # fmt: skip
        steps, values = zip(*run["history"]["validation"], strict=True)
        first = run is runs[0]
        top.plot(steps, values, color=colour, ls="none", marker="o" if first else "x", ms=8 if first else 6, mew=1.6,
                 mfc="none", label=f"{run['title']}, validation (ends at {values[-1]:.3f})")  # fmt: skip
    top.set_ylabel("loss (nats per token)")
    top.set_title("Loss: " + " and ".join(run["title"] for run in runs), loc="left", fontweight="bold", pad=38)
    top.text(0, 1.02, _subtitle(report), transform=top.transAxes, fontsize=9, color="0.35", va="bottom")
    top.legend(frameon=False, fontsize=9)
    if compare:
        _differences(axes[1, 0], runs, window)
    axes[-1, 0].set_xlabel("step")
    for axis in axes.flat:
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    return figure


def _differences(axis: plt.Axes, runs: list[dict[str, Any]], window: int) -> None:
    base = runs[0]
    for run, colour in zip(runs[1:], COLOURS[1:], strict=False):
        count = min(len(run["history"]["loss"]), len(base["history"]["loss"]))
        gaps = np.subtract(run["history"]["loss"][:count], base["history"]["loss"][:count])
        axis.plot(np.arange(1, count + 1), 1e3 * smooth(list(gaps), window), color=colour, lw=1.4,
                  label=f"{run['title']}: training (mean of {window})")  # fmt: skip
        reference = dict(map(tuple, base["history"]["validation"]))
        points = [(s, 1e3 * (v - reference[s])) for s, v in run["history"]["validation"] if s in reference]
        axis.plot(*zip(*points, strict=True), color=colour, ls="none", marker="x", ms=6, mew=1.6, label="validation")
    axis.axhline(0, color=COLOURS[0], lw=1)
    axis.set_ylabel("difference\n(thousandths of a nat)")
    axis.set_title(f"Difference from {base['title']}; below zero is better", loc="left", fontsize=10)
    axis.legend(frameon=False, fontsize=9, ncols=2)


def _memory(report: dict[str, Any]) -> plt.Figure:
    runs = list(report["runs"].values())
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.6), width_ratios=[2.2, 1], layout="constrained")
    for run, colour, style in zip(runs, COLOURS, STYLES, strict=False):
        left.plot(run["history"]["seconds"], np.asarray(run["history"]["rss_growth"]) / MIB, color=colour,
                  linestyle=style, lw=1.6, label=f"{run['title']}, after each step")  # fmt: skip
        left.axhline(run["rss_peak_growth"] / MIB, color=colour, ls=":", lw=1.2,
                     label=f"peak {run['rss_peak_growth'] / MIB:.0f} MiB ({run['rss_peak'] / MIB:.0f} with libraries)")  # fmt: skip
    left.set_ylim(bottom=0)
    left.set_xlabel("seconds of training")
    left.set_ylabel("resident memory above the level\nbefore the model was built (MiB)")
    left.set_title("Process memory", loc="left", fontweight="bold")
    left.legend(frameon=False, fontsize=9, loc="lower right")
    sizes = [run["optimizer_bytes"] / MIB for run in runs]
    bars = right.bar([run["title"].replace(" AdamW ", "\nAdamW\n") for run in runs], sizes, color=COLOURS[: len(runs)], width=0.6)
    right.bar_label(bars, [f"{size:.2f} MiB\n{run['optimizer_bytes_per_parameter']:.2f} B/param"
                           for size, run in zip(sizes, runs, strict=True)], fontsize=9, padding=3)  # fmt: skip
    right.set_ylim(0, max(sizes) * 1.2)
    right.set_ylabel("MiB")
    right.set_title("Optimizer state", loc="left", fontweight="bold")
    for axis in (left, right):
        axis.grid(alpha=0.25, axis="y")
        axis.spines[["top", "right"]].set_visible(False)
    return figure
