"""`packbits` and `unpackbits` as DeepSpeed's PackbitsBuilder gives them: the same bytes for the same call.

Bytes are in the order "big": element i is bit 7 - i % 8 of byte i // 8. A bit is 1 where the sign bit of the float is
clear, which is not "x >= 0", as in `lowtide.sign`:

    ============== ======== ============
    element        here     lowtide.sign
    ============== ======== ============
    -0.0           0 (-)    1 (+)
    NaN, sign + -  1 and 0  0
    all others     same     same
    ============== ======== ============

What differs from DeepSpeed: a tensor that is not what it says, by type, size or strides, is a ValueError or TypeError
instead of a read out of bounds; sizes that are no multiple of 8 are allowed, and padded with 0 bits; on the CPU results are
there when the call returns.
"""

from __future__ import annotations

from operator import index

import torch

from lowtide import _core
from lowtide.checks.values import expect
from lowtide.devices import arrays
from lowtide.devices.arrays import Array
from lowtide.sign import pack, packed_bytes, unpack

# Elements of a device that are packed at a time: a copy of half their size is made.
_PIECE = 1 << 24


def packbits(tensor: torch.Tensor, input_size: int, rank: int) -> torch.Tensor:
    """Sign bits of `tensor`, as uint8 [ceil(input_size / 8)].

    Args:
        tensor: float32, contiguous, of any shape, on the CPU or a device that `lowtide.backends()` can compute on.
        input_size: its number of elements.
        rank: number of the device, of the tensor's kind, where the bits are wanted and packed: a tensor of another one is
            copied there. There is one CPU, whose number does not matter.
    """
    values = _checked(tensor, torch.float32, rank)
    n = values.numel
    expect(_integer("input_size", input_size) == n, "input_size", f"{input_size} for {n} elements", "the number of elements")
    out: torch.Tensor = values.empty((packed_bytes(n),), "uint8")
    if values.place.on_host:
        _core.pack_sign_bits(values.address, values.dtype, n, out.data_ptr(), out.numel(), "big", torch.get_num_threads())
        return out
    # The upper halves, whose highest bit is the sign: shifted, they are 0 or a NaN, and so + or - by any predicate.
    upper = values.value.detach().as_strided((n,), (1,)).view(torch.int16)[1::2]
    for first in range(0, n, _PIECE):
        piece = upper[first : first + _PIECE]
        signs: torch.Tensor = values.empty((piece.numel(),), "bfloat16")
        torch.bitwise_right_shift(piece, 15, out=signs.view(torch.int16))
        pack(signs, out=out[first // 8 : first // 8 + packed_bytes(piece.numel())], bitorder="big")
    return out


def unpackbits(tensor: torch.Tensor, input_size: int, rank: int) -> torch.Tensor:
    """+1 and -1 for each bit, as float32 [n]. Bits of padding are -1.

    Args:
        tensor: uint8, contiguous, on any device that `packbits` takes: its result.
        input_size: its number of bytes, and n is 8 times that; or the number n of elements, of which the bytes are
            ceil(n / 8). Both fit where there is one byte and input_size is 1: then it counts bytes, as in DeepSpeed.
        rank: as in `packbits`.
    """
    return unpacked(tensor, input_size, rank, prefer_elements=False)


def unpacked(tensor: torch.Tensor, input_size: int, rank: int, prefer_elements: bool) -> torch.Tensor:
    """`unpackbits`, where prefer_elements decides what 1 counts for one byte."""
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
    """The tensor where it is to be computed on."""
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
    """A copy there, ordered on both devices' current streams."""
    return tensor.detach().to(device)
