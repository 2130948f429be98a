"""AdamW in ways that Lowtide does not have, to find out whether it should: 4-bit state, and rounded weights whose error goes
into the momentum.

4 bits: a moment is kept as codes of 4 bits on a uniform grid, of it or of a power of it, with one scale for each block of a row.
Three ways to round are compared on the same grid:

    nearest     q = round(x / D)                 error up to D / 2, a function of x: small changes are lost
    stochastic  q = floor(x / D + u)             u uniform in [0, 1): unbiased; the error's size depends on x
    dither      q = round(x / D + u), x' = (q - u) D   u uniform in [-1/2, 1/2), drawn again when the code is read
                                                 (subtractive dithering): unbiased, error uniform in +-D / 2 whatever x is

u follows from (seed, step of the last write, parameter, moment), so that nothing is stored for it. The grid leaves room for
u at both ends, and a code of its own for an exact zero: what never had a gradient never moves.

Rounded weights (after ECO, arXiv 2601.22101): what rounding a weight to 16 bits has lost, e, is taken up by the steps to come.
The first moment changes by

    m = m - e (1 - b1) / b1 * (sqrt(v / (1 - b2^t)) + eps) (1 - b1^t) / lr

so that what it adds to all later steps, sum of b1^k for k = 1, 2, ..., is e, if lr and v stay.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch

Rounding = Literal["nearest", "stochastic", "dither"]
LEVELS = 15  # and one code for an exact zero
SMALLEST = 2.0**-100  # scales are not below: a code is never divided by a denormal


@dataclass(frozen=True)
class Format:
    """One moment's. power: the grid is uniform in the moment to this power (1/2: in the root of a second moment)."""

    rounding: Rounding
    power: float = 1.0
    block: int = 128
    power_of_two: bool = False  # scales
    exact: bool = False  # no codes: float32
    debiased: bool = False  # power 1/2, dither: less the variance of u, by which the square of the root is too large on average

    def noise(self, like: torch.Tensor, key: int) -> torch.Tensor | float:
        if self.rounding == "nearest":
            return 0.0
        return torch.rand(like.shape, generator=torch.Generator().manual_seed(key)) - 0.5


@dataclass
class Kept:
    """codes of the blocks, their scales, the sign's kind and the noise's key."""

    codes: torch.Tensor  # (blocks, block): -7 ... 7 (signed) or 0 ... 14; -8 or -1: an exact zero
    scales: torch.Tensor  # (blocks, 1)
    key: int
    signed: bool


def _blocks(moment: torch.Tensor, block: int) -> torch.Tensor:
    """(blocks, block) with the end filled up with zeros; blocks do not cross rows of 256 and more, as Lowtide's."""
    flat = moment.reshape(-1)
    short = -flat.numel() % block
    return torch.nn.functional.pad(flat, (0, short)).view(-1, block)


def encode(moment: torch.Tensor, form: Format, key: int, signed: bool) -> Kept:
    x = _blocks(moment, form.block)
    if form.power != 1.0:
        x = x.sign() * x.abs() ** form.power
    scales = x.abs().amax(dim=1, keepdim=True).clamp_(min=SMALLEST)
    if form.power_of_two:
        scales = scales.log2().ceil_().exp2_()
    half = (LEVELS - 1) // 2
    most = (half if signed else LEVELS - 1) - (0.5 if form.rounding == "dither" else 0.0)  # of x / scale, in steps
    y = x / scales * most
    noise = form.noise(y, key)
    codes = (y + noise).round_().clamp_(-half if signed else 0, half if signed else LEVELS - 1)
    if not signed and form.rounding != "dither":
        codes.clamp_(min=1.0)  # what is above 0 stays so
    codes = torch.where(x == 0, -half - 1 if signed else -1, codes).to(torch.int8)
    return Kept(codes, scales / most, key, signed)


def decode(kept: Kept, form: Format, shape: torch.Size) -> torch.Tensor:
    y = kept.codes.float()
    if form.rounding == "dither":
        y = y - form.noise(y, kept.key)
        if not kept.signed:
            y.clamp_(min=0.5)  # a root below half a step is not told from that
    zero = kept.codes == (-(LEVELS - 1) // 2 - 1 if kept.signed else -1)
    x = torch.where(zero, 0.0, y * kept.scales)
    if form.power != 1.0:
        x = x.sign() * x.abs() ** (1 / form.power)
    if form.debiased:
        x = torch.where(zero, 0.0, x - kept.scales.square() / 12)
    return x.reshape(-1)[: shape.numel()].view(shape)


class AdamW(torch.optim.Optimizer):
    """AdamW as torch's, but for how its moments are kept between steps."""

    def __init__(
        self, params: Iterable[torch.Tensor], first: Format, second: Format, lr: float, betas: tuple[float, float], eps: float,
        weight_decay: float, seed: int = 0, error_to_momentum: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self._formats, self._seed, self._steps = (first, second), seed, 0
        self._error_to_momentum = error_to_momentum
        self._numbers = {param: n for n, param in enumerate(p for group in self.param_groups for p in group["params"])}

    def moments(self, param: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As the next step will read them."""
        first, second = (
            kept if form.exact else decode(kept, form, param.shape)
            for kept, form in zip(self.state[param]["kept"], self._formats, strict=True)
        )
        return first, second

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self._steps += 1
        for group in self.param_groups:
            (beta1, beta2), lr = group["betas"], group["lr"]
            for param in group["params"]:
                if param.grad is None:
                    continue
                state, grad = self.state[param], param.grad.float()
                m, v = self.moments(param) if state else (torch.zeros_like(grad), torch.zeros_like(grad))
                state["step"] = t = state.get("step", 0) + 1
                m = m.mul(beta1).add_(grad, alpha=1 - beta1)
                v = v.mul(beta2).addcmul_(grad, grad, value=1 - beta2)
                size = v.sqrt().div_((1 - beta2**t) ** 0.5).add_(group["eps"])
                rate = lr / (1 - beta1**t)
                moved = param.float().mul_(1 - lr * group["weight_decay"]).addcdiv_(m, size, value=-rate)
                param.copy_(moved)
                if self._error_to_momentum:
                    m.addcmul_(moved.sub_(param), size, value=-(1 - beta1) / beta1 / rate)
                state["kept"] = [
                    moment if form.exact else encode(moment, form, self._key(param, k), signed=k == 0)
                    for k, (moment, form) in enumerate(zip((m, v), self._formats, strict=True))
                ]

    def _key(self, param: torch.Tensor, k: int) -> int:
        return hash((self._seed, self._steps, self._numbers[param], k)) & 0x7FFF_FFFF_FFFF_FFFF
