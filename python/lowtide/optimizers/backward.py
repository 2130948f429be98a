"""The optimizer's work inside `backward()`: hooks on its parameters, which read state ahead, or step parameters and free
their gradients.

The hook of a parameter runs when its gradient is complete, on the thread and the stream that computed it.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch

from lowtide.checks.values import expect
from lowtide.devices import sharding
from lowtide.engine.engine import Engine
from lowtide.engine.examined import examine_all
from lowtide.memory.budgets import size_of
from lowtide.options.options import Options

OPTIONS = ("prefetch_in_backward", "step_in_backward")
_BUCKET = 64 << 20  # bytes: a call for each small gradient would cost more than stepping it
_ASK_AFTER = 16 << 20  # bytes of gradients: what is free is asked for once in so many
_KEEP_FREE = 32  # 1 / that of the device's memory stays free: activations and gradients are not cut to measure


class InBackward(ABC):
    """Base class of what is done there. Keeps neither the optimizer nor its parameters alive."""

    option: ClassVar[str]  # that asks for it
    under_way = False  # whether backward has changed parameters since the last step
    extra_steps = 0  # that the core has counted beyond those of the user

    def __init__(self, engine: Engine) -> None:
        self._of = weakref.ref(engine)
        self._handles: list[Any] = []
        self._unhooked: list[tuple[int, weakref.ref[torch.Tensor]]] = []  # frozen: their hooks have to wait
        weakref.finalize(engine, _remove, self._handles).atexit = False

    def check(self, params: Sequence[torch.Tensor], where: str) -> None:
        """ValueError for parameters with which it cannot be done: on devices beside others, as each has a thread of its own
        in backward."""
        if (engine := self._of()) is not None:
            names = [f"{where}, parameter {i}" for i in range(len(params))]
            found = examine_all(params, names, engine.settled).places
            wanted = engine.wanted_places([*engine.places, *found])
            got = f"{self.option} with parameters on {' and '.join(str(place.device) for place in wanted)}"
            expect(len(wanted) == 1, where, got, "one device: make an optimizer for each")

    def watch(self, params: Sequence[torch.Tensor], first: int) -> None:
        """Takes in parameters, numbered from `first` on."""
        self._unhooked += [(first + i, weakref.ref(param)) for i, param in enumerate(params)]
        self._hook()

    def watch_anew(self, params: Sequence[torch.Tensor]) -> None:
        """Takes in other tensors in place of all parameters."""
        _remove(self._handles)
        self._handles.clear()
        self._unhooked.clear()
        self.watch(params, 0)

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

    option = OPTIONS[0]

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


class StepInBackward(InBackward):
    """Steps gradients in buckets, as soon as there are so many bytes of them, and the rest when backward ends.

    Parameters that are stepped count as changed in place: should autograd still need the values of before, it says so
    instead of computing with the new ones.
    """

    option = OPTIONS[1]

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
        super().check(params, where)
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
        self._bytes += _bytes(param.grad)
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


def _bytes(param: torch.Tensor) -> int:
    return param.numel() * param.element_size()
