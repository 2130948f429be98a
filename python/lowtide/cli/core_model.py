"""Bounds of a CPU step: the arithmetic of each core, and the memory that all cores share.

With its data in cache, a core's time per element is the time of the arithmetic. The bytes that a step moves per element,
divided by that time, are the memory rate that one core could use. Memory gives one rate to a single core and another to all
cores together; once the cores use all of the latter, more cores do not make a step faster.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lowtide.planning.rates import seconds_of

_CACHE_BYTES = 512 << 10  # fits the second-level cache of all but old cores
_ROUNDS = 40


@dataclass(frozen=True)
class Model:
    cache_seconds: float  # per element on one core, with data in its cache
    clock: float  # cycles per second, as the system reports; 0: unknown
    bytes: float  # bytes that a step moves per element
    core_rate: float  # bytes per second that one core's arithmetic could consume
    one_rate: float  # memory's rate for one thread
    all_rate: float  # memory's rate for all threads
    threads: int
    saturating: int  # cores that use up the memory rate
    element_seconds: float  # per element on all threads: a lower bound


def adder(elements: int) -> tuple[Callable[[], object], int]:
    """Returns a += b over float32, which runs as fast as the memory allows, and the bytes that it moves."""
    a, b = torch.zeros(elements), torch.zeros(elements)
    return lambda: a.add_(b), 12 * elements


def measure(
    parameter: Callable[[int], torch.nn.Parameter], make: Callable[..., Any], row: int, moved: float, elements: int, all_rate: float
) -> Model:
    """parameter: makes a parameter with a gradient, of the given number of rows of `row` float32 elements. make: builds an
    optimizer of parameters. moved: bytes that a step moves per element. all_rate: the memory rate of all threads for `elements`
    elements."""
    threads = torch.get_num_threads()
    held = 8 + (moved - 12) / 2  # bytes per element: parameter, gradient, and state, which moves twice
    large = max(4, int(_CACHE_BYTES / held / row))
    small = max(1, large // 4)
    try:
        torch.set_num_threads(1)
        steps = {rows: make([parameter(rows)]).step for rows in (small, large)}
        times: dict[int, list[float]] = {rows: [] for rows in steps}
        for turn in range(_ROUNDS + 2):
            for rows, step in steps.items():
                seconds = seconds_of(step)
                if turn >= 2:  # the first turns allocate and warm up
                    times[rows].append(seconds)
        # The difference cancels the fixed cost of a step.
        median = {rows: statistics.median(times[rows]) for rows in steps}
        cache_seconds = (median[large] - median[small]) / ((large - small) * row)
        if cache_seconds <= 0:  # the machine is too busy
            cache_seconds = median[large] / (large * row)
        add, added = adder(elements)
        one_rate = added / statistics.median(seconds_of(add) for _ in range(5))
    finally:
        torch.set_num_threads(threads)
    return model_of(cache_seconds, moved, one_rate, max(all_rate, one_rate), threads)


def model_of(cache_seconds: float, moved: float, one_rate: float, all_rate: float, threads: int) -> Model:
    core_rate = moved / cache_seconds
    saturating = max(1, math.ceil(all_rate / min(core_rate, one_rate)))
    best = max(cache_seconds / threads, moved / all_rate)
    return Model(cache_seconds, _clock(), moved, core_rate, one_rate, all_rate, threads, saturating, best)


def _clock() -> float:
    with suppress(OSError):
        found = re.findall(r"^cpu MHz\s*:\s*([\d.]+)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        return max(map(float, found), default=0.0) * 1e6
    return 0.0
