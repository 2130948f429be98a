"""`packbits` and `unpackbits` like DeepSpeed's PackbitsBuilder: the same call gives the same bytes.

Bit order is "big": element i is bit 7 - i % 8 of byte i // 8. A bit is 1 if the sign bit of the float is clear, which differs
from the test "x >= 0" of `lowtide.sign`:

    ============== ======== ============
    element        here     lowtide.sign
    ============== ======== ============
    -0.0           0 (-)    1 (+)
    NaN, sign + -  1 and 0  0
    all others     same     same
    ============== ======== ============

Differences from DeepSpeed: a tensor of the wrong type, size or strides raises ValueError or TypeError instead of being read out
of bounds; sizes need not be multiples of 8, and are padded with 0 bits; on the CPU, results are ready when the call returns.
"""

from __future__ import annotations

import sys
from operator import index
from types import ModuleType

import torch

from lowtide import _core
from lowtide.checks.values import expect
from lowtide.devices import arrays
from lowtide.devices.arrays import Array
from lowtide.sign import pack, packed_bytes, unpack

# Elements on a device to pack at a time. Packing copies half of their bytes.
_PIECE = 1 << 24


class PackbitsBuilder:
    """Stands in for the PackbitsBuilder of DeepSpeed's accelerators. There is nothing to build."""

    NAME = "pack_bits"

    def load(self, verbose: bool = True) -> ModuleType:
        """Returns a module with `packbits` and `unpackbits`. verbose has no effect."""
        return sys.modules[__name__]

    def is_compatible(self, verbose: bool = False) -> bool:
        """Returns True; verbose has no effect."""
        return True


def packbits(tensor: torch.Tensor, input_size: int, rank: int) -> torch.Tensor:
    """Packs the sign bits of `tensor` into uint8 [ceil(input_size / 8)].

    Args:
        tensor: float32, contiguous, of any shape, on the CPU or a device that `lowtide.backends()` can compute on.
        input_size: the number of its elements.
        rank: index of the device, of the same kind as the tensor's, that packs; a tensor on another device is copied there. It
            has no effect for CPU tensors.
    """
    values = _checked(tensor, torch.float32, rank)
    n = values.numel
    expect(_integer("input_size", input_size) == n, "input_size", f"{input_size} for {n} elements", "the number of elements")
    out: torch.Tensor = values.empty((packed_bytes(n),), "uint8")
    if values.place.on_host:
        _core.pack_sign_bits(values.address, values.dtype, n, out.data_ptr(), out.numel(), "big", torch.get_num_threads())
        return out
    # The highest bit of the upper half is the sign. Shifted right, the half is 0 or a NaN, which every predicate takes for + or
    # -.
    upper = values.value.detach().as_strided((n,), (1,)).view(torch.int16)[1::2]
    for first in range(0, n, _PIECE):
        piece = upper[first : first + _PIECE]
        signs: torch.Tensor = values.empty((piece.numel(),), "bfloat16")
        torch.bitwise_right_shift(piece, 15, out=signs.view(torch.int16))
        pack(signs, out=out[first // 8 : first // 8 + packed_bytes(piece.numel())], bitorder="big")
    return out


def unpackbits(tensor: torch.Tensor, input_size: int, rank: int) -> torch.Tensor:
    """+1 and -1 for each bit, as float32 [n]. Padding bits give -1.

    Args:
        tensor: the result of `packbits`: uint8, contiguous, on any device that `packbits` accepts.
        input_size: the number of bytes, for n = 8 times as many; or the number n of elements, which take ceil(n / 8) bytes. For
            one byte, input_size 1 is ambiguous: as in DeepSpeed, it counts bytes.
        rank: as in `packbits`.
    """
    return unpacked(tensor, input_size, rank, prefer_elements=False)


def unpacked(tensor: torch.Tensor, input_size: int, rank: int, prefer_elements: bool) -> torch.Tensor:
    """Like `unpackbits`. prefer_elements: input_size 1 of one byte counts elements."""
    packed = _checked(tensor, torch.uint8, rank)
    size, count = _integer("input_size", input_size), packed.numel
    are_elements, are_bytes = size >= 0 and packed_bytes(size) == count, size == count
    if not are_elements and not are_bytes:
        wanted = f"{8 * count - 7} to {8 * count} elements, or {count} bytes" if count else "0"
        expect(False, "input_size", f"{input_size} for {count} bytes", wanted)
    n = size if are_elements and (prefer_elements or not are_bytes) else 8 * count
    values: torch.Tensor = unpack(packed.value.view(-1), n, bitorder="big")
    return values


def _checked(tensor: torch.Tensor, dtype: torch.dtype, rank: int) -> Array:
    """The tensor, checked and on the device that computes."""
    number = _integer("rank", rank)
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"tensor: got {type(tensor).__name__}, wanted a torch.Tensor")
    array = arrays.read(tensor, "tensor")
    expect(tensor.dtype == dtype, "tensor", tensor.dtype, dtype)
    expect(array.is_contiguous, "tensor", f"shape {array.shape} with strides", "tensor.contiguous()")
    device = array.place.device
    if array.place.on_host or device.index == number:
        return array
    expect(number >= 0, "rank", number, f"the number of a device of {device.type}")
    return arrays.read(moved(array.value, torch.device(device.type, number)), "tensor")


def _integer(name: str, value: object) -> int:
    try:
        return index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name}: got {value!r} ({type(value).__name__}), wanted an int") from None


def moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy on `device`, ordered on both devices' current streams."""
    return tensor.detach().to(device)
