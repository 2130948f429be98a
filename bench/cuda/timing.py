"""Times steps on a GPU against each other, in turn within each round. Drops the first rounds. Figures are medians.

A sample has the time of the caller's stream (`event`) and the time until the call returned (`call`). The stream is kept busy
until the call has returned, so that `event` contains only the device's time. With `idle`, it has `wall` instead of `event`: the
time from an idle device until it is idle again, including the host and transfers on side streams.
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
FEWEST = 3  # rounds that even a slow measurement takes
HOLD, LONGEST_HOLD = 1e-3, 30e-3  # seconds to keep the stream busy before a step, besides its call
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
        spread = {name: sorted(getattr(self, name)) for name in ("event", "wall", "call")}
        found: dict[str, Any] = {f"{name}_s": statistics.median(times) for name, times in spread.items() if times}
        main = spread["event"] or spread["wall"]
        return {**found, "min_s": main[0], "max_s": main[-1], "rounds": len(main)}


def sample(gpu: Gpu, step: Step, hold_s: float, series: Series) -> None:
    """hold_s: how long to keep the stream busy before the step. 0: not at all; then the wall time is measured."""
    if step.before:
        step.before()
    gpu.cuda.synchronize()
    first, last = gpu.cuda.Event(enable_timing=True), gpu.cuda.Event(enable_timing=True)
    if hold_s:
        gpu.hold(hold_s)
    first.record()
    start = time.perf_counter()
    step.run()
    called = time.perf_counter()
    last.record()
    gpu.cuda.synchronize()
    end = time.perf_counter()
    series.call.append(called - start)
    if hold_s:
        series.event.append(first.elapsed_time(last) * 1e-3)
    else:
        series.wall.append(end - start)


def in_turns(
    gpu: Gpu, steps: dict[str, Step], seconds: float = 20.0, rounds: int = ROUNDS, warm_up: int = WARM_UP, idle: bool = False
) -> dict[str, Series]:
    """Takes `rounds` samples of each step, or as many as fit into `seconds` after warming up (at least FEWEST)."""
    names = list(steps)
    if gpu.rehearsed:
        rounds, warm_up = 2, 1
    warm = {name: Series() for name in names}
    for _ in range(warm_up):
        for name in names:
            sample(gpu, steps[name], 0.0, warm[name])
    # Longer than the call. Otherwise the device waits for the host, whose time would count in the event's.
    hold = {name: 0.0 if idle else min(LONGEST_HOLD, HOLD + 1.5 * min(series.call)) for name, series in warm.items()}
    result = {name: Series() for name in names}
    until = time.monotonic() + seconds
    for turn in range(rounds):
        if turn >= FEWEST and time.monotonic() > until:
            break
        for name in random.Random(turn).sample(names, len(names)):  # so that neighbours vary
            sample(gpu, steps[name], hold[name], result[name])
    return result
