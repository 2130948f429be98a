"""Decides which layers are in memory. Pure functions, shared by runs and plans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Moves(NamedTuple):
    """The moves that a unit's turn requires, in order."""

    bring: int | None  # the unit itself, unless it is in memory
    let_go: list[int]
    ahead: int | None  # the unit that comes next


def device_peak(weights: Sequence[int], gradients: Sequence[int], largest: Sequence[int]) -> int:
    """The most bytes of weights and gradients on a device to which units stream. In forward, a unit arrives parameter by
    parameter, each of which is there twice for a moment. In backward, gradients of the previous unit are still on their way to
    the host."""
    forward = max(map(sum, zip(weights, largest, strict=True)), default=0)
    return max([forward, *map(sum, zip(weights, gradients, [*gradients[1:], 0], strict=True))])


@dataclass
class Schedule:
    """Units of weights in the order of a forward pass. A backward pass takes them in reverse.

    Each turn reads the next unit ahead. Room for it comes from the units whose next use is furthest away: in forward, the first
    ones that have passed; in backward, the last ones. No other order reads less (Belady 1966), so with room for k of n equal
    units a pass reads n - k units.
    """

    sizes: Sequence[int]  # bytes of each unit
    limit: int  # bytes in memory; a unit and its two neighbours are always there
    here: set[int] = field(default_factory=set)  # in memory

    @staticmethod
    def least(sizes: Sequence[int]) -> int:
        """The bytes of the three largest neighbours."""
        return max((sum(sizes[first : first + 3]) for first in range(max(1, len(sizes) - 2))), default=0)

    def turn(self, unit: int, backward: bool) -> Moves:
        """The moves for `unit`, which is about to compute."""
        ahead, behind = (unit - 1, unit + 1) if backward else (unit + 1, unit - 1)
        bring = None if unit in self.here else unit
        self.here.add(unit)
        coming = ahead if 0 <= ahead < len(self.sizes) and ahead not in self.here else None
        needed = sum(self.sizes[n] for n in self.here) + (self.sizes[coming] if coming is not None else 0)
        gone = []
        for victim in [*self._furthest(unit, backward)]:
            if needed <= self.limit:
                break
            if victim not in (ahead, behind):
                self.here.discard(victim)
                gone.append(victim)
                needed -= self.sizes[victim]
        if coming is not None:
            self.here.add(coming)
        return Moves(bring, gone, coming)

    def _furthest(self, unit: int, backward: bool) -> Iterator[int]:
        passed = sorted((n for n in self.here if (n > unit if backward else n < unit)), reverse=backward)
        to_come = sorted((n for n in self.here if (n < unit if backward else n > unit)), reverse=not backward)
        yield from (*passed, *to_come)

    def step(self, trained: Sequence[int], gradients: Sequence[Sequence[int]] = (), bucket: int | None = None) -> Step:
        """A step once steps repeat: a forward pass, and a backward pass that changes `trained` bytes of each unit, which are written
        when the unit leaves memory. gradients: bytes of each unit's, in the order in which they arrive. bucket: bytes of gradients that
        wait for a step in backward; None: all wait for its end."""
        trial, changed, found = Schedule(self.sizes, self.limit), set[int](), Step()
        order = range(len(self.sizes))
        for _ in range(3):
            read = written = steps = waiting = 0
            for unit, backward in [*((n, False) for n in order), *((n, True) for n in reversed(order))]:
                moves = trial.turn(unit, backward)
                if backward:
                    changed.add(unit)
                    if waiting and bucket is not None and changed & {*moves.let_go}:
                        steps, waiting = steps + 1, 0
                read += sum(self.sizes[n] for n in (moves.bring, moves.ahead) if n is not None)
                written += sum(trained[n] for n in moves.let_go if n in changed)
                changed -= {*moves.let_go}
                for size in gradients[unit] if backward and gradients else ():
                    waiting += size
                    if bucket is not None and waiting >= bucket:
                        steps, waiting = steps + 1, 0
            found = Step(read, written, steps + (waiting > 0))
        return found


class Step(NamedTuple):
    read: int = 0  # bytes of weights
    written: int = 0
    steps: int = 0  # of the optimizer, by buckets
