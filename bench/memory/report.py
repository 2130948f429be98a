"""The results as Markdown tables, as JSON with the machine and the date, and as a plot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common import results
from llama import paged

from memory.variants import APIS, CLASSES, Variant

# bitsandbytes' published figures for a LLaMA of this size on an XPU (its pull request 1898): the peak of torch's allocator,
# MB, of AdamW and PagedAdamW, and the difference of their losses.
PUBLISHED = {"AdamW": 2524, "PagedAdamW": 861, "loss_difference": 0.01}
WANTED = 0.659  # of the peak, saved by paging 32-bit state of 16-bit weights, in the shape that was published
PLACES = {"cpu": ("RAM", "disk"), "cuda": ("device memory", "host memory"), "xpu": ("device memory", "host memory")}  # fast, other

Runs = dict[Variant, dict[str, Any]]


@dataclass(frozen=True)
class Pair:
    """A paged run and its unpaged twin."""

    variant: Variant
    saved: float  # of the twin's peak
    state_saved: float  # of the twin's state in fast memory
    largest_difference: float  # of their losses
    same_bits: bool  # of all losses and weights
    must_save: bool  # WANTED, at least

    @property
    def good(self) -> bool:
        return self.same_bits and (not self.must_save or self.saved >= WANTED)


def by_variant(result: dict[str, Any]) -> Runs:
    return {Variant(run["api"], run["name"]): run for run in result["runs"]}


def must_save(job: dict[str, Any], variant: Variant) -> bool:
    """Whether WANTED is asked of it. float32 weights and gradients are half of all bytes already, activations of long rows may be more."""
    default = asdict(paged.Job())
    published = all(job[name] == default[name] for name in default.keys() - {"dtype", "device", "train_steps", "lr"})
    return variant.unpaged.name == "AdamW" and published and job["dtype"] in ("bf16", "fp16")


def pairs(result: dict[str, Any]) -> list[Pair]:
    runs, found = by_variant(result), []
    for variant, run in runs.items():
        if not variant.paged or variant.unpaged not in runs:
            continue
        twin = runs[variant.unpaged]
        found.append(Pair(
            variant, 1 - run["peak_bytes"] / twin["peak_bytes"], 1 - run["fast_state_bytes"] / twin["fast_state_bytes"],
            max(abs(a - b) for a, b in zip(run["losses"], twin["losses"], strict=True)),
            run["losses"] == twin["losses"] and run["weights"] == twin["weights"],
            must_save(result["job"], variant),
        ))  # fmt: skip
    return found


def write(result: dict[str, Any], folder: Path) -> bool:
    """memory.json and memory.md, and the tables on the terminal; whether all is as it must be."""
    text = markdown(result)
    results.write(folder / "memory.json", result, results.LOSS_DIGITS)
    (folder / "memory.md").write_text(text)
    print(text)
    return all(pair.good for pair in pairs(result))


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(line) + " |" for line in [head, ["---"] + ["---:"] * (len(head) - 1), *rows]]


def elsewhere(place: str) -> str:
    return f"{'on' if place == 'disk' else 'in'} {place}"


def mb(size: float) -> str:
    return f"{size / 1e6:.1f}" if size < 1e8 else f"{size / 1e6:.0f}"


def section(result: dict[str, Any], api: str) -> list[str]:
    """bitsandbytes' table: a column for each class, and what its AdamW takes more than each."""
    fast, other = PLACES[result["job"]["device"]]
    runs = {name: run for name in CLASSES if (run := by_variant(result).get(Variant(api, name)))}
    if not runs:
        return []
    cells: dict[str, Callable[[dict[str, Any]], str]] = {
        f"peak of {fast}": lambda run: mb(run["peak_bytes"]),
        "… in forward and backward": lambda run: mb(run["passes_peak_bytes"]),
        "… in a step": lambda run: mb(run["step_peak_bytes"]),
        f"state in {fast}": lambda run: mb(run["fast_state_bytes"]),
        f"state {elsewhere(other)}": lambda run: mb(run["other_state_bytes"]),
        "moved per step": lambda run: mb(run["moved_per_step"]),
        "loss, first → last": lambda run: f"{run['losses'][0]:.3f} → {run['losses'][-1]:.3f}",
        "forward and backward, step: s": lambda run: f"{run['passes_seconds']:.2f}, {run['step_seconds']:.3f}",
    }
    if base := runs.get("AdamW"):
        cells["saved against AdamW"] = lambda run: "" if run is base else f"{100 * (1 - run['peak_bytes'] / base['peak_bytes']):.1f} %"
    rows = [[title, *(cell(run) for run in runs.values())] for title, cell in cells.items()]
    if api == "compat":
        published = {name: f"{PUBLISHED[name]}" if name in PUBLISHED else "" for name in runs}
        rows.append(["bitsandbytes on an XPU (published): peak of device memory", *published.values()])
    return ["", f"## `{APIS[api]}`, MB", "", *table(["", *runs], rows)]


def verdicts(result: dict[str, Any]) -> list[str]:
    rows = [
        [f"`{APIS[pair.variant.api]}`: {pair.variant.name}", f"{100 * pair.saved:.1f} %", f"≥ {100 * WANTED:.1f} %" if pair.must_save else "",
         f"{100 * pair.state_saved:.1f} %", f"{pair.largest_difference:g}", "the same bits" if pair.same_bits else "**DIFFERENT**"]
        for pair in pairs(result)
    ]  # fmt: skip
    if not rows:
        return []
    head = ["paged against unpaged", "peak saved", "must", "fast state saved", "largest difference of a loss", "weights at the end"]
    return ["", "## Paged against unpaged", "", *table(head, rows)]


def markdown(result: dict[str, Any]) -> str:
    machine, job = result["machine"], result["job"]
    shape = f"{job['num_layers']} layers of {job['hidden_size']}, inner {job['intermediate_size']}, vocabulary {job['vocab_size']}"
    count = f"{result['runs'][0]['parameters'] / 1e6:.1f} M parameters" if result["runs"] else "no run yet"
    text = [
        f"# Training a LLaMA of {count}",
        "",
        f"* {result['date']}, {machine['cpu']}, {machine['cores']} cores, "
        + ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
        + f"; revision {machine['revision']}",
        f"* {shape}, {job['dtype']}; {job['train_steps']} steps of {job['batch_size']} x {job['seq_len']} bytes of instructions "
        f"({result['text_bytes']} bytes), lr {job['lr']}; budget of paged state {job['budget']}",
    ]
    for api in APIS:
        text += section(result, api)
    return "\n".join([*text, *verdicts(result)]) + "\n"
