"""The figures of steps: kept, compared with budgets and with those kept before, and as a table for people."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from sass.pipes import ALU, FMA, ISSUE, LSU, MACHINES, PIPES, XU

# Fast kernels round otherwise where PTX leaves a choice.
MOST_DIFFERENT = 0.02
# A pipe may need more than the kept figure by this share, and by a tenth of a slot, for pipes that have little to do.
MOST_GROWN, MOST_ADDED = 0.02, 0.1


@dataclass
class Step:
    """The figures of one configuration, per element but for names, registers and bytes of shared memory."""

    name: str
    arithmetic: str
    kernel: str
    registers: int
    shared: int
    bytes: float
    wide_share: float  # of the bytes, those in accesses of 8 bytes and more
    slots: dict[str, float] = field(default_factory=dict)
    lookups: float = 0
    conflicts: float = 0  # wavefronts of a look-up to what it would take without conflicts
    scheduled: float = 0  # share of the copy rate by schedule.py, where that was asked for
    different: float = 0  # bytes that are not what the PTX has left
    failure: str = ""

    @property
    def is_narrow(self) -> bool:
        """Whether most bytes move in accesses narrower than 8 bytes: on the slow path, where memory is not aligned, where rows
        are not whole lanes, and in norms."""
        return self.wide_share < 0.5

    def pipe(self) -> str:
        """The pipe that has most to do."""
        return max(PIPES, key=lambda pipe: self.slots.get(pipe, 0))

    def ceiling(self, machine: int = 0) -> float:
        """The most that the share of the copy rate can be."""
        return min(1.0, MACHINES[machine].slots_of(self.bytes) / self.slots[self.pipe()])

    def limit(self) -> str:
        return "memory" if self.ceiling() == 1 else self.pipe()


def read(file: Path) -> list[Step]:
    return [Step(**one) for one in json.loads(file.read_text())]


def by_name(steps: list[Step]) -> dict[tuple[str, str], Step]:
    return {(step.name, step.arithmetic): step for step in steps}


def judge(steps: list[Step], before: list[Step] | None) -> list[str]:
    """Everything that is wrong. A step is over its budget if a pipe needs longer than the copy of its bytes; one that was
    over it before may be so still. No pipe may need more than it did: the budget says nothing of a step that is over it
    already."""
    known = by_name(before or [])
    wrong = []
    for step in steps:
        name = f"{step.name}, {step.arithmetic}"
        if step.failure:
            wrong.append(f"{name}: {step.failure}")
        elif step.different and (step.arithmetic == "exact" or step.different > MOST_DIFFERENT * step.bytes):
            wrong.append(f"{name}: {step.different:.4f} bytes of an element differ from what the PTX leaves")
        elif before is not None:
            old = known.get((step.name, step.arithmetic))
            if step.ceiling() < 1 and (not old or old.ceiling() == 1):
                need, most = step.slots[step.pipe()], MACHINES[0].slots_of(step.bytes)
                wrong.append(f"{name}: {step.pipe()} needs {need:.1f} slots, at most {most:.1f}")
            if old:
                wrong += [f"{name}: {grown}" for grown in _grown(step, old)]
            if step.is_narrow and (not old or not old.is_narrow):
                wrong.append(f"{name}: moves most bytes in narrow accesses")
    return wrong


def _grown(step: Step, old: Step) -> list[str]:
    """The pipes that need more than they did."""
    return [
        f"{pipe} needs {need:.1f} slots, was {old.slots[pipe]:.1f}, at most {100 * MOST_GROWN:.0f} % more"
        for pipe, need in step.slots.items()
        if pipe in old.slots and need > max((1 + MOST_GROWN) * old.slots[pipe], old.slots[pipe] + MOST_ADDED)
    ]


HEAD = [
    "configuration",
    "arithmetic",
    "B",
    "slots",
    ISSUE,
    ALU,
    FMA,
    XU,
    LSU,
    "conflicts",
    "ceiling",
    "limit",
    "simulated",
    "",
]


def row_of(step: Step) -> list[str]:
    if step.failure:
        return [step.name, step.arithmetic, f"{step.bytes:.2f}", *["-"] * 10, step.failure]
    return [
        step.name,
        step.arithmetic,
        f"{step.bytes:.2f}",
        f"{MACHINES[0].slots_of(step.bytes):.0f}",
        *(f"{step.slots[pipe]:.1f}" for pipe in (ISSUE, ALU, FMA, XU, LSU)),
        f"{step.conflicts:.2f}" if step.lookups else "-",
        f"{step.ceiling():.2f}",
        step.limit(),
        f"{step.scheduled:.2f}" if step.scheduled else "",
        "narrow" if step.is_narrow else "",
    ]


def print_table(steps: list[Step]) -> None:
    rows = [HEAD, *map(row_of, steps)]
    widths = [max(len(row[c]) for row in rows) for c in range(len(HEAD))]
    for row in rows:
        cells = (
            cell.ljust(w) if c in (0, 1, 11, 13) else cell.rjust(w) for c, (cell, w) in enumerate(zip(row, widths))
        )
        print("  ".join(cells).rstrip())


def completed(steps: list[Step], before: list[Step]) -> list[Step]:
    """With the steps of before that are not among these, where they stood."""
    new = by_name(steps)
    kept = [new.pop((step.name, step.arithmetic), step) for step in before]
    return kept + list(new.values())


def write(steps: list[Step], file: Path, before: list[Step] | None) -> None:
    """The figures as JSON, and beside them a page."""
    lines = ",\n".join(json.dumps(_rounded(asdict(step))) for step in steps)
    file.write_text(f"[\n{lines}\n]\n")
    file.with_suffix(".md").write_text(page(steps, before, file.name))


def _rounded(value: object) -> object:
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    return round(value, 3) if isinstance(value, float) else value


INTRODUCTION = """# Steps on CUDA by their machine code, {today}

