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
    runs = list(report["runs"].values())
    looks = [{"color": COLOURS[i % len(COLOURS)], "linestyle": STYLES[i % len(STYLES)], "lw": 1.6} for i in range(len(runs))]
    paths = [folder / "loss.png", folder / "memory.png"]
    for path, figure in zip(paths, (_losses(report, runs, looks), _memory(runs, looks)), strict=True):
        for axis in figure.axes:
            axis.grid(alpha=0.25)
            axis.set_axisbelow(True)
            axis.spines[["top", "right"]].set_visible(False)
        write_atomically(path, lambda file, figure=figure: figure.savefig(file, format="png", dpi=130))
        plt.close(figure)
    return paths


def _losses(report: dict[str, Any], runs: list[dict[str, Any]], looks: list[dict[str, Any]]) -> plt.Figure:
    """Above each other the losses, and what each run's differ from the first run's."""
    figure, (top, below) = plt.subplots(2, 1, figsize=(9, 7), sharex=True, height_ratios=[2.4, 1], layout="constrained")
    base = runs[0]["history"]
    window = max(1, len(base["loss"]) // 20)
    for run, look in zip(runs, looks, strict=True):
        history = run["history"]
        losses, twin = smooth(history["loss"], window), (report["comparison"].get(run["label"]) or {}).get("same_bits_as")
        note = f"; same bits as {report['runs'][twin]['title']}" if twin else ""
        steps, values = zip(*history["validation"], strict=True)
        top.plot(np.arange(1, len(losses) + 1), losses, **look, label=f"{run['title']}, training (mean of {window})")
        top.plot(steps, values, "o", color=look["color"], mfc="none", label=f"… validation, ends at {values[-1]:.3f}{note}")
        count = min(len(history["loss"]), len(base["loss"]))
        gaps = np.subtract(history["loss"][:count], base["loss"][:count])
        below.plot(np.arange(1, count + 1), 1e3 * smooth(list(gaps), window), **look)
    config = report["config"]
    top.set_title(f"LLaMA, {runs[0]['parameters'] / 1e6:.2f} M parameters, {config['batch']} x {config['context']} tokens per step, "
                  f"seed {config['seed']}\n{report['data']['source']}", loc="left", fontsize=10)  # fmt: skip
    top.set_ylabel("loss (nats per token)")
    top.legend(frameon=False, fontsize=9)
    below.set_title(f"Training, difference from {runs[0]['title']}; below zero is better", loc="left", fontsize=10)
    below.set_ylabel("thousandths of a nat")
    below.set_xlabel("step")
    return figure


def _memory(runs: list[dict[str, Any]], looks: list[dict[str, Any]]) -> plt.Figure:
    """The process over time, and state in RAM with state on disk upon it."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(7 + 1.3 * len(runs), 4.6), width_ratios=[2.2, max(1.0, 0.52 * len(runs))],
                                         layout="constrained")  # fmt: skip
    for place, (run, look) in enumerate(zip(runs, looks, strict=True)):
        left.plot(run["history"]["seconds"], np.asarray(run["history"]["rss_growth"]) / MIB, **look,
                  label=f"{run['title']}, peak {run['rss_peak_growth'] / MIB:.0f} MiB")  # fmt: skip
        left.axhline(run["rss_peak_growth"] / MIB, color=look["color"], ls=":", lw=1.2)
        # Memory taken from the system is rounded up, which matters only where RAM is limited.
        disk = run["state_disk_bytes"] / MIB
        ram = run["state_ram_bytes"] / MIB if disk else run["optimizer_bytes"] / MIB
        right.bar(place, ram, color=look["color"], width=0.6)
        right.bar(place, disk, bottom=ram, color="none", edgecolor=look["color"], hatch="///", width=0.6)
        text = f"{ram:.2f} MiB" + (f"\n+ {disk:.2f} disk" if disk else f"\n{run['optimizer_bytes_per_parameter']:.2f} B/param")
        right.annotate(text, (place, ram + disk), xytext=(0, 3), textcoords="offset points", ha="center", fontsize=9)
    left.set_ylim(bottom=0)
    left.set_xlabel("seconds of training")
    left.set_ylabel("resident memory above the level\nbefore the model was built (MiB)")
    left.set_title("Process memory", loc="left", fontweight="bold")
    left.legend(frameon=False, fontsize=9, loc="lower right")
    names = [run["title"].replace(" AdamW ", "\nAdamW\n").replace(" in ", "\nin ") for run in runs]
    right.set_xticks(range(len(runs)), names)
    right.set_ylim(0, 1.2 * right.get_ylim()[1])  # room for the figures upon the bars
    right.set_title("Optimizer state (hatched: disk)", loc="left", fontweight="bold")
    return figure
