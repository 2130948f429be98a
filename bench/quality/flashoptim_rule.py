"""Moments as FlashOptim keeps them (arXiv 2602.23349, package flashoptim 0.1.4, `_triton_adam_kernel`), in torch operations.

The package itself asks for a CUDA device. Groups of 32 run flat over the tensor, each with a float16 scale, its absmax:

    first moment    x / scale = y / (2 - |y|), y of int8 / 127        companded by softsign, so that zero has the finest steps
    second moment   x = (scale y)^2, y of uint8 / 255                 uniform in the root

Codes are rounded to nearest. The update is AdamW's, of the moments before they are rounded. All tensors are quantized,
whatever their size. Its weights of 16 bits with error bits are another subject: here weights are float32.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from quality.four_bits import blocks_of

GROUP = 32
SMALLEST = 1e-12  # scales are not below, before they become float16


class Codes(NamedTuple):
    codes: torch.Tensor  # (groups, GROUP)
    scales: torch.Tensor  # (groups, 1), float16


class Companded:
    """A first moment."""

    def encode(self, moment: torch.Tensor, key: int, signed: bool) -> Codes:
        x = blocks_of(moment, GROUP)
        scales = x.abs().amax(dim=1, keepdim=True).clamp_(min=SMALLEST)
        x = x / scales
        return Codes((2 * x / (1 + x.abs())).mul_(127).add_(0.5).floor_().to(torch.int8), scales.half())

    def decode(self, kept: Codes, shape: torch.Size) -> torch.Tensor:
        y = kept.codes.float().div_(127)
        return (y / (2 - y.abs())).mul_(kept.scales).reshape(-1)[: shape.numel()].view(shape)


class Root:
    """A second moment."""

    def encode(self, moment: torch.Tensor, key: int, signed: bool) -> Codes:
        x = blocks_of(moment.sqrt(), GROUP)
        scales = x.amax(dim=1, keepdim=True).clamp_(min=SMALLEST)
        return Codes((x / scales).mul_(255).add_(0.5).floor_().to(torch.uint8), scales.half())

    def decode(self, kept: Codes, shape: torch.Size) -> torch.Tensor:
        root = kept.codes.float().div_(255).mul_(kept.scales)
        return root.square_().reshape(-1)[: shape.numel()].view(shape)
