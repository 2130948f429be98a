"""Interleaved measurement of contenders in one process.

Figures of different processes do not compare (physical page placement alone moves them by 20 %), and a shared machine
disturbs single rounds. So contenders take turns, round by round, in one process; rounds in which the process's threads
waited for a core for more than 3 % of the time are dropped; and a contender's time is the 33rd percentile of the rest.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

MAX_WAIT = 0.03  # of a round's wall time, waiting in run queues


def queue_delay_ns() -> int:
    """Nanoseconds that this process's threads have waited for a core so far."""
    total = 0
    for task in Path("/proc/self/task").iterdir():
        try:
            total += int((task / "schedstat").read_text().split()[1])
        except (OSError, IndexError, ValueError):
            continue  # the thread ended, or the kernel keeps no such figures
    return total


@dataclass
class Timing:
    """Rounds of one contender, in seconds, and how much of each was spent waiting for a core."""

    seconds: list[float] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)

    def clean(self) -> list[float]:
        """Rounds with little waiting; all of them if fewer than three are clean."""
        good = [s for s, w in zip(self.seconds, self.waited) if w <= MAX_WAIT]
        return good if len(good) >= 3 else list(self.seconds)

    @property
    def best_third(self) -> float:
        """The 33rd percentile of the clean rounds."""
        ordered = sorted(self.clean())
        return ordered[len(ordered) // 3]


def interleave(contenders: dict[str, Callable[[], object]], rounds: int, warmup: int = 2) -> dict[str, Timing]:
    """Runs all contenders in turn, `warmup` + `rounds` times."""
    timings = {name: Timing() for name in contenders}
    for r in range(warmup + rounds):
        for name, run in contenders.items():
            waited = queue_delay_ns()
            start = time.perf_counter()
            run()
            seconds = time.perf_counter() - start
            if r >= warmup:
                timings[name].seconds.append(seconds)
                timings[name].waited.append((queue_delay_ns() - waited) * 1e-9 / seconds)
    return timings


def cpu_name() -> str:
    """The processor as the kernel names it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def cpu_features(names: Sequence[str]) -> list[str]:
    """Those of `names` that the processor has."""
    flags = set()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            flags = set(line.split(":", 1)[1].split())
            break
    return [n for n in names if n in flags]


def machine() -> dict[str, object]:
    """What the figures were taken on."""
    return {
        "cpu": cpu_name(),
        "features": cpu_features(["avx2", "avx512f", "avx512vbmi", "avx512_bf16"]),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": os.getloadavg(),
    }
