"""Two optimizers of the same parameters, one on the CPU and one on devices (stand_in.py). Nothing may differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import lowtide
import torch
from support import RULES, bits, parameter, random_gradients

Result = TypeVar("Result")


def dict_bits(opt: lowtide.Optimizer) -> dict[int, dict[str, bytes]]:
    """All state, wherever it is, in CPU tensors."""
    entries = opt.state_dict()["state"]
    assert all(value.device.type == "cpu" for entry in entries.values() for value in entry.values())
    return {i: {name: bits(value) for name, value in entry.items()} for i, entry in entries.items()}


class Count:
    """Counts compared bytes of two optimizers and their parameters. A piece that differs is a failure."""

    compared = 0

    def compare(self, here: Sequence[torch.Tensor], there: Sequence[torch.Tensor]) -> None:
        for number, (one, other) in enumerate(zip(here, there, strict=True)):
            self._count(bits(one), bits(other), f"parameter {number}")

    def compare_states(self, first: lowtide.Optimizer, second: lowtide.Optimizer) -> None:
        mine, theirs = dict_bits(first), dict_bits(second)
        assert {i: set(entry) for i, entry in mine.items()} == {i: set(entry) for i, entry in theirs.items()}
        for i, entry in mine.items():
            for name, value in entry.items():
                self._count(value, theirs[i][name], f"{name} of parameter {i}")

    def _count(self, one: bytes, other: bytes, what: str) -> None:
        assert one == other, f"{what} differs"
        self.compared += len(one)


class Twins(Count):
    """Parameters on the CPU and copies on the device, with an optimizer each. like: shapes, whose dtypes take turns, or the CPU
    parameters. cut: where a second group with another rate begins. Only the second optimizer has `memory`."""

    def __init__(
        self, device: Any, like: Sequence[Any], rule: str | type[lowtide.Optimizer] = "adamw", *, cut: int | None = None,
        dtypes: Sequence[torch.dtype] = (torch.float32,), memory: lowtide.Memory | None = None, **options: Any,
    ) -> None:  # fmt: skip
        new = [parameter(*each, dtype=dtypes[i % len(dtypes)]) if isinstance(each, tuple) else each for i, each in enumerate(like)]
        self.device, self.here, self.there = device, new, device.parameters(new)
        cls, fixed = RULES[rule] if isinstance(rule, str) else (rule, {})
        budget = {} if memory is None else {"memory": memory}
        self.first: Any = cls(self.groups(self.here, cut), **{**fixed, **options})
        self.second: Any = cls(self.groups(self.there, cut), **{**fixed, **options, **budget})

    @staticmethod
    def groups(params: Sequence[torch.Tensor], cut: int | None) -> Any:
        return [{"params": params[:cut]}, {"params": params[cut:], "lr": 0.01}] if cut else params

    def each(self, call: Callable[[Any], Result]) -> list[Result]:
        return [call(self.first), call(self.second)]

    def gradients(self) -> None:
        random_gradients(self.here)
        self.give()

    def give(self) -> None:
        """Copies the CPU parameters' gradients to the device."""
        self.device.give_gradients(self.there, self.here)

    def step(self, steps: int = 3) -> None:
        for _ in range(steps):
            self.gradients()
            self.take()

    def take(self) -> None:
        """Steps both with the gradients that they have."""
        self.each(lambda opt: opt.step())
        self.compare_weights()

    def clip(self, limit: float, kind: float | str = 2.0) -> float:
        """Steps both with new gradients, which are clipped. Returns the norm."""
        self.gradients()
        norms = self.each(lambda opt: opt.clip_grad_norm_(limit, kind))
        self.take()
        self.compare(norms[:1], norms[1:])
        return float(norms[1])

    def compare_weights(self) -> None:
        self.device.synchronize()
        self.compare(self.here, self.there)

    def compare_state(self) -> None:
        self.compare_states(self.first, self.second)

    def weights(self) -> list[bytes]:
        """The device's weights, once it is done."""
        self.device.synchronize()
        return [bits(param) for param in self.there]
