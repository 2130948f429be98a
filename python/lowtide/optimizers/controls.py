"""The part of `Optimizer` that moves state between a device, RAM and disk, and says what is where."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from lowtide import _core
from lowtide.memory.budgets import size_of
from lowtide.optimizers.oom_guard import OomGuard
from lowtide.report.fields import Report
from lowtide.report.log import Residency, logger

if TYPE_CHECKING:
    from lowtide.devices.places import Place
    from lowtide.optimizers.backward import InBackward
    from lowtide.optimizers.optimizer import Optimizer

_ALL = 2**63 - 1


class Controls:
    """No bit of a result depends on these calls."""

    _core: _core.Optimizer
    _place: Place | None
    _residency: Residency
    _steps_before: int  # counted before this object was copied or unpickled
    _skipped_before: int  # likewise, and those that a GradScaler with amp_scaling asked for
    _automatic: bool  # whether a budget depends on what is free
    _in_backward: InBackward | None

    def offload(self) -> None:
        """Moves all state out of RAM to the disk of `memory`, or from a device to pinned host memory, to make room
        while no steps are taken (for generation, or another model). The next step, or whatever else needs the state,
        brings it back by itself; until then the tensors in `state` show zeros and must not be written.

        Raises ValueError if a budget that holds state has no disk, or not enough, or too little host memory; OSError,
        and then the state stays where it was."""
        self._core.offload()

    def onload(self) -> None:
        """Brings back what `offload` moved. Raises OSError; the state is then still on the disk."""
        self._core.onload()

    def demote(self, size: int | str | None = None) -> int:
        """Moves state out of device memory to the host until at least `size` bytes of it are free again (None: all that
        can go), and waits for that. With `Memory(device="auto")` it comes back when there has been room for a while;
        else it stays there, and streams. Returns the bytes freed: 0 where there are none to free, as on the CPU."""
        freed = self._core.demote(_ALL if size is None else size_of("size", size))
        if freed:
            logger.info("%d bytes of device memory were freed by moving state to the host", freed)
        return freed

    def prefetch(self, size: int | str) -> int:
        """Takes up to `size` bytes more of device memory and begins to read streaming state of the next step into it,
        after what is queued on torch's current stream; the step gives it back. Returns the bytes taken: 0 if nothing
        streams or memory is short. `prefetch_in_backward` calls it."""
        taken = self._core.prefetch(size_of("size", size), self._queue())
        logger.debug("%d bytes of state are read ahead", taken)
        return taken

    def synchronize(self) -> None:
        """Waits until all that steps have queued on a device has happened, state that streams back to the host
        included. Raises what queued work failed with."""
        self._core.synchronize()

    def oom_guard(self) -> OomGuard:
        """Lets state give way where torch runs out of device memory. To be put around what computes gradients:

            guarded = opt.oom_guard()(micro_batch)      # or as a decorator
            loss = guarded(inputs)                      # must not call opt.step()

        On `torch.OutOfMemoryError` all state moves to the host (`demote`), torch's cache is emptied, gradients that the
        call has begun are dropped, and it is called once more, with the random numbers of then. A second error is
        raised with what was tried; so is the first, if gradients that were there before the call have been added to.
        `with opt.oom_guard():` does the same but for the second call: the error goes on."""
        optimizer: Optimizer = self  # type: ignore[assignment]
        return OomGuard(optimizer)

    @property
    def skipped_steps(self) -> int:
        """Steps that changed nothing because a gradient was not finite (those that GradScaler keeps from this optimizer
        are not seen here). On a device, waits for the verdict on the last one."""
        return self._core.report()["skipped_steps"] + self._skipped_before

    def report(self) -> Report:
        """Memory in bytes, and counts: see `lowtide.report.fields.Report`. On a device, waits for the verdict on the last
        step."""
        found = self._core.report()
        self._residency.look(found)
        found["steps"] += self._steps_before - (self._in_backward.extra_steps if self._in_backward else 0)
        found["skipped_steps"] += self._skipped_before
        return {
            **found,
            "bytes_per_parameter": found["state_bytes"] / found["elements"] if found["elements"] else 0.0,
        }

    def _queue(self) -> int:
        """That torch works on now, on the parameters' device."""
        return self._place.queue() if self._place else 0

    def _free(self) -> int:
        """For the core's decisions about residency; -1: not asked for, or not known."""
        return self._place.free() if self._automatic and self._place else -1

    def _tell(self) -> None:
        """Logs what has become of the state. The core settles the last step for that, as the next one would."""
        place = self._place
        if place and not place.on_host and logger.isEnabledFor(logging.INFO) and not place.capturing():
            self._residency.look(self._core.report())
