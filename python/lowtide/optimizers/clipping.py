"""Clipping as part of the step. One read of the gradients gives their norm; the next step scales them by the clipping factor,
or is skipped if the norm is a spike.

Sums of squares are exact, so the norm has the same bits however tensors are cut into pieces and shards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from lowtide import _core
from lowtide.checks.values import expect, number
from lowtide.devices import places
from lowtide.devices.flattened import first_flattened
from lowtide.devices.places import Place
from lowtide.devices.sharding import Sharding, local_of
from lowtide.engine.engine import Engine
from lowtide.state.format import NORMS, NORMS_KEPT

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_INFINITY, _NAN = 0x7F800000, 0x7FC00000  # as bits of a float
_FEWEST_NORMS = 16  # needed to tell a spike


class Clip(NamedTuple):
    """The factor that clips gradients to a norm."""

    norm: float
    factor: float  # a step multiplies gradients by this
    clipped: float  # the norm after clipping

    @property
    def finite(self) -> bool:
        """True if the step need not check the gradients."""
        return self.clipped < _core.GRADIENT_LIMIT

    def times(self, scale: float) -> Clip:
        """The same clip for gradients that a step also multiplies by `scale`."""
        return Clip(self.norm * abs(scale), self.factor * scale, self.clipped * abs(scale))


class Queued(NamedTuple):
    """A clip that a device is still computing."""

    clip: _core.QueuedClip
    scale: float = 1.0  # a step also multiplies gradients by this

    def times(self, scale: float) -> Queued:
        """Like `Clip.times`."""
        return Queued(self.clip, self.scale * scale)

    def wait(self) -> Clip:
        """The clip, once it has arrived."""
        return Clip(*self.clip.wait()).times(self.scale)


class LossScaling(NamedTuple):
    """Device addresses of GradScaler's two float32 tensors, for a step in a graph. 0: no such tensor."""

    scale: int
    found_inf: int


LOSS_SCALING = {"found_inf", "grad_scale"}  # attributes of an optimizer


def loss_scaling(engine: Engine, optimizer: torch.optim.Optimizer, capturing: bool) -> tuple[float, bool | None, LossScaling | None]:
    """Reads what GradScaler (with amp_scaling), or anyone else, leaves in the optimizer, as torch.optim's fused optimizers do:
    the factor of the gradients, and whether one is known to be non-finite (None: unknown). capturing: returns addresses
    instead, for each replay to read. Raises ValueError for tensors that are not on the device then."""
    found, loss_scale = getattr(optimizer, "found_inf", None), getattr(optimizer, "grad_scale", None)
    if found is None and loss_scale is None:
        return 1.0, None, None
    if not capturing:
        bad = None if found is None else float(found) > 0
        return 1.0 if bad or loss_scale is None else 1.0 / float(loss_scale), bad, None
    (place,) = engine.cores
    given = {"grad_scale": loss_scale, "found_inf": found}
    for name, word in given.items():
        plain = isinstance(word, torch.Tensor) and word.dtype == torch.float32 and word.numel() == 1
        fits = word is None or (plain and places.device_of(word) == place.device)
        expect(fits, f"step: {name}", repr(word), f"a float32 on {place.device} while a graph is captured")
    return 1.0, None, LossScaling(*(0 if word is None else word.data_ptr() for word in given.values()))


class Sums(NamedTuple):
    """Exact sums over parameters or parts of them, of squares of gradients or other terms. The order of the parts does not matter."""

    limbs: list[int]  # as 32-bit numbers: see `_core.Optimizer.gradient_sums` and `term_sums`
    worst: int  # of squares: the largest magnitude as bits of a float; of other terms: 1 if one is not finite, else 0

    def __add__(self, other: tuple[Any, ...]) -> Sums:
        limbs, worst = other
        return Sums([a + b for a, b in zip(self.limbs, limbs, strict=True)], max(self.worst, worst))


