"""SGD with momentum, RMSprop and Adagrad."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.optim.optimizer import ParamsT

from lowtide.compat.bitsandbytes.optim.base import BitsandbytesOptimizer, variant


class SGD(BitsandbytesOptimizer):
    """`lowtide.SGD`. dampening and nesterov, which bitsandbytes ignores, are honoured; without momentum, which it
    refuses, there is no state."""

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        optim_bits: int = 32,
        args: Any = None,
        min_8bit_size: int = 4096,
        **options: Any,
    ) -> None:
        hyper = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
        hyper |= {"nesterov": nesterov}
        self._begin(params, "sgd", hyper, optim_bits, args, min_8bit_size, False, options)


SGD8bit = variant(SGD, "SGD8bit", bits=8, without=["optim_bits"])
SGD32bit = variant(SGD, "SGD32bit", bits=32, without=["optim_bits"])


class RMSprop(BitsandbytesOptimizer):
    """`lowtide.RMSprop`. momentum, which bitsandbytes ignores, is honoured; so is centered, which it refuses."""

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum: float = 0,
        centered: bool = False,
        optim_bits: int = 32,
        args: Any = None,
        min_8bit_size: int = 4096,
        **options: Any,
    ) -> None:
        hyper = {"lr": lr, "alpha": alpha, "eps": eps, "weight_decay": weight_decay, "momentum": momentum}
        hyper |= {"centered": centered}
        self._begin(params, "rmsprop", hyper, optim_bits, args, min_8bit_size, False, options)


RMSprop8bit = variant(RMSprop, "RMSprop8bit", bits=8, without=["optim_bits"])
RMSprop32bit = variant(RMSprop, "RMSprop32bit", bits=32, without=["optim_bits"])


class Adagrad(BitsandbytesOptimizer):
    """`lowtide.Adagrad`. lr_decay and initial_accumulator_value, which bitsandbytes refuses, are honoured."""

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-2,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-10,
        optim_bits: int = 32,
        args: Any = None,
        min_8bit_size: int = 4096,
        **options: Any,
    ) -> None:
        hyper = {"lr": lr, "lr_decay": lr_decay, "weight_decay": weight_decay}
        hyper |= {"initial_accumulator_value": initial_accumulator_value, "eps": eps}
        self._begin(params, "adagrad", hyper, optim_bits, args, min_8bit_size, False, options)


Adagrad8bit = variant(Adagrad, "Adagrad8bit", bits=8, optim_bits=8)
Adagrad32bit = variant(Adagrad, "Adagrad32bit", bits=32)
