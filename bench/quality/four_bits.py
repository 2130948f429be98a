"""Moments of 4 bits on uniform grids: a way to keep state that Lowtide does not have.

A moment is kept as codes of 4 bits on a uniform grid, of it or of a power of it, with one scale for each block of a row.
Three ways to round are compared on the same grid:

    nearest     q = round(x / D)                 error up to D / 2, a function of x: small changes are lost
    stochastic  q = floor(x / D + u)             u uniform in [0, 1): unbiased; the error's size depends on x
    dither      q = round(x / D + u), x' = (q - u) D   u uniform in [-1/2, 1/2), drawn again when the code is read
                                                 (subtractive dithering): unbiased, error uniform in +-D / 2 whatever x is

u follows from (seed, step of the last write, parameter, moment), so that nothing is stored for it. The grid leaves room for
u at both ends, and a code of its own for an exact zero: what never had a gradient never moves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

Rounding = Literal["nearest", "stochastic", "dither"]
LEVELS = 15  # and one code for an exact zero
SMALLEST = 2.0**-100  # scales are not below: a code is never divided by a denormal


@dataclass
class Kept:
    """codes of the blocks, their scales, the sign's kind and the noise's key."""

    codes: torch.Tensor  # (blocks, block): -7 ... 7 (signed) or 0 ... 14; -8 or -1: an exact zero
    scales: torch.Tensor  # (blocks, 1)
    key: int
    signed: bool


def blocks_of(moment: torch.Tensor, block: int) -> torch.Tensor:
    """(blocks, block) with the end filled up with zeros; blocks do not cross rows of 256 and more, as Lowtide's."""
    flat = moment.reshape(-1)
    short = -flat.numel() % block
    return torch.nn.functional.pad(flat, (0, short)).view(-1, block)


@dataclass(frozen=True)
class Format:
    """One moment's. power: the grid is uniform in the moment to this power (1/2: in the root of a second moment)."""

    rounding: Rounding
    power: float = 1.0
    block: int = 128
    power_of_two: bool = False  # scales
    debiased: bool = False  # power 1/2, dither: less the variance of u, by which the square of the root is too large on average

    def encode(self, moment: torch.Tensor, key: int, signed: bool) -> Kept:
        x = blocks_of(moment, self.block)
        if self.power != 1.0:
            x = x.sign() * x.abs() ** self.power
        scales = x.abs().amax(dim=1, keepdim=True).clamp_(min=SMALLEST)
        if self.power_of_two:
            scales = scales.log2().ceil_().exp2_()
        half = (LEVELS - 1) // 2
        most = (half if signed else LEVELS - 1) - (0.5 if self.rounding == "dither" else 0.0)  # of x / scale, in steps
        y = x / scales * most
        codes = (y + self._noise(y, key)).round_().clamp_(-half if signed else 0, half if signed else LEVELS - 1)
        if not signed and self.rounding != "dither":
            codes.clamp_(min=1.0)  # what is above 0 stays so
        codes = torch.where(x == 0, -half - 1 if signed else -1, codes).to(torch.int8)
        return Kept(codes, scales / most, key, signed)

    def decode(self, kept: Kept, shape: torch.Size) -> torch.Tensor:
        y = kept.codes.float()
        if self.rounding == "dither":
            y = y - self._noise(y, kept.key)
            if not kept.signed:
                y.clamp_(min=0.5)  # a root below half a step is not told from that
        zero = kept.codes == (-(LEVELS - 1) // 2 - 1 if kept.signed else -1)
        x = torch.where(zero, 0.0, y * kept.scales)
        if self.power != 1.0:
            x = x.sign() * x.abs() ** (1 / self.power)
        if self.debiased:
            x = torch.where(zero, 0.0, x - kept.scales.square() / 12)
        return x.reshape(-1)[: shape.numel()].view(shape)

    def _noise(self, like: torch.Tensor, key: int) -> torch.Tensor | float:
        if self.rounding == "nearest":
            return 0.0
        return torch.rand(like.shape, generator=torch.Generator().manual_seed(key)) - 0.5
