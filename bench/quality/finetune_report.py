"""The results of fine-tunes as Markdown tables and as JSON.

A fine-tune from weights that differ by a thousandth stays beside the first, so that the noise of float32 is less than what
any rounding makes: here the scatter of a variant's own gaps decides most rows (gaps.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from common import results
from quality.gaps import analyse
from quality.report import gap_cells, made, table
from quality.tunes import TUNES

TRAINED = {"Full": False, "LoRA": True}  # Variant.lora
LOSSES = ("learned", "forgotten")
HEAD = ("", *(f"{name}{kind}" for name in LOSSES for kind in (", gap per order, mN", ", mean ± sd", ", noise?")))


def write(result: dict[str, Any], folder: Path) -> None:
    """finetune.json and finetune.md, and the tables on the terminal."""
    text = markdown(result)
    results.write(folder / "finetune.json", result, results.LOSS_DIGITS)
    (folder / "finetune.md").write_text(text)
    print(text)


def section(result: dict[str, Any], title: str, lora: bool) -> list[str]:
    variants = [variant for variant in TUNES if variant.lora == lora]
    lines: dict[str, list[str]] = {}
    notes = []
    for name in LOSSES:
        runs = [run | {"loss": run[name], "updates": None} for run in result["runs"]]
        rows, noise, base = analyse(runs, result["runs"][0]["beta2"], variants)
        losses = ", ".join(f"{loss:.4f}" for _, loss in sorted(base.items()))
        notes.append(f"* {name}: fp32, each order's mean: {losses} nats per byte")
        if noise:
            notes[-1] += (
                f"; one run of fp32 differs by {noise.sigma:.1f} mN (standard deviation, {noise.freedom} degrees of freedom)"
            )
        for row in rows:
            lines.setdefault(row.label, [row.label]).extend(gap_cells(row, noise))
    return ["", f"## {title}", "", *notes, "", *table(HEAD, list(lines.values()))] if lines else []


def markdown(result: dict[str, Any]) -> str:
    settings, texts = result["settings"], result["texts"]
    start, labels = result["start"], {variant.id: variant.label for variant in TUNES}
    text = [
        "# State and weights in fine-tunes",
        "",
        "How to read this: [method.md](method.md).",
        "",
        made(result),
        f"* {result['parameters']} parameters, weights sha256 {result['weights'][:16]}…"
        + (f", before: {start['learned']:.4f} nats per byte of the new text, {start['forgotten']:.4f} of the old" if start else ""),
        f"* {settings['steps']} steps of {settings['batch']} x {settings['context']} bytes, lr {settings['lr']} (LoRA: ten times "
        f"that), constant after {settings['warmup']} steps, weight decay {settings['weight_decay']}, clip {settings['clip']}",
        *(
            f"* {name} text: {of['train']} bytes to train on, {of['validation']} to validate on, sha256 {of['sha256'][:16]}…"
            for name, of in texts.items()
        ),
    ]
    if result["runs"]:
        text += [line for title, lora in TRAINED.items() for line in section(result, title, lora)]
    if result["absent"]:
        text += ["", "Left out: " + "; ".join(f"{labels[id]} ({why})" for id, why in result["absent"].items()) + "."]
    return "\n".join(text) + "\n"
