"""The optimizers outside Adam's family (adam.py). Each class sets hyper-parameters and defaults of a rule; the mathematics is
in the compiled core."""

from torch import Tensor
from torch.optim.optimizer import ParamsT
from typing_extensions import Unpack

from lowtide.optimizers.optimizer import Optimizer
from lowtide.optimizers.registry import steps
from lowtide.options.options import Options


@steps("lion")
class Lion(Optimizer):
    """Lion (Chen et al., arXiv 2302.06675, algorithm 2): every element moves by lr, in the direction of the sign of an
    interpolation.

        c = β1 m + (1 − β1) g        p = (1 − lr λ) p − lr sign(c)        m = β2 m + (1 − β2) g

    State per parameter: "exp_avg" (m), in the parameter's shape, with half the bytes of `AdamW`'s state. The paper recommends
    an lr 3 to 10 times smaller than for AdamW, and a weight_decay larger by the same factor.

    Args:
        params, lr, options: as in `AdamW`.
        betas: β1 of the interpolation and β2 of the momentum, each in [0, 1).
        weight_decay: λ, finite and ≥ 0.

    Raises: like `AdamW`.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-4,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.99),
        weight_decay: float = 0.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, "lion", locals(), options)


@steps("sgd")
class SGD(Optimizer):
    """Stochastic gradient descent with momentum (Sutskever et al., 2013), in the form of torch.optim.SGD:

        g = g + λ p                  b = μ b + (1 − dampening) g, but b = g at the first step
        p = p − lr · (g + μ b if nesterov, else b)

    State per parameter: "momentum_buffer" (b), in the parameter's shape, with half the bytes of `AdamW`'s state; none without
        momentum.

    Args:
        params, lr, options: as in `AdamW`.
        momentum: μ, finite and ≥ 0.
        dampening: finite; must be 0 with nesterov.
        weight_decay: λ, finite and ≥ 0.
        nesterov: needs momentum > 0.

    Raises: like `AdamW`.
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
        super().__init__(params, "sgd", locals(), options)


@steps("adagrad")
class Adagrad(Optimizer):
    """Adagrad (Duchi et al., JMLR 12, 2011, diagonal form), like torch.optim.Adagrad:

        g = g + λ p        s = s + g², from the initial value
        p = p − lr / (1 + (t − 1) lr_decay) · g / (√s + eps)

    State per parameter: "sum" (s, which includes the initial value only after the first step), in the parameter's shape, with
    half the bytes of `AdamW`'s state. The sum stops growing once an addend is below half a step of its format.

    Args:
        params, lr, options: as in `AdamW`.
        lr_decay: finite and ≥ 0.
        weight_decay: λ, finite and ≥ 0.
        initial_accumulator_value: finite and ≥ 0.
        eps: added to the root of the sum, > 0.

    Raises: like `AdamW`.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, "adagrad", locals(), options)


@steps("rmsprop")
class RMSprop(Optimizer):
    """RMSprop (Tieleman & Hinton, Coursera lecture 6e, 2012), like torch.optim.RMSprop:

        g = g + λ p                  s = α s + (1 − α) g²
        p = p − lr d, d = g / (√s + eps); with momentum: p = p − lr b, b = μ b + d

    centered (Graves, arXiv 1308.0850, equations 38-45): √(s − a²) replaces √s, with a = α a + (1 − α) g. State per parameter,
    in its shape: "square_avg" (s), "momentum_buffer" (b) with momentum, "grad_avg" (a) if centered, each with half the bytes of
    `AdamW`'s state.

    Args:
        params, lr, options: as in `AdamW`.
        alpha: α, in [0, 1).
        eps: added to the root, > 0.
        weight_decay: λ, finite and ≥ 0.
        momentum: μ, finite and ≥ 0. Whether it is 0 is fixed at the first step.
        centered: fixed at the first step.

    Raises: like `AdamW`.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, "rmsprop", locals(), options)


@steps("lamb")
class LAMB(Optimizer):
    """LAMB (You et al., arXiv 1904.00962, algorithm 2): Adam with updates scaled to the length of the parameter.

        m = β1 m + (1 − β1) g        v = β2 v + (1 − β2) g²
        r = m / (1 − β1ᵗ) / (√v / √(1 − β2ᵗ) + eps) + λ p
        p = p − lr · ‖p‖ / ‖r‖ · r

    The ratio, of norms of whole parameters, may exceed 1, and is 1 if a norm is 0. With max_unorm there is no ratio: the rule
    is AdamW, whose update without its decay is at most max_unorm · ‖p‖ long, as bitsandbytes' LAMB clips it:

        p = p − lr · (min(1, max_unorm ‖p‖ / ‖r‖) · r + λ p),  r without λ p

    State and its bytes are as for `AdamW`; streaming state is read twice per step. A DTensor must be replicated
    (docs/rules.md).

    Args:
        params, lr, betas, eps, weight_decay, options: as in `AdamW`.
        max_unorm: finite and ≥ 0; None or 0: the trust ratio.

    Raises: like `AdamW`; ValueError for a sharded DTensor.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 1e-2,
        max_unorm: float | None = None,
        **options: Unpack[Options],
    ) -> None:
        max_unorm = 0.0 if max_unorm is None else max_unorm  # groups and the core use 0 for no clipping
        super().__init__(params, "lamb", locals(), options)


@steps("lars")
class LARS(Optimizer):
    """LARS (You, Gitman & Ginsburg, arXiv 1708.03888, algorithm 1): SGD with momentum and a separate learning rate for each
    parameter. The global learning rate applies outside the momentum, as in torch.optim.SGD.

        η = trust_coefficient · ‖p‖ / (‖g‖ + λ ‖p‖ + eps), 1 if a norm is 0
        g = η (g + λ p)              b = μ b + (1 − dampening) g, but b = g at the first step
        p = p − lr · (g + μ b if nesterov, else b)

    With max_unorm η is 1, and the vector that lr multiplies is at most max_unorm · ‖p‖ long, as bitsandbytes' LARS clips it.

    State and its bytes are as for `SGD`. Norms need state only with max_unorm; streaming state is then read twice per step. A
    DTensor must be replicated.

    Args:
        params, lr, options: as in `AdamW`.
        momentum: μ, finite and ≥ 0.
        weight_decay: λ, finite and ≥ 0.
        dampening: finite; must be 0 with nesterov.
        nesterov: needs momentum > 0.
        trust_coefficient: finite and ≥ 0.
        eps: added to the divisor, > 0.
        max_unorm: finite and ≥ 0; None or 0: the trust ratio.

    Raises: like `LAMB`.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        momentum: float = 0.9,
        weight_decay: float | Tensor = 0.0,
        dampening: float = 0.0,
        nesterov: bool = False,
        trust_coefficient: float = 1e-3,
        eps: float = 1e-8,
        max_unorm: float | None = None,
        **options: Unpack[Options],
    ) -> None:
        max_unorm = 0.0 if max_unorm is None else max_unorm  # groups and the core use 0 for no clipping
        super().__init__(params, "lars", locals(), options)
