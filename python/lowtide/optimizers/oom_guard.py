"""Frees the state's device memory when memory runs out outside the optimizer."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from types import TracebackType
from typing import ParamSpec, TypeVar

import torch

from lowtide import _core
from lowtide.devices.torch_memory import OutOfMemory
from lowtide.engine.engine import Engine
from lowtide.optimizers.backward import InBackward
from lowtide.report.log import logger

P = ParamSpec("P")
R = TypeVar("R")


class OomGuard:
    """See `Optimizer.oom_guard`."""

    def __init__(self, engine: Engine, in_backward: InBackward | None) -> None:
        self._engine, self._in_backward = engine, in_backward

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
            gradients = [(grad, grad._version) if grad is not None else None for grad in self._gradients()]
            try:
                return function(*args, **kwargs)
            except OutOfMemory as error:
                first = str(error)
            # The error is gone here, and with it the frames that held activations.
            tried = self._relieve()
            if not self._take_back(gradients):
                raise OutOfMemory(
                    f"{first} ({tried}; not tried again: backward has added to gradients that were there before. Zero them and "
                    "repeat the step)"
                )
            try:
                return function(*args, **kwargs)
            except OutOfMemory as error:
                second = str(error)
            raise OutOfMemory(f"{second} ({tried}, and tried again)")

        return guarded

    def __enter__(self) -> OomGuard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and issubclass(kind, OutOfMemory):
            self._relieve()

    def _gradients(self) -> list[torch.Tensor | None]:
        return [param.grad for param in self._engine.tensors]

    def _take_back(self, before: list[tuple[torch.Tensor, int] | None]) -> bool:
        """Restores gradients. Returns False if that is impossible."""
        if self._in_backward is not None and self._in_backward.under_way:
            return False
        for old, now in zip(before, self._gradients(), strict=True):
            if old is not None and (now is not old[0] or now._version != old[1]):
                return False
        for param, old in zip(self._engine.tensors, before, strict=True):
            if old is None:
                param.grad = None
        return True

    def _relieve(self) -> str:
        """Releases device memory, and describes what it did."""
        gc.collect()  # frees cycles through the frames of the error
        freed = self._engine.demote()
        for kind in {place.device.type: place.kind for place in self._engine.cores}.values():
            kind.empty_cache()
        done = f"lowtide moved {_core.format_bytes(freed)} of state to host memory and emptied torch's cache"
        logger.info("out of memory: %s", done)
        return done
