"""The steps of gpu_check's two commands, in order, and how long each should take on a GPU such as an H100 with 16
cores. The most valuable come first, because a step that no longer fits into the command's time is left out.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

LIMIT_S = 560.0  # for a whole command, where a machine ends it after 600 seconds
SETUP_S = 25.0  # looking at the machine, unpacking, wheels, three imports of torch
RESERVE_S = 4.0  # for writing results
SMOKE = "smoke"  # if it fails, nothing else is run


@dataclass(frozen=True)
class Step:
    name: str  # of a case of bench/cuda, or of one of suites.py
    estimate_s: float

    @property
    def is_case(self) -> bool:
        return "." in self.name or self.name == SMOKE

    @property
    def limit_s(self) -> float:
        """Twice the estimate, and time for a slow start."""
        return 2 * self.estimate_s + 15


COMMANDS: dict[str, tuple[Step, ...]] = {
    "first": (
        Step(SMOKE, 10),
        Step("bits.rules", 12),
        Step("bits.mantissas", 10),
        Step("bits.tiers", 18),
        Step("resident.bandwidth", 18),
        Step("resident.peers_7b", 40),
        Step("paged.dynamic8", 40),
        Step("llama.peaks", 30),
        Step("counters.step", 20),
        Step("counters.search", 25),
        Step("calls.tensors", 16),
        Step("uncommon.steps", 16),
        Step("calls.fork", 10),
        Step("uncommon.tiny_gradients", 18),
        Step("resident.budget", 25),
        Step("resident.peers_one", 25),
        Step("link.copy_engines", 25),
        Step("link.pin", 15),
    ),
    "second": (
        Step(SMOKE, 10),
        Step("suite device", 25),
        Step("suite python", 55),
        Step("paged.fp32", 50),
        Step("paged.bitsandbytes_8bit", 32),
        Step("paged.bitsandbytes_fp32", 35),
        Step("overlap.dynamic8", 46),
        Step("pressure.promote_demote", 13),
        Step("pressure.oom_guard", 11),
        Step("pressure.demote", 11),
        Step("capture.calls", 8),
        Step("graphs.noticed", 12),
        Step("graphs.replays", 12),
        Step("link.zero_copy", 20),
        Step("overlap.fp32", 40),
        Step("paged.torchao_offload", 25),
        Step("resident.torchao", 25),
        Step("memcheck", 55),
        Step("racecheck", 20),
    ),
}


def estimate(command: str) -> float:
    return SETUP_S + sum(step.estimate_s for step in COMMANDS[command]) + RESERVE_S


def table() -> str:
    lines = []
    for command, steps in COMMANDS.items():
        lines.append(f"{command}: about {estimate(command):.0f} s of {LIMIT_S:.0f} s")
        at = SETUP_S
        for step in steps:
            lines.append(
                f"  {at:5.0f} s  {step.name:26s} about {step.estimate_s:3.0f} s, at most {step.limit_s:3.0f} s"
            )
            at += step.estimate_s
    return "\n".join(lines)


class Deadline:
    """One for all of a command, from its start: the build, too."""

    def __init__(self, seconds: float) -> None:
        self.start = time.monotonic()
        self.seconds = seconds

    def elapsed(self) -> float:
        return time.monotonic() - self.start

    def left(self) -> float:
        return self.seconds - RESERVE_S - self.elapsed()

    def within(self, limit_s: float) -> float:
        """A limit of a command, and no more than what is left."""
        return max(0.0, min(limit_s, self.left()))
