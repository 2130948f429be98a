"""The picture: what each optimizer's training takes of fast memory, by what is in it, and the losses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # draws to files; no display is needed or touched
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.patches import Patch  # noqa: E402

from memory.report import PLACES, by_variant, elsewhere, pairs  # noqa: E402
from memory.variants import APIS, CLASSES, Variant  # noqa: E402

# Okabe and Ito's colours stay apart for colour-blind readers and in grey print.
PARTS = {"weight_bytes": ("weights", "#0072B2"), "gradient_bytes": ("gradients", "#56B4E9"), "fast_state_bytes": ("state", "#D55E00")}
REST = ("activations and the rest of the peak", "0.75")
LINES: dict[str, tuple[str, Any]] = {"AdamW": ("#0072B2", "-"), "AdamW8bit": ("#D55E00", (0, (3, 3))), "Lion": ("#009E73", "-")}
HATCH = "////"


def draw(result: dict[str, Any], path: Path) -> None:
    """Bars for each class, one of each interface; losses of each class, the paged one upon its twin."""
    runs = by_variant(result)
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 5.2), layout="constrained", width_ratios=(3, 2))
    _bars(left, result, runs)
    _losses(right, result, runs)
    for axis in (left, right):
        axis.grid(alpha=0.25, axis="y")
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    job, first = result["job"], next(iter(runs.values()))
    figure.suptitle(f"LLaMA of {first['parameters'] / 1e6:.0f} M parameters, {job['dtype']}, {job['batch_size']} x {job['seq_len']} "
                    f"tokens on {job['device']}; paged state keeps to {job['budget']}", fontweight="bold")  # fmt: skip
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _bars(axis: plt.Axes, result: dict[str, Any], runs: dict[Variant, dict[str, Any]]) -> None:
    fast, other = PLACES[result["job"]["device"]]
    width = 0.38
    for number, name in enumerate(CLASSES):
        for side, api in enumerate(APIS):
            run = runs.get(Variant(api, name))
            if run is None:
                continue
            x, bottom = number + (side - 0.5) * (width + 0.03), 0.0
            for part, (_, colour) in PARTS.items():
                axis.bar(x, run[part] / 1e6, width, bottom, color=colour)
                bottom += run[part] / 1e6
            peak = run["peak_bytes"] / 1e6
            axis.bar(x, max(peak - bottom, 0), width, bottom, color=REST[1])
            away = run["other_state_bytes"] / 1e6
            axis.bar(x, away, width, max(peak, bottom), color="none", edgecolor=PARTS["fast_state_bytes"][1], hatch=HATCH, lw=0.6)
            axis.annotate(f"{peak:.0f}", (x, peak), xytext=(0, 3), textcoords="offset points", ha="center", fontsize=8.5,
                          bbox={"fc": "white", "ec": "none", "pad": 1.0})  # fmt: skip
    axis.set_xticks(range(len(CLASSES)), [name.replace("Paged", "Paged\n") for name in CLASSES])
    axis.set_ylabel("MB")
    axis.set_title(f"Peak of {fast} (left: {APIS['compat']}, right: {APIS['native']})", loc="left", fontsize=10)
    handles = [Patch(color=colour, label=label) for label, colour in (*PARTS.values(), REST)]
    handles.append(Patch(fc="none", ec=PARTS["fast_state_bytes"][1], hatch=HATCH, label=f"state {elsewhere(other)}, not in the peak"))
    axis.legend(handles=handles, frameon=False, fontsize=8.5, loc="upper right")


def _losses(axis: plt.Axes, result: dict[str, Any], runs: dict[Variant, dict[str, Any]]) -> None:
    for variant, run in runs.items():
        if variant.api != "compat":
            continue
        colour, dash = LINES[variant.unpaged.name]
        steps = range(1, len(run["losses"]) + 1)
        if variant.paged:
            axis.plot(steps, run["losses"], color=colour, ls="none", marker="o", ms=5, mfc="white", label=variant.name)
        else:
            axis.plot(steps, run["losses"], color=colour, ls=dash, lw=2, label=variant.name)
    found = pairs(result)
    if found:
        largest = max(pair.largest_difference for pair in found)
        axis.set_title(f"Loss; paged - unpaged: {largest:g} in each of {len(found)} pairs", loc="left", fontsize=10)
    axis.set_xlabel("step")
    axis.set_ylabel("nats per byte")
    axis.legend(frameon=False, fontsize=8.5)
