"""The optimizer's work inside `backward()`: hooks on its parameters, and reading ahead.

The hook of a parameter runs when its gradient is complete, on the thread and the stream that computed it.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch

from lowtide.engine.engine import Engine

_ASK_AFTER = 16 << 20  # bytes of gradients: what is free is asked for once in so many
_KEEP_FREE = 32  # 1 / that of the device's memory stays free: activations and gradients are not cut to measure


class InBackward(ABC):
    """Base class of what is done there. Keeps neither the optimizer nor its parameters alive."""

    under_way = False  # whether backward has changed parameters since the last step
    extra_steps = 0  # that the core has counted beyond those of the user

    def __init__(self, engine: Engine) -> None:
        self._of = weakref.ref(engine)
        self._handles: list[Any] = []
        self._unhooked: list[tuple[int, weakref.ref[torch.Tensor]]] = []  # frozen: their hooks have to wait
        weakref.finalize(engine, _remove, self._handles).atexit = False

    def check(self, params: Sequence[torch.Tensor], where: str) -> None:
        """ValueError for parameters with which it cannot be done."""

    def watch(self, params: Sequence[torch.Tensor], first: int) -> None:
        """Takes in parameters, numbered from `first` on."""
        self._unhooked += [(first + i, weakref.ref(param)) for i, param in enumerate(params)]
        self._hook()

    def before_step(self, closure: Callable[[], float] | None) -> None:
        """ValueError for a step that cannot be taken."""

    @abstractmethod
    def after_step(self, taken: bool) -> None:
        """The step has been taken, or has failed with an error."""
        self._hook()

    @abstractmethod
    def arrived(self, engine: Engine, number: int, param: torch.Tensor) -> None:
        """The gradient of a parameter is complete."""

    def _hook(self) -> None:
        waiting = []
        for number, ref in self._unhooked:
            param = ref()
            if param is not None and param.requires_grad:
                hook = param.register_post_accumulate_grad_hook(self._call(number))  # type: ignore[no-untyped-call]
                self._handles.append(hook)
            elif param is not None:
                waiting.append((number, ref))
        self._unhooked = waiting

    def _call(self, number: int) -> Callable[[torch.Tensor], None]:
        def call(param: torch.Tensor) -> None:
            if (engine := self._of()) is not None:
                self.arrived(engine, number, param)

        return call


def _remove(handles: list[Any]) -> None:
    for handle in handles:
        handle.remove()


class PrefetchInBackward(InBackward):
    """Takes device memory that backward frees, to read state of the next step into it.

    With several backward passes for a step (gradient accumulation) only the last one does; how many there are is
    learned from the step before, so the first step reads nothing ahead.
    """

    def __init__(self, engine: Engine, limit: int | None) -> None:
        """limit: bytes; None: what is free."""
        super().__init__(engine)
        self._limit = limit
        self._seen: set[int] = set()  # in this pass
        self._passes = self._usual = 0  # since the last step, and before it
        self._taken = self._since = 0  # bytes taken, and of gradients since the last question
        self._to_come = 0  # bytes of gradients

    def after_step(self, taken: bool) -> None:
        super().after_step(taken)
        if self._passes:
            self._usual = self._passes
        self._passes = self._taken = self._since = 0
        self._seen.clear()

    def arrived(self, engine: Engine, number: int, param: torch.Tensor) -> None:
        if not self._passes or number in self._seen:
            self._passes += 1
            self._seen.clear()
            if self._passes == self._usual:
                late = (p for p in engine.params if p.requires_grad and p.grad is None)
                self._to_come = _bytes(param) + sum(map(_bytes, late))
        self._seen.add(number)
        self._to_come -= _bytes(param)
        self._since += _bytes(param)
        place = engine.place
        if self._passes != self._usual or self._since < _ASK_AFTER or place is None or place.capturing():
            return
        self._since = 0
        wanted = (self._limit if self._limit is not None else place.memory()) - self._taken
        if (free := place.free()) >= 0:
            wanted = min(wanted, free - max(self._to_come, 0) - place.memory() // _KEEP_FREE)
        elif self._limit is None:
            return
        if wanted > 0:
            self._taken += engine.prefetch(wanted)


def _bytes(param: torch.Tensor) -> int:
    return param.numel() * param.element_size()
