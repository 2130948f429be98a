"""Divides memory between weights that stream, gradients and state: the one division for `lowtide.stream` and for plans. Imports no
torch."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from lowtide import _core
from lowtide.memory.forecast import GRADIENT_BUCKET, STREAMED_STATE
from lowtide.planning.models import Decoder
from lowtide.planning.result import Tiers
from lowtide.planning.schedule import Schedule, Step, Work, device_peak

_PAGE, _LINE = 4096, 64  # bytes of a page of memory, and of a line of a processor's cache
SMALL = 1 << 20  # smaller modules outside layers stay in memory (bytes)
LEAST = 16 << 20  # the least bytes of a device through which state streams


class Weight(NamedTuple):
    """Stands in for a parameter."""

    nbytes: int
    requires_grad: bool = True


class Unit(NamedTuple):
    """The weights of a module, which move together. Does not keep the module alive."""

    name: str
    params: list[Any]  # parameters or `Weight`s; frozen ones, which are never written again, come first
    looked_up: bool = False  # whether forward reads only a few rows

    @property
    def nbytes(self) -> int:
        return sum(param.nbytes for param in self.params)

    @property
    def bytes(self) -> int:
        """The size of the unit in the file."""
        return up(sum(up(param.nbytes, _LINE) for param in self.params), _PAGE)

    @property
    def gradient_bytes(self) -> int:
        return sum(param.nbytes for param in self.params if param.requires_grad)

    def first_trained(self) -> int:
        """The offset at which trained parameters begin in the unit; its size if there are none."""
        offset = 0
        for param in self.params:
            if param.requires_grad:
                return offset // _PAGE * _PAGE
            offset += up(param.nbytes, _LINE)
        return self.bytes

    @property
    def trained_bytes(self) -> int:
        """Bytes that are written after a step."""
        return self.bytes - self.first_trained()


def up(size: int, to: int = _LINE) -> int:
    return -(-size // to) * to


def takes_turns(unit: Unit) -> bool:
    """Whether a unit that is no layer leaves memory."""
    return unit.nbytes >= SMALL


class Layout(NamedTuple):
    """The weights of a model."""

    units: list[Unit]  # in the order of a forward pass
    kept: Unit  # weights that stay in memory, because they are small or shared between units
    tied: int  # bytes of the trained weights among them that several modules use

    @property
    def sizes(self) -> list[int]:
        return [unit.bytes for unit in self.units]

    @property
    def trained(self) -> list[int]:
        return [unit.trained_bytes for unit in self.units]

    @property
    def nbytes(self) -> int:
        return self.kept.nbytes + sum(unit.nbytes for unit in self.units)

    @property
    def gradient_bytes(self) -> int:
        return self.kept.gradient_bytes + sum(unit.gradient_bytes for unit in self.units)

    def gradients(self, bucket: int | None, tied: int, largest: int = 0) -> int:
        """The most bytes of gradients at once. bucket: bytes that wait for a step in backward; None: all wait for the end. tied:
        bytes of gradients with two parts, which autograd adds to a third. largest: the most bytes that arrive before a step can
        take them; 0: those of a unit."""
        whole = self.gradient_bytes + 2 * tied
        if bucket is None:
            return whole
        return min(whole, tied + bucket + (largest or max(self.kept.gradient_bytes + tied, *(unit.gradient_bytes for unit in self.units))))

    def device_bytes(self) -> int:
        """The most bytes of weights and gradients on a device to which the units stream, and `kept` for a whole pass."""
        weights, gradients = [unit.nbytes for unit in self.units], [unit.gradient_bytes for unit in self.units]
        kept = self.kept.gradient_bytes
        in_layers = kept + device_peak(weights, gradients, self._largest())
        # At the end, a tied gradient is added to its other half, or all gradients follow those of the first layer to the host.
        return self.kept.nbytes + max(in_layers, 2 * kept + self.tied + sum(gradients[:1]))

    def gradients_alive(self, done: int, kept: int) -> int:
        """Bytes of gradients if none is stepped when the last `done` units have theirs. kept: whether the kept weights have none (0), one
        part of each (1), or all (2)."""
        return sum(unit.gradient_bytes for unit in self.units[len(self.units) - max(done, 0) :]) + (kept > 0) * self.kept.gradient_bytes + 2 * (kept > 1) * self.tied

    def alive_on_device(self, done: int, kept: int) -> int:
        """Bytes of weights and gradients on such a device at the moment of `gradients_alive`. done: -1 in forward."""
        if done < 0:
            return self.kept.nbytes + max(map(sum, zip((unit.nbytes for unit in self.units), self._largest(), strict=True)))
        here = self.units[-max(done, 1)]
        gradients = sum(unit.gradient_bytes for unit in self.units[-done:][:2]) if done else 0
        return self.kept.nbytes + here.nbytes + gradients + kept * self.kept.gradient_bytes + (kept > 1) * self.tied

    def step(self, limit: int | None, bucket: int | None, work: Work | None = None) -> Step:
        """A step, with at most `limit` bytes of units in memory; None: all are there."""
        gradients = [[param.nbytes for param in reversed(unit.params) if param.requires_grad] for unit in self.units]
        work = (work or Work())._replace(kept=self.kept.gradient_bytes)
        return Schedule(self.sizes, sum(self.sizes) if limit is None else limit).step(self.trained, gradients, bucket, work)

    def _largest(self) -> list[int]:
        return [max((param.nbytes for param in unit.params), default=0) for unit in self.units]

    def pinned_bytes(self) -> int:
        """The weights in torch's page-locked memory, in powers of two."""
        sizes = (param.nbytes for unit in (*self.units, self.kept) for param in unit.params)
        return sum(1 << (size - 1).bit_length() for size in sizes if size)


