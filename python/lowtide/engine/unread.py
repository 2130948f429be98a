"""Copies of an engine's state that nobody has read yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import torch


class Unread:
    """The values of a copy of state on a device. They are read on first use, or by `Copies.read` before the state changes."""

    def __init__(self, source: Callable[[Any], torch.Tensor], device: torch.device, lock: Any) -> None:
        """source: takes the engine or None and returns the current values in host memory. lock: held while it runs."""
        self._source, self._device, self._lock = source, device, lock
        self._values: torch.Tensor | None = None

    @property
    def was_read(self) -> bool:
        return self._values is not None

    def read(self, engine: Any = None) -> torch.Tensor:
        """The values: the same tensor in every call, from any thread. engine: given only while the engine is being deleted."""
        with self._lock:
            if self._values is None:
                self._values = self._source(engine).to(self._device)
            return self._values


class Copies:
    """The copies of one engine's state that are still in use."""

    def __init__(self, lock: Any) -> None:
        """lock: the engine's."""
        self._unread: WeakSet[Unread] = WeakSet()
        self._lock = lock
        self.waits = False  # whether some were made since the last read()

    def add(self, source: Callable[[Any], torch.Tensor], device: torch.device) -> Unread:
        with self._lock:
            copy = Unread(source, device, self._lock)
            self._unread.add(copy)
            self.waits = True
        return copy

    def read(self, engine: Any) -> None:
        """Reads all copies. Call it before the state changes. Raises like reading state."""
        with self._lock:
            for copy in [*self._unread]:
                copy.read(engine)
            self._unread.clear()
            self.waits = False
