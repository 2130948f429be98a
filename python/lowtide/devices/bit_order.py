"""Packed signs on devices in bit order "big": device kernels only support "little", so torch reverses the bits of bytes."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from lowtide.devices import arrays, places
from lowtide.devices.arrays import Array


def is_turned(array: Array, order: str) -> bool:
    """True if packed signs beside `array` must be reversed for its kernels."""
    return order == "big" and not array.place.on_host


def turned(bits: Array) -> Array:
    """Each byte with its bits reversed, in new memory on the same device; queued on torch's current stream."""
    value: torch.Tensor = bits.value
    out = bits.empty(bits.shape, "uint8")
    places.look_up(_table(value.device), value, out=out)
    return arrays.read(out, "bits")


def turn(bits: Any) -> None:
    """Reverses the bits of each byte in place."""
    array = arrays.read(bits, "bits")
    array.value.copy_(turned(array).value)


@cache
def _table(device: torch.device) -> torch.Tensor:
    return torch.tensor([int(f"{byte:08b}"[::-1], 2) for byte in range(256)], dtype=torch.uint8, device=device)
