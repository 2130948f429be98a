"""Parameters on a device that the CPU steps: on accelerators without Lowtide kernels, or assigned to the CPU by a budget
(`engine.host_steps`).

A step uses torch to copy weights and gradients to host memory, steps there, and copies the weights back. State, masters and all
else are the same, bit for bit, as for parameters on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import ref

import torch

from lowtide import _core
from lowtide.checks.values import expect
from lowtide.devices import places
from lowtide.devices.places import Place
from lowtide.devices.sharding import local_of
from lowtide.memory.forecast import Budget


class _Mirror:
    """Host copies of a parameter and its gradient."""

    def __init__(self, param: torch.Tensor, number: int, device: torch.device) -> None:
        local = local_of(param)
        self.param, self.number, self._device = param, number, device
        # Nothing is copied before a step, and the memory of a frozen parameter is never touched.
        weights = _host_memory(local, device if param.requires_grad else None)
        self.host = torch.nn.Parameter(weights, requires_grad=param.requires_grad)
        self._came = -1  # version of the weights that a check copied for its step
        self.returns = False  # whether the host has weights that the device lacks
        self._buffer: torch.Tensor | None = None  # holds gradients
        self._fetched: ref[torch.Tensor] | None = None  # the gradient whose copy is in the buffer
        self._at = -1  # version of that gradient
        self.taken = 0  # gradients since the last step that only the host has, summed in the buffer
        self._staged: torch.Tensor | None = None  # the last taken gradient, until it is added
        self._staging: torch.Tensor | None = None  # memory for it
        self._mark: Any = None  # marks the end of its copy

    def take(self) -> None:
        """Queues a copy of the gradient, to be added to earlier ones. The device's gradient may then be freed."""
        grad = self.param.grad
        assert grad is not None
        self._check(grad)
        self.gather()
        local = local_of(grad).detach()
        if self._buffer is None:
            self._buffer = _host_memory(local, self._device)
        if self.taken and self._staging is None:
            self._staging = _host_memory(local, self._device)
        target = self._staging if self.taken else self._buffer
        assert target is not None
        _copy(target, local)
        self._mark, self._staged = _mark_of(self._device), target if self.taken else None
        if not self.taken:
            self.host.grad = self._buffer.view_as(self._buffer)  # not the object of the previous step
        self.taken += 1

    def gather(self) -> None:
        """Waits for the copy of the last gradient and adds it to earlier ones, as autograd does on the device."""
        if self._mark is not None:
            self._mark.synchronize()
            self._mark = None
        if self._staged is not None and self.host.grad is not None:
            self.host.grad.add_(self._staged)
        self._staged = None

    def drop(self) -> None:
        """Drops the gradients that were taken."""
        if self.taken:
            self.gather()
            self.taken, self.host.grad = 0, None

    def fetch(self) -> bool:
        """Queues a copy of the gradient unless the host has it. Returns whether it did."""
        grad = self.param.grad
        if self.taken:
            if grad is not None:  # set without the hook
                self.take()
                self.param.grad = None
            self.gather()
            return False
        if grad is None:
            self.host.grad = self._fetched = None
            return False
        self._check(grad)
        if self._fetched is not None and self._fetched() is grad and self._at == grad._version:
            return False
        local = local_of(grad).detach()
        if self._buffer is None:
            self._buffer = _host_memory(local, self._device)
        self._fetched = None
        _copy(self._buffer, local)
        self._fetched, self._at = ref(grad), grad._version
        self.host.grad = self._buffer
        return True

    def fetch_weights(self) -> None:
        """Queues a copy of the weights, which users may have changed since the last step."""
        _copy(self.host.detach(), local_of(self.param).detach())
        self._came = self.param._version

    @property
    def came(self) -> bool:
        """True if the host has the weights for the current step."""
        return self._came == self.param._version

    def push(self) -> None:
        """Queues the copy of the weights to the device."""
        _copy(local_of(self.param).detach(), self.host.detach())
        self.returns = False

    def leave_weights(self) -> None:
        """Makes the next request copy the weights, because version counters miss writes through `.data`."""
        self._came = -1

    def forget(self) -> None:
        """Makes the next request copy gradient and weights again."""
        self._fetched, self._came = None, -1

    def _check(self, grad: torch.Tensor) -> None:
        local, where = local_of(self.param), f"parameter {self.number}"
        for name, got, wanted in (
            ("dtype", local.dtype, self.host.dtype),
            ("shape", tuple(local.shape), tuple(self.host.shape)),
        ):
            expect(got == wanted, where, f"{name} {got}", f"{wanted}, as when the optimizer was built")
        layout = local_of(grad).layout
        expect(layout == torch.strided, f"gradient of {where}", f"layout {layout}", "a dense gradient")


