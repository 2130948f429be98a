"""`packbits` and `unpackbits` under the name `xpu_packbits`, for code that counts elements in both.

The functions of `lowtide.compat.deepspeed`, which behave like DeepSpeed's, with two differences:

* `unpackbits(packed, 1, rank)` of one byte is one element here; there it is one byte.
* `unpackbits` gives a tensor that `packbits` returned the shape that was packed, if it is the same tensor object; there it is
  flat.
"""

from __future__ import annotations

import torch
from torch.utils.weak import WeakTensorKeyDictionary

import lowtide.compat.deepspeed.bits as bits

__all__ = ["packbits", "unpackbits"]

_shapes = WeakTensorKeyDictionary()  # shapes of packed tensors, by their bits


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
