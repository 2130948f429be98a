"""Adam and AdamW. Both are one rule there, with decoupled weight decay, and differ in its default."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.optim.optimizer import ParamsT

from lowtide.compat.bitsandbytes.optim.base import BitsandbytesOptimizer, two_betas, variant


class Adam(BitsandbytesOptimizer):
    """`lowtide.AdamW` without weight decay unless asked: what bitsandbytes' Adam computes. amsgrad, which it ignores,
    is honoured."""

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] | str = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        optim_bits: int = 32,
        args: Any = None,
        min_8bit_size: int = 4096,
        is_paged: bool = False,
        **options: Any,
    ) -> None:
        pair = two_betas(betas, type(self).__name__)
        hyper = {"lr": lr, "betas": pair, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad}
        self._begin(params, "adamw", hyper, optim_bits, args, min_8bit_size, is_paged, options)


Adam8bit = variant(Adam, "Adam8bit", bits=8)
Adam32bit = variant(Adam, "Adam32bit", bits=32)
PagedAdam = variant(Adam, "PagedAdam", paged=True)
PagedAdam8bit = variant(Adam, "PagedAdam8bit", bits=8, paged=True)
PagedAdam32bit = variant(Adam, "PagedAdam32bit", bits=32, paged=True)

AdamW = variant(Adam, "AdamW", weight_decay=1e-2)
AdamW.__doc__ = "`lowtide.AdamW`. amsgrad, which bitsandbytes ignores, is honoured."
AdamW8bit = variant(AdamW, "AdamW8bit", bits=8)
AdamW32bit = variant(AdamW, "AdamW32bit", bits=32)
PagedAdamW = variant(AdamW, "PagedAdamW", paged=True, without=["is_paged"])
PagedAdamW8bit = variant(AdamW, "PagedAdamW8bit", bits=8, paged=True, without=["is_paged"])
PagedAdamW32bit = variant(AdamW, "PagedAdamW32bit", bits=32, paged=True, without=["is_paged"])
