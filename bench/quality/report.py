"""Results as Markdown tables, and as JSON with the machine and the date."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from common import results
from common.results import table
from quality.fidelity import LIVE
from quality.gaps import Noise, Row, analyse
from quality.model import build
from quality.training import Settings
from quality.variants import VARIANTS, of_rule

RUN_HEAD = ("", "gap per seed, mN", "mean ± sd", "noise?", "update error", "largest update / lr", "above 8")
UNIT_HEAD = ("", "β2", "no gradient", "× 0.1", "same", "× 2", "× 10", "drift, at most", "spread", "spike")


def parameter_count(settings: Settings) -> int:
    return sum(param.numel() for param in build(settings.size, 0).parameters())


def write(result: dict[str, Any], folder: Path) -> None:
    """Writes quality.json and quality.md, and prints the tables."""
    text = markdown(result)
    results.write(folder / "quality.json", result, results.LOSS_DIGITS)
    (folder / "quality.md").write_text(text)
    print(text)


def betas(result: dict[str, Any]) -> list[float]:
    return sorted({run["beta2"] for run in result["runs"]}, reverse=True)


def gap_cells(row: Row, noise: Noise | None) -> list[str]:
    """The gaps, their mean, and whether it is noise."""
    spread = "" if row.deviation is None else f" ± {row.deviation:.1f}"
    gaps = " ".join(f"{gap:+.1f}" for _, gap in sorted(row.gaps.items()))
    return [gaps, f"{row.mean:+.1f}{spread}", row.verdict(noise)]


def origin_line(of: dict[str, Any]) -> str:
    cpu = " ".join(filter(None, (of.get("gpu"), of["cpu"], of.get("torch_instruction_set"))))
    return f"{cpu}, revision {of['revision']}, lowtide {of['versions']['lowtide']}, torch {of['versions']['torch']}"


def made(result: dict[str, Any]) -> str:
    """The lines that say when, where and with which versions results were made."""
    machine = result["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    cpu = f"{machine['cpu']}, {machine['cores']} cores"
    line = f"* {', '.join(filter(None, (result['date'], machine.get('gpu'), cpu, versions)))}; revision {machine['revision']}"
    origins = Counter(origin_line(run["made"]) for run in result["runs"] if run.get("made"))
    return "\n".join([line, *(f"* {count} runs: {origin}" for origin, count in origins.items())])


def run_cells(row: Row, noise: Noise | None) -> list[str]:
    error = largest = large = ""
    if row.updates:
        error = f"{sum(one['error'] for one in row.updates) / len(row.updates):.2g}"
        largest = f"{max(one['largest'] for one in row.updates):.3g}"
        large = str(sum(int(one["large"]) for one in row.updates))
    return [row.label, *gap_cells(row, noise), error, largest, large]


def run_section(result: dict[str, Any], beta2: float, rule: str) -> list[str]:
    rows, noise, base = analyse(result["runs"], beta2, of_rule(rule))
    if not rows:
        return []
    losses = ", ".join(f"{loss:.4f}" for _, loss in sorted(base.items()))
    exact = "The package in fp32" if rule == "Schedule-Free" else "fp32"
    text = ["", f"## Validation loss, {rule}, β2 = {beta2}", "", f"{exact}, each seed's mean: {losses} nats per byte."]
    if noise:
        text.append(
            f"Noise: fp32 losses of one seed scatter by {noise.sigma:.1f} mN (standard deviation, {noise.freedom} degrees of freedom)."
        )
    largest = max((one["exact_largest"] for row in rows for one in row.updates), default=0.0)
    text += [f"Largest update / lr of exact state: {largest:.3g}."] if largest else []
    watched = any(row.updates for row in rows)
    columns = len(RUN_HEAD) if watched else RUN_HEAD.index("update error")
    return [*text, "", *table(RUN_HEAD[:columns], [run_cells(row, noise)[:columns] for row in rows])]


def unit_cells(unit: dict[str, Any], labels: dict[str, str]) -> list[str]:
    even, noisy = unit["even"], unit["noisy"]
    decay = f"{even['decay']:.3g} / {noisy['decay']:.3g}"
    respond = [f"{even['respond'][key]:.2f} / {noisy['respond'][key]:.2f}" for key in ("0.1", "1.0", "2.0", "10.0")]
    rest = f"{even['rest_max']:.2g} / {noisy['rest_max']:.2g}"
    hostile = [
        f"{unit[kind]['largest']:.3g} ({unit[kind]['largest'] / unit[kind]['exact']:.2g} ×)" for kind in ("spread", "spike")
    ]
    return [labels[unit["variant"]], f"{unit['beta2']}", decay, *respond, rest, *hostile]


def beside_section(sizes: dict[str, Any], units: list[dict[str, Any]], labels: dict[str, str]) -> list[str]:
    kinds = list(units[0]["beside"])
    cells = []
    for unit in units:
        drifts = (unit["beside"][kind] for kind in kinds)
        cells.append([labels[unit["variant"]], f"{unit['beta2']}", *(f"{mean:.2g} / {most:.2g}" for mean, most in drifts)])
    return [
        "",
        "## Silent parameters beside live ones",
        "",
        f"Drift in lr, mean / largest, from step {sizes['rest_from']} to {sizes['rest_to']} after the gradients of {LIVE - 1} in {LIVE} "
        "stopped, which had been "
        "up to two decades smaller than the live ones. Columns: mean ± standard deviation of live gradients.",
        "",
        *table(("", "β2", *kinds), cells),
    ]


def markdown(result: dict[str, Any]) -> str:
    labels = {variant.id: variant.label for variant in VARIANTS}
    units = [unit for unit in result["fidelity"] if unit["variant"] in labels]  # stored results may have others
    absent = [f"{labels[id]} ({why})" for id, why in result["absent"].items() if id in labels]
    settings, corpus = result["settings"], result["corpus"]
    sizes = result["sizes"]
    text = [
        "# State formats and training",
        "",
        "How to read this: [method.md](method.md).",
        "",
        made(result),
        f"* {result['parameters']} parameters, {settings['steps']} steps of {settings['batch']} x {settings['context']} bytes, "
        f"lr {settings['lr']}, weight decay {settings['weight_decay']}, clip {settings['clip']}",
        f"* {corpus['train']} bytes to train on, {corpus['validation']} to validate on, sha256 {corpus['sha256'][:16]}…",
    ]
    for beta2 in betas(result):
        text += [line for rule in dict.fromkeys(each.rule for each in VARIANTS) for line in run_section(result, beta2, rule)]
    if units:
        text += [
            "",
            "## State against its average",
            "",
            "Where two figures stand, the first is of even gradients, the second of noisy ones. Second moments over exact ones: "
            f"{sizes['decay']:g} / (1 − β2) steps after gradients stopped, and {sizes['respond']:g} / (1 − β2) after they became "
            f"so many times as large. Drift, in lr: of parameters without gradients, from step {sizes['rest_from']} to "
            f"{sizes['rest_to']} after they stopped. Spread, spike: the largest update / lr, and (×) over that of exact state.",
            "",
            *table(UNIT_HEAD, [unit_cells(unit, labels) for unit in units]),
            *beside_section(sizes, units, labels),
        ]
    if absent:
        text += ["", "Left out: " + "; ".join(absent) + "."]
    return "\n".join(text) + "\n"
