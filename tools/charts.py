"""README's charts: gigabytes from the shapes of a model, losses from records in docs/benchmarks. memory_tables.py writes them."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))
import lowtide  # noqa: E402
from lowtide.planning.models import DECODERS, elements  # noqa: E402
from quality.gaps import analyse  # noqa: E402
from quality.variants import of_rule  # noqa: E402

WIDTH, HEIGHT, TOP, ROW = 370, 236, 50, 36  # two fit side by side in README and on the site
INK, OURS, THEIRS, BAND = "#777", "#0a8f80", "#d55e00", "#8884"  # all legible on white and on black
MODEL = "Llama-2-7B"
TRAININGS = {  # record: its measure of loss, and whether it is a fine-tune
    "quality-25M-2026-11-26.json": ("loss", False), "quality-25M-h100-2026-11-26.json": ("loss", False), "finetune-25M-2026-11-26.json": ("learned", True),
}  # fmt: skip
VARIANTS = {  # label: variants, colour
    "fp32 again: the noise": (("fp32", "fp32_c", "fp32_d"), INK),
    "8-bit state (default)": (("dynamic8",), OURS),
    "bf16 weights, stochastic (default)": (("bf16_stochastic",), OURS),
    "bf16 weights, to nearest (torch, bitsandbytes)": (("bf16_nearest",), THEIRS),
}
LEAST, MOST = -1.2, 3.8  # percent


def text(x: float, y: float, words: str, color: str = INK, size: int = 12, anchor: str = "start", weight: str = "normal") -> str:
    return f'<text x="{x:g}" y="{y:g}" fill="{color}" font-size="{size}" text-anchor="{anchor}" font-weight="{weight}">{words}</text>'


def picture(title: str, second: str, parts: Sequence[str]) -> str:
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">'
    return "\n".join([head, text(0, 14, title, size=13, weight="bold"), text(0, 31, second), *parts, "</svg>", ""])


def gigabytes() -> str:
    shapes = DECODERS[MODEL].shapes()
    count = elements(shapes)
    exact, codes = (lowtide.forecast(shapes, state=form).state_bytes for form in ("fp32", "dynamic8"))
    bars = [
        ("torch AdamW, fp32 masters", 8 * count + exact, "", THEIRS),
        ("bitsandbytes AdamW8bit, fp32 masters", 8 * count + codes, "", THEIRS),
        ("bitsandbytes AdamW8bit, no masters", 4 * count + codes, ": small updates are lost", THEIRS),
        ("lowtide.AdamW", 4 * count + codes, "", OURS),
        ("lowtide.AdamW, state in RAM", 4 * count, f", and {codes / 1e9:.0f} in RAM", OURS),
    ]
    parts = []
    for y, (label, size, note, color) in zip(range(TOP, HEIGHT, ROW), bars):
        length = size * 300 / (8 * count + exact)
        bar = f'<rect x="0" y="{y + 7}" width="{length:.1f}" height="13" fill="{color}"/>'
        parts.append(text(0, y + 2, label) + bar + text(length + 6, y + 18, f"{size / 1e9:.0f}{note}", weight="bold"))
    return picture(f"GB on the GPU to train {MODEL} in bf16", "weights, gradients, masters, state; activations on top", parts)


def losses() -> str:
    def place(percent: float) -> float:
        return WIDTH * (percent - LEAST) / (MOST - LEAST)

    gaps: dict[str, list[tuple[bool, float]]] = {label: [] for label in VARIANTS}
    for record, (measure, tuned) in TRAININGS.items():
        found = json.loads((ROOT / "docs/benchmarks" / record).read_text(encoding="utf-8"))
        runs = [{**run, "loss": run[measure], "updates": None} for run in found["runs"]]
        for beta2 in sorted({run["beta2"] for run in runs}):
            rows, _, base = analyse(runs, beta2, of_rule("AdamW"))
            for label, (names, _) in VARIANTS.items():
                of = [gap for row in rows if row.id in names for gap in row.gaps.items()]
                gaps[label] += [(tuned, gap / 10 / base[seed]) for seed, gap in of]  # mN to percent
    bottom, parts = TOP + ROW * len(VARIANTS) + 4, []
    for y, (label, (_, color)) in zip(range(TOP, HEIGHT, ROW), VARIANTS.items()):
        row = text(0, y + 2, label) + f'<rect x="0" y="{y + 6}" width="{WIDTH}" height="15" fill="{BAND}"/>'
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


CHARTS = {"gigabytes.svg": gigabytes, "losses.svg": losses}
