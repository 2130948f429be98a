"""`packbits` and `unpackbits` under the name `xpu_packbits`, for code that passes numbers of elements to both.

The functions are those of `lowtide.compat.deepspeed`, with two differences:
* `unpackbits(packed, 1, rank)` of one byte returns one element, not eight.
* `unpackbits` restores the shape that was packed, if it gets the very tensor object that `packbits` returned.
"""

from __future__ import annotations

import torch
from torch.utils.weak import WeakTensorKeyDictionary

import lowtide.compat.deepspeed.bits as bits

__all__ = ["packbits", "unpackbits"]

_shapes = WeakTensorKeyDictionary()  # original shapes, by packed tensor


def packbits(tensor: torch.Tensor, input_size: int, rank: int) -> torch.Tensor:
    """See `lowtide.compat.deepspeed.packbits`."""
    packed = bits.packbits(tensor, input_size, rank)
    _shapes[packed] = tensor.shape
    return packed


def unpackbits(tensor: torch.Tensor, input_size: int, rank: int) -> torch.Tensor:
    """See `lowtide.compat.deepspeed.unpackbits`."""
    values = bits.unpacked(tensor, input_size, rank, prefer_elements=True)
    shape: torch.Size = _shapes[tensor] if tensor in _shapes else values.shape
    return values.view(shape) if shape.numel() == values.numel() else values
