"""Charts of README and docs/evidence.md: gigabytes from the shapes of a model, the others from records in docs/benchmarks.
memory_tables.py writes them."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))
import lowtide  # noqa: E402
from lowtide.planning.models import DECODERS, elements  # noqa: E402
from quality.gaps import Noise, Row, analyse  # noqa: E402
from quality.variants import of_rule  # noqa: E402

RECORDS = ROOT / "docs/benchmarks"
WIDTH, TOP, ROW = 370, 50, 36  # two fit side by side in README and on the site
INK, OURS, THEIRS, BAND = "#777", "#0a8f80", "#d55e00", "#8884"  # all legible on white and on black
MODEL = "Llama-2-7B"


@dataclass(frozen=True)
class Study:
    """Runs of records that are compared with the fp32 runs of the same record, seed, beta2 and lr."""

    label: str
    records: tuple[str, ...]  # patterns: the newest file of each counts
    beta2: float
    measure: str = "loss"
    lr: float | None = None  # None: a record with one rate

    def analysed(self) -> tuple[list[Row], Noise | None, dict[int, float]]:
        runs = [
            {**run, "seed": (pattern, run["seed"]), "loss": run[self.measure], "updates": run.get("updates")}
            for pattern in self.records
            for run in newest(pattern)["runs"]
            if self.lr in (None, run.get("lr"))
        ]
        return analyse(runs, self.beta2, of_rule("AdamW"))


STEPS = "steps-107M-bf16-*.json"  # the newest is shown: after a new measurement, run memory_tables.py
SMALL, LARGE = ("quality-1M-*.json",), ("quality-25M-2*.json", "quality-25M-h100-*.json")
SCRATCH = Study("from scratch, 26 M", LARGE, 0.95)
TUNE = Study("fine-tune, 26 M, lr 10^-4", ("finetune-25M-2*.json", "finetune-25M-default-*.json"), 0.999, "learned")
DOTS = {SCRATCH: False, Study("", LARGE, 0.999): False, TUNE: True}  # whether it is a fine-tune
DEFAULT = ("bf16_dynamic8", "bf16_stochastic")  # evidence.md shows the first that a record has
VARIANTS = {  # label: variants, colour
    "fp32 again: the noise": (("fp32", "fp32_c", "fp32_d"), INK),
    "8-bit state (default)": (("dynamic8",), OURS),
    "bf16 weights, stochastic (default)": (DEFAULT, OURS),
    "bf16 weights, to nearest (torch, bitsandbytes)": (("bf16_nearest",), THEIRS),
}
UPDATES = {  # label: variant, colour
    "fp32 state": ("fp32", INK),
    "lowtide.AdamW, 8 bits (default)": ("dynamic8", OURS),
    "lowtide.AdamW, float8": ("float8", OURS),
    "bitsandbytes AdamW8bit": ("bnb_cuda", THEIRS),
    "FlashOptim FlashAdamW": ("flashoptim_cuda", THEIRS),
}
LEAST, MOST = -1.2, 3.8  # percent


def text(x: float, y: float, words: str, color: str = INK, size: int = 12, anchor: str = "start", weight: str = "normal") -> str:
    return f'<text x="{x:g}" y="{y:g}" fill="{color}" font-size="{size}" text-anchor="{anchor}" font-weight="{weight}">{words}</text>'


def newest(pattern: str) -> dict[str, Any]:
    """The record with the latest date, or else the last name, of those whose names match; "name" is its file's, without .json."""
    found = [{**json.loads(path.read_text(encoding="utf-8")), "name": path.stem} for path in sorted(RECORDS.glob(pattern))]
    if not found:
        raise FileNotFoundError(f"{RECORDS}: got no {pattern}, wanted a record of that name")
    return sorted(found, key=lambda record: str(record["date"]))[-1]


def rectangle(x: float, y: float, length: float, height: float, color: str) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{length:.1f}" height="{height:g}" fill="{color}"/>'


def bars(rows: Sequence[tuple[str, float, str, str]], longest: float) -> Iterator[str]:
    """Bars below their labels: label, size, what stands behind the bar, color."""
    for place, (label, size, note, color) in enumerate(rows):
        y, length = TOP + ROW * place, size * 300 / longest
        yield text(0, y + 2, label) + rectangle(0, y + 7, length, 13, color) + text(length + 6, y + 18, note, weight="bold")


def picture(title: str, second: str, parts: Sequence[str], width: int = WIDTH, height: int = 236) -> str:
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">'
    return "\n".join([head, text(0, 14, title, size=13, weight="bold"), text(0, 31, second), *parts, "</svg>", ""])