**Static, from machine code.** What a GPU measured of it is on a page of its own ([gpu-check](../gpu-check.md)). `tools/step_model.py` ran the instructions of the sm_90 cubins on one step of one tile
(8,192 elements) for each configuration, and counted. Its head says how; `tools/sass/pipes.py` says what each instruction costs, and
where the widths of the pipes are from. [All figures]({json_name}).

* *Slots* are what an element has while its bytes move at the rate of a copy: one is an instruction of one lane. An {h200.name} issues
  {h200.multiprocessors} x 128 in a cycle of {gigahertz:.2f} GHz and copies {h200_copies:.1f} TB/s (measured), an {h100.name}
  {h100_copies:.1f} TB/s (assumed: the same share of its data sheet's rate). A step is within its budget if no pipe needs more.
* *Ceiling* is the share of the copy rate that the pipe with most to do leaves. Latencies that other warps do not hide come on top: a
  GPU reaches less.
* *Conflicts* are the wavefronts of table look-ups in shared memory to what they would take without conflicts, with the codes that 24
  steps of a training have made.
* What a warp does once for a tile is in the figures; tables, which a block fills once, are not.
* Over budget: {over} of {both}. *Narrow*, with most bytes in accesses of less than 8 bytes: {narrow} of {both}, for memory that is not
  aligned, rows that are not whole lanes, norms, and the slow path.
"""


SCHEDULES = """
## Beside each other on a multiprocessor

`tools/sass/schedule.py` runs as many warps as are resident cycle by cycle, by the waits that ptxas has written into the instructions, with
latencies of microbenchmarks: the share of the copy rate that is left when latencies count. It is a simulation, and its assumptions are
in its head.
"""


def page(steps: list[Step], before: list[Step] | None, json_name: str) -> str:
    figures, old = by_name(steps), by_name(before or [])
    names = list(dict.fromkeys(step.name for step in steps))
    h200, h100 = MACHINES
    both = [figures[name, arithmetic] for name in names for arithmetic in ("exact", "fast")]
    columns = [
        "configuration", "B", "slots", "exact: instructions", "ALU", "LSU", "conflicts", "ceiling, limit", "fast: instructions",
        "ALU", "LSU", "ceiling, limit", "H100: exact, fast", "registers",
    ]  # fmt: skip
    text = [
        INTRODUCTION.format(
            today=_date_of(json_name), json_name=json_name, h200=h200, h100=h100,
            gigahertz=h200.clock / 1e9, h200_copies=h200.copied / 1e12, h100_copies=h100.copied / 1e12,
            over=sum(step.ceiling() < 1 for step in both), narrow=sum(step.is_narrow for step in both), both=len(both),
        ),
        f"| {' | '.join(columns)} |",
        "|---" * len(columns) + "|",
    ]  # fmt: skip
    for name in names:
        exact, fast = figures[name, "exact"], figures[name, "fast"]
        row = [name + (" (narrow)" if exact.is_narrow or fast.is_narrow else ""), f"{exact.bytes:.2f}",
               f"{h200.slots_of(exact.bytes):.0f}", _changed(exact, old, ISSUE), _changed(exact, old, ALU),
               _changed(exact, old, LSU), f"{exact.conflicts:.1f}" if exact.lookups else "", _share(exact)]  # fmt: skip
        if fast.kernel == exact.kernel:
            row += ["as exact", "", "", ""]
        else:
            row += [_changed(fast, old, ISSUE), _changed(fast, old, ALU), _changed(fast, old, LSU), _share(fast)]
        row += [f"{exact.ceiling(1):.2f}, {fast.ceiling(1):.2f}", f"{exact.registers}, {fast.registers}"]
        text.append("| " + " | ".join(row) + " |")
    return "\n".join([*text, *_schedules(steps, old), ""])


def _schedules(steps: list[Step], old: dict[tuple[str, str], Step]) -> list[str]:
    """A table of the steps that have run on a simulated multiprocessor."""
    rows = []
    for step in steps:
        if step.scheduled:
            was = old.get((step.name, step.arithmetic))
            then = f"{was.scheduled:.2f} -> " if was and was.scheduled else ""
            cells = (step.name, step.arithmetic, f"{step.ceiling():.2f}", f"{then}{step.scheduled:.2f}")
            rows.append(f"| {' | '.join(cells)} |")
    if not rows:
        return []
    return [SCHEDULES, "| configuration | arithmetic | ceiling | simulated |", "|---|---|---|---|", *rows]


def _date_of(name: str) -> str:
    """The date in a file's name, else today."""
    found = re.search(r"\d{4}-\d\d-\d\d", name)
    return found[0] if found else f"{datetime.now(timezone.utc):%Y-%m-%d}"


def _share(step: Step) -> str:
    return f"{step.ceiling():.2f} {step.limit()}"


def _changed(step: Step, old: dict[tuple[str, str], Step], pipe: str) -> str:
    """A figure, behind what it was."""
    was, now = old.get((step.name, step.arithmetic)), f"{step.slots[pipe]:.1f}"
    then = f"{was.slots[pipe]:.1f}" if was and not was.failure else now
    return now if then == now else f"{then} -> {now}"
