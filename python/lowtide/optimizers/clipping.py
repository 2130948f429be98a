"""Clipping as a part of the step: one read of the gradients gives their norm, and the next step multiplies them by the
factor that clips them.

Sums of squares are exact, so that the norm is the same bits however tensors are cut into pieces and shards.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from lowtide import _core
from lowtide.checks.values import expect, number
from lowtide.devices.flattened import first_flattened
from lowtide.devices.places import Place
from lowtide.devices.sharding import Sharding, local_of
from lowtide.engine.engine import Engine

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_INFINITY, _NAN = 0x7F800000, 0x7FC00000  # as float bits


class Clip(NamedTuple):
    """The factor that clips gradients to a norm."""

    norm: float
    factor: float  # that a step multiplies gradients by
    clipped: float  # the norm that it leaves

    @property
    def finite(self) -> bool:
        """The step need not look for gradients that are not."""
        return self.clipped < _core.GRADIENT_LIMIT

    def times(self, scale: float) -> Clip:
        """The same for gradients that a step multiplies by `scale`, too."""
        return Clip(self.norm, self.factor * scale, self.clipped * abs(scale))


class Queued(NamedTuple):
    """A clip that is on its way on a device."""

    clip: _core.QueuedClip
    scale: float = 1.0  # that a step multiplies gradients by, too

    def times(self, scale: float) -> Queued:
        """As `Clip.times`."""
        return Queued(self.clip, self.scale * scale)

    def wait(self) -> Clip:
        """The same when it has come."""
        return Clip(*self.clip.wait()).times(self.scale)


class Sums(NamedTuple):
    """Exact, of gradients or parts of them."""

    squares: list[int]  # numbers of 32 bits: see `_core.Optimizer.gradient_sums`
    largest: int  # magnitude as float bits

    def __add__(self, other: tuple[Any, ...]) -> Sums:
        squares, largest = other
        return Sums([a + b for a, b in zip(self.squares, squares, strict=True)], max(self.largest, largest))


def gradients_of(params: list[torch.Tensor]) -> _core.MeasuredGradients:
    """Those of now, for a Request. To be called before they are measured, so that what changes them meanwhile is noticed."""
    with torch._C.DisableTorchFunctionSubclass():  # a subclass of Tensor reads its own attributes slowly
        return _core.MeasuredGradients(params)


class Request:
    """A clip that waits for the next step, and the gradients that it was made for. Keeps none of them alive."""

    def __init__(self, clip: Clip | Queued, measured: _core.MeasuredGradients) -> None:
        self.clip, self._measured = clip, measured

    def stands(self, params: list[torch.Tensor]) -> bool:
        """Whether the gradients are those of then; False if all of those have given way to others. ValueError if they have
        changed since, or some of them are there no more."""
        with torch._C.DisableTorchFunctionSubclass():
            found = self._measured.among(params)
        if found in ("same", "replaced"):
            return found == "same"
        got = "gradients that were changed in place" if found == "changed" else "other gradients for some of the parameters"
        advice = "call it last before step(), once for each step, or the optimizer's zero_grad() to drop it"
        raise ValueError(f"step: got {got} after clip_grad_norm_, wanted those that it has measured: {advice}")


def checked_norm(max_norm: float, norm_type: float | str, where: str) -> tuple[float, float]:
    """Both as floats. ValueError."""
    expect(not isinstance(max_norm, bool), f"{where}: max_norm", max_norm, "a number")
    limit = number(f"{where}: max_norm", max_norm)
    kind = math.inf if norm_type == "inf" else number(f"{where}: norm_type", norm_type)
    expect(limit >= 0, f"{where}: max_norm", max_norm, "0 or more")
    wanted = "2 or 'inf': torch.nn.utils.clip_grad_norm_ has others"
    expect(kind in (2.0, math.inf), f"{where}: norm_type", repr(norm_type), wanted)
    return limit, kind


def measure(
    engine: Engine, max_norm: float, norm_type: float, scale: float, group: ProcessGroup | None
) -> tuple[Clip | Queued, torch.Tensor]:
    """Reads all gradients and returns what clips them, times `scale`, and their norm as float32. Shards are counted once: those
    of DTensors over their meshes, plain parameters over `group`."""
    if group is None and (flattened := first_flattened(engine.tensors)) is not None:
        wanted = "process_group, that of the FSDP module which shards it (or its own clip_grad_norm_)"
        raise ValueError(f"clip_grad_norm_: got parameter {flattened} of FSDP1 and no process_group, wanted {wanted}")
    first = next((param.place for param in engine.params if param.place is not None), None)  # frozen parameters may be anywhere
    if group is None and not engine.meshes and len(engine.cores) == 1 and not engine.on_host:
        # No other process and no other device has a part in the norm.
        ((place, core),) = engine.cores.items()
        norm = new_norm(place)
        return Queued(core.queue_clip(max_norm, norm_type, scale, norm.data_ptr(), place.queue())), norm
    # A rank whose parameters are all frozen still takes part, on the device where they are.
    device = first.device if first else local_of(engine.tensors[0]).device if engine.tensors else torch.device("cpu")
    clip = _measured(engine, max_norm, norm_type, scale, group, device)
    return clip, new_norm(first).copy_(torch.tensor(clip.norm, dtype=torch.float64))


def new_norm(place: Place | None) -> torch.Tensor:
    """Memory for a norm; None: on the CPU."""
    return torch.empty((), dtype=torch.float32, device=place.device if place else None)


def _measured(
    engine: Engine, max_norm: float, norm_type: float, scale: float, group: ProcessGroup | None, device: torch.device
) -> Clip:
    """`measure` on the host; other ranks are asked by tensors on `device`."""
    total: Sums | None = None
    failure: BaseException | None = None
    for sharding, numbers in _parts(engine, group):
        found = Sums(_core.limbs_of(0.0), 0)
        if failure is None:
            try:
                for each in _local_sums(engine, numbers):
                    found += each
            except Exception as error:  # whatever it is: other ranks are waiting
                failure = error
        over = sharding.spec.mesh if isinstance(sharding, Sharding) else sharding
        if over is not None:
            found, failed = _sum_over(over, found, norm_type, failure is not None, device)
            if failed and failure is None:
                failure = ValueError("another rank refused these gradients, and says why; nothing was changed")
        total = found if total is None else total + found
    if failure is not None:
        raise failure
    total = total or Sums(_core.limbs_of(0.0), 0)
    return Clip(*_core.clip_to(*total, norm_type, max_norm, scale))


_Over = Any  # a mesh, a process group, or None


def _parts(engine: Engine, group: ProcessGroup | None) -> list[tuple[_Over, list[int] | None]]:
    """The parameters whose gradients this rank reads, by what their sums are added over. The same on all ranks. None: all
    parameters."""
    if not engine.meshes:
        return [(group, None)]
    numbers = range(len(engine.params))
    plain = [i for i in numbers if engine.params[i].sharding is None]
    parts: list[tuple[_Over, list[int] | None]] = [(group, plain)]
    for mesh in engine.meshes:
        here = [i for i in numbers if (of := engine.params[i].sharding) and of.spec.mesh == mesh and _counts(of)]
        parts.append((mesh, here))
    return parts


def _counts(of: Sharding) -> bool:
    """Whether this rank's part is counted: one of those that are alike is."""
    coordinate = of.spec.mesh.get_coordinate()
    return not any(place.is_replicate() and at for place, at in zip(of.spec.placements, coordinate, strict=True))


