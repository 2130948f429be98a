"""Muon: matrices move by their momentum made orthogonal; the core keeps the momentum, torch does the products."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT
from typing_extensions import Unpack

from lowtide.checks.values import expect, number
from lowtide.devices import sharding
from lowtide.engine.family import Family
from lowtide.optimizers.optimizer import Optimizer
from lowtide.optimizers.registry import steps
from lowtide.options.hyper import hyper_values
from lowtide.options.options import Options

ADJUSTMENTS = (None, "original", "match_rms_adamw", "spectral_unclamped")
_BUCKET = 64 << 20  # elements of directions at a time: 256 MiB
_MOMENTUM = "sgd"  # the core's rule that keeps b


class MuonFamily(Family):
    """Two rules of the core: matrices by that which keeps a momentum, all else by AdamW."""

    CORE_RULE = "adamw"

    def rule_for(self, param: Tensor, options: Mapping[str, Any]) -> str:
        use = options["use_muon"]
        if not isinstance(use, bool):
            raise TypeError(f"use_muon: got {use!r} ({type(use).__name__}), wanted a bool")
        if param.ndim != 2 or not use:
            return ""
        if sharding.is_dtensor(param):
            raise NotImplementedError(
                f"got a matrix of shape {tuple(param.shape)} that is a DTensor, wanted a plain one: Newton-Schulz needs "
                "all of it. Put it into a group with use_muon=False, or keep it whole on each rank"
            )
        if options["master"] and param.dtype != torch.float32:
            raise NotImplementedError(
                f"got master={options['master']!r} for a matrix of {param.dtype}, wanted None, or float32 matrices: what "
                "moves them keeps no residual. Put it into a group with use_muon=False, or lowtide.override(param, "
                "master=None)"
            )
        return _MOMENTUM

    def hyper_of(self, rule: str, options: Mapping[str, Any]) -> dict[str, float]:
        if rule != _MOMENTUM:
            lr = options["lr"] if options["adamw_lr"] is None else options["adamw_lr"]
            return super().hyper_of(rule, {**options, "lr": lr, "eps": options["adamw_eps"], "nesterov": False})
        keys = ("lr", "weight_decay", "momentum", "nesterov", "maximize")
        hyper = dict(zip(keys, hyper_values(keys, options), strict=True))
        expect(0 <= hyper["momentum"] < 1, "momentum", options["momentum"], "0 or more, and less than 1")
        coefficients = options["ns_coefficients"]
        three = isinstance(coefficients, (tuple, list)) and len(coefficients) == 3
        expect(three and all(isinstance(c, Real) for c in coefficients), "ns_coefficients", coefficients, "3 numbers")
        steps, eps = options["ns_steps"], number("eps", options["eps"])
        expect(isinstance(steps, int) and 0 <= steps < 100, "ns_steps", steps, "an integer from 0 to 99")
        expect(0 < eps < math.inf, "eps", eps, "a number above 0")
        expect(options["adjust_lr_fn"] in ADJUSTMENTS, "adjust_lr_fn", options["adjust_lr_fn"], f"one of {ADJUSTMENTS}")
        hyper["nesterov"] = bool(hyper["nesterov"]) and hyper["momentum"] > 0  # without momentum both are g
        return hyper

    def overridable(self) -> list[str]:
        return self.given


@steps("muon")
class Muon(Optimizer):
    """Muon (Keller Jordan et al. 2024, kellerjordan.github.io/posts/muon), as torch.optim.Muon, for matrices:

        b = μ b + (1 − μ) g                 d = (1 − μ) g + μ b if nesterov, else b
        p = (1 − lr λ) p − lr ratio O(d)    O: Newton-Schulz, U S' Vᵀ of d = U S Vᵀ with S' about 1, in bfloat16

    and `AdamW` for other parameters: those whose number of dimensions is not 2, and all of a group with use_muon=False
    (embeddings and the output layer belong there). Both are in one object, one `state_dict()` and one budget.

    State of a matrix: "momentum_buffer" (b / (1 − μ)), of the parameter's shape; 1.02 bytes per parameter with
    state="dynamic8" (1.015625, rows of a multiple of 256 elements), 2 with "bf16", 4 with "fp32". Eight bits are enough
    for it (arXiv 2509.23106). Of others: see `AdamW`. While it runs, a step takes 4 bytes per element of 256 MiB of
    matrices, or of the largest one, beside what the products take.

    Args:
        params, lr, options: as `AdamW`.
        weight_decay: λ, finite and ≥ 0; of all parameters.
        momentum: μ, in [0, 1). Changed between steps, older gradients in b count as if they had come with the new one:
            b / (1 − μ) is kept. (torch.optim.Muon keeps b, so that moves differ while μ does.)
        nesterov: see above.
        ns_coefficients: a, b, c of a step of Newton-Schulz: X = a X + (b A + c A²) X, A = X Xᵀ.
        eps: what d is divided by at least, instead of its norm, before the first of them.
        ns_steps: how many, 0 to 99.
        adjust_lr_fn: ratio for a matrix of m rows and n columns: None or "original", √max(1, m / n);
            "match_rms_adamw", 0.2 √max(m, n), for learning rates of AdamW; "spectral_unclamped", √(m / n).
        use_muon: False steps matrices as `AdamW` does. Fixed when a group is added.
        adamw_lr: learning rate of what AdamW steps; None: lr.
        betas, adamw_eps: of AdamW. Schedulers that cycle a momentum (OneCycleLR, CyclicLR) cycle `momentum`, as with
            torch.optim.Muon, and leave betas alone, which `defaults` does not have.

    Raises: as `AdamW`; NotImplementedError for a matrix that is a DTensor, as a shard has not what Newton-Schulz needs,
    and for one of 16 bits with a master, whose residual nothing would keep. Put such matrices into a group with
    use_muon=False, or keep them whole on each rank.
    """

    FAMILY = MuonFamily
    NOT_CYCLED = ("betas",)  # torch's schedulers would cycle them, and leave `momentum` alone

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315),
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
        use_muon: bool = True,
        adamw_lr: float | Tensor | None = None,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.95),
        adamw_eps: float = 1e-8,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, "muon", locals(), options)

    def _take(self, scale: float, known_finite: bool, queue: int, free: int, only: list[int] | None) -> None:
        engine, params = self.engine, self.engine.params
        here = [i for i, param in enumerate(params) if param.grad is not None and (only is None or i in only)]
        matrices = {i: group for group in engine.groups if group.rule for i in group.params}
        checked = known_finite or engine.settings.nonfinite == "propagate"
        if not checked and engine.core.check(scale, queue) >= 0:
            engine.skipped_before += 1
            return
        buckets = [[i for i in here if i not in matrices]]
        room = _BUCKET
        for i in here:
            if i in matrices:
                room -= params[i].numel()
                if room < 0 and any(j in matrices for j in buckets[-1]):
                    buckets.append([])
                    room = _BUCKET - params[i].numel()
                buckets[-1].append(i)
        for place, bucket in enumerate(buckets):
            found = {
                i: torch.empty(params[i].shape, dtype=torch.float32, device=params[i].device)
                for i in bucket
                if i in matrices
            }
            addresses = [found[i].data_ptr() if i in found else 0 for i in range(len(params))]
            engine.core.step(scale, True, queue, free, bucket, addresses)
            free = engine.room()
            engine.steps_before -= place > 0  # the core has counted each
            for i, direction in found.items():
                group = matrices[i]
                _move(params[i], direction, group.options(self.param_groups), group.pushed)


def _move(param: Tensor, direction: Tensor, options: Mapping[str, Any], hyper: Mapping[str, float]) -> None:
    """direction: that of the core, d / (1 − μ)."""
    if hyper["momentum"]:
        direction.mul_(1 - hyper["momentum"])
    update = orthogonal(direction, options["ns_coefficients"], options["ns_steps"], options["eps"])
    lr = hyper["lr"]
    param.mul_(1 - lr * hyper["weight_decay"])
    param.add_(update, alpha=-lr * _ratio(options["adjust_lr_fn"], param))


def _ratio(adjustment: str | None, param: Tensor) -> float:
    rows, columns = param.shape
    if param.numel() == 0:
        return 1.0
    if adjustment == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    if adjustment == "spectral_unclamped":
        return math.sqrt(rows / columns)
    return math.sqrt(max(1, rows / columns))


def orthogonal(matrix: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """About U Vᵀ of matrix = U S Vᵀ: quintic Newton-Schulz iterations in bfloat16, over its shorter side."""
    a, b, c = coefficients
    x = matrix.to(torch.bfloat16, copy=True)
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    x.div_(x.norm().clamp(min=eps))  # so that no singular value is above 1
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x
