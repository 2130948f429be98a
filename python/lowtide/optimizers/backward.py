"""The optimizer's work inside `backward()`: hooks on its parameters read state ahead, or step parameters and free their
gradients.

A parameter's hook runs when its gradient is complete, on the thread and the stream that computed it. In backward each device
has its own thread, so gradients are collected per device, and only that thread uses the device's core.
"""

from __future__ import annotations

import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import torch

from lowtide.checks.values import expect
from lowtide.devices import sharding
from lowtide.devices.places import Place
from lowtide.engine.engine import Engine
from lowtide.memory.budgets import size_of
from lowtide.memory.forecast import GRADIENT_BUCKET
from lowtide.options.options import BY_NORM, Options
from lowtide.report.log import is_called_by, warn

OPTIONS = ("prefetch_in_backward", "step_in_backward", "offload_in_backward")
_ASK_AFTER = 16 << 20  # bytes of gradients between two queries of free memory
_WITNESS_MOST = 1 << 20  # the most bytes of a gradient that stays until a step
_WITNESS_DTENSOR = 1024.0  # its value, above any norm to clip to
_KEEP_FREE = 32  # keeps 1 / this of device memory free for activations and gradients of uneven sizes


class InBackward(ABC):
    """Base class of work in backward. Keeps neither the optimizer nor its parameters alive."""

    option: ClassVar[str]  # the option that enables it
    under_way = False  # whether backward has changed parameters since the last step
    steps: int | None = None  # the user's steps, if the core also counts others

    def __init__(self, engine: Engine) -> None:
        self._of = weakref.ref(engine)
        self._handles: list[Any] = []
        self._unhooked: list[tuple[int, weakref.ref[torch.Tensor]]] = []  # frozen: their hooks must wait
        weakref.finalize(engine, _remove, self._handles).atexit = False

    def check(self, params: Sequence[torch.Tensor], where: str) -> None:
        """Raises ValueError for parameters that this work does not support."""

    def watch(self, params: Sequence[torch.Tensor], first: int) -> None:
        """Adds parameters, numbered from `first`."""
        self._unhooked += [(first + i, weakref.ref(param)) for i, param in enumerate(params)]
        self._hook()

    def watch_anew(self, params: Sequence[torch.Tensor]) -> None:
        """Replaces all parameters with other tensors."""
        _remove(self._handles)
        self._handles.clear()
        self._unhooked.clear()
        self.watch(params, 0)

    def before_step(self, closure: Callable[[], float] | None) -> None:
        """Raises ValueError if the step cannot be taken."""

    @abstractmethod
    def after_step(self, taken: bool) -> None:
        """Called when a step has been taken or has failed."""
        self._hook()

    @abstractmethod
    def arrived(self, engine: Engine, number: int, param: torch.Tensor) -> None:
        """Called when the gradient of a parameter is complete."""

    def _hook(self) -> None:
        waiting = []
        for number, ref in self._unhooked:
            param = ref()
            if param is not None and param.requires_grad:
                came = partial(self._came, number)
                self._handles.append(param.register_post_accumulate_grad_hook(came))  # type: ignore[no-untyped-call]
            elif param is not None:
                waiting.append((number, ref))
        self._unhooked = waiting

    def _came(self, number: int, param: torch.Tensor) -> None:
        if (engine := self._of()) is not None:
            self.arrived(engine, number, param)


def _remove(handles: list[Any]) -> None:
    for handle in handles:
        handle.remove()


@dataclass
class _Passes:
    """The backward passes of one device."""

    seen: set[int] = field(default_factory=set)  # parameters in the current pass
    passes: int = 0  # since the last step
    usual: int = 0  # passes before the last step
    taken: int = 0  # bytes, since the last step
    since: int = 0  # bytes of gradients since memory was last queried
    to_come: int = 0  # bytes of gradients still to come

    def end(self) -> None:
        self.usual = self.passes or self.usual
        self.passes = self.taken = self.since = 0
        self.seen.clear()


