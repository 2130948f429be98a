"""Row "explicit paging against the operating system's": the same step over the same state, half of which does not fit.

Every contender is a process in a control group of its own. All limits are alike: what the process has before its state,
plus the budget of state, plus a slack for what neither account has (page tables, thread stacks, the ring of requests).
Contenders take turns. A turn is one step that is not timed, `steps` that are, one after another, so that the write-back
of each falls upon the next; then all is written back, untimed, so that no contender pays for another's dirty pages.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from paging.cgroup import Group, Unavailable
from paging.programs import HERE, linked

SLACK = 8 << 20
WANTED = 0.5  # explicit / operating system, at most
BYTES = {"dynamic8": 2 * (1 + 4 / 256), "fp32": 8}  # of AdamW's state, per element


class Contender:
    """A process that steps when told to, within its control group."""

    def __init__(self, name: str, command: list[str]) -> None:
        self.name, self.group = name, Group(name.replace(" ", "-").replace(",", ""))
        self._process = subprocess.Popen(self.group.command(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                         text=True)  # fmt: skip
        self.turns: list[float] = []  # seconds of a step
        self.resident = -1

    def ready(self) -> int:
        """Waits until the process is ready; returns its bytes without state."""
        self._answer()
        return self.group.usage()

    def ask(self, word: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            code = self._process.wait()
            why = "killed: the limit was too small" if code == -9 else f"ended with code {code}"
            raise RuntimeError(f"{self.name}: {why}")
        return line

    def turn(self, steps: int) -> None:
        self.ask("step")
        self.turns.append(statistics.fmean(float(self.ask("step")) for _ in range(steps)))
        self.ask("settle")

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()
        self.group.close()


def commands(
    state: str, elements: int, budget: int, chunk: int, disk: str, programs: Path | None
) -> dict[str, list[str]]:
    program = str(linked("os_paging", programs))
    tail = [disk, state, str(elements), str(budget), str(chunk)]
    found = {
        "explicit": [program, "explicit", *tail],
        "mapped file": [program, "mapped", *tail],
        "mapped file, sequential hint": [program, "mapped-sequential", *tail],
    }
    if state == "fp32":
        found["torch fused, mapped file"] = [sys.executable, str(HERE / "torch_mapped.py"), disk, str(elements)]
    return found


def measure(
    state: str, elements: int, share: float, chunk: int, rounds: int, steps: int, disk: str, programs: Path | None
) -> dict[str, Any]:
    """`share` of the state is the budget. The answer has {"skipped": reason} where no limit can be set."""
    total = int(BYTES[state] * elements)
    budget = max(4 * chunk, int(share * total))
    contenders: list[Contender] = []
    try:
        lines = commands(state, elements, budget, chunk, disk, programs)
        for name, command in lines.items():
            contenders.append(Contender(name, command))
        # One limit for all programs that are alike, so that no difference of their start decides; torch's is larger.
        before = [one.ready() for one in contenders]
        alike = max(size for one, size in zip(contenders, before, strict=True) if "torch" not in one.name)
        limits = [(size if "torch" in one.name else alike) + budget + SLACK
                  for one, size in zip(contenders, before, strict=True)]  # fmt: skip
        for one, limit in zip(contenders, limits, strict=True):
            one.group.limit(limit)
            one.resident = int(one.ask("state"))
            one.ask("settle")
        for turn in range(rounds):
            for one in contenders[turn % len(contenders) :] + contenders[: turn % len(contenders)]:
                one.turn(steps)
        hashes = {one.name: one.ask("end") for one in contenders}
        version = contenders[0].group.version
    except (Unavailable, RuntimeError) as reason:
        return {"state": state, "skipped": str(reason)}
    finally:
        for one in contenders:
            one.close()
    explicit = contenders[0]
    own = {name: value for name, value in hashes.items() if "torch" not in name}
    if len(set(own.values())) != 1:
        raise RuntimeError(f"the contenders computed different parameters: {own}")
    return {
        "state": state, "elements": elements, "state_bytes": total, "budget": budget, "chunk": chunk,
        "cgroup_version": version, "slack": SLACK, "same_bits": True, "steps_of_each": rounds * (steps + 1),
        "contenders": {
            one.name: {
                "before_state_bytes": size, "limit_bytes": limit, "seconds": statistics.median(one.turns),
                "turns": one.turns,
                "explicit_to_this": statistics.median(e / t for e, t in zip(explicit.turns, one.turns, strict=True)),
            }
            for one, size, limit in zip(contenders, before, limits, strict=True)
        },
        "wanted": WANTED,
        "reached": all(
            statistics.median(e / t for e, t in zip(explicit.turns, one.turns, strict=True)) <= WANTED
            for one in contenders[1:] if "torch" not in one.name
        ),
    }  # fmt: skip


def show(row: dict[str, Any]) -> None:
    print(f"explicit paging against the operating system's: AdamW {row['state']}", end="")
    if "skipped" in row:
        print(f": not measured: {row['skipped']}")
        return
    print(f", {row['elements']} elements, {row['state_bytes'] / 1e6:.0f} MB of state, budget "
          f"{row['budget'] / 1e6:.0f} MB, cgroup v{row['cgroup_version']}")  # fmt: skip
    print(f"  {'':30s} {'limit, MB':>10s} {'s/step':>10s} {'explicit / this':>16s}")
    for name, one in row["contenders"].items():
        print(f"  {name:30s} {one['limit_bytes'] / 1e6:10.0f} {one['seconds']:10.4f} {one['explicit_to_this']:16.3f}")
    print(f"  same bits after {row['steps_of_each']} steps; wanted at most {row['wanted']}: "
          f"{'yes' if row['reached'] else 'NO'}")  # fmt: skip
