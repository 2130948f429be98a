"""Loss over steps, and over time, of all methods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # draws to files; no display is needed or touched
import matplotlib.pyplot as plt  # noqa: E402
from llama.files import write_atomically  # noqa: E402
from llama.plots import COLOURS, STYLES  # noqa: E402


def draw(report: dict[str, Any], path: Path) -> None:
    """Validation loss: left what a step is worth, right what a second is worth."""
    figure, (by_step, by_time) = plt.subplots(1, 2, figsize=(11, 4.6), sharey=True, layout="constrained")
    for place, (name, run) in enumerate(report["runs"].items()):
        steps, seconds, losses = zip(*run["validation"], strict=True)
        look = {"color": COLOURS[place % len(COLOURS)], "linestyle": STYLES[place % len(STYLES)], "lw": 1.7}
        row = report["rows"][name]
        by_step.plot(steps, losses, label=run["title"], **look)
        by_time.plot(seconds[1:], losses[1:], label=f"{run['title']}: {row['step_ms']:.0f} ms a step", **look)
    by_time.axhline(report["target"], color="0.6", lw=0.8, label="1 % above where the first ends")
    by_time.set_xscale("log")
    by_step.set_xlabel("step")
    by_time.set_xlabel("seconds of training (log)")
    by_step.set_ylabel("validation loss (nats per token)")
    limit = f"{report['rate']} each way" if report["rate"] else "no limit"
    title = f"LLaMA, {report['parameters'] / 1e6:.1f} M parameters, {report['workers']} workers, {limit}"
    figure.suptitle(title, fontweight="bold")
    for axis in (by_step, by_time):
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, fontsize=8)
    write_atomically(path, lambda file: figure.savefig(file, format="png", dpi=130))
    plt.close(figure)
