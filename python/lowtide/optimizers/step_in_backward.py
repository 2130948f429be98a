"""Gradient release: parameters are stepped during `backward()`, and their gradients freed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from lowtide.checks.values import expect
from lowtide.devices import sharding
from lowtide.engine.engine import Engine
from lowtide.memory.budgets import size_of
from lowtide.optimizers.backward import InBackward, PrefetchInBackward
from lowtide.options.options import Options

OPTIONS = ("prefetch_in_backward", "step_in_backward")
_BUCKET = 64 << 20  # bytes: a call for each small gradient would cost more than stepping it


class StepInBackward(InBackward):
    """Steps gradients in buckets, as soon as there are so many bytes of them, and the rest when backward ends.

    Parameters that are stepped count as changed in place: should autograd still need the values of before, it says so
    instead of computing with the new ones.
    """

    def __init__(self, engine: Engine, step: Callable[[list[int]], None], bucket: int | None) -> None:
        """step: a method of the optimizer that steps parameters by number. bucket: bytes of gradients; None: 64 MiB."""
        super().__init__(engine)
        self._step = weakref.WeakMethod(step)
        self._bucket_bytes = _BUCKET if bucket is None else bucket
        self._stepped: set[int] = set()  # parameters whose gradients have come since the last step()
        self._bucket: list[int] = []  # those that wait
        self._bytes = 0  # of these

    @property
    def under_way(self) -> bool:  # type: ignore[override]
        return bool(self._stepped)

    def check(self, params: Sequence[torch.Tensor], where: str) -> None:
        wanted = "a plain tensor: ranks decide on a step together, when all gradients are there"
        for i, param in enumerate(params):
            plain = not sharding.is_dtensor(param)
            expect(plain, f"{where}, parameter {i}", "a DTensor with step_in_backward", wanted)

    def before_step(self, closure: Callable[[], float] | None) -> None:
        expect(closure is None, "step", "a closure with step_in_backward", "backward() before step()")

    def after_step(self, taken: bool) -> None:
        super().after_step(taken)
        self._stepped.clear()
        self._bucket.clear()
        self._bytes = 0
        if taken and (engine := self._of()) is not None:
            for param in engine.params:
                param.grad = None

    def arrived(self, engine: Engine, number: int, param: torch.Tensor) -> None:
        if number in self._stepped:
            raise ValueError(
                f"step_in_backward: got a second gradient of parameter {number} before step(), wanted one backward() for "
                "each step(): the first one has been stepped, so gradients cannot be accumulated (nor parameters "
                "shared between checkpoints with use_reentrant=True). Call step() to go on"
            )
        if param.grad is None:
            raise ValueError(
                f"step_in_backward: the gradient of parameter {number} is gone, wanted no other hook that takes it: is "
                "there another optimizer of the same parameters?"
            )
        if param.grad.requires_grad:
            raise ValueError("step_in_backward: got create_graph=True, wanted False: parameters change during backward")
        if not self._bucket:
            self._begin()
        self._stepped.add(number)
        self._bucket.append(number)
        self._bytes += param.grad.numel() * param.grad.element_size()
        if self._bytes >= self._bucket_bytes:
            self._flush()

    def _begin(self) -> None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            size = torch.distributed.get_world_size()
            added = "are added (by DistributedDataParallel) after they would have been stepped"
            got, wanted = f"a process group of {size} processes", f"none: gradients of the others {added}"
            expect(size <= 1, "step_in_backward", got, wanted)
        torch.autograd.Variable._execution_engine.queue_callback(self._flush)

    def _flush(self) -> None:
        engine, step = self._of(), self._step()
        if engine is None or step is None or not self._bucket:
            return
        with torch.no_grad():
            step(self._bucket)
        self.extra_steps += 1
        for number in self._bucket:
            engine.params[number].grad = None
        self._bucket.clear()
        self._bytes = 0


def options_of(options: Options) -> dict[str, Any]:
    """Those that `in_backward` reads."""
    return {name: options[name] for name in OPTIONS if name in options}  # type: ignore[literal-required]


def in_backward(
    engine: Engine, options: dict[str, Any], step: Callable[[list[int]], None]
) -> InBackward | None:
    """The hooks that the options ask for; `step`: see `StepInBackward`. Raises ValueError or TypeError for options that
    cannot be had."""
    prefetch, at_once = (options.get(name, False) for name in OPTIONS)
    if prefetch is not False and at_once is not False:
        raise ValueError("got both prefetch_in_backward and step_in_backward, wanted one: steps read ahead themselves")
    if at_once is not False:
        wanted = "False: the scale's verdict comes after backward"
        expect(not engine.settings.amp_scaling, "step_in_backward", "amp_scaling=True", wanted)
        return StepInBackward(engine, step, None if at_once is True else size_of("step_in_backward", at_once))
    if prefetch is not False:
        return PrefetchInBackward(engine, None if prefetch is True else size_of("prefetch_in_backward", prefetch))
    return None
