"""Row moments: a float32 for each row of a matrix, which a step changes together with the core's state."""

from __future__ import annotations

from collections.abc import Iterable

import torch


class RowMoments:
    """By parameter number. A step gives the next ones here before the core steps; they count once the core has counted that step.
    An interrupt at any moment leaves them as old or as new as the core's state."""

    def __init__(self) -> None:
        self._now: dict[int, torch.Tensor] = {}
        self._next: dict[int, tuple[int, torch.Tensor | None]] = {}

    def get(self, number: int, steps: int) -> torch.Tensor | None:
        """Those of a parameter that has taken so many steps; None: it has none."""
        if number in self._next:
            after, given = self._next[number]
            if steps == after:  # again after an interrupt
                if given is None:
                    self._now.pop(number, None)
                else:
                    self._now[number] = self._now[number].copy_(given) if number in self._now else given
            del self._next[number]
        return self._now.get(number)

    def begin(self, number: int, steps: int, given: torch.Tensor | None) -> None:
        """given: those after so many steps; None: it has none then."""
        self._next[number] = steps, given

    def put(self, number: int, given: torch.Tensor | None) -> None:
        """None: it has none from here on."""
        self._next.pop(number, None)
        self._now.pop(number, None)
        if given is not None:
            self._now[number] = given

    def numbers(self) -> set[int]:
        """The parameters that may have some."""
        return self._now.keys() | self._next.keys()

    def all(self) -> Iterable[torch.Tensor]:
        return self._now.values()