def gigabytes() -> str:
    shapes = DECODERS[MODEL].shapes()
    count = elements(shapes)
    exact, codes = (lowtide.forecast(shapes, state=form).state_bytes for form in ("fp32", "dynamic8"))
    lines = lowtide.plan(MODEL, gpu="80GB", checkpointing=True, step_in_backward=True).lines
    here = lines["weights"].device + lines["gradients"].device
    rows = [
        ("torch AdamW, fp32 masters", 8 * count + exact, "", THEIRS),
        ("bitsandbytes AdamW8bit, fp32 masters", 8 * count + codes, "", THEIRS),
        ("bitsandbytes AdamW8bit, no masters", 4 * count + codes, ": small updates are lost", THEIRS),
        ("lowtide.AdamW", 4 * count + codes, "", OURS),
        ("lowtide.AdamW, step in backward, state in RAM", here, f", and {codes / 1e9:.0f} in RAM", OURS),
    ]
    parts = list(bars([(label, size, f"{size / 1e9:.0f}{note}", color) for label, size, note, color in rows], 8 * count + exact))
    return picture(f"GB of GPU memory to train {MODEL} in bf16", "weights, gradients, masters, state; activations on top", parts)


def losses() -> str:
    def place(percent: float) -> float:
        return WIDTH * (percent - LEAST) / (MOST - LEAST)

    gaps: dict[str, list[tuple[bool, float]]] = {label: [] for label in VARIANTS}
    for study, tuned in DOTS.items():
        rows, _, base = study.analysed()
        for label, (names, _) in VARIANTS.items():
            of = [gap for row in rows if row.id in names for gap in row.gaps.items()]
            gaps[label] += [(tuned, gap / 10 / base[seed]) for seed, gap in of]  # mN to percent
    bottom, parts = TOP + ROW * len(VARIANTS) + 4, []
    for line, (label, (_, color)) in enumerate(VARIANTS.items()):
        y = TOP + ROW * line
        row = text(0, y + 2, label) + rectangle(0, y + 6, WIDTH, 15, BAND)
        row += f'<path d="M{place(0):.1f} {y + 6}v15" stroke="{INK}"/><g stroke="{color}" fill="{color}">'
        for tuned, gap in gaps[label]:
            if gap <= MOST:
                row += f'<circle cx="{place(gap):.1f}" cy="{y + 13.5}" r="4.5" fill-opacity="{0 if tuned else 0.6}"/>'
        parts.append(row + "</g>")
        if beyond := [gap for _, gap in gaps[label] if gap > MOST]:
            parts.append(text(WIDTH - 4, y + 18, f"○ +{min(beyond):.1f} to {max(beyond):.1f} →", color, anchor="end"))
    parts.append("".join(text(place(tick), bottom + 14, f"{tick:+d} %" if tick else "0", anchor="middle") for tick in range(-1, 4)))
    parts.append(text(0, bottom + 32, "● a run from scratch   ○ a fine-tune"))
    return picture("Final loss minus that of fp32, 26 M parameters", "in % of the loss, each dot one run", parts)


def updates() -> str:
    found = {row.id: row.updates for row in SCRATCH.analysed()[0]}
    largest = {label: max(one["largest"] for one in found[id]) for label, (id, _) in UPDATES.items()}
    rows = [(label, size, f"{size:.2g}" if size < 100 else f"{size:.0f}", UPDATES[label][1]) for label, size in largest.items()]
    return picture("Largest update of any weight, in learning rates", "26 M parameters, from scratch, β2 0.95", list(bars(rows, max(largest.values()))))


def by_speed() -> tuple[list[dict[str, Any]], float]:
    """Whole steps whose optimizer was timed on its own, and the seconds that forward and backward take."""
    timed = [row for row in newest(STEPS)["rows"] if row["optimizer_cpu_seconds"] is not None]
    model = statistics.median(row["cpu_seconds"] - row["optimizer_cpu_seconds"] for row in timed)
    return sorted(timed, key=lambda row: row["optimizer_cpu_seconds"]), model


def speed() -> str:
    timed, model = by_speed()
    job = newest(STEPS)["job"]
    width, left, step, parts = 2 * WIDTH, 240, 17, []
    scale = (width - left - 40) / (model + timed[-1]["optimizer_cpu_seconds"])
    for place, row in enumerate(timed):
        y, own = TOP + step * place, row["optimizer_cpu_seconds"]
        color = OURS if row["optimizer"].startswith("lowtide") else THEIRS
        parts.append(text(0, y, name(row)) + rectangle(left, y - 10, model * scale, 12, BAND))
        parts.append(rectangle(left + model * scale, y - 10, own * scale, 12, color))
        parts.append(text(left + (model + own) * scale + 4, y, f"{1000 * own:.0f}", weight="bold"))
    title = f"Processor time of a training step on a CPU, ms: {job['model']}, {job['dtype']}"
    second = f"grey: forward and backward, {1000 * model:.0f}; colour and figure: the optimizer"
    return picture(title, second, parts, width, TOP + step * len(timed))


def name(row: dict[str, Any]) -> str:
    """An optimizer without its version."""
    return str(row["label"]).partition(" (")[0] if row["label"].endswith(f"{row['package']})") else str(row["label"])


CHARTS = {"gigabytes.svg": gigabytes, "losses.svg": losses, "updates.svg": updates, "speed.svg": speed}