def layout_of(of: Decoder, size: int) -> Layout:
    """The weights of a decoder, of `size` bytes per element, as `lowtide.planning.layers.units_of` finds them in its module."""
    def unit(shapes: Sequence[tuple[int, ...]]) -> Unit:
        return Unit("", [Weight(size * prod(shape)) for shape in shapes])

    table, layer = unit([(of.vocabulary, of.hidden)]), unit([*of.layer().values()])
    ends = [] if of.tied or not takes_turns(table) else [table]
    kept = unit([(of.hidden,)])
    if not ends:
        kept.params.extend(table.params * (1 if of.tied else 2))
    return Layout([*(each._replace(looked_up=True) for each in ends), *[layer] * of.layers, *ends], kept, table.nbytes if of.tied else 0)


class Short(NamedTuple):
    """A tier that is too small."""

    tier: str  # of `Tiers`
    needed: int  # bytes that would do
    of: str  # what they are for


class Division(NamedTuple):
    """Where weights and gradients are, and what is left for state, in bytes."""

    weights: Tiers  # the most at once; on the disk, all that take turns
    gradients: Tiers
    left: tuple[int | None, int | None]  # for state, on the device (None: the CPU steps) and in host memory (None: no limit)
    streams: bool = True  # False: all weights and gradients are where layers compute
    limit: int | None = None  # bytes of units in host memory at once, if they are on the disk
    pinned: int | None = None  # bytes that page-locked memory takes beside the weights; None: it is not page-locked
    moved: Tiers = Tiers()  # in a forward and a backward pass: to and from the device, and the disk
    short: Short | None = None
    steps: int = 1  # of the optimizer, by buckets

    @property
    def taken(self) -> int:
        """Bytes of host memory."""
        return self.weights.host + (self.pinned or 0) + self.gradients.host


def divide(
    of: Layout, state: int, bucket: int | None, budget: Sequence[int | None], disk: bool, *, steps_there: bool = True, pins: bool = True
) -> Division:
    """Divides memory for weights, gradients and `state` bytes of state. bucket: see `Layout.gradients`. budget: bytes of a
    device (None: the CPU computes) and of host memory (None: no limit). steps_there: the device can step. pins: weights in host memory
    may be page-locked."""
    device, host = budget
    more = "" if disk else ", or disk=DIRECTORY"
    whole, alone = of.nbytes, of.gradients(bucket, of.tied)  # without streaming
    if device is None:
        left = None if host is None else host - whole - alone
        if left is None or not disk or left >= state:
            there = Division(Tiers(0, whole), Tiers(0, alone), (None, left), False)
            return there._replace(short=_short("host", left, whole + alone, f" of weights and gradients, and room for state{more}"))
        assert host is not None
        return _from_disk(of, bucket, alone, Tiers(), Tiers(), host, Tiers())
    beside = device - whole - alone
    if beside >= (min(state, LEAST) if steps_there else 0):
        rest = max(state - beside, 0) if steps_there else state
        there = Division(Tiers(whole), Tiers(alone), (beside if steps_there else None, host), False)
        lacks = host is not None and not disk and rest > host
        return there._replace(short=Short("host", rest, f" of state that the device has no room for{more}") if lacks else None)
    gradients, most = of.gradients(bucket, 0), of.device_bytes()
    on_device = Tiers(min(of.kept.nbytes + max((unit.nbytes for unit in of.units), default=0), most))
    there_too = Tiers(most - on_device.device)
    moved = Tiers(2 * whole - of.kept.nbytes + of.gradient_bytes)
    short = _short("device", device - most, most, ": a layer, its gradients and the last one's")
    least = whole + gradients + (min(state, STREAMED_STATE) if disk else state)
    if host is not None and host < least and disk and not short:
        return _from_disk(of, bucket, gradients, on_device, there_too, host, moved)
    if host is not None and host < least and not short:
        less = gradients - of.gradients(GRADIENT_BUCKET, 0) if bucket is None else 0
        hint = f", or {_core.format_bytes(less)} less where step_in_backward=True is possible" if less else ""
        short = Short("host", least, f" of weights, gradients and state{more}{hint}")
    rounding = of.pinned_bytes() - whole
    pinned = rounding if pins and (host is None or host >= whole + rounding + gradients + state) else None  # state does not make room for it
    left = None if host is None else host - whole - (pinned or 0) - gradients
    return Division(on_device._replace(host=whole), there_too._replace(host=gradients), (None, left), pinned=pinned, moved=moved, short=short, steps=of.step(None, bucket).steps)


def _from_disk(
    of: Layout, bucket: int | None, gradients: int, weights_there: Tiers, gradients_there: Tiers, host: int, moved: Tiers
) -> Division:
    """The division of host memory if weights are on the disk. weights_there, gradients_there: those on a device."""
    sizes, kept = of.sizes, of.kept.nbytes
    beside, turns = kept + gradients + STREAMED_STATE, Schedule.least(sizes)
    limit = min(sum(sizes), max(turns, host - beside))
    short = _short("host", host - beside - turns, beside + turns, ": three layers, their gradients, and buffers for state")
    step = of.step(limit, bucket)
    return Division(
        weights_there._replace(host=kept + limit, disk=sum(sizes)), gradients_there._replace(host=gradients), (None, host - kept - limit - gradients),
        limit=limit, moved=moved._replace(disk=step.read + step.written), short=short, steps=step.steps,
    )  # fmt: skip


def _short(tier: str, left: int | None, needed: int, of: str) -> Short | None:
    return Short(tier, needed, of) if left is not None and left < 0 else None
