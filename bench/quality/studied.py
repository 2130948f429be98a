"""AdamW in ways that Lowtide does not have, to find out whether it should: moments in any codec, weights on any grid.

An error of rounding a weight, e, may be dropped, or go into the momentum (ECO, arXiv 2601.22101, momentum injection): later
steps take it up. The first moment changes by

    m = m - e (1 - b1) / b1 * (sqrt(v / (1 - b2^t)) + eps) (1 - b1^t) / lr

so that what it adds to all later steps, sum of b1^k for k = 1, 2, ..., is e, if lr and v stay.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch

from quality.grids import Grid


class Codec(Protocol):
    """How a moment is kept from one step to the next. key: where its random numbers start."""

    def encode(self, moment: torch.Tensor, key: int, signed: bool) -> Any: ...
    def decode(self, kept: Any, shape: torch.Size) -> torch.Tensor: ...


class Exact:
    """Float32."""

    def encode(self, moment: torch.Tensor, key: int, signed: bool) -> torch.Tensor:
        return moment

    def decode(self, kept: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        return kept


@dataclass(frozen=True)
class Weights:
    """How a step rounds a weight, and where the error goes. "master": a float32 weight beside it keeps it."""

    grid: Grid
    stochastic: bool = False
    error: Literal["dropped", "momentum", "master"] = "dropped"


class AdamW(torch.optim.Optimizer):
    """AdamW as torch's, but for how moments are kept between steps and what weights are rounded to.

    weights: None leaves rounding to the parameters' type, to nearest. With a grid they are on it from the start."""

    def __init__(
        self, params: Iterable[torch.Tensor], first: Codec, second: Codec, lr: float, betas: tuple[float, float], eps: float,
        weight_decay: float, seed: int = 0, weights: Weights | None = None,
    ) -> None:  # fmt: skip
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self._codecs, self._seed, self._steps, self._weights = (first, second), seed, 0, weights
        self._numbers = {param: n for n, param in enumerate(p for group in self.param_groups for p in group["params"])}
        for param in self._numbers if weights else ():
            self._write(param, param.detach().float().clone())

    def moments(self, param: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As the next step will read them."""
        kept = self.state[param]["kept"]
        first, second = (codec.decode(one, param.shape) for one, codec in zip(kept, self._codecs, strict=True))
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
                m, v = self.moments(param) if "kept" in state else (torch.zeros_like(grad), torch.zeros_like(grad))
                state["step"] = t = state.get("step", 0) + 1
                m = m.mul(beta1).add_(grad, alpha=1 - beta1)
                v = v.mul(beta2).addcmul_(grad, grad, value=1 - beta2)
                size = v.sqrt().div_((1 - beta2**t) ** 0.5).add_(group["eps"])
                rate = lr / (1 - beta1**t)
                moved = state.get("master", param).float().mul(1 - lr * group["weight_decay"]).addcdiv_(m, size, value=-rate)
                self._write(param, moved)
                if self._weights and self._weights.error == "momentum":
                    m.addcmul_(moved.sub_(param), size, value=-(1 - beta1) / beta1 / rate)
                state["kept"] = [
                    codec.encode(moment, self._key(param, k), signed=k == 0)
                    for k, (moment, codec) in enumerate(zip((m, v), self._codecs, strict=True))
                ]

    @torch.no_grad()
    def _write(self, param: torch.Tensor, moved: torch.Tensor) -> None:
        if not self._weights:
            param.copy_(moved)
            return
        source = torch.Generator().manual_seed(self._key(param, 2)) if self._weights.stochastic else None
        param.copy_(self._weights.grid.rounded(moved, source))
        if self._weights.error == "master":
            self.state[param]["master"] = moved

    def _key(self, param: torch.Tensor, k: int) -> int:
        return hash((self._seed, self._steps, self._numbers[param], k)) & 0x7FFF_FFFF_FFFF_FFFF
