"""Packed signs of devices in the order "big": kernels of devices have "little" alone, and torch turns bytes round."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from lowtide.devices import arrays, places
from lowtide.devices.arrays import Array


def is_turned(array: Array, order: str) -> bool:
    """Whether packed signs beside `array` have to be turned for its kernels."""
    return order == "big" and not array.place.on_host


def turned(bits: Array) -> Array:
    """Each byte's bits the other way round, in new memory of the same device; queued on torch's current stream."""
    value: torch.Tensor = bits.value
    out = bits.empty(bits.shape, "uint8")
    places.look_up(_table(value.device), value, out=out)
    return arrays.read(out, "bits")


def turn(bits: Any) -> None:
    """The same in place."""
    array = arrays.read(bits, "bits")
    array.value.copy_(turned(array).value)


@cache
def _table(device: torch.device) -> torch.Tensor:
    return torch.tensor([int(f"{byte:08b}"[::-1], 2) for byte in range(256)], dtype=torch.uint8, device=device)
