"""Times steps on a GPU against each other: in turn within every round, the first rounds thrown away.

Each sample has three times: `event` (from the first to the last operation of the caller's stream), `wall` (until the
whole device is idle: transfers of side streams too) and `call` (until the call returned). Figures are medians.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bench.cuda.device import Gpu

ROUNDS = 20
FEWEST = 3  # rounds that a slow measurement takes whatever time is left
WARM_UP = 3  # lazy loading of kernels, first touches, compilation, choice of a path


@dataclass
class Step:
    run: Callable[[], object]
    before: Callable[[], object] | None = None  # not timed


@dataclass
class Series:
    event: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    call: list[float] = field(default_factory=list)

    def median(self, which: str = "event") -> float:
        return statistics.median(getattr(self, which))

    def data(self) -> dict[str, Any]:
        spread = sorted(self.event)
        return {
            "event_s": self.median("event"),
            "wall_s": self.median("wall"),
            "call_s": self.median("call"),
            "event_min_s": spread[0],
            "event_max_s": spread[-1],
            "rounds": len(spread),
        }


def sample(gpu: Gpu, step: Step, series: Series | None) -> None:
    if step.before:
        step.before()
    gpu.cuda.synchronize()
    first, last = gpu.cuda.Event(enable_timing=True), gpu.cuda.Event(enable_timing=True)
    start = time.perf_counter()
    first.record()
    step.run()
    called = time.perf_counter()
    last.record()
    gpu.cuda.synchronize()
    end = time.perf_counter()
    if series is not None:
        series.event.append(first.elapsed_time(last) * 1e-3)
        series.wall.append(end - start)
        series.call.append(called - start)


def in_turns(
    gpu: Gpu, steps: dict[str, Step], seconds: float = 20.0, rounds: int = ROUNDS, warm_up: int = WARM_UP
) -> dict[str, Series]:
    """`rounds` samples of each, or as many as fit into `seconds` after warming up (FEWEST at least)."""
    names = list(steps)
    if gpu.rehearsed:
        rounds, warm_up = 2, 1
    result = {name: Series() for name in names}
    for _ in range(warm_up):
        for name in names:
            sample(gpu, steps[name], None)
    until = time.monotonic() + seconds
    for turn in range(rounds):
        if turn >= FEWEST and time.monotonic() > until:
            break
        for name in random.Random(turn).sample(names, len(names)):  # nobody always follows the same neighbour
            sample(gpu, steps[name], result[name])
    return result
