"""Numbers of few bits that weights are rounded to: bfloat16, and E4M3 (8 bits) with a scale for each row of a matrix.

A row's scale is the least power of two by which its largest element fits. Only exponents move, so that a row on its grid
stays there when its scale changes, but for what is below the smallest normal number.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

EXPONENT_BITS = 0x7F80_0000  # of a float32: alone they are 2^floor(log2 |x|)


@dataclass(frozen=True)
class Grid:
    bits: int  # of the mantissa, without its leading 1
    least: int  # exponent of the smallest normal number
    largest: float | None = None  # number that a row's scale makes room for; None: no scales

    def has(self, shape: torch.Size) -> bool:
        """Whether tensors of this shape are rounded: vectors have no rows to scale."""
        return self.largest is None or len(shape) == 2

    def rounded(self, x: torch.Tensor, source: torch.Generator | None = None) -> torch.Tensor:
        """x, of float32, on the grid: to nearest, ties to even, or up or down at random with mean x, as `source` draws."""
        if not self.has(x.shape):
            return x.clone()
        scale = self._scale(x)
        y = x / scale
        unit = (y.view(torch.int32) & EXPONENT_BITS).view(torch.float32)
        unit.clamp_(min=2.0**self.least).mul_(2.0**-self.bits).mul_(scale)
        torch.div(x, unit, out=y)
        if source is None:
            return y.round_().mul_(unit)
        low = y.floor()
        up = torch.rand(y.shape, generator=source).lt_(y.sub_(low))
        return low.add_(up).mul_(unit)

    def _scale(self, x: torch.Tensor) -> torch.Tensor | float:
        if self.largest is None:
            return 1.0
        most = x.abs().amax(dim=1, keepdim=True).clamp_(min=2.0**-100)
        mantissa, exponent = torch.frexp(most.div_(self.largest))  # in [1/2, 1): a power of two fits exactly
        return torch.ldexp(torch.ones_like(mantissa), exponent - (mantissa == 0.5).int())


BF16 = Grid(bits=7, least=-126)
E4M3 = Grid(bits=3, least=-6, largest=448.0)
