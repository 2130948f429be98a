"""Times a step beside torch's fused step, bitsandbytes' step and the memory rate, in the same run.

Every contender runs once in each round, so that a slow moment affects all. bitsandbytes runs only in the first rounds, because
it is slow on a CPU. All times are medians. Only ratios are meaningful, because conditions differ between runs. `doubts` lists
signs of a busy machine.
"""

from __future__ import annotations

import importlib
import importlib.util
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from lowtide import _core
from lowtide.cli import core_model
from lowtide.cli.core_model import adder
from lowtide.cli.machine import doubts_since, processor_seconds
from lowtide.cli.waiting import Waiting
from lowtide.memory.budgets import Memory
from lowtide.memory.forecast import disk_info
from lowtide.optimizers.optimizer import Optimizer
from lowtide.optimizers.classes import CLASSES
from lowtide.planning.forecasts import forecast
from lowtide.planning.rates import Rates, seconds_of

_ROW = 4096
_LARGE_SPREAD = 0.2  # chosen: with a larger spread, rounds of contenders that differ by less overlap
_FUSED = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
}
_BITSANDBYTES = {  # classes with state of 8 bits
    "adamw": "AdamW8bit", "adam": "Adam8bit", "lion": "Lion8bit", "sgd": "SGD8bit", "rmsprop": "RMSprop8bit", "adagrad": "Adagrad8bit",
    "lamb": "LAMB8bit", "ademamix": "AdEMAMix8bit",
}  # fmt: skip
_FEW_ROUNDS = 3


@dataclass(frozen=True)
class Line:
    """One contender. `moved`: the fewest bytes that it can read and write."""

    name: str
    seconds: float  # median
    fastest: float
    spread: float  # interquartile range of the rounds / median
    moved: int

    @property
    def rate(self) -> float:
        return self.moved / self.seconds


@dataclass(frozen=True)
class OnDisk:
    """A step with all state on disk, and the time that the file alone takes for the same bytes."""

    directory: str
    engine: str
    direct: bool
    seconds: float  # median
    spread: float  # as in Line
    moved: int  # bytes read from and written to the disk
    read_rate: float
    write_rate: float
    raw_seconds: float  # the file alone: moved / 2 read, moved / 2 written
    predicted_seconds: float


@dataclass(frozen=True)
class Bench:
    rule: str
    state: str
    elements: int
    threads: int
    rounds: int
    lines: tuple[Line, ...]  # memory alone, torch and bitsandbytes if they have the rule, then Lowtide unchecked and checked
    model: core_model.Model | None  # for unchecked steps; only with details
    disk: OnDisk | None
    doubts: tuple[str, ...]  # signs that the machine is not idle

    @property
    def unchecked(self) -> Line:
        return self.lines[-2]


def run(elements: int, rule: str, state: str, disk: str | None, rounds: int, momentum: float, details: bool, wait: Waiting) -> Bench:
    """Runs the measurement. Raises ValueError for an unknown rule, state or directory, MemoryError, OSError."""
    rows = max(1, round(elements / _ROW))
    if elements > 1 << 34:
        raise ValueError(f"got {elements} elements, wanted {1 << 34} at most")
    hyper = {"momentum": momentum} if rule in ("sgd", "lars", "rmsprop") else {}
    forecast([(rows, _ROW)], rule, state, momentum=momentum)  # rejects a bad state name before memory is taken
    if disk is not None:
        disk_info("disk", disk)  # rejects a directory that cannot be used
    try:
        shared = torch.randn(rows, _ROW)
    except RuntimeError as error:  # torch raises nothing more specific
        raise MemoryError(f"no memory for {rows * _ROW} elements: give fewer --elements") from error

    def parameter(count: int = rows) -> torch.nn.Parameter:
        made = torch.nn.Parameter(torch.zeros(count, _ROW))
        made.grad = shared if count == rows else torch.randn(count, _ROW)
        return made

    ours_of: Callable[..., Optimizer] = CLASSES[rule]
    steps: dict[str, tuple[Callable[[], object], int]] = {}
    steps["memory: a += b"] = adder(rows * _ROW)
    if rule in _FUSED:
        fused = _FUSED[rule]([parameter()], lr=1e-3, fused=True, **hyper)
        steps[f"torch {type(fused).__name__}, fused, fp32"] = (fused.step, 0)
    theirs = _bitsandbytes(rule, hyper, wait) if state in ("dynamic8", "float8") else None
    if theirs:
        steps[f"bitsandbytes {theirs.__name__}"] = (theirs([parameter()], lr=1e-3, **hyper).step, 0)
    for nonfinite in ("propagate", "skip"):  # as torch does; and the default, which checks gradients
        ours = ours_of([parameter()], lr=1e-3, state=state, nonfinite=nonfinite, **hyper)
        what = "unchecked" if nonfinite == "propagate" else "checked" if details else state
        steps[f"lowtide {type(ours).__name__}, {what}"] = (ours.step, 0)
    wait("allocating state")
    for step, _ in steps.values():
        for _ in range(2):
            step()  # allocates state and starts threads
    before = processor_seconds()
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds):
        wait(f"round {turn + 1} of {rounds}", perhaps=turn > 0)
        running = [name for name in sorted(steps) if turn < _FEW_ROUNDS or not name.startswith("bitsandbytes")]
        for name in random.Random(turn).sample(running, len(running)):
            times[name].append(seconds_of(steps[name][0]))
    busy = doubts_since(before)
    lines = []
    for name, (_, moved) in steps.items():
        format_of = "fp32" if name.startswith("torch") else state
        must = moved or _moved(rows, rule, format_of, momentum)
        lines.append(Line(name, statistics.median(times[name]), min(times[name]), spread_of(times[name]), must))
    steps.clear()
    model = None
    if details:
        wait("measuring one core")
        each = _moved(rows, rule, state, momentum) / (rows * _ROW)
        make = partial(ours_of, lr=1e-3, state=state, nonfinite="propagate", min_quantized_numel=0, **hyper)
        model = core_model.measure(parameter, make, _ROW, each, rows * _ROW, lines[0].rate)
    on_disk = None
    if disk is not None:
        wait("measuring the disk")
        param = parameter()
        step_rate = forecast([param], rule, state, momentum=momentum).state_bytes / lines[-1].seconds
        on_disk = _disk(disk, param, rule, state, hyper, rounds, step_rate)
    doubts = (*doubts_of(lines, on_disk), *busy)
    return Bench(rule, state, rows * _ROW, torch.get_num_threads(), rounds, tuple(lines), model, on_disk, doubts)


