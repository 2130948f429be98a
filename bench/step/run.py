#!/usr/bin/env python3
"""Measures one optimizer step on the CPU against other optimizers and the memory bandwidth.

    .venv/bin/python bench/step/run.py                       all groups, some minutes
    .venv/bin/python bench/step/run.py --rows fp32,bf16      groups or lines by name (--list shows them)
    .venv/bin/python bench/step/run.py --quick               small and short: shows that it runs, measures nothing

docs/benchmarks/method.md says how the figures are taken and read.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from common import threads  # noqa: E402 -- before torch

if __name__ == "__main__":
    threads.restart_bound()

import argparse  # noqa: E402
import gc  # noqa: E402
import time  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402
from common import machine, results, rounds  # noqa: E402
from common.contenders import state_bytes  # noqa: E402
from step import ceiling, report  # noqa: E402
from step.contenders import CONTENDERS, DECAY, LEARNING_RATE, Sequence  # noqa: E402
from step.rows import FUSED, FUSED_BF16, GROUPS, NEAREST, Group, Line  # noqa: E402

OUT = Path(__file__).resolve().parents[2] / "build" / "bench"


class Choice:
    """Which groups and lines to run, and which contenders can."""

    def __init__(self, wanted: list[str], quick: bool) -> None:
        known = {*(group.id for group in GROUPS), *(line.id for group in GROUPS for line in group.lines)}
        for name in wanted:
            if name not in known:
                raise SystemExit(f"--rows: got {name!r}, wanted some of {', '.join(sorted(known))}")
        self._wanted, self._quick = wanted, quick
        self._reasons: dict[str, str | None] = {}

    def why_not(self, name: str) -> str | None:
        if name not in self._reasons:
            self._reasons[name] = CONTENDERS[name].why_not(self._quick)
        return self._reasons[name]

    def lines(self, group: Group) -> list[Line]:
        """The chosen lines of a group, always with torch fused; none if the group is not chosen."""
        if not self._wanted or group.id in self._wanted:
            return list(group.lines)
        named = [line for line in group.lines if line.id in self._wanted and line.id != FUSED]
        needed = {FUSED} | {"bitsandbytes" for line in named for t in line.targets if t.figure == "x_bitsandbytes"}
        return [line for line in group.lines if line in named or line.id in needed] if named else []

    def reason(self, line: Line) -> str | None:
        """Why a line cannot run, or None."""
        if (reason := self.why_not(line.contender)) is not None:
            return reason
        cannot = CONTENDERS[line.contender].cannot
        return cannot(line.options) if cannot else None


def parameters(group: Group, dtype: str, quick: bool) -> list[torch.nn.Parameter]:
    """Parameters with gradients. All lines of a group step the same ones, so that none has better pages."""
    shape, count = (group.quick_shape, group.quick_tensors) if quick else (group.shape, group.tensors)
    source = torch.Generator().manual_seed(7)
    made = []
    for _ in range(count):
        param = torch.nn.Parameter(torch.randn(shape, generator=source).mul_(0.02).to(getattr(torch, dtype)))
        param.grad = torch.randn(shape, generator=source).mul_(0.01).to(getattr(torch, dtype))
        made.append(param)
    return made


def ceiling_name(widths: ceiling.Widths, huge: bool) -> str:
    return f"ceiling {'/'.join(map(str, widths))}{' huge pages' if huge else ''}"


def measure_group(
    group: Group, lines: list[Line], choice: Choice, counts: list[int], quick: bool
) -> tuple[dict[str, Any], dict[int, dict[str, rounds.Series]]]:
    absent = {line.id: reason for line in lines if (reason := choice.reason(line)) is not None}
    present = [line for line in lines if line.id not in absent]
    params = {dtype: parameters(group, dtype, quick) for dtype in sorted({line.dtype for line in present})}
    elements = sum(param.numel() for param in params["float32"])
    tensors = len(params["float32"])
    optimizers, steps, buffers = {}, {}, []
    for line in present:
        hyper = {"lr": LEARNING_RATE[line.rule], "weight_decay": DECAY, **line.options}
        optimizers[line.id] = CONTENDERS[line.contender].make(params[line.dtype], **hyper)
        made = optimizers[line.id]
        steps[line.id] = Sequence(made, params[line.dtype]) if line.clips else made.step
    if group.ceiling:
        for dtype, (param,) in params.items():
            passes = {widths for line in present if line.dtype == dtype for widths in line.passes}
            for huge in (False, True):
                memory = ceiling.Buffers(param.data, param.grad, huge)
                buffers.append(memory)
                for widths in sorted(passes):
                    steps[ceiling_name(widths, huge)] = lambda memory=memory, widths=widths: memory.run(widths)
    clean, limit = (2, 3) if quick else (group.clean, group.limit)
    series = rounds.measure(steps, counts, clean, limit, parts=1 if quick else 2)
    state = {id: state_bytes(optimizer) / elements for id, optimizer in optimizers.items()}
    for memory in buffers:
        memory.close()
    rows = []
    for line in present:
        for count in counts:
            figures = line_figures(line, count, series, state, elements, tensors)
            judged = not (quick or figures["disturbed"] or series[count][FUSED].disturbed)
            rows.append(report.line_data(group, line, count, figures, judged))
    rows += [{"group": group.id, "id": id, "label": id_label(lines, id), "absent": why} for id, why in absent.items()]
    rows += ceiling_rows(series, elements)
    size = f"{elements / 2**20:.0f} Mi elements" if tensors == 1 else f"{tensors} tensors of {elements // tensors}"
    return {"id": group.id, "title": f"{group.title}, {size}", "elements": elements, "rows": rows}, series


def id_label(lines: list[Line], id: str) -> str:
    return next(line.label for line in lines if line.id == id)


def rates(name: str, count: int, series: dict[int, dict[str, rounds.Series]], elements: int, moved: int) -> dict[str, Any]:
    """The figures that steps and ceilings share. moved: bytes per element."""
    one = series[count][name]
    return {
        "seconds": one.seconds,
        "gelt_per_s": elements / one.seconds * 1e-9,
        "bytes_per_element": moved,
        "gb_per_s": moved * elements / one.seconds * 1e-9,
        "scaling": series[1][name].seconds / one.seconds if count != 1 and 1 in series else None,
        "cores": one.cores,
        "clean": len(one.clean),
        "taken": len(one.samples),
        "disturbed": one.disturbed,
    }


def line_figures(
    line: Line, count: int, series: dict[int, dict[str, rounds.Series]], state: dict[str, float], elements: int, tensors: int
) -> dict[str, Any]:
    at = series[count]
    seconds = at[line.id].seconds

    def against(other: str) -> float | None:
        return at[other].seconds / seconds if other in at else None

    def share(huge: bool) -> float | None:
        names = [ceiling_name(widths, huge) for widths in line.passes]
        return sum(at[name].seconds for name in names) / seconds if all(name in at for name in names) else None

    return {
        **rates(line.id, count, series, elements, sum(ceiling.moved(widths) for widths in line.passes)),
        "ceiling": share(huge=False),
        "ceiling_huge_pages": share(huge=True),
        "x_fused": against(FUSED),
        "x_bitsandbytes": against("bitsandbytes"),
        "x_fused_bf16": against(FUSED_BF16),
        "x_nearest": None if line.id == NEAREST or NEAREST not in at else seconds / at[NEAREST].seconds,
        "us_per_tensor": seconds / tensors * 1e6 if tensors > 1 else None,
        "state_bytes": state[line.id],
    }


def ceiling_rows(series: dict[int, dict[str, rounds.Series]], elements: int) -> list[dict[str, Any]]:
    rows = []
    for name in next(iter(series.values())):
        if not name.startswith("ceiling "):
            continue
        _, widths_text, *huge = name.split(" ")
        moved = ceiling.moved(tuple(map(int, widths_text.split("/"))))
        label = f"memory ceiling, {moved} B" + (", huge pages" if huge else "")
        for count in series:
            rows.append({"id": name, "label": label, "threads": count, **rates(name, count, series, elements, moved), "targets": []})
    return rows


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measures one optimizer step on the CPU.")
    parser.add_argument("--quick", action="store_true", help="small and short: shows that it runs, measures nothing")
    parser.add_argument("--rows", default="", help="groups or lines to run, separated by commas (default: all)")
    parser.add_argument("--threads", default="1,2", help="numbers of threads, separated by commas (default: 1,2)")
    parser.add_argument("--json", type=Path, help="where to write all results (default: OUT/step.json)")
    parser.add_argument("--out", type=Path, default=OUT, help="folder for step.json and step.md")
    parser.add_argument("--list", action="store_true", help="show the names for --rows and stop")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    if args.list:
        for group in GROUPS:
            print(f"{group.id:10} {group.title}")
            for line in group.lines:
                print(f"    {line.id:24} {line.label}")
        return 0
    choice = Choice([name for name in args.rows.split(",") if name], args.quick)
    counts = [count for count in map(int, args.threads.split(",")) if count <= len(threads.cores())]
    if not counts:
        raise SystemExit(f"--threads: got {args.threads}, wanted at most {len(threads.cores())}, the cores there are")
    result: dict[str, Any] = {
        "quick": args.quick,
        "machine": machine.describe(sorted({contender.package for contender in CONTENDERS.values()})),
        "ceiling_flags": ceiling.FLAGS,
        "method": {
            "seconds": "33rd percentile of the clean samples",
            "samples": "seconds, share of them that threads waited for a core, cores in use",
            "max_delay": rounds.MAX_DELAY,
            "settle_seconds": rounds.SETTLE_SECONDS,
        },
        "load_average": {"before": machine.load_average()},
        "groups": [],
        "series": {},
    }
    start = time.monotonic()
    for group in GROUPS:
        if lines := choice.lines(group):
            print(f"measuring: {group.title} ...", file=sys.stderr, flush=True)
            data, series = measure_group(group, lines, choice, counts, args.quick)
            result["groups"].append(data)
            result["series"][group.id] = {
                str(count): {name: report.series_data(one) for name, one in at.items()} for count, at in series.items()
            }
            gc.collect()
    result["contenders"] = [name for name in CONTENDERS if choice.why_not(name) is None]
    result["load_average"]["after"] = machine.load_average()
    result["seconds"] = time.monotonic() - start
    text = report.markdown(result)
    print(text)
    target = args.json or args.out / "step.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    results.write(target, result)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "step.md").write_text(text)
    print(f"\nwritten: {target}, {args.out / 'step.md'}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
