"""`bitsandbytes.functional`, as far as it quantizes by blocks, with any code book of 256 values and any block size, and as far
as it pages memory (lowtide/compat/bitsandbytes/paged.py).

Each code belongs to the nearest entry (lowtide/state/blockwise.py defines ties) on every kind of device, as in bitsandbytes on
a GPU. On a CPU, bitsandbytes picks the entry nearest to one of 65,536 points.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from lowtide.checks.values import check_tensor, expect
from lowtide.compat.bitsandbytes.paged import (
    FIRST_CUDA_DEVICE,
    GlobalPageManager,
    arange,
    elementwise_func,
    fill,
    get_paged,
    get_ptr,
    prefetch_tensor,
)
from lowtide.state import blockwise
from lowtide.state.entries import check_book, check_scales

__all__ = [
    "FIRST_CUDA_DEVICE", "GlobalPageManager", "QuantState", "arange", "create_dynamic_map", "dequantize_blockwise",
    "elementwise_func", "fill", "get_paged", "get_ptr", "prefetch_tensor", "quantize_blockwise",
]  # fmt: skip

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


create_dynamic_map = blockwise.dynamic_map


@dataclass(eq=False)
class QuantState:
    """Undoes a quantization with `absmax` of each block, the code book `code`, `blocksize`, and the original `dtype`. If
    `nested`, absmax is itself quantized, by `state2`, after `offset` was subtracted."""

    absmax: torch.Tensor
    shape: torch.Size | None = None
    code: torch.Tensor | None = None
    blocksize: int | None = None
    quant_type: str | None = None
    dtype: torch.dtype | None = None
    offset: torch.Tensor | None = None
    state2: QuantState | None = None

    @property
    def nested(self) -> bool:
        return self.state2 is not None

    def to(self, device: torch.device | str) -> None:
        """Moves all tensors, in place."""
        self.absmax = self.absmax.to(device)
        self.code = None if self.code is None else self.code.to(device)
        self.offset = None if self.offset is None else self.offset.to(device)
        if self.state2 is not None:
            self.state2.to(device)


def quantize_blockwise(
    A: torch.Tensor,
    code: torch.Tensor | None = None,
    absmax: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    blocksize: int = 4096,
    nested: bool = False,
) -> tuple[torch.Tensor, QuantState]:
    """Returns uint8 codes in the shape of a float32, float16 or bfloat16 tensor, and the state that decodes them.

    Args:
        code: 256 values in ascending order; by default the signed dynamic map.
        absmax, out: where to write scales and codes; by default new tensors.
        blocksize: elements that share a scale; blocks run flat over the tensor.
        nested: whether to quantize the scales as well, after subtracting their mean.

    Raises ValueError for other types, a block size below 1, or a code book that is not in ascending order.
    """
    expect(isinstance(A, torch.Tensor) and A.dtype in _DTYPES, "A", _kind(A), "a float32, float16 or bfloat16 tensor")
    _check_blocksize(blocksize)
    book = _book(code, A.device)
    codes, scales = blockwise.encode(A.detach(), book, blocksize)
    state = QuantState(scales, None, book, blocksize, None, A.dtype)
    if nested:
        state.offset = scales.mean()
        state.absmax, state.state2 = quantize_blockwise(scales - state.offset, blocksize=blocksize)
    if absmax is not None:
        state.absmax = absmax.copy_(state.absmax)
    return (codes if out is None else out.copy_(codes)), state


def dequantize_blockwise(
    A: torch.Tensor,
    quant_state: QuantState | None = None,
    absmax: torch.Tensor | None = None,
    code: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    blocksize: int = 4096,
    nested: bool = False,
) -> torch.Tensor:
    """Decodes values, in the shape of the codes. Their type is `quant_state.dtype`, or float32 without a `quant_state`.

    Args:
        quant_state: the result of `quantize_blockwise`; or give absmax, code and blocksize instead. An absmax of two
            dimensions, as in AdEMAMix, has a row for each A[i], and every row begins a new block.
        out: where to write the values; by default a new tensor.
        nested: ignored; `quant_state` has this information.

    Raises ValueError for arguments that do not fit together.
    """
    del nested
    expect(isinstance(A, torch.Tensor) and A.dtype == torch.uint8, "A", _kind(A), "a uint8 tensor")
    if quant_state is None:
        expect(absmax is not None, "quant_state", "neither it nor absmax", "one of them")
        assert absmax is not None
        quant_state = QuantState(absmax, None, code, blocksize, None, torch.float32)
    state = quant_state
    scales = state.absmax
    if state.state2 is not None:
        assert state.offset is not None
        scales = dequantize_blockwise(scales, state.state2).float() + state.offset
    else:
        check_scales(scales, "absmax", max(A.numel(), 1))
    _check_blocksize(state.blocksize)
    size, book, dtype = int(state.blocksize or 0), _book(state.code, A.device), state.dtype or torch.float32
    parts = len(A) if scales.ndim == 2 and A.ndim and len(A) == len(scales) > 0 else 1
    count = parts * -(-A.numel() // parts // size)
    expect(scales.numel() == count, "absmax", f"{scales.numel()} values", f"{count} for {A.numel()} codes")
    codes, each = A.reshape(parts, -1), scales.to(A.device).reshape(parts, -1)
    rows = [blockwise.decode(codes[i], each[i], book, size, dtype) for i in range(parts)]
    values = (rows[0] if parts == 1 else torch.stack(rows)).view(A.shape)
    return values if out is None else out.copy_(values)


def _book(code: torch.Tensor | None, device: torch.device) -> torch.Tensor:
    if code is None:
        return blockwise.dynamic_map().to(device)
    check_tensor(code, "code")
    check_book(code, 256, "code")
    return code.detach().to(device, torch.float32, copy=True)


def _check_blocksize(blocksize: Any) -> None:
    whole = isinstance(blocksize, int) and not isinstance(blocksize, bool) and blocksize >= 1
    expect(whole, "blocksize", repr(blocksize), "1 or more elements")


def _kind(value: object) -> str:
    return f"a {value.dtype} tensor" if isinstance(value, torch.Tensor) else type(value).__name__
