"""Decides which layers are in memory. Pure functions, shared by runs and plans."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, repeat
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

    def beyond(self) -> Iterator[int]:
        """Lets units go, the last ones first, until the others fit."""
        for unit in sorted(self.here, reverse=True):
            if sum(self.sizes[n] for n in self.here) <= self.limit:
                break
            self.here.discard(unit)
            yield unit

    def in_turn(self, trained: Sequence[int]) -> list[int]:
        """The units that take turns in a step behind backward, in its order: most of each is trained (`trained` bytes). Pages of the
        others are read as the step touches them."""
        streams = sum(self.sizes) > self.limit
        return [n for n in reversed(range(len(self.sizes))) if streams and 2 * trained[n] >= self.sizes[n]]

    def step(self, trained: Sequence[int], gradients: Sequence[Sequence[int]] = (), bucket: int | None = None, work: Work | None = None) -> Step:
        """A step once steps repeat: a forward pass, a backward pass, and changes of `trained` bytes of each unit, which are written when the
        unit leaves memory. gradients: bytes of each unit's, in the order in which they arrive. bucket: bytes of gradients that
        wait for a step in backward; None: all wait for its end, when units take turns once more.

        One thread computes and steps; another reads and writes weights in the order in which they are asked for, and each slows the other
        down. The disk serves state in turn with weights."""
        order, work, found = range(len(self.sizes)), work or Work(), Step()
        forward, backward = ([*islice(each, len(order))] for each in (iter(work.forward), iter(work.backward)))
        arriving = gradients or [()] * len(order)
        run = _Run(Schedule(self.sizes, self.limit), trained, work)
        last = self.in_turn(trained) if bucket is None else []
        for _ in range(3):
            before, behind = run.found(), work.kept
            for unit in order:
                run.turn(unit, False, forward[unit])
            for unit in reversed(order):
                run.turn(unit, True, backward[unit])
                if bucket is None:
                    behind += sum(arriving[unit]) if unit not in last else 0
                    continue
                run.change(unit)
                for size in arriving[unit]:
                    run.waiting += size
                    if run.waiting >= bucket:
                        run.step()
            for unit in last:
                run.turn(unit, True, 0.0)
                run.change(unit)
                run.waiting = sum(arriving[unit])
                run.step()
            run.waiting += behind
            run.step()
            if bucket is None:
                for unit in {*order} - {*last}:
                    run.change(unit)
                run.leave(run.schedule.beyond())
            run.clock.compute(work.beside)
            now = run.found()
            found = Step(now.read - before.read, now.written - before.written, now.steps - before.steps, now.seconds - before.seconds)
        return found


class Step(NamedTuple):
    read: int = 0  # bytes of weights
    written: int = 0
    steps: int = 0  # of the optimizer, by buckets
    seconds: float = 0.0


class Together(NamedTuple):
    """The shares of their speeds that the disk and computation keep while both work."""

    disk: float = 1.0
    compute: float = 1.0


_WHOLE = Together()


@dataclass
class Clock:
    """The time of a thread that computes, beside a disk that serves requests in their order."""

    now: float = 0.0
    _asked: deque[tuple[float, Together]] = field(default_factory=deque)  # seconds of the disk alone
    _done: int = 0

    def ask(self, seconds: float, together: Together = _WHOLE) -> int:
        """A request that takes `seconds` of the disk alone. Returns its number for `wait`."""
        self._asked.append((seconds, together))
        return self._done + len(self._asked)

    def wait(self, number: int) -> None:
        while self._done < number:
            self.now += self._asked.popleft()[0]
            self._done += 1

    def compute(self, seconds: float) -> None:
        while self._asked and seconds > 0:
            left, together = self._asked[0]
            both = min(left / together.disk, seconds / together.compute)
            self.now, seconds, left = self.now + both, seconds - both * together.compute, left - both * together.disk
            if left > 1e-12:
                self._asked[0] = left, together
            else:
                self._asked.popleft()
                self._done += 1
        self.now += max(seconds, 0.0)


class Work(NamedTuple):
    """Seconds of a step."""

    forward: Iterable[float] = repeat(0.0)  # of each unit
    backward: Iterable[float] = repeat(0.0)
    beside: float = 0.0  # of what is in no unit
    step: float = 0.0  # of stepping, per byte of gradients
    state: float = 0.0  # of the disk with their state
    read: float = 0.0  # per byte of weights
    write: float = 0.0
    change: float = 0.0  # of first changing them in memory
    reading: Together = _WHOLE
    writing: Together = _WHOLE
    kept: int = 0  # bytes of gradients of what is in no unit


@dataclass
class _Run:
    """Steps that are simulated."""

    schedule: Schedule
    trained: Sequence[int]
    work: Work
    clock: Clock = field(default_factory=Clock)
    waiting: int = 0  # bytes of gradients
    read: int = 0
    written: int = 0
    steps: int = 0
    changed: set[int] = field(default_factory=set)  # units that are not written yet
    _clean: set[int] = field(default_factory=set)  # and those that nothing has changed since they were read
    _asked: dict[int, int] = field(default_factory=dict)

    def found(self) -> Step:
        return Step(self.read, self.written, self.steps, self.clock.now)

    def turn(self, unit: int, backward: bool, seconds: float) -> None:
        moves = self.schedule.turn(unit, backward)
        if backward and any(gone > unit for gone in moves.let_go):
            self.step()
        self._read(moves.bring)
        self.leave(moves.let_go)
        self._read(moves.ahead)
        self.clock.wait(self._asked.pop(unit, 0))
        self.clock.compute(seconds)

    def change(self, unit: int) -> None:
        if not self.trained[unit]:
            return
        self.changed.add(unit)
        self.schedule.here.add(unit)
        if unit in self._clean:
            self.clock.compute(self.trained[unit] * self.work.change)
            self._clean.discard(unit)

    def step(self) -> None:
        """Steps the gradients that wait."""
        if not self.waiting:
            return
        asked = self.clock.ask(self.waiting * self.work.state) if self.work.state else 0
        self.clock.compute(self.waiting * self.work.step)
        self.clock.wait(asked)
        self.steps, self.waiting = self.steps + 1, 0

    def leave(self, units: Iterable[int]) -> None:
        for unit in units:
            size = self.trained[unit] if unit in self.changed else 0
            self.written += size
            self.clock.ask(size * self.work.write, self.work.writing)
            self.changed.discard(unit)

    def _read(self, unit: int | None) -> None:
        if unit is not None:
            self.read += self.schedule.sizes[unit]
            self._asked[unit] = self.clock.ask(self.schedule.sizes[unit] * self.work.read, self.work.reading)
            self._clean.add(unit)
