"""Matrix products of bfloat16 on processors without instructions for them, where torch takes some twenty times as long as for float32.

There each product is taken in float32: it has the same factors, sums as exact, and is rounded to bfloat16 once, as torch's own is.
The order of the sums differs, as it does between processors, and what attention keeps between its two products is not rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

ATEN = torch.ops.aten
ATTENTION = ATEN._scaled_dot_product_flash_attention_for_cpu.default
BACKWARD = ATEN._scaled_dot_product_flash_attention_for_cpu_backward.default
PRODUCTS = {ATEN.mm.default, ATEN.addmm.default, ATEN.bmm.default, ATTENTION, BACKWARD}


class InFloat32(TorchDispatchMode):
    """Takes products of bfloat16 so, forward and backward, as long as it is entered."""

    def __torch_dispatch__(self, call: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        options = kwargs or {}
        if call not in PRODUCTS or not any(map(is_bfloat16, args)):
            return call(*args, **options)
        found = call(*(arg.float() if is_bfloat16(arg) else arg for arg in args), **options)
        if isinstance(found, torch.Tensor):
            return found.bfloat16()
        if call is ATTENTION:  # its logarithms of sums are float32 in any case
            result, logarithms = found
            return result.bfloat16(), logarithms
        return tuple(one.bfloat16() for one in found)


def is_bfloat16(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16


def bfloat16_products(wanted: bool) -> AbstractContextManager[Any]:
    """InFloat32 where bfloat16 is wanted and this processor lacks it, else nothing."""
    return InFloat32() if wanted and not torch.ops.mkldnn._is_mkldnn_bf16_supported() else nullcontext()
