"""Turns as one row for each optimizer: JSON, a Markdown table, and a chart if matplotlib is installed."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

from common import results
from common.rounds import MAX_DELAY
from e2e.contenders import ALL, SAME_BITS, Job

BASE = "torch"  # speeds are relative to this optimizer's
MEDIANS = ("tokens_per_s", "optimizer_share", "cpu_seconds", "optimizer_cpu_seconds", "delay")
PEAKS = ("ram_peak_bytes", "rss_peak_bytes", "device_peak_bytes", "driver_peak_bytes", "disk_bytes")
COLUMNS = (
    ("tokens/s", "tokens_per_s", 1.0, 0), ("× torch", "x_torch", 1.0, 2), ("range", "range", 1.0, 0), ("optimizer, %", "optimizer_share", 100.0, 1),
    ("CPU, ms", "cpu_seconds", 1e3, 0), ("optimizer, CPU ms", "optimizer_cpu_seconds", 1e3, 0),
    ("peak RAM, MB", "ram_peak_bytes", 1e-6, 0), ("peak of device, MB", "device_peak_bytes", 1e-6, 0), ("by the driver, MB", "driver_peak_bytes", 1e-6, 0),
    ("state, B/parameter", "state_per_parameter", 1.0, 2), ("on disk, MB", "disk_bytes", 1e-6, 0), ("loss", "loss", 1.0, 3),
)  # fmt: skip


def row_of(name: str, turns: Sequence[dict[str, Any]], base: float | None) -> dict[str, Any]:
    """One row of the turns of an optimizer: medians of speeds, the most of memory."""
    first = turns[0]
    row = {
        key: first[key]
        for key in ("optimizer", "package", "parameters", "weight_bytes", "state_bytes", "fast_state_bytes", "moved_bytes")
    }
    each = {key: [turn[key] for turn in turns if turn[key] is not None] for key in (*MEDIANS, *PEAKS)}
    row |= {key: statistics.median(each[key]) if each[key] else None for key in MEDIANS}
    row |= {key: max(each[key], default=None) for key in PEAKS}
    speeds = each["tokens_per_s"]
    return {
        **row,
        "label": f"{ALL[name].label} ({ALL[name].package} {first['package']})"
        if ALL[name].package != "lowtide"
        else ALL[name].label,
        "x_torch": row["tokens_per_s"] / base if base else None,
        "turns": [round(speed, 1) for speed in speeds],
        "state_per_parameter": first["state_bytes"] / first["parameters"] or None,
        "loss": statistics.median(turn["loss"] for turn in turns),
        "bits": sorted({f"{turn['loss']!r} {turn['weights']}" for turn in turns}),
        "revision": sorted({turn["made"]["revision"] for turn in turns}),
        "command": first["command"],
    }


def collect(
    job: Job, machine: dict[str, Any], turns: Sequence[dict[str, Any]], absent: dict[str, str], names: Sequence[str]
) -> dict[str, Any]:
    """The report. other_bits: optimizers whose losses or weights differ from those that they should equal."""
    of = {name: found for name in names if (found := [turn for turn in turns if turn["optimizer"] == name])}
    base = statistics.median(turn["tokens_per_s"] for turn in of[BASE]) if BASE in of else None
    rows = sorted((row_of(name, found, base) for name, found in of.items()), key=lambda row: -row["tokens_per_s"])
    bits = {row["optimizer"]: row["bits"] for row in rows}
    return {
        "date": date.today().isoformat(),
        "machine": {**machine, "of_turns": turns[0]["made"]["machine"]} if turns else machine,
        "job": asdict(job),
        "other_bits": [name for name, twin in SAME_BITS.items() if name in bits and twin in bits and bits[name] != bits[twin]],
        "same_bits": [name for name, twin in SAME_BITS.items() if name in bits and twin in bits and bits[name] == bits[twin]],
        "absent": {name: reason for name, reason in absent.items() if name not in of},
        "rows": rows,
    }


def cell(row: dict[str, Any], key: str, by: float, digits: int) -> str:
    if key == "range":
        return f"{min(row['turns']):.0f} to {max(row['turns']):.0f}{'!' if row['delay'] > MAX_DELAY else ''}"
    return "" if not row[key] else f"{row[key] * by:.{digits}f}"


def markdown(result: dict[str, Any]) -> str:
    machine, job, rows = result["machine"], result["job"], result["rows"]
    where = machine.get("of_turns", machine)
    columns = [column for column in COLUMNS if any(cell(row, *column[1:]) for row in rows)]
    commits = Counter(revision for row in rows for revision in row["revision"])
    text = [
        f"# Whole steps: {job['model']}, {job['dtype']} weights, {job['device']}", "",
        "How to read this: [method.md](method.md).", "",
        f"* {result['date']}; {where.get('gpu') or ''} {where.get('cpu')}, {where.get('cores')} cores, {where.get('memory')}".replace(";  ", "; "),
        "* " + ", ".join(f"{name} {version}" for name, version in machine["versions"].items()) + f"; revision {', '.join(commits)}",
        f"* {rows[0]['parameters'] / 1e6:.1f} M parameters, {job['batch']} × {job['seq']} tokens, {job['steps']} steps after {job['warmup']}, "
        f"{max(len(row['turns']) for row in rows)} turns; threads {job['threads'] or 'as torch takes'}, clipping {job['clip'] or 'off'}, checkpointing {'on' if job['checkpointing'] else 'off'}"
        if rows else "* nothing was measured",
        "", *results.table(["", *(column[0] for column in columns)],
                           [[row["label"], *(cell(row, *column[1:]) for column in columns)] for row in rows],
                           ["---"] + ["---:"] * len(columns)), "",
    ]  # fmt: skip
    text += [f"* {name} has {'the same' if name in result['same_bits'] else 'OTHER'} bits as {SAME_BITS[name]}: losses and weights."
             for name in (*result["same_bits"], *result["other_bits"])]  # fmt: skip
    text += [f"* {name}: not measured: {reason}" for name, reason in result["absent"].items()]
    return "\n".join(text) + "\n"


def chart(result: dict[str, Any], path: Path) -> bool:
    """Speeds and peaks as bars. Returns False without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = result["rows"][::-1]
    peak = "ram_peak_bytes" if result["job"]["device"] == "cpu" else "device_peak_bytes"
    figure, axes = plt.subplots(1, 2, figsize=(12, 1 + 0.35 * len(rows)), sharey=True, layout="constrained")
    for axis, key, by, title in zip(
        axes, ("tokens_per_s", peak), (1, 1e-6), ("tokens a second", "peak of memory, MB"), strict=True
    ):
        colors = ["#1f77b4" if row["optimizer"].startswith("lowtide") else "#bbbbbb" for row in rows]
        axis.barh([row["label"] for row in rows], [(row[key] or 0) * by for row in rows], color=colors)
        axis.set_title(title)
    figure.savefig(path, dpi=100)
    plt.close(figure)
    return True


def write(result: dict[str, Any], folder: Path) -> None:
    """Writes e2e.json, e2e.md and e2e.png, and prints the table."""
    text = markdown(result)
    results.write(folder / "e2e.json", result, results.LOSS_DIGITS)
    (folder / "e2e.md").write_text(text, encoding="utf-8")
    if result["rows"]:
        chart(result, folder / "e2e.png")
    print(text)
