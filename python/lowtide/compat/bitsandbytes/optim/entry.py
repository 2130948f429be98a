"""`Optimizer.state[p]` of bitsandbytes' classes: Lowtide's names, and bitsandbytes' for code that reads them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lowtide.state.elsewhere import ReadOnly, Shown, as_core
from lowtide.engine.engine import Engine
from lowtide.state.foreign.bitsandbytes import MOMENTS, part_of

_PARTS = ("state", "qmap", "absmax")
_NORM = "unorm_vec"


class ReadCopy(ReadOnly):
    """A copy of state. Writing to it would not change the state, so it raises RuntimeError."""

    WANTED = (
        "a copy of optimizer state, which would not change the state; wanted load_state_dict() with a changed "
        "bitsandbytes_state_dict()"
    )


class Entry(Shown):
    """The state of one parameter: a dict with Lowtide's names, as in `lowtide.Optimizer`, that also answers to "state1",
    "state2", "qmap1", "qmap2", "absmax1" and "absmax2", in bitsandbytes' shapes and types.

    The latter are views of the live state if its memory has the same layout: it is resident in RAM, each tensor holds one
    state, and rows have a multiple of 256 elements (or there is one row). Otherwise, and for maps, they are read-only copies.
    Iteration gives only Lowtide's names, so that sizes are not counted twice.
    """

    def __init__(self, engine: Engine, number: int, views: dict[str, Tensor]) -> None:
        super().__init__(views, engine.tensors[number], number, engine.assigned)
        self._engine = engine

    def _names(self) -> list[str]:
        """bitsandbytes' names for this state; none for a DTensor, whose state has only Lowtide's names."""
        engine, number = self._engine, self._number
        if engine.params[number].sharding or not engine.core_of(number).has_state(number):
            return []
        live = engine.signed(number).keys() if self._streams() else as_core(dict(self)).keys()
        states = [k for k, parts in enumerate(MOMENTS.get(engine.family.rule, ()), 1) if set(parts) <= live]
        coded = engine.core_of(number).state_codec(number) == "dynamic8"
        return [f"{part}{k}" for k in states for part in (_PARTS if coded else _PARTS[:1])]

    def __missing__(self, key: str) -> Tensor:
        if key == _NORM:
            raise KeyError("unorm_vec: got a read of the norm of the last update, which is not kept")
        if key not in self._names():
            raise KeyError(key)
        streams = self._streams()
        live = self._engine.core_of(self._number).read_state(self._number) if streams else as_core(dict(self))
        found = part_of(self._engine, self._number, live, int(key[-1]))[key]
        if streams:
            return ReadCopy(found)
        memory = {one.untyped_storage().data_ptr() for one in live.values()}
        return found if found.untyped_storage().data_ptr() in memory else ReadCopy(found)

    def _streams(self) -> bool:
        return self._engine.core_of(self._number).is_paged(self._number)

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or key in self._names()

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default

    def __setitem__(self, key: str, value: Any) -> None:
        """Copies `value` into a view. Raises KeyError for a name without a view, where a value would be lost."""
        if super().__contains__(key) or key not in self._names():
            super().__setitem__(key, value)
            return
        self[key].copy_(value)
