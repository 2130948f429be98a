"""The end of the job: one report as data, and the table that sums it up."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from . import memory
from .config import Config

if TYPE_CHECKING:
    from rich.table import Table

MIB = 1 << 20


def environment() -> dict[str, Any]:
    """Versions and hardware: figures mean little without them."""
    packages: dict[str, str | None] = {}
    for name in ("torch", "transformers", "tokenizers", "numpy", "lowtide"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = None
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": memory.cpu_name(),
        "cores": os.cpu_count(),
        "packages": packages,
    }


def same_bits(runs: dict[str, Any]) -> dict[str, str | None]:
    """For each run the first one before it with the same losses and final weights, bit for bit; None if there is none."""
    found: dict[str, str | None] = {}
    for label, run in runs.items():
        alike = (
            other for other in found
            if runs[other]["final_weights_sha256"] == run["final_weights_sha256"]
            and all(runs[other]["history"][name] == run["history"][name] for name in ("loss", "grad_norm", "validation"))
        )  # fmt: skip
        found[label] = next(alike, None)
    return found


def make_report(config: Config, data: dict[str, Any], runs: dict[str, Any], seconds: dict[str, float]) -> dict[str, Any]:
    """Put everything together; the first run is the one the others are compared with."""
    labels = list(runs)
    same = same_bits(runs)
    first = runs[labels[0]]
    comparison = {
        label: {
            "with": labels[0],
            "validation_loss_difference": run["validation_loss"] - first["validation_loss"],
            "train_loss_difference": run["train_loss"] - first["train_loss"],
            "optimizer_bytes_ratio": run["optimizer_bytes"] / first["optimizer_bytes"],
            "rss_peak_difference": run["rss_peak"] - first["rss_peak"],
            "optimizer_ms_ratio": run["optimizer_ms_median"] / first["optimizer_ms_median"],
            "state_ram_ratio": run["state_ram_bytes"] / first["state_ram_bytes"],
            "same_bits_as": same[label],
            "same_start": run["initial_weights_sha256"] == first["initial_weights_sha256"],
            "same_batches": run["batches_sha256"] == first["batches_sha256"],
            # Sessions may differ in the load of the machine, its threads and its memory allocator.
            "same_conditions": len(run["sessions"]) == len(first["sessions"]) == 1,
        }
        for label, run in list(runs.items())[1:]
    }
    return {
        "config": config.to_json(),
        "environment": environment(),
        "data": data,
        "seconds": seconds,
        "runs": runs,
        "comparison": comparison,
    }


def print_table(report: dict[str, Any]) -> None:
    """Show the runs side by side, then the differences in words."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 80)  # a file has no width
    runs = report["runs"].values()
    table = _table(f"{next(iter(runs))['parameters']:,} parameters, {report['config']['steps']} steps, "
                   f"text: {report['data']['source']}", "train\nloss", "validation\nloss", "state\nMiB", "bytes/\nparam",
                   "peak RSS\nMiB", "ms/\nstep", "ms in\nstep()")  # fmt: skip
    for run in runs:
        table.add_row(
            run["title"],
            f"{run['train_loss']:.4f}",
            f"{run['validation_loss']:.4f}",
            f"{run['optimizer_bytes'] / MIB:.2f}",
            f"{run['optimizer_bytes_per_parameter']:.3f}",
            f"{run['rss_peak'] / MIB:.0f}",
            f"{run['step_ms_median']:.1f}",
            f"{run['optimizer_ms_median']:.2f}",
        )
    console.print(table)
    if any(run["state_disk_bytes"] for run in runs):
        console.print(_residency_table(report))
    for label, row in report["comparison"].items():
        run, base = report["runs"][label], report["runs"][row["with"]]
        console.print(
            f"{run['title']} against {base['title']}:\n"
            f"  validation loss {row['validation_loss_difference']:+.4f} nat, time in step() "
            f"x{row['optimizer_ms_ratio']:.2f}\n"
            f"  optimizer state {_state_ratio(row, run)}, peak RSS {row['rss_peak_difference'] / MIB:+.1f} MiB",
            highlight=False,
            soft_wrap=True,
        )
        if row["same_bits_as"]:
            twin = report["runs"][row["same_bits_as"]]
            console.print(f"  same bits as {twin['title']}: {run['steps']} training losses and\n"
                          f"  gradient norms, {len(run['history']['validation'])} validation losses, {run['parameters']:,} "
                          "weights", highlight=False, soft_wrap=True)  # fmt: skip
        if not row["same_conditions"]:
            console.print("  resumed runs: losses and state bytes stand; times and RSS come from several\n"
                          "  sessions and are not comparable", highlight=False, soft_wrap=True)  # fmt: skip
        if not (row["same_start"] and row["same_batches"]):
            console.print("  [bold red]the two did not start from the same weights or see the same batches[/]")


def _state_ratio(row: dict[str, Any], run: dict[str, Any]) -> str:
    """State as a share of the reference's: what is in RAM and what is on disk are two prices."""
    if not run["state_disk_bytes"]:
        return f"x{row['optimizer_bytes_ratio']:.3f}"
    return f"x{row['state_ram_ratio']:.3f} in RAM and {run['state_disk_bytes'] / MIB:.2f} MiB on disk"


def _table(title: str, *columns: str) -> Table:
    """Names wrap, numbers do not: 80 columns are enough."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, box=box.SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("optimizer", overflow="fold")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _residency_table(report: dict[str, Any]) -> Table:
    table = _table("where the state is, and what a step moves between RAM and disk", "RAM\nMiB", "disk\nMiB",
                   "moved\nMiB/step", "GB/s\nin step()", "ms waited\nfor the disk")  # fmt: skip
    for run in report["runs"].values():
        rate = run["moved_bytes_per_step"] / (run["optimizer_ms_median"] * 1e6)
        cells = (f"{run['moved_bytes_per_step'] / MIB:.2f}", f"{rate:.2f}", f"{run['waited_ms_median']:.2f}")
        table.add_row(run["title"], f"{run['state_ram_bytes'] / MIB:.2f}", f"{run['state_disk_bytes'] / MIB:.2f}",
                      *(cells if run["state_disk_bytes"] else ("", "", "")))  # fmt: skip
    return table
