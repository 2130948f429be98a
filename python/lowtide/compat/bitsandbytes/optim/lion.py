"""Lion."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.optim.optimizer import ParamsT

from lowtide.compat.bitsandbytes.optim.base import BitsandbytesOptimizer, two_betas, variant


class Lion(BitsandbytesOptimizer):
    """`lowtide.Lion`: decoupled weight decay, as bitsandbytes has it since 0.50."""

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-4,
        betas: tuple[float, float] | str = (0.9, 0.99),
        weight_decay: float = 0,
        optim_bits: int = 32,
        args: Any = None,
        min_8bit_size: int = 4096,
        is_paged: bool = False,
        **options: Any,
    ) -> None:
        hyper = {"lr": lr, "betas": two_betas(betas, type(self).__name__), "weight_decay": weight_decay}
        self._begin(params, "lion", hyper, optim_bits, args, min_8bit_size, is_paged, options)


Lion8bit = variant(Lion, "Lion8bit", bits=8, without=["optim_bits"])
Lion32bit = variant(Lion, "Lion32bit", bits=32, without=["optim_bits"])
PagedLion = variant(Lion, "PagedLion", paged=True, without=["is_paged"])
PagedLion8bit = variant(Lion, "PagedLion8bit", bits=8, paged=True, without=["optim_bits", "is_paged"])
PagedLion32bit = variant(Lion, "PagedLion32bit", bits=32, paged=True, without=["optim_bits", "is_paged"])