class PrefetchInBackward(InBackward):
    """Takes device memory that backward frees and reads the next step's state into it.

    If a step has several backward passes (gradient accumulation), only the last one does this. The previous step tells the
    number of passes, so the first step reads nothing ahead.
    """

    option = OPTIONS[0]

    def __init__(self, engine: Engine, limit: int | None) -> None:
        """limit: bytes; None: all free memory."""
        super().__init__(engine)
        self._limit = limit
        self._passes: dict[Place, _Passes] = {}

    def after_step(self, taken: bool) -> None:
        super().after_step(taken)
        for each in self._passes.values():
            each.end()

    def arrived(self, engine: Engine, number: int, param: torch.Tensor) -> None:
        if (place := engine.params[number].place) is None:  # foreign until a step
            return
        of = self._passes.setdefault(place, _Passes())
        if not of.passes or number in of.seen:
            of.passes += 1
            of.seen.clear()
            if of.passes == of.usual:
                here = (each.tensor for each in engine.params if each.place == place)
                of.to_come = param.nbytes + sum(p.nbytes for p in here if p.requires_grad and p.grad is None)
        of.seen.add(number)
        of.to_come -= param.nbytes
        of.since += param.nbytes
        if of.passes != of.usual or of.since < _ASK_AFTER or place.capturing():
            return
        of.since = 0
        wanted = (self._limit if self._limit is not None else place.memory()) - of.taken
        if (free := place.free()) >= 0:
            wanted = min(wanted, free - max(of.to_come, 0) - place.memory() // _KEEP_FREE)
        elif self._limit is None:
            return
        if wanted > 0:
            of.taken += engine.prefetch(wanted, place)


@dataclass
class _Bucket:
    """Parameters of one device whose gradients wait for a step."""

    numbers: list[int] = field(default_factory=list)
    size: int = 0  # bytes

    def clear(self) -> None:
        self.numbers.clear()
        self.size = 0


class StepInBackward(InBackward):
    """Steps gradients in one bucket per device once the bucket holds enough bytes, and steps the rest when backward ends. One
    bucket is stepped at a time, because all devices are told the options.

    DTensors fill buckets by the bytes of whole parameters, in the order in which `fully_shard` reduces gradients, so that all
    ranks step the same buckets and agree on each (unless nonfinite is "propagate").

    Stepped parameters count as changed in place: if autograd still needs earlier values, it raises instead of using the new
    ones.

    Clipping after backward would find nothing to clip and say nothing. To notice it, the first backward leaves the smallest
    gradient, as zeros, until `step()`; its version tells whether someone has written gradients. A DTensor's version does not
    change if a foreach function writes it, so a DTensor is filled with a value that clipping changes.
    """

    option = OPTIONS[1]
    NO_NORM = "no clipping: gradients are stepped and freed before the norm of all of them is known"

    def __init__(self, engine: Engine, step: Callable[[list[int]], None], bucket: int | None) -> None:
        """step: a method of the optimizer that steps parameters by number. bucket: bytes of gradients; None: 64 MiB."""
        super().__init__(engine)
        self._step = weakref.WeakMethod(step)
        self._bucket_bytes = GRADIENT_BUCKET if bucket is None else bucket
        self._stepped: set[int] = set()  # parameters whose gradients have arrived since the last step()
        self._buckets: dict[Place | None, _Bucket] = {}  # None: foreign parameters, which a step may adopt
        self._stepping = threading.Lock()
        self._smallest = -1  # the parameter whose gradient stays
        self._witness: tuple[torch.Tensor, int] | None = None  # that gradient and its version
        self._watches = True  # until a gradient has stayed until a step
        self.steps = 0

    @classmethod
    def refuse_norms(cls, engine: Engine, where: str, instead: str = "step() after backward") -> None:
        """Raises ValueError for options that need the norm of all gradients, and rules that need sums over them."""
        got = f"{engine.family.name}, whose d needs all gradients"
        expect(not engine.family.sums, where, got, f"{instead}, or another class")
        for name in BY_NORM:
            limit = getattr(engine.settings, name)
            expect(limit is None, where, f"{name}={limit}", f"{instead}, or {cls.NO_NORM}")

    @property
    def under_way(self) -> bool:  # type: ignore[override]
        return bool(self._stepped)

    def before_step(self, closure: Callable[[], float] | None) -> None:
        expect(closure is None, "step", "a closure with step_in_backward", "backward() before step()")
        engine, witness, self._witness = self._of(), self._witness, None
        if engine is None:
            return
        if witness is not None and engine.tensors[self._smallest].grad is witness[0]:
            engine.tensors[self._smallest].grad = None
        else:
            witness = None
        for number in self._stepped:
            if engine.tensors[number].grad is not None:
                raise ValueError(
                    f"step_in_backward: got a gradient of parameter {number} that came after backward() had stepped it, wanted none "
                    "(a wrapper's zeros?): zero_grad() drops it"
                )
        if witness is not None:
            self._watches = False
            wanted = "none: gradients were stepped, with their scale, and freed in backward()"
            expect(not is_called_by("_maybe_opt_step"), "step_in_backward", "a GradScaler", wanted)
            if _is_written(*witness):
                warn(
                    "step_in_backward: got gradients that were written between backward() and step(), by clip_grad_norm_? backward() "
                    "had stepped and freed them, so that had no effect, and a norm found there means nothing. Clip nothing "
                    "(max_grad_norm=0 in many trainers), or leave out step_in_backward"
                )

    def watch_anew(self, params: Sequence[torch.Tensor]) -> None:
        super().watch_anew(params)
        self._stepped.clear()
        self._witness = None

    def after_step(self, taken: bool) -> None:
        super().after_step(taken)
        self._stepped.clear()
        for bucket in self._buckets.values():
            bucket.clear()
        if taken and (engine := self._of()) is not None:
            self.steps = (self.steps or 0) + 1
            for param in engine.tensors:
                param.grad = None

    def arrived(self, engine: Engine, number: int, param: torch.Tensor) -> None:
        if number in self._stepped:
            self._witness = None
            raise ValueError(
                f"step_in_backward: got a second gradient of parameter {number} before step(), wanted one backward() for "
                "each step(): the first one has been stepped, so gradients cannot be accumulated (nor parameters "
                "shared between checkpoints with use_reentrant=True). To accumulate, leave out step_in_backward; to go on, call zero_grad() and step()"
            )
        if param.grad is None:
            raise ValueError(
                f"step_in_backward: the gradient of parameter {number} is gone, wanted no other hook that takes it: is "
                "there another optimizer of the same parameters?"
            )
        if param.grad.requires_grad:
            raise ValueError("step_in_backward: got create_graph=True, wanted False: parameters change during backward")
        bucket = self._buckets.setdefault(engine.params[number].place, _Bucket())
        if not self._stepped:
            _expect_alone(engine, self.option, "stepped")
            if self._watches:
                trained = [i for i, each in enumerate(engine.tensors) if each.requires_grad]
                self._smallest = min(trained, key=lambda i: engine.tensors[i].nbytes)
        if not bucket.numbers:
            torch.autograd.Variable._execution_engine.queue_callback(partial(self._flush, bucket))
        self._stepped.add(number)
        bucket.numbers.append(number)
        bucket.size += param.grad.nbytes
        if bucket.size >= self._bucket_bytes:
            self._flush(bucket)

    def flush(self) -> None:
        """Steps all waiting gradients. Called in backward, on its thread."""
        for bucket in self._buckets.values():
            self._flush(bucket)

    def _flush(self, bucket: _Bucket) -> None:
        engine, step = self._of(), self._step()
        if engine is None or step is None or not bucket.numbers:
            return
        with self._stepping, torch.no_grad():
            step(bucket.numbers)
        for number in bucket.numbers:
            param = engine.tensors[number]
            grad, param.grad = param.grad, None
            if self._watches and number == self._smallest and grad is not None and param.nbytes <= _WITNESS_MOST:
                param.grad = torch.full_like(grad, _WITNESS_DTENSOR if sharding.is_dtensor(grad) else 0.0)
                self._witness = (param.grad, param.grad._version)
        bucket.clear()


class OffloadInBackward(InBackward):
    """Moves gradients of parameters that the CPU steps to the host as soon as they are complete, sums them there over several
    passes, and frees them on the device. They are dropped after a successful step."""

    option = OPTIONS[2]

    def check(self, params: Sequence[torch.Tensor], where: str) -> None:
        for i, param in enumerate(params):
            wanted = "a plain tensor: wrappers look for the gradients of shards on the device"
            expect(not sharding.is_dtensor(param), f"{where}, parameter {i}", f"a DTensor with {self.option}", wanted)

    @property
    def under_way(self) -> bool:  # type: ignore[override]
        engine = self._of()
        return engine is not None and engine.holders() is not engine.tensors

    def after_step(self, taken: bool) -> None:
        super().after_step(taken)
        if taken:
            self.drop()

    def drop(self) -> None:
        """Drops the gradients."""
        if (engine := self._of()) is not None:
            engine.drop_gradients()

    def arrived(self, engine: Engine, number: int, param: torch.Tensor) -> None:
        if param.grad is None:
            return
        expect(not param.grad.requires_grad, self.option, "create_graph=True", "False: gradients leave the device")
        _expect_alone(engine, self.option, "copied")
        if engine.take_gradient(number):
            param.grad = None


def _expect_alone(engine: Engine, option: str, done: str) -> None:
    """Raises ValueError if other processes may still add to gradients. DTensors on a mesh of all processes are complete."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        size = torch.distributed.get_world_size()
        if size > 1 and not all(param.sharding and param.sharding.spec.mesh.size() == size for param in engine.params):
            got = f"a process group of {size} processes, and parameters that are not DTensors on a mesh of all of them"
            wanted = f"fully_shard, or no group: gradients of the others are added (by DistributedDataParallel) after they would have been {done}"
            raise ValueError(f"{option}: got {got}, wanted {wanted}")


def _is_written(witness: torch.Tensor, version: int) -> bool:
    if sharding.is_dtensor(witness):
        return bool((sharding.local_of(witness) != _WITNESS_DTENSOR).any())
    return witness._version != version


def options_of(options: Options) -> dict[str, Any]:
    """The options that `in_backward` reads."""
    return {name: options[name] for name in OPTIONS if name in options}  # type: ignore[literal-required]


def in_backward(
    engine: Engine, options: dict[str, Any], step: Callable[[list[int]], None]
) -> InBackward | None:
    """The hooks that the options request, if any. step: see `StepInBackward`. Raises ValueError or TypeError for unsupported
    options."""
    prefetch, at_once, away = (options.get(name, False) for name in OPTIONS)
    asked = [name for name in OPTIONS if options.get(name, False) is not False]
    if len(asked) > 1:
        raise ValueError(f"got both {' and '.join(asked)}, wanted one: steps read ahead themselves, and free gradients")
    if away is not False:
        wanted = "False: GradScaler looks for gradients on the device"
        expect(not engine.settings.amp_scaling, "offload_in_backward", "amp_scaling=True", wanted)
        return OffloadInBackward(engine)
    if at_once is not False:
        wanted = "False: the scale's verdict comes after backward"
        expect(not engine.settings.amp_scaling, "step_in_backward", "amp_scaling=True", wanted)
        StepInBackward.refuse_norms(engine, "step_in_backward", "step_in_backward=False")
        return StepInBackward(engine, step, None if at_once is True else size_of("step_in_backward", at_once))
    if prefetch is not False:
        return PrefetchInBackward(engine, None if prefetch is True else size_of("prefetch_in_backward", prefetch))
    return None
