"""The optimizers. Each class is a rule's hyper-parameters and defaults; the mathematics is in the compiled core."""

from torch import Tensor
from torch.optim.optimizer import ParamsT
from typing_extensions import Unpack

from lowtide.checks import Options
from lowtide.optimizer import Optimizer


class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov & Hutter, arXiv 1711.05101, algorithm 2), as torch.optim.AdamW:

        m = β1 m + (1 − β1) g        v = β2 v + (1 − β2) g²
        p = (1 − lr λ) p − lr / (1 − β1ᵗ) · m / (√v / √(1 − β2ᵗ) + eps)

    State per parameter: "exp_avg" (m) and "exp_avg_sq" (v), of the parameter's shape. Bytes per parameter with rows of
    a multiple of 256 elements: 2.03 with state="dynamic8" (2.03125), 4 with "bf16", 8 with "fp32".

    Args:
        params: tensors, (name, tensor) pairs, or dicts of "params" and options of that group.
        lr: learning rate, finite and ≥ 0; a number or a tensor of one element, read at every step.
        betas: decay rates β1, β2 of the two moments, each in [0, 1).
        eps: added to the root of the second moment, > 0.
        weight_decay: λ, finite and ≥ 0.
        amsgrad: must be False.
        options: see `lowtide.checks.Options`: state, min_quantized_numel, maximize, nonfinite, amp_scaling …

    Raises:
        ValueError, TypeError: an argument or a parameter that cannot be used, named with what is wanted.
        MemoryError: there is no room for the state.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        **options: Unpack[Options],
    ) -> None:
        _refuse_amsgrad(amsgrad)
        hyper = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, "adamw", hyper, options)


class Adam(Optimizer):
    """Adam (Kingma & Ba, arXiv 1412.6980, algorithm 1) with an L2 penalty, as torch.optim.Adam:

        g = g + λ p                  m = β1 m + (1 − β1) g        v = β2 v + (1 − β2) g²
        p = p − lr / (1 − β1ᵗ) · m / (√v / √(1 − β2ᵗ) + eps)

    State, bytes per parameter, arguments and errors are those of `AdamW`; weight_decay is 0 unless given.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        **options: Unpack[Options],
    ) -> None:
        _refuse_amsgrad(amsgrad)
        hyper = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, "adam", hyper, options)


class Lion(Optimizer):
    """Lion (Chen et al., arXiv 2302.06675, algorithm 2): every element moves by lr, in the sign of an interpolation.

        c = β1 m + (1 − β1) g        p = (1 − lr λ) p − lr sign(c)        m = β2 m + (1 − β2) g

    State per parameter: "exp_avg" (m), of the parameter's shape. Bytes per parameter with rows of a multiple of 256
    elements: 1.02 with state="dynamic8" (1.015625), 2 with "bf16", 4 with "fp32". The paper takes lr 3 to 10 times
    smaller and weight_decay as many times larger than for AdamW.

    Args:
        params: tensors, (name, tensor) pairs, or dicts of "params" and options of that group.
        lr: learning rate, finite and ≥ 0; a number or a tensor of one element, read at every step.
        betas: β1 of the interpolation and β2 of the momentum, each in [0, 1).
        weight_decay: λ, finite and ≥ 0.
        options: see `lowtide.checks.Options`.

    Raises: as `AdamW`.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-4,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.99),
        weight_decay: float = 0.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, "lion", {"lr": lr, "betas": betas, "weight_decay": weight_decay}, options)


class SGD(Optimizer):
    """Stochastic gradient descent with momentum (Sutskever et al., 2013), in the form of torch.optim.SGD:

        g = g + λ p                  b = μ b + (1 − dampening) g, but b = g at the first step
        p = p − lr · (g + μ b if nesterov, else b)

    State per parameter: "momentum_buffer" (b), of the parameter's shape; none without momentum. Bytes per parameter
    with rows of a multiple of 256 elements: 1.02 with state="dynamic8" (1.015625), 2 with "bf16", 4 with "fp32", and 0
    without momentum.

    Args:
        params: tensors, (name, tensor) pairs, or dicts of "params" and options of that group.
        lr: learning rate, finite and ≥ 0; a number or a tensor of one element, read at every step.
        momentum: μ, finite and ≥ 0.
        dampening: finite; must be 0 with nesterov.
        weight_decay: λ, finite and ≥ 0.
        nesterov: needs momentum > 0.
        options: see `lowtide.checks.Options`.

    Raises: as `AdamW`.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float | Tensor = 0.0,
        nesterov: bool = False,
        **options: Unpack[Options],
    ) -> None:
        hyper = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
        }
        super().__init__(params, "sgd", hyper, options)


def _refuse_amsgrad(amsgrad: bool) -> None:
    if amsgrad:
        raise ValueError(f"amsgrad: got {amsgrad!r}, wanted False: the running maximum of v is not kept")
