"""`Optimizer.state[p]` of bitsandbytes' classes: Lowtide's names, and bitsandbytes' for the code that reads those."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lowtide.engine.elsewhere import Shown
from lowtide.engine.engine import Engine
from lowtide.state.foreign.bitsandbytes import MOMENTS, part_of

_PARTS = ("state", "qmap", "absmax")
_NORM = "unorm_vec"


class ReadCopy(Tensor):
    """A copy of state that can be read as any tensor. A write, which the state would not notice, raises RuntimeError; so
    does one into a view of it."""

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name, kwargs = getattr(function, "__name__", ""), kwargs or {}
        in_place = (name.endswith("_") and not name.endswith("__")) or name in ("__setitem__", "__set__")
        in_place |= name.startswith("__i") and name not in ("__int__", "__index__", "__invert__")
        written = [kwargs.get("out"), *(args[:1] if in_place else ())]
        if any(isinstance(one, ReadCopy) for one in written) and name != "requires_grad_":
            raise RuntimeError(
                f"got a write ({name}) into a copy of optimizer state, wanted none: the state would not have it. "
                "load_state_dict() takes a changed bitsandbytes_state_dict()"
            )
        with torch._C.DisableTorchFunctionSubclass():
            result = function(*args, **kwargs)
            shares = isinstance(result, Tensor) and any(
                isinstance(one, ReadCopy) and one.untyped_storage().data_ptr() == result.untyped_storage().data_ptr()
                for one in args[:1]
            )
            return result.as_subclass(ReadCopy) if shares else result


class Entry(Shown):
    """The state of one parameter: a dict of Lowtide's names, as `lowtide.Optimizer` has it, whose keys are also "state1",
    "state2", "qmap1", "qmap2", "absmax1", "absmax2", of bitsandbytes' shapes and types.

    These are views of the live state where its memory is the same: rows of a multiple of 256 elements (or a single row),
    one state in each, resident in RAM. Otherwise they are copies, which refuse to be written; so do maps. Iterating gives
    Lowtide's names alone, so that sizes are not counted twice.
    """

    def __init__(self, engine: Engine, number: int, shown: dict[str, Tensor]) -> None:
        super().__init__(shown)
        self._engine, self._number = engine, number

    def _names(self) -> list[str]:
        """bitsandbytes' names of what there is. Of a DTensor there are none: it has no other than whole ones."""
        engine, number = self._engine, self._number
        if engine.shardings[number] or not engine.core.has_state(number):
            return []
        live = engine.signed(number).keys() if self._streams() else self.keys()
        states = [k for k, parts in enumerate(MOMENTS.get(engine.family.rule, ()), 1) if set(parts) <= live]
        coded = engine.core.state_codec(number) == "dynamic8"
        return [f"{part}{k}" for k in states for part in (_PARTS if coded else _PARTS[:1])]

    def __missing__(self, key: str) -> Tensor:
        if key == _NORM:
            raise KeyError("unorm_vec: got a question for the norm of the last update, which is not kept")
        if key not in self._names():
            raise KeyError(key)
        streams = self._streams()
        live = self._engine.core.read_state(self._number) if streams else self
        found = part_of(self._engine, self._number, live, int(key[-1]))[key]
        if streams:
            return found.as_subclass(ReadCopy)
        memory = {one.untyped_storage().data_ptr() for one in self.values()}
        return found if found.untyped_storage().data_ptr() in memory else found.as_subclass(ReadCopy)

    def _streams(self) -> bool:
        return self._engine.core.is_paged(self._number)

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or key in self._names()

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default

    def __setitem__(self, key: str, value: Any) -> None:
        """Copies `value` into a view. KeyError for what is none, so that nothing is lost in silence."""
        if super().__contains__(key) or key not in self._names():
            super().__setitem__(key, value)
            return
        self[key].copy_(value)
