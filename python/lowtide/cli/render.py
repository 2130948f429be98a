"""The output of the command line: tables of plain text that fit the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lowtide import _core
from lowtide.cli.text import pairs, printable, wrapped
from lowtide.report.text import table_text

if TYPE_CHECKING:
    from lowtide.cli.quick_bench import Bench
    from lowtide.planning.result import Plan

_size = _core.format_bytes
_MOST_GROUPS, _MOST_TEXT = 50, 1000  # groups per table, characters per text: people read tables


def _rate(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e9:.2f} GB/s" if bytes_per_second > 0 else "-"


def _text(*lines: str) -> str:
    return "\n".join(each for line in lines for each in wrapped(printable(line)))


def _doubts(found: tuple[str, ...]) -> list[str]:
    return ["", f"Busy machine? {'; '.join(found)}. Run it again when idle."] if found else []


def machine(found: dict[str, Any]) -> str:
    rows = [("lowtide", f"{found['version']}, torch {found['torch']}")]
    for name, backend in found["backends"].items():
        here = "available" if backend["available"] else "not available"
        rows.append((f"backend {name}", f"{here}: {backend['detail']}"))
    rows += [
        ("threads", f"{found['threads']} of {found['cores']} cores"),
        ("RAM", f"{_size(found['ram_total'])}, {_size(found['ram_free'])} free"),
        ("memory rate", f"{_rate(found['memory_rate'])} read and written (a += b)"),
        *((f"AdamW {state}", f"{_rate(rate)} of state stepped") for state, rate in found["step_rates"].items()),
    ]
    if disk := found["disk"]:
        way = f"{disk['engine']}, {'past the page cache' if disk['direct'] else 'through the page cache'}"
        rows += [
            ("tiers", "host memory, disk"),
            ("disk", f"{disk['directory']}: {_size(disk['free_bytes'])} free; {way}"),
            ("disk rate", f"{_rate(disk['read_rate'])} read, {_rate(disk['write_rate'])} written"),
        ]
    else:
        rows.append(("tiers", "host memory (and a disk: see --disk DIR)"))
    return "\n".join([*pairs(rows), *_text(*_doubts(found["doubts"])).splitlines()])


def plan(found: Plan) -> str:
    def flag(name: str, value: Any) -> str:
        spelled = f"--{name.replace('_', '-')}"
        return f"(without {spelled})" if not value else spelled if value is True else f"{spelled} {str(value).replace(' ', '')}"

    return _text(*found.text(flag).split("\n"))


def bench(found: Bench) -> str:
    memory, rest, details = found.lines[0], found.lines[1:], found.model
    peers = {name: line for name in ("torch", "bitsandbytes") for line in rest if line.name.startswith(name)}
    rows = [["step", "ms", "spread", *(["GB/s", "memory"] if details else []), *(f"x {name}" for name in peers)]]
    for line in found.lines:
        if not details and line in (memory, found.unchecked):
            continue
        bytes_of = [f"{line.rate / 1e9:.1f}", f"{line.rate / memory.rate:.0%}"] if details else []
        ratios = ["-" if line is memory else f"{peer.seconds / line.seconds:.2f}" for peer in peers.values()]
        rows.append([line.name, f"{line.seconds * 1e3:.2f}", f"{line.spread:.0%}", *bytes_of, *ratios])
    lines = [
        f"{found.rule}, {found.state}, {found.elements:,} elements, {found.threads} thread{'s' * (found.threads != 1)}",
        f"Medians of {found.rounds} round{'s' * (found.rounds != 1)}. Spread: middle half / median.{' x: times as fast.' * bool(peers)}",
        "", *table_text(rows), *_doubts(found.doubts),
    ]  # fmt: skip
    if details:
        lines += ["", *_model(found)]
    if disk := found.disk:
        way = f"{disk.engine}, {'past the page cache' if disk.direct else 'through the page cache'}"
        raw = f"the file alone: {_rate(disk.read_rate)} read, {_rate(disk.write_rate)} written"
        rows = [
            ["", "ms", "spread"],
            [f"step, {_size(disk.moved)} moved", f"{disk.seconds * 1e3:.1f}", f"{disk.spread:.0%}"],
            ["predicted", f"{disk.predicted_seconds * 1e3:.1f}", "-"],
            [raw, f"{disk.raw_seconds * 1e3:.1f}", "-"],
        ]
        lines += ["", f"All state on disk in {disk.directory}, {way}:", *table_text(rows)]
    return _text(*lines)


def _model(found: Bench) -> list[str]:
    model = found.model
    assert model
    cycles = f", {model.cache_seconds * model.clock:.1f} cycles of {model.clock / 1e9:.1f} GHz" if model.clock else ""
    return pairs([
        ("an element, in the cache of one core", f"{model.cache_seconds * 1e9:.2f} ns{cycles}"),
        (f"so one core can use up, at {model.bytes:.1f} bytes each", _rate(model.core_rate)),
        ("memory gives one thread", _rate(model.one_rate)),
        (f"memory gives {model.threads} threads", _rate(model.all_rate)),
        ("cores that saturate that", str(model.saturating)),
        ("an unchecked step at best", f"{model.element_seconds * found.elements * 1e3:.2f} ms"),
    ])  # fmt: skip


def checkpoint(found: dict[str, Any]) -> str:
    low, high = found["fewest_steps"], found["most_steps"]
    rows = [
        ("file", f"{found['file']}, {_size(found['bytes'])}"),
        ("rule", found["rule"]),
        ("parameters", f"{found['params']:,}, {found['elements']:,} elements"),
        *((f"state {codec}", f"{entry['params']:,} of them, {_size(entry['bytes'])}") for codec, entry in found["states"].items()),
        ("steps", str(low) if low == high else f"{low} to {high}"),
    ]
    for n, group in enumerate(found["groups"][:_MOST_GROUPS]):
        values = ", ".join(f"{key}={value}" for key, value in sorted(group.items()) if not key.startswith("lowtide"))
        rows.append((f"group {n}", values if len(values) <= _MOST_TEXT else f"{values[:_MOST_TEXT]} … (--json has all)"))
    if (more := len(found["groups"]) - _MOST_GROUPS) > 0:
        rows.append(("groups", f"{more:,} more: --json has them"))
    return "\n".join(pairs(rows))
