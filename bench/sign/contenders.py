"""Signs to bits and back by numpy, torch and the names of DeepSpeed's packbits, over arrays of their own."""

from __future__ import annotations

from collections.abc import Callable

import numpy
import torch
from lowtide.compat.deepspeed import packbits, unpackbits


def float32_passes(elements: int) -> dict[str, Callable[[], object]]:
    """Contenders by name. Each packs the same `elements` random numbers (a multiple of 8), allocations included."""
    tensor = torch.randn(elements, generator=torch.Generator().manual_seed(7))
    array = tensor.numpy()
    packed = packbits(tensor, elements, 0)
    weights = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8)
    return {
        "numpy_pack": lambda: numpy.packbits(array >= 0, bitorder="little"),
        "compat_pack": lambda: packbits(tensor, elements, 0),
        "torch_read": tensor.sum,
        "compat_unpack": lambda: unpackbits(packed, elements, 0),
        "torch_fill": lambda: torch.ones(elements),
        "torch_pack": lambda: ((tensor.view(-1, 8) >= 0) * weights).sum(1),
    }
