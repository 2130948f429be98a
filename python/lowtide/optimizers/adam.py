"""Adam and its descendants. Each class sets hyper-parameters and defaults of a rule; the mathematics is in the core."""

from torch import Tensor
from torch.optim.optimizer import ParamsT
from typing_extensions import Unpack

from lowtide.optimizers.optimizer import Optimizer
from lowtide.optimizers.registry import steps
from lowtide.options.options import Options


@steps("adamw")
class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov & Hutter, arXiv 1711.05101, algorithm 2), like torch.optim.AdamW:

        m = β1 m + (1 − β1) g        v = β2 v + (1 − β2) g²
        p = (1 − lr λ) p − lr / (1 − β1ᵗ) · m / (√v / √(1 − β2ᵗ) + eps)

    State per parameter: "exp_avg" (m) and "exp_avg_sq" (v), in the parameter's shape. Bytes per parameter, for rows of a
    multiple of 256 elements: 2.03 with state="dynamic8" (2.03125), 4 with "bf16", 8 with "fp32"; 1.5 times as many with
    amsgrad.

    Args:
        params: tensors, (name, tensor) pairs, or dicts of "params" and options of the group.
        lr: learning rate, finite and ≥ 0; a number or a one-element tensor, read at every step.
        betas: decay rates β1, β2 of the two moments, each in [0, 1).
        eps: added to the root of the second moment, > 0.
        weight_decay: λ, finite and ≥ 0.
        amsgrad: divides by the root of the largest v so far, "max_exp_avg_sq" (Reddi et al., arXiv 1904.09237, algorithm 2).
            Fixed at the first step.
        nesterov: looks ahead like `NAdam`. Not together with amsgrad; fixed at the first step.
        momentum_decay: used with nesterov; see `NAdam`.
        options: see `lowtide.Options`.

    Raises:
        ValueError, TypeError: an argument or a parameter is unusable; the message says what is wanted.
        MemoryError: the state does not fit in memory.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        nesterov: bool = False,
        momentum_decay: float = 4e-3,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, "adamw", locals(), options)


@steps("adam")
class Adam(Optimizer):
    """Adam (Kingma & Ba, arXiv 1412.6980, algorithm 1) with an L2 penalty, like torch.optim.Adam:

        g = g + λ p                  m = β1 m + (1 − β1) g        v = β2 v + (1 − β2) g²
        p = p − lr / (1 − β1ᵗ) · m / (√v / √(1 − β2ᵗ) + eps)

    State, bytes per parameter, arguments and errors are as for `AdamW`, but weight_decay defaults to 0.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        nesterov: bool = False,
        momentum_decay: float = 4e-3,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, "adam", locals(), options)


class NAdam(Optimizer):
    """Adam with Nesterov's momentum (Dozat 2016), like torch.optim.NAdam: `Adam` or `AdamW` with nesterov=True.

        μₜ = β1 (1 − 0.96^(t ψ) / 2), Mₜ = μ₁ … μₜ        m, v: as in `Adam`
        p = p − lr (μₜ₊₁ m / (1 − Mₜ₊₁) + (1 − μₜ) g / (1 − Mₜ)) / (√v / √(1 − β2ᵗ) + eps)

    M multiplies the μ of each step that a parameter has taken, even if β1 or ψ has changed since. State, bytes per parameter
    and other arguments are as for `AdamW`.

    Args:
        momentum_decay: ψ, finite and ≥ 0.
        decoupled_weight_decay: whether weights decay as in `AdamW` or as in `Adam`. Applies to the whole optimizer.

    Raises: like `AdamW`.
    """

    def __init__(  # type: ignore[misc]  # other classes refuse one of these arguments
        self,
        params: ParamsT,
        lr: float | Tensor = 2e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        **options: Unpack[Options],
    ) -> None:
        hyper = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        hyper |= {"amsgrad": False, "nesterov": True, "momentum_decay": momentum_decay}
        rule = "adamw" if decoupled_weight_decay else "adam"
        super().__init__(params, rule, hyper, options)  # type: ignore[arg-type]


@steps("ademamix")
class AdEMAMix(Optimizer):
    """AdamW with a second, slow average of gradients (Pagliardini et al., arXiv 2409.03137, algorithm 1):

        m1 = β1 m1 + (1 − β1) g      m2 = β3(t) m2 + (1 − β3(t)) g      v = β2 v + (1 − β2) g²
        p = (1 − lr λ) p − lr (m1 / (1 − β1ᵗ) + α(t) m2) / (√v / √(1 − β2ᵗ) + eps)

    State per parameter: "exp_avg" (m1), "exp_avg_sq" (v) and "exp_avg_slow" (m2), in the parameter's shape, with 1.5 times the
    bytes of `AdamW`'s state.

    Args:
        params, lr, eps, weight_decay, options: as in `AdamW`.
        betas: β1, β2 and β3, each in [0, 1).
        alpha: α, the weight of the slow average, finite and ≥ 0.
        t_alpha: number of steps in which α(t) grows linearly from 0 to α; None: it is always α.
        t_beta3: number of steps in which β3(t) goes from β1 to β3, linearly in its half-life; None: it is always β3. The paper
            uses the total number of steps for both.

    Raises: like `AdamW`.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor, float | Tensor] = (0.9, 0.999, 0.9999),
        alpha: float = 5.0,
        t_alpha: int | None = None,
        t_beta3: int | None = None,
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, "ademamix", locals(), options)
