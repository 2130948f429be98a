"""Tables of docs/evidence.md, from records in docs/benchmarks. memory_tables.py writes them between their marks."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from typing import Any

from charts import DEFAULT, RECORDS, SCRATCH, SMALL, STEPS, TUNE, Study, by_speed, name, newest
from common.contenders import PEERS
from common.results import table

TUNED = ("finetune-1M-*.json",)
STUDIES = {  # the record's page: the last of these
    Study("from scratch, 0.68 M parameters", SMALL, 0.95): "quality-1M-*.md",
    SCRATCH: "quality-25M-*.md",
    Study("fine-tune, 0.68 M, lr 4 * 10^-4", TUNED, 0.999, "learned", 4e-4): "finetune-*.md",
    Study("fine-tune, 0.68 M, lr 10^-5", TUNED, 0.999, "learned", 1e-5): "finetune-*.md",
    TUNE: "finetune-*.md",
}
COLUMNS = {  # variants, of which the first that a record has is shown
    "8-bit state (default)": ("dynamic8",),
    "bf16 weights, stochastic (default)": DEFAULT,
    "bf16 weights, to nearest": ("bf16_nearest",),
}
INSTALLED = {"torch", "bitsandbytes"}  # by make bench-e2e
SHOWN = {"torch", "lowtide-fp32", "lowtide", "lowtide-disk", "bitsandbytes", "bitsandbytes-cpu-fork", "torchao"}  # rows of steps


def last(pattern: str) -> str:
    return sorted(RECORDS.glob(pattern))[-1].name


def loss() -> list[str]:
    """Mean gaps in percent with their bounds, bold if they exceed them: the noise, or the gaps' own scatter if that is larger."""
    rows = []
    for study, pages in STUDIES.items():
        found, noise, base = study.analysed()
        of = [next(row for id in ids for row in found if row.id == id) for ids in COLUMNS.values()]
        counts = [str(len(row.gaps)) for row in of]
        runs = f"{counts[0]} runs" if len(set(counts)) == 1 else f"runs per column: {', '.join(counts)}"
        rows.append([f"[{study.label}](benchmarks/{last(pages)}); {runs}"])
        assert noise, study
        for row in of:
            bound = max(noise.band(row.gaps), row.interval or 0.0)
            gap, most = (size / 10 / statistics.fmean(base.values()) for size in (row.mean, bound))  # mN to percent
            mark = "**" if abs(gap) > most else ""
            rows[-1].append(f"{mark}{round(gap, 2) + 0.0:+.2f}{mark} (≤ {max(most, 0.01):.2f})")
    return table(("", *COLUMNS), rows)


def shown() -> list[dict[str, Any]]:
    return [row for row in newest(STEPS)["rows"] if row["optimizer"] in SHOWN]


def source() -> list[str]:
    """The conditions of the record of steps, and the commands."""
    record = newest(STEPS)
    job, machine = record["job"], record["machine"]
    options = re.sub(r"python \S+|--(optimizers|disk) \S+", "", record["rows"][0]["command"]).split()
    what = f"{job['model']} in {job['dtype']} and {job['batch']} × {job['seq']} tokens per step"
    instructions = machine["torch_instruction_set"].replace("AVX512", "AVX-512")
    cpu = f"{job['threads'] or machine['cores']} cores of an {machine['cpu']} ({instructions})"
    peers = sorted({PEERS[row["optimizer"]].package for row in shown() if row["optimizer"] in PEERS} - INSTALLED)
    install = [f"pip install --no-deps --target PACKAGES/{name} {name}" for name in peers]
    where = f"These figures were [measured](benchmarks/{last('steps-*.md')}) on {record['date']} with {what},"
    return ["", where, f"on {cpu}.", "", "```sh", *install, f'make bench-e2e ARGS="{" ".join(options)} --packages PACKAGES"', "```"]


def memory() -> list[str]:
    head = ("", "state, bytes per parameter", "state in RAM, MB", "on disk, MB", "peak RAM, MB")
    rows = []
    for row in sorted(shown(), key=lambda row: row["ram_peak_bytes"]):
        kept = row["fast_state_bytes"] if row["disk_bytes"] else row["state_bytes"]
        sizes = [f"{size / 1e6:.0f}" if size else "" for size in (kept, row["disk_bytes"], row["ram_peak_bytes"])]
        rows.append([name(row), f"{row['state_per_parameter']:.2f}", *sizes])
    return table(head, rows, ("---", *["---:"] * 4)) + source()


def speed() -> list[str]:
    head = ("", "tokens / s", "optimizer, processor ms", "share of a step's, %")
    _, model = by_speed()
    rows = []
    for row in sorted(shown(), key=lambda row: -row["tokens_per_s"]):
        own = row["optimizer_cpu_seconds"]
        rows.append([name(row), f"{row['tokens_per_s']:.0f}", f"{1000 * own:.0f}", f"{100 * own / (own + model):.0f}"])
    return table(head, rows, ("---", "---:", "---:", "---:"))


TABLES = {"loss": loss, "memory": memory, "speed": speed}


def filled(page: str, names: Sequence[str] = tuple(TABLES)) -> str:
    """The page with today's tables."""
    for each in names:
        parts = re.split(rf"(<!-- {each}: [^>]*-->\n).*?(<!-- end -->)", page, flags=re.S)
        if len(parts) != 4:
            raise ValueError(f"docs/evidence.md: got {len(parts) // 3} marks <!-- {each}: ... -->, wanted 1")
        page = "".join([*parts[:2], "\n", *(f"{line}\n" for line in TABLES[each]()), "\n", *parts[2:]])
    return page