def _local_sums(engine: Engine, numbers: list[int] | None) -> Iterable[Sums]:
    """Those of this process's gradients, one device after another. Waits for them."""
    if numbers is None and len(engine.cores) > 1:
        numbers = list(range(len(engine.params)))
    for place, core in engine.cores.items():
        here = None if numbers is None else [i for i in numbers if engine.params[i].place == place]
        yield Sums(*core.gradient_sums(here, 0 if place.on_host else place.queue()))


def _sum_over(over: _Over, sums: Sums, norm_type: float, failed: bool, device: torch.device) -> tuple[Sums, bool]:
    """The sums of all ranks of a mesh or group, whose tensors are on `device`, and whether one of them has failed."""
    dist = torch.distributed
    bits = sums.largest
    if norm_type == 2.0:
        values, op = [*sums.squares, int(bits > _INFINITY), int(bits == _INFINITY), int(failed)], dist.ReduceOp.SUM
    else:
        values, op = [bits, int(failed)], dist.ReduceOp.MAX
    if hasattr(over, "get_group"):
        device, groups = torch.device(over.device_type), [over.get_group(dim) for dim in range(over.ndim) if over.size(dim) > 1]
    else:
        groups = [over]
    ballot = torch.tensor(values, device=device)
    for group in groups:
        dist.all_reduce(ballot, op, group)
    found = ballot.tolist()
    if norm_type == 2.0:
        *squares, nans, infinities, failures = found
        return Sums(squares, _NAN if nans else _INFINITY if infinities else 0), bool(failures)
    return Sums(sums.squares, found[0]), bool(found[1])
