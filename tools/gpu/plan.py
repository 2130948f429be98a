"""The queue of gpu_check: its steps by value, with their times on an H100 with 16 cores, mostly measured. A run takes what fits
its time and no earlier run has finished.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

LIMIT_S = 450.0  # for a whole run
SETUP_S = 15.0  # looking at the machine, unpacking, an import of torch
RESERVE_S = 4.0  # for writing results
SMOKE = "smoke"  # if it fails, nothing else runs


@dataclass(frozen=True)
class Step:
    name: str  # a case of bench/cuda, or a suite of suites.py
    estimate_s: float

    @property
    def is_case(self) -> bool:
        return "." in self.name or self.name == SMOKE

    @property
    def limit_s(self) -> float:
        """Twice the estimate, and time for a slow start."""
        return 2 * self.estimate_s + 15


QUEUE = (
    Step(SMOKE, 12),
    Step("capture.calls", 2),
    Step("graphs.noticed", 13),
    Step("graphs.replays", 9),
    Step("variants.steps", 25),
    Step("counters.step", 14),
    Step("counters.nearest", 14),
    Step("counters.best_step", 15),
    Step("counters.best_nearest", 15),
    Step("uncommon.steps", 11),
    Step("calls.tensors", 12),
    Step("suite python", 27),
    Step("suite device", 8),
    Step("memcheck", 20),
    Step("synccheck", 8),
    Step("racecheck", 20),
    Step("suite ranks", 15),
    Step("suite listings", 45),
    Step("resident.bandwidth", 14),
    Step("resident.peers_7b", 46),
    Step("whole.1b", 90),
    Step("paged.bitsandbytes_8bit", 28),
    Step("overlap.dynamic8", 67),
    Step("paged.fp32", 54),
    Step("uncommon.tiny_gradients", 11),
    Step("whole.7b", 110),
    # Steps that have run before or can wait.
    Step("counters.fp32", 14),
    Step("counters.lion", 14),
    Step("bits.rules", 9),
    Step("bits.mantissas", 8),
    Step("bits.tiers", 16),
    Step("paged.dynamic8", 36),
    Step("pressure.promote_demote", 11),
    Step("pressure.oom_guard", 7),
    Step("pressure.demote", 6),
    Step("resident.budget", 7),
    Step("calls.fork", 6),
    Step("link.copy_engines", 8),
)


def table() -> str:
    lines, at = [], SETUP_S
    for step in QUEUE:
        lines.append(f"{at:5.0f} s  {step.name:26s} about {step.estimate_s:3.0f} s, at most {step.limit_s:3.0f} s")
        at += step.estimate_s
    return "\n".join(lines)


class Deadline:
    """A deadline for a whole run, from its start."""

    def __init__(self, seconds: float) -> None:
        self.start = time.monotonic()
        self.seconds = seconds

    def elapsed(self) -> float:
        return time.monotonic() - self.start

    def left(self) -> float:
        return self.seconds - RESERVE_S - self.elapsed()

    def within(self, limit_s: float) -> float:
        """The limit of a command, or the remaining time if that is less."""
        return max(0.0, min(limit_s, self.left()))
