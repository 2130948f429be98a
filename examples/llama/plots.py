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
MARKERS = ("o", "x", "+", "s", "^", "D")
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


def _twins(report: dict[str, Any]) -> dict[str, str]:
    """The runs that repeat an earlier one bit for bit, with its label."""
    rows = report["comparison"].items()
    return {label: row["same_bits_as"] for label, row in rows if row["same_bits_as"]}


def _line(report: dict[str, Any], label: str) -> dict[str, Any]:
    """How a run's curve is drawn. One that another run repeats is a wide band, so that the other shows upon it."""
    index = list(report["runs"]).index(label) % len(COLOURS)
    band = label in _twins(report).values()
    width = {"lw": 6, "alpha": 0.4} if band else {"lw": 1.6}
    return {"color": COLOURS[index], "linestyle": "-" if band else STYLES[index], **width}


def _losses(report: dict[str, Any]) -> plt.Figure:
    runs = list(report["runs"].values())
    twins = _twins(report)
    compare = len(runs) > 1
    figure, axes = plt.subplots(2 if compare else 1, 1, figsize=(9, 7 if compare else 5), sharex=True, squeeze=False,
                                height_ratios=[2.4, 1] if compare else None, layout="constrained")  # fmt: skip
    top = axes[0, 0]
    window = max(1, len(runs[0]["history"]["loss"]) // 20)
    for run, colour, marker in zip(runs, COLOURS, MARKERS, strict=False):
        losses = smooth(run["history"]["loss"], window)
        top.plot(np.arange(1, len(losses) + 1), losses, **_line(report, run["label"]),
                 label=f"{run['title']}, training (mean of {window})")  # fmt: skip
        steps, values = zip(*run["history"]["validation"], strict=True)
        label = f"{run['title']}, validation (ends at {values[-1]:.3f})"
        if twin := twins.get(run["label"]):
            label += f":\nsame bits as {report['runs'][twin]['title']}, in every loss and weight"
        top.plot(steps, values, color=colour, ls="none", marker=marker, ms=8 if run is runs[0] else 6, mew=1.6,
                 mfc="none", label=label)  # fmt: skip
    top.set_ylabel("loss (nats per token)")
    names = " and ".join(run["title"] for run in runs) if len(runs) < 3 else f"{len(runs)} optimizers"
    top.set_title(f"Loss: {names}", loc="left", fontweight="bold", pad=38)
    top.text(0, 1.02, _subtitle(report), transform=top.transAxes, fontsize=9, color="0.35", va="bottom")
    top.legend(frameon=False, fontsize=9)
    if compare:
        _differences(axes[1, 0], report, window)
    axes[-1, 0].set_xlabel("step")
    for axis in axes.flat:
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    return figure


def _differences(axis: plt.Axes, report: dict[str, Any], window: int) -> None:
    runs = list(report["runs"].values())
    base = runs[0]
    for run, colour, marker in zip(runs[1:], COLOURS[1:], MARKERS[1:], strict=False):
        count = min(len(run["history"]["loss"]), len(base["history"]["loss"]))
        gaps = np.subtract(run["history"]["loss"][:count], base["history"]["loss"][:count])
        axis.plot(np.arange(1, count + 1), 1e3 * smooth(list(gaps), window), **_line(report, run["label"]),
                  label=f"{run['title']}: training (mean of {window})")  # fmt: skip
        reference = dict(map(tuple, base["history"]["validation"]))
        points = [(s, 1e3 * (v - reference[s])) for s, v in run["history"]["validation"] if s in reference]
        axis.plot(*zip(*points, strict=True), color=colour, ls="none", marker=marker, ms=6, mew=1.6, mfc="none",
                  label=f"{run['title']}: validation")  # fmt: skip
    axis.axhline(0, color=COLOURS[0], lw=1)
    axis.set_ylabel("difference\n(thousandths of a nat)")
    few = len(runs) == 2
    axis.set_title(f"Difference from {base['title']}; below zero is better" + ("" if few else " (lines as above)"),
                   loc="left", fontsize=10)  # fmt: skip
    if few:  # more would hide the curves
        axis.legend(frameon=False, fontsize=9, ncols=2)


def _memory(report: dict[str, Any]) -> plt.Figure:
    runs = list(report["runs"].values())
    moving = any(run["moved_bytes_per_step"] for run in runs)
    # Bars need room for their names, which stand side by side.
    share = max(1.0, 0.52 * len(runs))
    widths = [2.2, share, share] if moving else [2.2, share]
    figure, axes = plt.subplots(1, len(widths), figsize=(4.6 + 2.45 * sum(widths[1:]), 4.6), width_ratios=widths,
                                layout="constrained")  # fmt: skip
    left = axes[0]
    for run in runs:
        line = {**_line(report, run["label"]), "lw": 1.6, "alpha": 1.0}
        left.plot(run["history"]["seconds"], np.asarray(run["history"]["rss_growth"]) / MIB, **line,
                  label=f"{run['title']}, after each step")  # fmt: skip
        left.axhline(run["rss_peak_growth"] / MIB, color=line["color"], ls=":", lw=1.2,
                     label=f"peak {run['rss_peak_growth'] / MIB:.0f} MiB ({run['rss_peak'] / MIB:.0f} with libraries)")  # fmt: skip
    left.set_ylim(bottom=0)
    left.set_xlabel("seconds of training")
    left.set_ylabel("resident memory above the level\nbefore the model was built (MiB)")
    left.set_title("Process memory", loc="left", fontweight="bold")
    left.legend(frameon=False, fontsize=9, loc="lower right")
    _state_bars(axes[1], runs)
    if moving:
        _moved_bars(axes[2], runs)
    for axis in axes:
        axis.grid(alpha=0.25, axis="y")
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    return figure


def _names(runs: list[dict[str, Any]]) -> list[str]:
    return [run["title"].replace(" AdamW ", "\nAdamW\n").replace(" in ", "\nin ") for run in runs]


def _state_bars(axis: plt.Axes, runs: list[dict[str, Any]]) -> None:
    """State in RAM, and upon it state on disk; without a budget, what the format needs."""
    colours = COLOURS[: len(runs)]
    disk = [run["state_disk_bytes"] / MIB for run in runs]
    # Memory taken from the system is rounded up, which matters only where RAM is limited.
    ram = [(run["state_ram_bytes"] if run["state_disk_bytes"] else run["optimizer_bytes"]) / MIB for run in runs]
    axis.bar(_names(runs), ram, color=colours, width=0.6)
    if any(disk):
        axis.bar(_names(runs), disk, bottom=ram, color="none", edgecolor=colours, hatch="///", width=0.6)
    for place, (run, in_ram, on_disk) in enumerate(zip(runs, ram, disk, strict=True)):
        text = (f"{in_ram:.2f} MiB RAM\n+ {on_disk:.2f} disk" if on_disk
                else f"{in_ram:.2f} MiB\n{run['optimizer_bytes_per_parameter']:.2f} B/param")  # fmt: skip
        axis.annotate(text, (place, in_ram + on_disk), xytext=(0, 3), textcoords="offset points", ha="center",
                      fontsize=9)  # fmt: skip
    axis.set_ylim(0, max(r + d for r, d in zip(ram, disk, strict=True)) * 1.2)
    axis.set_ylabel("MiB")
    axis.set_title("Optimizer state" + (" (hatched: disk)" if any(disk) else ""), loc="left", fontweight="bold")


def _moved_bars(axis: plt.Axes, runs: list[dict[str, Any]]) -> None:
    """The bytes that a step reads from and writes to the disk, their rate, and the step's waiting time."""
    moved = [run["moved_bytes_per_step"] / MIB for run in runs]
    axis.bar(_names(runs), moved, color=COLOURS[: len(runs)], width=0.6)
    for place, (run, size) in enumerate(zip(runs, moved, strict=True)):
        rate = run["moved_bytes_per_step"] / (run["optimizer_ms_median"] * 1e6)
        text = f"{size:.2f} MiB\n{rate:.2f} GB/s\n{run['waited_ms_median']:.2f} ms waited" if size else "none"
        axis.annotate(text, (place, size), xytext=(0, 3), textcoords="offset points", ha="center", fontsize=9)
    axis.set_ylim(0, max(moved) * 1.28)
    axis.set_ylabel("MiB per step")
    axis.set_title("RAM to disk and back", loc="left", fontweight="bold")
