"""The result of `plan`. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from lowtide.report.text import size_text, table_text


class Tiers(NamedTuple):
    """Bytes on each tier."""

    device: int = 0
    host: int = 0
    disk: int = 0


def summed(lines: Iterable[Tiers]) -> Tiers:
    return Tiers(*map(sum, zip(*lines, strict=True)))


@dataclass(frozen=True)
class Plan:
    """The memory that a training run takes, and whether it fits. `str()` gives a table.

    Attributes:
        model: the name of the model, or what is assumed about it.
        elements: trained parameters.
        given: bytes of each tier; None: no limit for host; no such tier for device and disk.
        lines: bytes by purpose: "weights", "gradients", "masters", "state", "activations", "process", each at its peak, and
            "never at once", which is negative: the part that is absent when a step takes most.
        total: the sum of the lines, which is the peak of a step on each tier.
        moved: bytes of weights, gradients and state that a step of one forward and one backward pass copies to and from the device, and
            reads from and writes to the disk.
        moved_weights: bytes of weights among those of the disk.
        seconds: of such a step, from the given rates; 0: unknown.
        seconds_of: its parts, some of which overlap.
        unknown_seconds: why they are unknown, if rates were given.
        fits: whether each tier has enough room.
        problem: if it does not fit: which tier lacks how much.
        unknown: why activations are not counted; "": they are counted.
        optimizer: arguments of the optimizer, with DIR for the directory. If weights stream, `memory` is for `lowtide.stream`.
        streams: if weights may stream: the call that makes them stream, or moves the model where layers compute.
        change: if it does not fit: the smallest change of the arguments that fits, or all changes if none does.
        changed: the plan with that change.
    """

    model: str
    elements: int
    given: tuple[int | None, int | None, int | None]
    lines: Mapping[str, Tiers]
    problem: str
    unknown: str
    optimizer: Mapping[str, Any]
    streams: str
    moved: Tiers = Tiers()
    moved_weights: int = 0
    seconds: float = 0.0
    seconds_of: Mapping[str, float] = field(default_factory=dict)
    unknown_seconds: str = ""
    change: Mapping[str, Any] = field(default_factory=dict)
    changed: Plan | None = None

    @property
    def total(self) -> Tiers:
        return summed(self.lines.values())

    @property
    def fits(self) -> bool:
        return not self.problem

    def __str__(self) -> str:
        return self.text(lambda name, value: f"{name}={value!r}")

    def text(self, spell: Callable[[str, Any], str]) -> str:
        """The table and the verdict. spell: writes an argument of `plan` as the reader would give it."""
        lines = [f"{self.model}: {self.elements:,} parameters", "", *self._table(), "", f"Does not fit: {self.problem}." if self.problem else "Fits."]
        if self.unknown:
            lines[-1] = lines[-1].replace("Fits.", "Fits without activations.")
            lines.append(f"Activations are not counted: {self.unknown}.")
        if self.changed:
            change = " ".join(spell(name, value) for name, value in self.change.items())
            what = "The smallest change that fits" if self.changed.fits else f"Still too little: with all these changes, {self.changed.problem}"
            lines += [f"{what}: {change}", "", *self.changed._table(), ""]
        found = self.changed or self
        if found.fits:
            lines.append(f"Optimizer: {', '.join(f'{name}={value!r}' for name, value in found.optimizer.items())}")
            lines += [found.streams] if found.streams else []
        if self.seconds:
            lines.append(f"Seconds a step: {self.seconds:.3g} ({', '.join(f'{name} {part:.3g}' for name, part in self.seconds_of.items())})")
        elif self.unknown_seconds:
            lines.append(f"Seconds are unknown: {self.unknown_seconds}.")
        return "\n".join(lines)

    def _table(self) -> list[str]:
        tiers = [tier for tier in range(3) if self.given[tier] is not None or self.total[tier] or tier == 1]
        given = ["no limit" if size is None else size_text(size) for size in self.given]
        named = {"activations": "activations, estimated", "process": "process" if self.given[0] is None else "process, assumed"}
        rows = [(named.get(name, name), *map(size_text, line)) for name, line in self.lines.items()]
        rows = [("", *Tiers._fields), *rows, ("total", *map(size_text, self.total)), ("given", *given)]
        rows += [("moved a step", *map(size_text, self.moved))] if any(self.moved) else []
        return table_text([[row[0], *(row[1 + tier] for tier in tiers)] for row in rows])

    def as_dict(self) -> dict[str, Any]:
        """The fields, in JSON's types."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        lines = {name: line._asdict() for name, line in self.lines.items()}
        more = {"given": dict(zip(Tiers._fields, self.given, strict=True)), "total": self.total._asdict(), "fits": self.fits, "moved": self.moved._asdict()}
        return found | more | {"lines": lines, "changed": self.changed and self.changed.as_dict()}