def _bitsandbytes(rule: str, hyper: dict[str, float], wait: Waiting) -> Any:
    """bitsandbytes' class with 8-bit state, if it is installed and works here."""
    name = _BITSANDBYTES.get(rule)
    if name is None or importlib.util.find_spec("bitsandbytes") is None:
        return None
    wait("importing bitsandbytes")
    try:
        found = getattr(importlib.import_module("bitsandbytes").optim, name)
        one = torch.nn.Parameter(torch.zeros(_ROW))
        one.grad = torch.ones(_ROW)
        found([one], lr=1e-3, **hyper).step()
    except Exception:  # some versions fail; then there is nothing to compare with
        return None
    return found


def spread_of(times: Sequence[float]) -> float:
    """The interquartile range over the median; 0 for a single time."""
    ordered, n = sorted(times), len(times)
    return (ordered[3 * n // 4] - ordered[n // 4]) / statistics.median(ordered)


def doubts_of(lines: Sequence[Line], disk: OnDisk | None = None) -> tuple[str, ...]:
    """A phrase for each sign that the machine was not idle. lines: as in Bench."""
    found = []
    spreads = [line.spread for line in lines] + ([disk.spread] if disk else [])
    if max(spreads) > _LARGE_SPREAD:
        found.append(f"rounds spread by up to {max(spreads):.0%} of their median")
    share = max(line.rate for line in lines) / lines[0].rate
    if round(share, 2) > 1:
        found.append(f"a step moved {share:.0%} of what the memory gave")
    if lines[-1].seconds < lines[-2].seconds:
        found.append("the checked step was faster than the unchecked one")
    return tuple(found)


def _moved(rows: int, rule: str, state: str, momentum: float) -> int:
    """Bytes that a step with float32 parameters moves: it reads the gradient, and reads and writes parameter and state."""
    of_state = forecast([(rows, _ROW)], rule, state, min_quantized_numel=0, momentum=momentum).state_bytes
    return 12 * rows * _ROW + 2 * of_state


def _disk(
    directory: str, param: torch.nn.Parameter, rule: str, state: str, hyper: dict[str, float], rounds: int, rate: float
) -> OnDisk:
    momentum = hyper.get("momentum", 0.0)
    size = forecast([param], rule, state, momentum=momentum).state_bytes
    chunk = max(4096, min(16 << 20, size // 12) // 4096 * 4096)
    memory = Memory(host=3 * chunk, disk=directory, chunk=chunk)  # a ring of three slots; no state stays in memory
    found = _core.measure_disk_rates(directory)
    rates = Rates(rate, found["read"], found["write"], found["engine"], found["direct"])
    planned = forecast([param], rule, state, memory, rates=rates, momentum=momentum)
    if not planned.moved_per_step:
        raise ValueError(f"got {param.numel()} elements of {rule}, {state}: no state to stream; give more --elements")
    make: Callable[..., Optimizer] = CLASSES[rule]
    optimizer = make([param], lr=1e-3, state=state, memory=memory, **hyper)
    for _ in range(2):
        optimizer.step()
    times = [seconds_of(optimizer.step) for _ in range(rounds)]
    half = planned.moved_per_step / 2
    raw = half / found["read"] + half / found["write"]
    return OnDisk(
        directory,
        found["engine"],
        found["direct"],
        statistics.median(times),
        spread_of(times),
        planned.moved_per_step,
        found["read"],
        found["write"],
        raw,
        planned.seconds,
    )
