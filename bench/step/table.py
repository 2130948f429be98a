"""The step benchmark's results as text: for the terminal, and as Markdown for docs/benchmarks."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

LARGE = ("", "threads", "Gelt/s", "B/elt", "GB/s", "of ceiling", "x torch fused", "must", "")
PEERS = ("", "Gelt/s", "x torch fused", "x bitsandbytes", "must", "")
TINY = ("", "threads", "us per tensor", "x torch fused", "must", "")


def _mark(row: dict[str, Any]) -> str:
    return {None: "", True: "reached", False: "missed"}[row.get("reached")]


def _number(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _large(row: dict[str, Any]) -> tuple[str, ...]:
    return (row["name"], str(row["threads"]), _number(row["gelements_per_s"]), str(row["bytes_per_element"]),
            _number(row["gb_per_s"], 1), _number(row.get("of_ceiling")), _number(row["ratio"]),
            _number(row["must"]), _mark(row))  # fmt: skip


def _peer(row: dict[str, Any]) -> tuple[str, ...]:
    if "missing" in row:
        return (row["name"], "not run: " + row["missing"], "", "", "", "")
    return (row["name"], _number(row["gelements_per_s"], 3), _number(row["ratio"], 3),
            _number(row.get("ratio_to_bitsandbytes"), 1), _number(row.get("must"), 0), _mark(row))  # fmt: skip


def _tiny(row: dict[str, Any]) -> tuple[str, ...]:
    must = "" if row["must"] is None else f"<= {row['must']} us and >= 5x"
    return (row["name"], str(row["threads"]), _number(row["microseconds_per_tensor"]), _number(row["ratio"]), must, _mark(row))


def _sections(result: dict[str, Any]) -> list[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
    s = result["settings"]
    scaling = [r for r in result["large"] if r["name"] == "Lowtide AdamW dynamic8"]
    ratio = scaling[1]["gelements_per_s"] / scaling[0]["gelements_per_s"]
    other = [("thread scaling of dynamic8 AdamW, 2 over 1", _number(ratio))]
    other += [(f"state bytes per parameter, {name}", _number(value, 4)) for name, value in result["state"].items()]
    other += [(f"codes: {name.replace('_', ' ')}", str(value)) for name, value in result["codes"].items()]
    return [
        (f"One tensor of {s['elements'] >> 20} Mi elements", LARGE, [_large(r) for r in result["large"]]),
        (f"Peers, {s['peer_elements'] >> 20} Mi elements, 2 threads", PEERS, [_peer(r) for r in result["peers"]]),
        (f"{s['tiny_tensors']} tensors of 1,024 elements", TINY, [_tiny(r) for r in result["tiny"]]),
        ("Memory and codes", ("", ""), other),
    ]


def _machine(result: dict[str, Any]) -> str:
    m = result["machine"]
    before, after = m["load_average"][0], result["load_average_after"][0]
    return (f"{m['cpu']} ({', '.join(m['features'])}), {m['cores']} cores, kernel {m['kernel']}; "
            f"load average {before:.1f} before, {after:.1f} after")  # fmt: skip


def show(result: dict[str, Any]) -> None:
    """Prints the tables."""
    console = Console(width=140)
    console.print(_machine(result))
    for title, head, lines in _sections(result):
        table = Table(title=title, title_justify="left")
        for i, name in enumerate(head):
            table.add_column(name, justify="left" if i == 0 else "right")
        for line in lines:
            table.add_row(*line)
        console.print(table)


def markdown(result: dict[str, Any]) -> str:
    """The same as Markdown."""
    out = [_machine(result), ""]
    for title, head, lines in _sections(result):
        out += [f"### {title}", "", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
        out += ["| " + " | ".join(line) + " |" for line in lines]
        out.append("")
    return "\n".join(out)
