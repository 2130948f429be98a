"""The torch.optim.Optimizer over the compiled core: steps.

Parameters are numbered by their place over all groups, here, in the core and in `state_dict()`. Python decides nothing
about the mathematics: it reads the groups' options, makes one call per step and hands out views of the state.
"""

import logging
import sys
from collections.abc import Callable
from typing import overload

import torch

from lowtide import _core
from lowtide.devices import sharding
from lowtide.engine.cores import Cores
from lowtide.optimizers import partitions
from lowtide.optimizers.clipped import ClippingOptimizer
from lowtide.optimizers.clipping import Queued
from lowtide.options.hyper import check_on_host
from lowtide.report.log import is_inside, logger


class SteppingOptimizer(ClippingOptimizer):
    """Base class of `Optimizer`, which adds what is done with state beside stepping."""

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One step over every parameter that has a gradient; returns the closure's loss, if there is a closure.

        Raises ValueError when a hyper-parameter is out of range, a gradient cannot be used (sparse, of another shape),
        a parameter was moved (but before the first step), re-typed (with `master`) or resized, or, with
        nonfinite="raise", a gradient is not finite. Nothing has changed then. With DTensor parameters every rank of
        their meshes must make the call: unless nonfinite is "propagate", they agree on whether to step.
        """
        loss = None
        if self._gives_state():
            return None
        if self._in_backward:
            self._in_backward.before_step(closure)
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not self.engine.on_host:
            self._tell()
        taken = False
        try:
            if len(self.param_groups) < len(self._listed) and self._is_part():
                self._step_part()
            else:
                self._step_gradients()
            taken = True
        finally:
            if self._in_backward:
                self._in_backward.after_step(taken)
        return loss

    def _gives_state(self) -> bool:
        """Whether torch.distributed.checkpoint asks for this first step, of zero gradients at a rate of 0, for the state that it
        gives. Then state is given, and there is to be no step, which training would count."""
        frame = None if self.state else sys._getframe(2)
        while frame and is_inside(frame):
            if frame.f_code.co_name == "_init_optim_state":
                self._init_group({})
                return True
            frame = frame.f_back
        return False

    def _is_part(self) -> bool:
        """Whether groups with parameters are missing."""
        here = {*map(id, self.param_groups)}
        return any(each.tensors and id(group) not in here for group, each in zip(self._groups, self.engine.members))

    def _step_part(self) -> None:
        """Steps the groups that a wrapper has left in `param_groups`, and no others."""
        part, self.param_groups = self.param_groups, self._listed
        try:
            partitions.check_part(part, self.param_groups)
            self._follow_groups()
            self._step_gradients(partitions.shown(self.engine, part))
        finally:
            self.param_groups = part

    def _step_gradients(self, only: list[int] | None = None) -> None:
        """Steps the parameters that have a gradient; `only`: those of them that have these numbers."""
        capturing = self.engine.capturing
        if capturing:
            self._check_capture()
        self._push_options()
        engine = self.engine
        if self._partitioned:
            only = partitions.shown(engine, self.param_groups)
        engine.note_capture(capturing)
        scale, bad = self._scaling() if engine.settings.amp_scaling else (1.0, None)
        agrees, failure, queued, found = bool(engine.meshes) and self._agrees(), None, None, -1
        if self._clips() and not bad:
            try:
                scale, bad, queued = self._clipped(scale, bad, only)
            except Exception as error:  # whatever it is: other ranks may be waiting
                if not agrees:
                    raise
                failure = error
        if agrees:
            bad = self._agree(scale, bad, failure)
        if bad:
            engine.count(skipped=1)
        else:
            found = self._following(lambda: self._step_core(scale, bad is not None, only, queued))
        self._skips.look(engine.skipped_steps(), found, engine.settings.amp_scaling)
        if only is None:  # else other groups of the same gradients may follow
            self._clip_request = None
        if engine.awaited:
            self._adopt_new_state()

    def _step_core(
        self, scale: float, known_finite: bool, only: list[int] | None, clip: _core.QueuedClip | None = None
    ) -> int:
        """The number of a parameter whose gradient is not finite; -1: none, or not known yet."""
        engine = self.engine
        queue, free = (0, -1) if engine.on_host else (engine.queue(), engine.room())
        if self._take is not None:
            self._take(scale, known_finite, queue, free, only)
            return -1
        if clip is None:
            return engine.core.step(scale, known_finite, queue, free, only)
        if len(engine.cores) == 1:
            (core,) = engine.cores.values()
            return core.step(scale, known_finite, queue, free, only, clip=clip)
        known = Queued(clip, scale).wait()  # parameters have moved apart since it was queued
        return engine.core.step(known.factor, known_finite or known.finite, queue, free, only)

    def _tell(self) -> None:
        """Logs what has become of the state. The core commits the last step for that, as the next one would."""
        if logger.isEnabledFor(logging.INFO) and not self.engine.capturing:
            self._residency.look(self.engine.core.report())

    def _check_capture(self) -> None:
        """ValueError for a step that would ask the device something while a graph is captured, which spoils the
        capture."""
        settings, cores = self.engine.settings, self.engine.core
        if isinstance(cores, Cores):
            got, advice = f"parameters on {cores.names()} while a graph is captured", "make an optimizer for each device"
            raise ValueError(f"step: got {got}, wanted one device: {advice}, or step without a graph")
        if any(place.mirrored for place in self.engine.cores):
            raise ValueError("step: got parameters that the CPU steps while a graph is captured, wanted Memory(step='device')")
        if settings.amp_scaling or (self.engine.meshes and self._agrees()):
            raise ValueError(
                "step: got amp_scaling, or DTensor parameters whose gradients are checked, while a graph is captured; "
                "wanted neither: they have the host decide on every step"
            )
        if self._clips():
            raise ValueError("step: got gradients to clip while a graph is captured, wanted none: see docs/devices.md")
        for core_group in self.engine.groups:
            options = core_group.options(self.param_groups)
            check_on_host(self.engine.family.keys, options, f"parameter group {core_group.of}")

    def prepare_replay(self) -> None:
        """To be called before each replay of a graph (`torch.cuda.CUDAGraph`) that a step was captured in, on the
        stream of the replay: counts a step, and gives the replay its number and the options as they are now.

        Before the capture take a step without it. All state must be on the device then
        (`report()["moved_per_step"]` is 0) and stay there; parameters and gradients keep their memory
        (zero_grad(set_to_none=False)). Gradients that are not finite do to a replay what they do to a step. Raises
        ValueError if no step has been captured or memory has moved, for a second call without a replay between, for a
        replay that was not prepared (it has changed nothing), after clip_grad_norm_ or with max_grad_norm, and, with
        nonfinite="raise", for the replay before if a gradient of it was not finite. With nonfinite="propagate" this does not
        wait for the last replay; what is wrong with it may then be raised by a later call."""
        if self._clips():
            raise ValueError("prepare_replay: got gradients to clip, wanted none: a captured step does not clip")
        self._push_options()
        self.engine.core.prepare_replay(1.0, self.engine.queue())

    def _scaling(self) -> tuple[float, bool | None]:
        """The factor of the gradients, and whether one is known not to be finite (None: unknown)."""
        if not self.engine.settings.amp_scaling or (found := getattr(self, "found_inf", None)) is None:
            return 1.0, None
        bad = float(found) > 0
        if bad or (loss_scale := getattr(self, "grad_scale", None)) is None:
            return 1.0, bad
        return 1.0 / float(loss_scale), bad

    def _agrees(self) -> bool:
        """Whether ranks with DTensor parameters agree on a step beforehand."""
        return self.engine.settings.nonfinite != "propagate"

    def _agree(self, scale: float, bad: bool | None, failure: Exception | None = None) -> bool:
        """Whether a gradient is not finite on any rank. If one rank cannot step, for `failure` or another reason, all of them
        raise."""
        engine, verdict = self.engine, sharding.OK
        try:
            if failure:
                raise failure
            if self._following(lambda: engine.core.check(scale, engine.queue())) >= 0 if bad is None else bad:
                verdict = sharding.NONFINITE
        except Exception as error:  # whatever it is: the other ranks are waiting
            failure, verdict = error, sharding.FAILED
        try:
            verdict = sharding.agree(engine.meshes, [param.sharding for param in engine.params], engine.tensors, verdict)
        finally:
            if failure:
                raise failure
        if verdict == sharding.FAILED:
            raise ValueError("another rank refused this step, and says why; nothing was changed")
        return verdict == sharding.NONFINITE
