"""The output of the command line: tables that fit 80 columns and need no color."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lowtide import _core
from lowtide.cli.text import printable

if TYPE_CHECKING:
    from lowtide.cli.quick_bench import Bench
    from lowtide.planning.result import Plan

_size = _core.format_bytes
_MOST_GROUPS, _MOST_TEXT = 50, 1000  # groups in a table and characters of a text: tables are for reading


def _rate(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e9:.2f} GB/s" if bytes_per_second > 0 else "-"


def _show(*parts: str | Table) -> None:
    """Prints texts, wrapped at words (without markup), and tables, without trailing blanks."""
    console = Console()
    with console.capture() as capture:
        for part in parts:
            console.print(Text(printable(part)) if isinstance(part, str) else part, highlight=False)
    for line in capture.get().splitlines():
        print(line.rstrip())


def _table(*columns: str) -> Table:
    """A table whose first column is text and whose others are numbers."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for n, column in enumerate(columns):
        table.add_column(column, justify="left" if n == 0 else "right", overflow="fold", no_wrap=n > 0)
    return table


def _pairs() -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _row(table: Table, *cells: str) -> None:
    table.add_row(*(Text(printable(cell).replace("\n", "\\n")) for cell in cells))


def machine(found: dict[str, Any]) -> None:
    table = _pairs()
    _row(table, "lowtide", f"{found['version']}, torch {found['torch']}")
    for name, backend in found["backends"].items():
        here = "available" if backend["available"] else "not available"
        _row(table, f"backend {name}", f"{here}: {backend['detail']}")
    _row(table, "threads", f"{found['threads']} of {found['cores']} cores")
    _row(table, "RAM", f"{_size(found['ram_total'])}, {_size(found['ram_free'])} free")
    _row(table, "memory rate", f"{_rate(found['memory_rate'])} read and written (a += b)")
    for state, rate in found["step_rates"].items():
        _row(table, f"AdamW {state}", f"{_rate(rate)} of state stepped")
    if disk := found["disk"]:
        way = f"{disk['engine']}, {'past the page cache' if disk['direct'] else 'through the page cache'}"
        _row(table, "tiers", "host memory, disk")
        _row(table, "disk", f"{disk['directory']}: {_size(disk['free_bytes'])} free; {way}")
        _row(table, "disk rate", f"{_rate(disk['read_rate'])} read, {_rate(disk['write_rate'])} written")
    else:
        _row(table, "tiers", "host memory (and a disk: see --disk DIR)")
    _show(table)


def plan(found: Plan) -> None:
    def flag(name: str, value: Any) -> str:
        spelled = f"--{name.replace('_', '-')}"
        return f"no {spelled}" if not value else spelled if value is True else f"{spelled} {str(value).replace(' ', '')}"

    _show(found.text(flag))


def bench(found: Bench) -> None:
    of_state = f"{found.rule}, {found.state}, {found.elements:,} elements"
    head = f"{of_state}, {found.threads} threads\nMedians of {found.rounds} rounds; spread: their middle half over the median.\n"
    reference = next((line for line in found.lines if line.name.startswith("torch")), None)
    table = _table("step", "ms", "spread", "GB/s", "of memory", "x torch")
    for line in found.lines:
        against = f"{reference.seconds / line.seconds:.2f}" if reference and line is not found.lines[0] else "-"
        share = f"{line.rate / found.lines[0].rate:.0%}"
        _row(table, line.name, f"{line.seconds * 1e3:.2f}", f"{line.spread:.0%}", f"{line.rate / 1e9:.1f}", share, against)
    doubts = f"Busy machine? {'; '.join(found.doubts)}. Run it again when idle." if found.doubts else ""
    _show(head, table, *(["", doubts] if doubts else []), *_model(found))
    if not (disk := found.disk):
        return
    way = f"{disk.engine}, {'past the page cache' if disk.direct else 'through the page cache'}"
    table = _table(f"all state on disk in {disk.directory}, {way}", "ms", "spread")
    _row(table, f"step, {_size(disk.moved)} moved", f"{disk.seconds * 1e3:.1f}", f"{disk.spread:.0%}")
    _row(table, "predicted", f"{disk.predicted_seconds * 1e3:.1f}", "-")
    raw = f"the file alone: {_rate(disk.read_rate)} read, {_rate(disk.write_rate)} written"
    _row(table, raw, f"{disk.raw_seconds * 1e3:.1f}", "-")
    _show("", table)


def _model(found: Bench) -> list[str | Table]:
    model, table = found.model, _pairs()
    cycles = f", {model.cache_seconds * model.clock:.1f} cycles of {model.clock / 1e9:.1f} GHz" if model.clock else ""
    _row(table, "an element, in the cache of one core", f"{model.cache_seconds * 1e9:.2f} ns{cycles}")
    _row(table, f"so one core can use up, at {model.bytes:.1f} bytes each", _rate(model.core_rate))
    _row(table, "memory gives one thread", _rate(model.one_rate))
    _row(table, f"memory gives {model.threads} threads", _rate(model.all_rate))
    _row(table, "cores that saturate that", str(model.saturating))
    _row(table, "an unchecked step at best", f"{model.element_seconds * found.elements * 1e3:.2f} ms")
    return ["", table]


def checkpoint(found: dict[str, Any]) -> None:
    table = _pairs()
    _row(table, "file", f"{found['file']}, {_size(found['bytes'])}")
    _row(table, "rule", found["rule"])
    _row(table, "parameters", f"{found['params']:,}, {found['elements']:,} elements")
    for codec, entry in found["states"].items():
        _row(table, f"state {codec}", f"{entry['params']:,} of them, {_size(entry['bytes'])}")
    low, high = found["fewest_steps"], found["most_steps"]
    _row(table, "steps", str(low) if low == high else f"{low} to {high}")
    for n, group in enumerate(found["groups"][:_MOST_GROUPS]):
        values = ", ".join(f"{key}={value}" for key, value in sorted(group.items()) if not key.startswith("lowtide"))
        _row(table, f"group {n}", values if len(values) <= _MOST_TEXT else f"{values[:_MOST_TEXT]} … (--json has all)")
    if (more := len(found["groups"]) - _MOST_GROUPS) > 0:
        _row(table, "groups", f"{more:,} more: --json has them")
    _show(table)
