"""Two optimizers of the same parameters, of which the second may be on a device (stand_in.py), and what differs."""

from __future__ import annotations

from collections.abc import Sequence

import lowtide
import torch
from stand_in import StandIn
from support import bits, random_gradients


def dict_bits(opt: lowtide.Optimizer) -> dict[int, dict[str, bytes]]:
    """All state, wherever it is, in CPU tensors."""
    entries = opt.state_dict()["state"]
    assert all(value.device.type == "cpu" for entry in entries.values() for value in entry.values())
    return {i: {name: bits(value) for name, value in entry.items()} for i, entry in entries.items()}


class Count:
    """Bytes of two optimizers and of their parameters that were compared, and how many pieces differ."""

    differing = compared = 0

    def compare(self, here: Sequence[torch.Tensor], there: Sequence[torch.Tensor]) -> None:
        for one, other in zip(here, there, strict=True):
            self._count(bits(one), bits(other))

    def compare_state(self, first: lowtide.Optimizer, second: lowtide.Optimizer) -> None:
        mine, theirs = dict_bits(first), dict_bits(second)
        assert {i: set(entry) for i, entry in mine.items()} == {i: set(entry) for i, entry in theirs.items()}
        for i, entry in mine.items():
            for name, value in entry.items():
                self._count(value, theirs[i][name])

    def _count(self, one: bytes, other: bytes) -> None:
        self.compared += len(one)
        self.differing += one != other


class Twins(Count):
    """Two optimizers with the same parameters, of which the second may be on the device."""

    def __init__(self, device: StandIn, here: Sequence[torch.Tensor], there: Sequence[torch.Tensor]) -> None:
        self._device, self.here, self.there = device, here, there

    def step(self, first: lowtide.Optimizer, second: lowtide.Optimizer, steps: int = 3) -> None:
        for _ in range(steps):
            random_gradients(self.here)
            self._device.give_gradients(self.there, self.here)
            first.step()
            second.step()
            self._device.synchronize()
            self.compare(self.here, self.there)
