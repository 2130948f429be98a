"""LAMB and LARS: bitsandbytes' are Adam and SGD with momentum whose update is at most max_unorm times as long as the
parameter; it is shortened, but never lengthened, as the trust ratio of the papers does too."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.optim.optimizer import ParamsT

from lowtide.checks.values import expect
from lowtide.compat.bitsandbytes.optim.base import BitsandbytesOptimizer, two_betas, variant


class LAMB(BitsandbytesOptimizer):
    """`lowtide.LAMB` with max_unorm, in 8 bits, too, where bitsandbytes has it without effect. bias_correction and
    adam_w_mode, which it ignores, must be True; amsgrad, likewise, False."""

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] | str = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        adam_w_mode: bool = True,
        optim_bits: int = 32,
        args: Any = None,
        min_8bit_size: int = 4096,
        max_unorm: float = 1.0,
        **options: Any,
    ) -> None:
        name = type(self).__name__
        expect(bool(bias_correction), f"{name}: bias_correction", bias_correction, "True")
        expect(bool(adam_w_mode), f"{name}: adam_w_mode", adam_w_mode, "True: weight decay is decoupled")
        expect(not amsgrad, f"{name}: amsgrad", amsgrad, "False")
        pair = two_betas(betas, name)
        hyper = {"lr": lr, "betas": pair, "eps": eps, "weight_decay": weight_decay, "max_unorm": max_unorm}
        self._begin(params, "lamb", hyper, optim_bits, args, min_8bit_size, False, options, max_unorm)


LAMB8bit = variant(LAMB, "LAMB8bit", bits=8, without=["optim_bits"])
LAMB32bit = variant(LAMB, "LAMB32bit", bits=32, without=["optim_bits"])


class LARS(BitsandbytesOptimizer):
    """`lowtide.LARS` with max_unorm, in 8 bits, too, where bitsandbytes has it without effect. dampening and nesterov,
    which it ignores, are honoured."""

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
        max_unorm: float = 0.02,
        **options: Any,
    ) -> None:
        hyper = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
        hyper |= {"nesterov": nesterov, "max_unorm": max_unorm}
        self._begin(params, "lars", hyper, optim_bits, args, min_8bit_size, False, options, max_unorm)


LARS8bit = variant(LARS, "LARS8bit", bits=8, without=["optim_bits"])
LARS32bit = variant(LARS, "LARS32bit", bits=32, without=["optim_bits"])
PytorchLARS = variant(LARS, "PytorchLARS", bits=32, without=["optim_bits", "args", "min_8bit_size"], lr=0.01)
