"""AdEMAMix."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.optim.optimizer import ParamsT

from lowtide.compat.bitsandbytes.optim.base import BitsandbytesOptimizer, two_betas, variant


class AdEMAMix(BitsandbytesOptimizer):
    """`lowtide.AdEMAMix`. The 32bit classes work, too."""

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float, float] | str = (0.9, 0.999, 0.9999),
        alpha: float = 5.0,
        t_alpha: int | None = None,
        t_beta3: int | None = None,
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        optim_bits: int = 32,
        min_8bit_size: int = 4096,
        is_paged: bool = False,
        **options: Any,
    ) -> None:
        hyper = {"lr": lr, "betas": two_betas(betas, type(self).__name__), "alpha": alpha, "t_alpha": t_alpha}
        hyper |= {"t_beta3": t_beta3, "eps": eps, "weight_decay": weight_decay}
        self._begin(params, "ademamix", hyper, optim_bits, None, min_8bit_size, is_paged, options)


_FIXED = ["optim_bits"]
AdEMAMix8bit = variant(AdEMAMix, "AdEMAMix8bit", bits=8, without=_FIXED)
AdEMAMix32bit = variant(AdEMAMix, "AdEMAMix32bit", bits=32, without=_FIXED)
PagedAdEMAMix = variant(AdEMAMix, "PagedAdEMAMix", paged=True, without=["is_paged"])
PagedAdEMAMix8bit = variant(AdEMAMix, "PagedAdEMAMix8bit", bits=8, paged=True, without=[*_FIXED, "is_paged"])
PagedAdEMAMix32bit = variant(AdEMAMix, "PagedAdEMAMix32bit", bits=32, paged=True, without=[*_FIXED, "is_paged"])
