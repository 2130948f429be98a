"""Results as Markdown and as plain data."""

from __future__ import annotations

import math
from typing import Any

from common.results import table
from common.rounds import Series
from step.rows import AT_MOST, FIGURES, Group, Line, Target

HEAD = ("", "T", "Gelt/s", "B/elt", "GB/s", "% ceiling", "× fused", "2T/1T", "µs/tensor", "B state", "clean", "target")


def series_data(series: Series) -> dict[str, Any]:
    return {
        "seconds": series.seconds,
        "median_seconds": series.median,
        "cores": series.cores,
        "clean": len(series.clean),
        "disturbed": series.disturbed,
        "samples": [[sample.seconds, sample.delay, sample.cores] for sample in series.samples],
    }


def verdict(target: Target, figures: dict[str, float | None], judged: bool) -> dict[str, Any]:
    got = figures.get(target.figure)
    reached = target.reached(got) if judged and got is not None else None
    return {"figure": target.figure, "wanted": target.wanted, "got": got, "reached": reached}  # None: not judged


def line_data(group: Group, line: Line, threads: int, figures: dict[str, Any], judged: bool) -> dict[str, Any]:
    """One line at one number of threads. figures: values of FIGURES and rates; None if missing."""
    asked = [target for target in line.targets if target.threads in (None, threads)]
    if threads != 1:
        asked = [target for target in asked if target.figure != "state_bytes"]  # once is enough
    return {
        "group": group.id,
        "id": line.id,
        "label": line.label,
        "threads": threads,
        **figures,
        "targets": [verdict(target, figures, judged) for target in asked],
    }


def _number(value: float | None, digits: int = 2) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def _target(entry: dict[str, Any]) -> str:
    at_most = entry["figure"] in AT_MOST
    mark = {True: ": yes", False: ": NO", None: ""}[entry["reached"]]
    wanted = f"{100 * entry['wanted']:.0f} %" if entry["figure"] == "ceiling" else f"{entry['wanted']:g}"
    digits = {"x_bitsandbytes": 1, "x_fused_bf16": 2, "x_nearest": 2}.get(entry["figure"])  # figures without a column
    got = "" if digits is None or entry["got"] is None else f"{entry['got']:.{digits}f} "
    return f"{got}{'≤' if at_most else '≥'} {wanted} {FIGURES[entry['figure']]}{mark}"


def cells(row: dict[str, Any]) -> list[str]:
    if "absent" in row:
        return [row["label"], "", *[""] * 9, f"not measured: {row['absent']}"]
    ceiling = row.get("ceiling")
    return [
        row["label"],
        str(row["threads"]),
        _number(row["gelt_per_s"], 3 if row["gelt_per_s"] < 0.1 else 2),
        _number(row.get("bytes_per_element"), 0),
        _number(row.get("gb_per_s"), 1),
        "" if ceiling is None else f"{100 * ceiling:.0f}",
        _number(row.get("x_fused")),
        _number(row.get("scaling")),
        _number(row.get("us_per_tensor")),
        _number(row.get("state_bytes")),
        f"{row['clean']}/{row['taken']}" + ("!" if row["disturbed"] else ""),
        "; ".join(_target(entry) for entry in row["targets"]),
    ]


def tables(result: dict[str, Any]) -> list[tuple[str, tuple[str, ...], list[list[str]]]]:
    """Title, head and rows of each table. Omits columns that a table does not use."""
    out: list[tuple[str, tuple[str, ...], list[list[str]]]] = []
    for group in result["groups"]:
        rows = [cells(row) for row in group["rows"]]
        used = [k for k in range(len(HEAD)) if k == 0 or any(row[k] for row in rows)]
        out.append((group["title"], tuple(HEAD[k] for k in used), [[row[k] for k in used] for row in rows]))
    return out


def summary(result: dict[str, Any]) -> list[str]:
    """The machine and the run, one line each."""
    machine, load = result["machine"], result["load_average"]
    lines = [
        f"{machine['cpu']}, {machine['cores']} cores, L3 {machine['cache_l3']}, memory {machine['memory']}, kernel "
        f"{machine['kernel']}, huge pages {machine['huge_pages']}",
        ", ".join(f"{name} {version}" for name, version in machine["versions"].items()),
        f"{machine['compiler']}; ceiling built with {' '.join(result['ceiling_flags'])}; revision "
        f"{machine['revision']}",
        f"load average before {load['before']}, after {load['after']}; {result['seconds']:.0f} s",
    ]
    if result["quick"]:
        lines.append("--quick: small tensors and few rounds. These figures say that the program runs, and no more.")
    return lines


def markdown(result: dict[str, Any]) -> str:
    text = ["# One optimizer step on the CPU", "", "How to read this: [method.md](method.md).", ""]
    text += [f"* {line}" for line in summary(result)]
    for title, head, rows in tables(result):
        align = ["---"] + ["---:"] * (len(head) - 2) + ["---"]
        text += ["", f"## {title[0].upper() + title[1:]}", ""]
        text += table(head, rows, align)
    return "\n".join(text) + "\n"