class Clipper:
    """The clipping of one optimizer: `max_grad_norm`, and what `clip_grad_norm_` requests of the next step."""

    def __init__(self, engine: Engine, waits: bool) -> None:
        """waits: steps cannot take a clip that is still being computed."""
        self._engine, self._waits = engine, waits
        self.norm: torch.Tensor | None = None  # the last norm found
        self.clip: Clip | Queued | None = None  # for the next step; None: it ignores earlier calls of `clip_grad_norm_`
        self._measured: _core.MeasuredGradients | None = None  # the gradients of this clip; keeps none alive

    def require(self, where: str, partitioned: bool) -> None:
        """Raises ValueError about `where` if gradients are partitioned."""
        got, wanted = "partitions of DeepSpeed's ZeRO", "gradient_clipping in DeepSpeed's configuration"
        expect(not partitioned, where, got, wanted)

    @staticmethod
    def checked(max_norm: float, norm_type: float | str) -> tuple[float, float]:
        """The arguments of `clip_grad_norm_` as floats. Raises TypeError or ValueError."""
        expect(not isinstance(max_norm, bool), "clip_grad_norm_: max_norm", max_norm, "a number")
        limit = number("clip_grad_norm_: max_norm", max_norm)
        kind = math.inf if norm_type == "inf" else number("clip_grad_norm_: norm_type", norm_type)
        expect(limit >= 0, "clip_grad_norm_: max_norm", max_norm, "0 or more")
        wanted = "2 or 'inf': torch.nn.utils.clip_grad_norm_ has others"
        expect(kind in (2.0, math.inf), "clip_grad_norm_: norm_type", repr(norm_type), wanted)
        return limit, kind

    def ask(
        self, groups: Sequence[dict[str, Any]], limit: float, kind: float, finite: bool, process_group: ProcessGroup | None
    ) -> torch.Tensor:
        """See `Optimizer.clip_grad_norm_`. finite: raises RuntimeError for a non-finite norm."""
        with torch._C.DisableTorchFunctionSubclass():  # attribute reads are slow in subclasses of Tensor
            measured = _core.MeasuredGradients(self._engine.holders())  # before the read, to notice changes during it
        clip = self._measure(groups, limit, kind, 1.0, process_group)
        if finite:
            known = clip.wait() if isinstance(clip, Queued) else clip
            norm = float(torch.tensor(known.norm, dtype=torch.float32))  # as it is returned
            if not math.isfinite(norm):
                raise RuntimeError(
                    f"clip_grad_norm_: got gradients with a norm of {norm} of order {kind}, wanted a finite one; "
                    "error_if_nonfinite=False leaves the decision to the step"
                )
        self.clip, self._measured = clip, measured
        assert self.norm is not None
        return self.norm

    def _measure(
        self, groups: Sequence[dict[str, Any]], limit: float, kind: float, scale: float, group: ProcessGroup | None,
        loss_scale: int = 0,
    ) -> Clip | Queued:  # fmt: skip
        clip, self.norm = self._engine.moving(groups, measure, self._engine, limit, kind, scale, group, loss_scale)
        return clip

    def clipped(
        self, groups: Sequence[dict[str, Any]], scale: float, bad: bool | None, only: list[int] | None, partitioned: bool,
        words: LossScaling | None = None,
    ) -> tuple[float, bool | None, _core.QueuedClip | None, LossScaling | None, float | None]:  # fmt: skip
        """The factor of the gradients, with clipping, and whether one is known to be non-finite (None: unknown); a clip still
        on a device; loss scaling that is left to the step; and, with max_grad_spike, the norm if it is finite."""
        limit, times = self._engine.settings.max_grad_norm, self._engine.settings.max_grad_spike
        apart = "groups that are stepped one after another"
        if times is not None:
            self.require("max_grad_spike", partitioned)
            expect(only is None, "max_grad_spike", apart, "all of them in one step, or None")
        if self.clip is not None and self._stands():
            clip = self.clip.times(scale)
        elif limit is not None or times is not None:
            self.require("max_grad_norm", partitioned)
            expect(only is None, "max_grad_norm", apart, "clip_grad_norm_ before the first of them")
            most = math.inf if limit is None else limit
            clip = self._measure(groups, most, 2.0, scale, None, words.scale if words else 0)
            words = words and words._replace(scale=0)
        else:
            return scale, bad, None, words, None
        if isinstance(clip, Queued):
            if not self._waits and times is None:
                return clip.scale, bad, clip.clip, words, None
            clip = clip.wait()
        norm = clip.norm if times is not None and math.isfinite(clip.norm) else None
        return clip.factor, False if clip.finite else bad, None, words, norm

    def spike(self, groups: Sequence[dict[str, Any]], norm: float) -> str:
        """Describes a step's norm that is a spike; "" for any other."""
        times, norms = self._engine.settings.max_grad_spike, groups[0].get(NORMS) or ()
        if times is None or len(norms) < _FEWEST_NORMS:
            return ""
        limit = times * sorted(norms)[len(norms) // 2]
        if norm <= limit:
            return ""
        return f"the gradient norm is {norm:g}, above {limit:g}: {times:g} times the median of the last {len(norms)}"

    def keep(self, groups: Sequence[dict[str, Any]], norm: float) -> None:
        """Keeps the norm of a step that was taken, in the first group, where every kind of checkpoint finds it. Omits norms of
        0, which say nothing about others, and norms so large that a device may still be deciding about the step."""
        if 0 < norm < _core.GRADIENT_LIMIT:
            groups[0][NORMS] = (*(groups[0].get(NORMS) or ()), norm)[-NORMS_KEPT:]

    def _stands(self) -> bool:
        """True if the gradients are the measured ones; False if all have been replaced. Raises ValueError if they changed
        since, or if only some remain."""
        assert self._measured is not None
        with torch._C.DisableTorchFunctionSubclass():
            found = self._measured.among(self._engine.holders())
        if found in ("same", "replaced"):
            return found == "same"
        got = "gradients that were changed in place" if found == "changed" else "other gradients for some of the parameters"
        advice = "call it last before step(), once for each step, or the optimizer's zero_grad() to drop it"
        raise ValueError(f"step: got {got} after clip_grad_norm_, wanted the gradients that it measured: {advice}")


def measure(
    engine: Engine, max_norm: float, norm_type: float, scale: float, group: ProcessGroup | None, loss_scale: int = 0
) -> tuple[Clip | Queued, torch.Tensor]:
    """Reads all gradients. Returns the clip that limits them, times `scale`, and their norm as float32. Counts shards once:
    those of DTensors over their meshes, those of plain parameters over `group`. loss_scale: the address of a divisor, in a
    graph."""
    if group is None and (flattened := first_flattened(engine.tensors)) is not None:
        wanted = "process_group=, the group of the FSDP module that shards it (or that module's clip_grad_norm_)"
        raise ValueError(f"clip_grad_norm_: got parameter {flattened} of FSDP1 and no process_group, wanted {wanted}")
    first = next((param.place for param in engine.params if param.place is not None), None)  # frozen parameters may be anywhere
    if group is None and not engine.meshes and len(engine.cores) == 1 and not engine.on_host:
        # No other process or device contributes to the norm.
        ((place, core),) = engine.cores.items()
        norm = new_norm(place)
        return Queued(core.queue_clip(max_norm, norm_type, scale, norm.data_ptr(), place.queue(), loss_scale)), norm
    alone = "parameters on one CUDA device, of which no other process has a part"
    expect(not engine.capturing, "clip_grad_norm_", "a call while a graph is captured", alone)
    # A rank with only frozen parameters still takes part, on their device.
    device = first.device if first else local_of(engine.tensors[0]).device if engine.tensors else torch.device("cpu")

    def over_ranks(over: Over, sums: Sums, failed: bool) -> tuple[Sums, bool]:
        return _sum_over(over, sums, norm_type, failed, device)

    found = summed(engine, group, "these gradients", Sums([0] * _core.SQUARE_SUM_LIMBS, 0), _gradient_sums, over_ranks)
    clip = Clip(*_core.clip_to(*found, norm_type, max_norm, scale))
    return clip, new_norm(first).copy_(torch.tensor(clip.norm, dtype=torch.float64))


def new_norm(place: Place | None) -> torch.Tensor:
    """Memory for a norm. None: on the CPU."""
    return torch.empty((), dtype=torch.float32, device=place.device if place else None)


Over = Any  # a mesh, a process group, or None


def summed(
    engine: Engine, group: ProcessGroup | None, refused: str, none: Sums, part: Callable[[_core.Optimizer, list[int] | None, int], Sums],
    over_ranks: Callable[[Over, Sums, bool], tuple[Sums, bool]],
) -> Sums:  # fmt: skip
    """Adds up sums over the parameters of all cores and ranks, on the host. Shards count once: those of DTensors over their meshes,
    those of plain parameters over `group`. If a rank fails, all raise. refused: what it refused, for the errors of the others. none:
    the sum of nothing. part: the sums of a core's parameters with these numbers (None: all), from a queue. over_ranks: adds those of
    all ranks of a mesh or group, and tells whether any failed."""
    total = none
    failure: Exception | None = None
    for over, numbers in _parts_of(engine, group):
        found = none
        if failure is None:
            try:
                for place, core in engine.cores.items():
                    every = range(len(engine.params)) if numbers is None else numbers
                    alone = numbers is None and len(engine.cores) == 1
                    here = None if alone else [i for i in every if engine.params[i].place == place]
                    found += part(core, here, place.queue())
            except Exception as error:  # whatever it is, other ranks are waiting
                failure = error
        if over is not None:
            found, failed = over_ranks(over, found, failure is not None)
            if failed and failure is None:
                failure = ValueError(f"another rank refused {refused} (its error says why); nothing was changed")
        total += found
    if failure is not None:
        raise failure
    return total


def _parts_of(engine: Engine, group: ProcessGroup | None) -> list[tuple[Over, list[int] | None]]:
    """The parameters whose gradients this rank reads, grouped by the ranks over which their sums are added. The same on all
    ranks. None: all parameters."""
    if not engine.meshes:
        return [(group, None)]
    numbers = range(len(engine.params))
    parts: list[tuple[Over, list[int] | None]] = [(group, [i for i in numbers if engine.params[i].sharding is None])]
    for mesh in engine.meshes:
        here = [i for i in numbers if (of := engine.params[i].sharding) and of.spec.mesh == mesh and _counts(of)]
        parts.append((mesh, here))
    return parts


def _counts(of: Sharding) -> bool:
    """True if this rank's part counts, as only one of several identical copies does."""
    coordinate = of.spec.mesh.get_coordinate()
    return not any(place.is_replicate() and at for place, at in zip(of.spec.placements, coordinate, strict=True))


def _gradient_sums(core: _core.Optimizer, numbers: list[int] | None, queue: int) -> Sums:
    return Sums(*core.gradient_sums(numbers, queue))


def _sum_over(over: Over, sums: Sums, norm_type: float, failed: bool, device: torch.device) -> tuple[Sums, bool]:
    """The sums over all ranks of a mesh or group, whose tensors are on `device`, and whether any rank failed."""
    dist = torch.distributed
    bits = sums.worst
    if norm_type == 2.0:
        values, op = [*sums.limbs, int(bits > _INFINITY), int(bits == _INFINITY), int(failed)], dist.ReduceOp.SUM
    else:
        values, op = [bits, int(failed)], dist.ReduceOp.MAX
    found = all_reduced(over, values, op, device)
    if norm_type == 2.0:
        *limbs, nans, infinities, failures = found
        return Sums(limbs, _NAN if nans else _INFINITY if infinities else 0), bool(failures)
    return Sums(sums.limbs, found[0]), bool(found[1])


def all_reduced(over: Over, values: list[int], op: Any, device: torch.device) -> list[int]:
    """The values reduced over all ranks of a mesh or group, whose tensors are on `device`."""
    if hasattr(over, "get_group"):
        device, groups = torch.device(over.device_type), [over.get_group(dim) for dim in range(over.ndim) if over.size(dim) > 1]
    else:
        groups = [over]
    ballot = torch.tensor(values, device=device)
    for group in groups:
        torch.distributed.all_reduce(ballot, op, group)
    found: list[int] = ballot.tolist()
    return found
