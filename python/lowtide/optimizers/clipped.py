"""Optimizers that clip the norm of their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from lowtide import _core
from lowtide.checks.values import expect
from lowtide.optimizers.backward import StepInBackward
from lowtide.optimizers.clipping import Clip, Queued, Request, checked_norm, gradients_of, measure
from lowtide.optimizers.pushing import PushingOptimizer

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_ZERO = "partitions of DeepSpeed's ZeRO", "its gradient_clipping: see docs/deepspeed.md"  # got, wanted


class ClippingOptimizer(PushingOptimizer):
    """Base class of `SteppingOptimizer`, which adds steps."""

    last_grad_norm: torch.Tensor | None = None
    """The norm that `clip_grad_norm_` or, with max_grad_norm, the last step has found: float32, without dimensions."""

    _take: Callable[[float, bool, int, int, list[int] | None], object] | None = None  # in place of the core's step

    @torch.no_grad()
    def clip_grad_norm_(
        self,
        max_norm: float,
        norm_type: float | str = 2.0,
        error_if_nonfinite: bool = False,
        *,
        process_group: ProcessGroup | None = None,
    ) -> torch.Tensor:
        """In place of `torch.nn.utils.clip_grad_norm_` of all parameters, last before `step()`:

            norm = opt.clip_grad_norm_(1.0)
            opt.step()

        Reads the gradients once and writes nothing: the step multiplies them by min(1, max_norm / (norm + 1e-6)) as it reads
        them, and does not check them once more. `.grad` is not clipped. Returns the norm before clipping, as float32 without
        dimensions on the device of the first parameter.

        norm_type: 2, or "inf" for the largest magnitude. process_group: over which plain parameters are sharded (FSDP1), each
        element on one of its ranks; DTensors know their meshes. Every rank of these must make the call.

        The norm is exact before it is rounded to float32: the same bits for all threads, instruction sets, devices and ways to
        shard. One that float32 cannot hold is returned as inf, and clips as it is. On one CUDA device nothing waits: the norm
        is a tensor there, as torch's. Otherwise the call waits for what is queued on devices, and the step that follows waits for
        nothing.

        A step without this call before it clips nothing, and so does one for which all gradients have been replaced since
        (`zero_grad()` and another backward). A step raises ValueError if gradients were changed in place since, or some of them
        replaced, until this is called again or `opt.zero_grad()`. It does not see what torch's version counters miss: writes
        through `.grad.data` or NumPy, GradScaler's unscaling, collectives such as all_reduce. If the norm is not finite,
        nothing is clipped: the step's own check says what becomes of it (`nonfinite`).

        Raises RuntimeError with error_if_nonfinite for such a norm; ValueError for gradients that a step would refuse, and
        with step_in_backward. A copy or pickle of the optimizer does not keep the call: make it again there."""
        limit, kind = checked_norm(max_norm, norm_type, "clip_grad_norm_")
        backward = self._in_backward
        expect(not isinstance(backward, StepInBackward), "clip_grad_norm_", "step_in_backward", StepInBackward.NO_NORM)
        expect(not self._partitioned, "clip_grad_norm_", *_ZERO)
        expect(not self.engine.capturing, "clip_grad_norm_", "a graph that is captured", "none: see docs/devices.md")
        self._clip_request = None
        self._push_options()
        gradients = gradients_of(self.engine.holders())
        clip = self._measure(limit, kind, 1.0, process_group)
        if error_if_nonfinite:
            known = clip.wait() if isinstance(clip, Queued) else clip
            norm = float(torch.tensor(known.norm, dtype=torch.float32))  # as it is returned
            if not math.isfinite(norm):
                raise RuntimeError(
                    f"clip_grad_norm_: got a norm of {norm} of order {kind} of gradients, wanted a finite one; "
                    "error_if_nonfinite=False leaves it to the step"
                )
        self._clip_request = Request(clip, gradients)
        return self._norm()

    def _norm(self) -> torch.Tensor:
        assert self.last_grad_norm is not None
        return self.last_grad_norm

    def _measure(self, limit: float, kind: float, scale: float, group: ProcessGroup | None) -> Clip | Queued:
        clip, self.last_grad_norm = self._following(lambda: measure(self.engine, limit, kind, scale, group))
        return clip

    def _clips(self) -> bool:
        """Whether the next step may clip."""
        return self._clip_request is not None or self.engine.settings.max_grad_norm is not None

    def _clipped(
        self, scale: float, bad: bool | None, only: list[int] | None
    ) -> tuple[float, bool | None, _core.QueuedClip | None]:
        """The factor of the gradients with what clips them, and whether one is known not to be finite (None: unknown); what
        clips them besides, on a device."""
        request, limit = self._clip_request, self.engine.settings.max_grad_norm
        if request is not None and request.stands(self.engine.holders()):
            clip = request.clip.times(scale)
        elif limit is not None:
            expect(not self._partitioned, "max_grad_norm", *_ZERO)
            apart = "groups that are stepped one after another", "clip_grad_norm_ before the first of them"
            expect(only is None, "max_grad_norm", *apart)
            clip = self._measure(limit, 2.0, scale, None)
        else:
            return scale, bad, None
        if isinstance(clip, Queued):
            if self._take is None:
                return clip.scale, bad, clip.clip
            clip = clip.wait()
        return clip.factor, False if clip.finite else bad, None
