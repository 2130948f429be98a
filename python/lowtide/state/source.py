"""Where the values of `state.elsewhere.Elsewhere` come from: state that only the core has."""

from __future__ import annotations

from weakref import ref

import torch

from lowtide.devices.places import HOST
from lowtide.engine.engine import Engine
from lowtide.engine.unread import Unread


class Source:
    """Copies one tensor of a parameter's state to host memory while the state exists. Keeps neither the optimizer nor the
    parameter alive."""

    def __init__(self, engine: Engine, number: int, name: str) -> None:
        self._engine, self._param = ref(engine), ref(engine.tensors[number])
        self.number, self.name = number, name
        place = engine.params[number].place or HOST
        self.home = HOST.device if place.on_host else place.device  # where steps have the state
        self.homes = {HOST.device, self.home}  # where it can be
        self.devices = {HOST.device, place.device}  # where loops may move it

    def __call__(self, engine: Engine | None = None) -> torch.Tensor:
        """engine: given only while the engine is being deleted."""
        engine = engine or self._alive()
        with engine.lock:
            found = engine.core_of(self.number).read_state(self.number).get(self.name)
        if found is None:
            wanted = "a step or state_dict() first"
            raise RuntimeError(f"got {self.name!r} of parameter {self.number}, which has no state yet, wanted {wanted}")
        return found

    def is_alike(self, other: Source) -> bool:
        """True if both read the same tensor of the same state."""
        mine, theirs = ((each._engine(), each.number, each.name) for each in (self, other))
        return mine == theirs and mine[0] is not None

    def move(self, device: torch.device) -> None:
        """Follows an entry of `Optimizer.state` whose state was moved to that device."""
        self._alive().move_shown(self.number, away=device == HOST.device)

    def copied(self, device: torch.device) -> Unread:
        return self._alive().copies.add(self, device)

    def _alive(self) -> Engine:
        engine, param = self._engine(), self._param()
        if not engine or self.number >= len(engine.tensors) or engine.tensors[self.number] is not param:
            raise RuntimeError("got state of an optimizer or a parameter that is gone, wanted the current Optimizer.state")
        return engine
