"""The `packbits` and `unpackbits` of DeepSpeed's PackbitsBuilder, on the CPU: the same bytes for the same call.

    packer = PackbitsBuilder().load()        →      from lowtide.compat import deepspeed as packer
    packer.packbits(buffer, buffer.numel(), rank)
    packer.unpackbits(packed, packed.numel(), rank)

Bytes are in the order "big": element i is bit 7 - i % 8 of byte i // 8. A bit is 1 where the sign bit of the float is
clear, which is not "x >= 0", as in `lowtide.sign`:

    ============== ======== ============
    element        here     lowtide.sign
    ============== ======== ============
    -0.0           0 (-)    1 (+)
    NaN, sign + -  1 and 0  0
    all others     same     same
    ============== ======== ============

What differs from DeepSpeed: a tensor that is not what it says, by type, size, strides or place, is a ValueError or
TypeError instead of a read out of bounds; sizes that are no multiple of 8 are allowed, and padded with 0 bits;
results are there when the call returns.
"""

from __future__ import annotations

from operator import index

import torch

from lowtide.checks.values import expect
from lowtide.devices import arrays
from lowtide.sign import pack, packed_bytes, unpack

# Elements whose signs are copied to 1 at a time, so that these stay in the cache.
_PIECE = 1 << 16


def packbits(tensor: torch.Tensor, input_size: int, rank: int) -> torch.Tensor:
    """Sign bits of `tensor`, as uint8 [ceil(input_size / 8)].

    Args:
        tensor: float32, contiguous, on the CPU, of any shape.
        input_size: its number of elements.
        rank: an integer, which decides nothing here (in DeepSpeed: the device).
    """
    _check(tensor, torch.float32, "elements", input_size, rank)
    values = tensor.detach().resolve_neg().view(-1)
    out = torch.empty(packed_bytes(values.numel()), dtype=torch.uint8, device="cpu")
    one = torch.ones((), dtype=torch.float32, device="cpu")
    signs = torch.empty(min(_PIECE, values.numel()), dtype=torch.float32, device="cpu")
    for first in range(0, values.numel(), _PIECE):
        piece = values[first : first + _PIECE]
        torch.copysign(one, piece, out=signs[: piece.numel()])
        bytes_ = out[first // 8 : first // 8 + packed_bytes(piece.numel())]
        pack(signs[: piece.numel()], out=bytes_, bitorder="big")
    return out


def unpackbits(tensor: torch.Tensor, input_size: int, rank: int) -> torch.Tensor:
    """+1 and -1 for each bit, as float32 [8 * input_size]. Those of padding are -1.

    Args:
        tensor: uint8, contiguous, on the CPU: what `packbits` gave.
        input_size: its number of bytes, not of elements.
        rank: as in `packbits`.
    """
    _check(tensor, torch.uint8, "bytes", input_size, rank)
    return unpack(tensor, 8 * tensor.numel(), bitorder="big")


def _check(tensor: torch.Tensor, dtype: torch.dtype, unit: str, input_size: int, rank: int) -> None:
    for name, value in (("input_size", input_size), ("rank", rank)):
        try:
            index(value)
        except TypeError:
            raise TypeError(f"{name}: got {value!r} ({type(value).__name__}), wanted an int") from None
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"tensor: got {type(tensor).__name__}, wanted a torch.Tensor")
    array = arrays.read(tensor, "tensor")
    expect(tensor.dtype == dtype, "tensor", tensor.dtype, dtype)
    if not array.place.on_host:
        raise NotImplementedError(f"tensor: got one on {array.place.device}, wanted one on the CPU")
    expect(array.is_contiguous, "tensor", f"shape {array.shape} with strides", "tensor.contiguous()")
    expect(input_size == array.numel, "input_size", f"{input_size} for {array.numel} {unit}", f"the number of {unit}")