class MirrorCore(_core.Optimizer):
    """A CPU core for parameters on another device. Replaces `_core.Optimizer` in every call.

    Copies are queued on torch's current stream of the device, and the CPU waits for them before it steps. When a step returns,
    the copies back are queued there."""

    def __init__(
        self, place: Place, rule: str, nonfinite: str, threads: int, cpu_target: str, budget: Budget | None, *more: Any
    ) -> None:
        """place: where the parameters are. The other arguments are those of `_core.Optimizer`."""
        super().__init__(rule, nonfinite, threads, cpu_target, budget, *more)
        self._device, self._has_disk = place.device, bool(budget and budget.disk)
        self._mirrors: list[_Mirror | None] = []  # by number; None: a stand-in
        self._marks: list[Any] = []  # marks of copies that may be running

    def add_param(self, group: int, param: torch.Tensor, with_state: bool = True, whole: Any = None) -> int:
        local = local_of(param)
        if places.device_of(local).type == "cpu":
            number = super().add_param(group, param, with_state, whole)
            self._mirrors.append(None)
            return number
        mirror = _Mirror(param, len(self._mirrors), self._device)
        number = super().add_param(group, mirror.host, with_state, whole)
        self._mirrors.append(mirror)
        return number

    def check(self, grad_scale: float = 1.0, stream: int = 0, assume_finite: bool = False, free_bytes: int = -1,
              only: Sequence[int] | None = None) -> int:  # fmt: skip
        for mirror in self._of(only):
            mirror.leave_weights()
        self._fetch(only, weights=True, wait_for_weights=False)
        return super().check(grad_scale, stream, assume_finite, free_bytes, only)

    def gradient_sums(self, only: Sequence[int] | None = None, stream: int = 0) -> Any:
        self._fetch(only)
        return super().gradient_sums(only, stream)

    def term_sums(self, grad_scale: float = 1.0, only: Sequence[int] | None = None, stream: int = 0) -> Any:
        self._fetch(only)
        return super().term_sums(grad_scale, only, stream)

    def step(
        self, grad_scale: float = 1.0, assume_finite: bool = False, stream: int = 0, free_bytes: int = -1,
        only: Sequence[int] | None = None, directions: Sequence[int] | None = None, clip: Any = None,
        loss_scale: int = 0, found_inf: int = 0, updates: Sequence[tuple[int, int, float]] | None = None,
        sums: tuple[Sequence[int], bool] | None = None,
    ) -> int:  # fmt: skip
        """Like `_core.Optimizer.step`. If a disk fails, changes made before are copied back, too. Raises RuntimeError if the
        device fails: before the step, nothing has changed; after it, weights that could not be copied back stay in host memory
        for `synchronize` or the next step."""
        if directions is not None:  # moves nothing
            self._fetch(only)
            return super().step(grad_scale, assume_finite, stream, free_bytes, only, directions)
        self._return()
        taken = self._fetch(only, weights=True)
        bad = -1
        try:
            bad = super().step(grad_scale, assume_finite, stream, free_bytes, only, None, clip, loss_scale, found_inf, updates, sums)
        finally:
            for mirror in taken:
                mirror.forget()
                mirror.returns = bad < 0
            self._return()
        return bad

    def set_evaluating(self, evaluating: bool, stream: int = 0) -> None:
        """Like `_core.Optimizer.set_evaluating`. Changed weights are on the device when it returns or raises."""
        before = [self.evaluating(i) for i in range(len(self._mirrors))]
        moved = {i: mirror for i, mirror in enumerate(self._mirrors) if mirror and self.has_state(i) and before[i] != evaluating}
        if not moved:  # frameworks call this before every batch: do not wait
            super().set_evaluating(evaluating, stream)
            return
        self._return()
        with self._told("copying weights to the host: nothing was changed"):
            self._wait()
            for mirror in moved.values():
                mirror.fetch_weights()
            self._mark()
            self._wait()
        try:
            super().set_evaluating(evaluating, stream)
        finally:
            for i, mirror in moved.items():
                mirror.forget()
                mirror.returns = self.evaluating(i) != before[i]
            self._return()
            self._wait()

    def synchronize(self) -> None:
        super().synchronize()
        self._return()
        self._wait()

    def offload(self) -> None:
        """Like `_core.Optimizer.offload`. Without a disk it does nothing, because no state is on the device."""
        if self._has_disk:
            super().offload()

    def take(self, number: int) -> bool:
        """Queues a copy of a parameter's gradient, to be added to those taken since the last step; the device's gradient may
        then be freed. Returns whether the parameter is on the device. Raises RuntimeError if the device fails, and the gradient
        stays where it was."""
        if (mirror := self._mirrors[number]) is None:
            return False
        with self._told("copying a gradient to the host: it is on the device still"):
            mirror.take()
        return True

    def holders(self) -> dict[int, torch.Tensor]:
        """The tensors that hold taken gradients as `.grad`, by number of the parameter. Waits for their copies."""
        taken = {i: mirror for i, mirror in enumerate(self._mirrors) if mirror is not None and mirror.taken}
        with self._told("copying gradients to the host: nothing was changed"):
            for mirror in taken.values():
                mirror.gather()
        return {i: mirror.host for i, mirror in taken.items()}

    def drop(self) -> None:
        """Drops the gradients that were taken."""
        for mirror in self._of(None):
            mirror.drop()

    def _of(self, only: Sequence[int] | None) -> list[_Mirror]:
        numbers = range(len(self._mirrors)) if only is None else only
        return [mirror for number in numbers if (mirror := self._mirrors[number]) is not None]

    def _fetch(self, only: Sequence[int] | None, weights: bool = False, wait_for_weights: bool = True) -> list[_Mirror]:
        """Copies gradients to the host and, if requested, the weights of their parameters. Returns the parameters with
        gradients."""
        with self._told("copying gradients and weights to the host: nothing was changed"):
            mirrors = self._of(only)
            if not weights or not all(mirror.came for mirror in mirrors if mirror.host.grad is not None):
                self._wait()  # copies may still use the host memory
            queued = [mirror.fetch() for mirror in mirrors]
            if any(queued) and not wait_for_weights:
                self._mark()
            of_gradients = len(self._marks)
            taken = [mirror for mirror in mirrors if mirror.host.grad is not None]
            missing = [mirror for mirror in taken if not mirror.came] if weights else []
            for mirror in missing:
                mirror.fetch_weights()
            if missing or (any(queued) and wait_for_weights):
                self._mark()
            self._wait(None if wait_for_weights else of_gradients)
        return taken

    def _return(self) -> None:
        """Copies back weights that the device lacks."""
        left = [mirror for mirror in self._of(None) if mirror.returns]
        if not left:
            return
        with self._told("copying weights back after the step: synchronize(), or the next step, tries again"):
            for mirror in left:
                mirror.push()
            self._mark()

    def _mark(self) -> None:
        if (mark := _mark_of(self._device)) is not None:
            self._marks.append(mark)

    def _wait(self, first: int | None = None) -> None:
        """Waits for the first `first` marks, or for all."""
        while self._marks[:first]:
            self._marks.pop(0).synchronize()
            first = None if first is None else first - 1

    @contextmanager
    def _told(self, doing: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise RuntimeError(f"{self._device} failed while {doing} ({error})") from None


def _host_memory(like: torch.Tensor, device: torch.device | None) -> torch.Tensor:
    """Uninitialized host memory for a copy. It is page-locked, so that copies can be queued, if `device` supports that."""
    if device is not None and hasattr(torch.get_device_module(device), "current_stream"):
        try:
            return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)
        except RuntimeError:  # the device has no page-locked memory
            pass
    return torch.empty(like.shape, dtype=like.dtype)


def _copy(to: torch.Tensor, source: torch.Tensor) -> None:
    """Queues a copy on torch's current stream."""
    to.copy_(source, non_blocking=True)


def _mark_of(device: torch.device) -> Any:
    """An object whose `synchronize()` waits for the work now on torch's current stream; None without streams, where copies
    themselves wait."""
    module = torch.get_device_module(device)
    if not hasattr(module, "current_stream"):
        return None
    stream = module.current_stream(device)
    if not hasattr(module, "Event"):
        return stream
    event = module.Event()
    event.record(stream)
    return event
