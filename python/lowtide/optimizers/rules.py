"""The optimizers but for Adam's family (adam.py). Each class is a rule's hyper-parameters and defaults; the mathematics
is in the compiled core."""

from torch import Tensor
from torch.optim.optimizer import ParamsT
from typing_extensions import Unpack

from lowtide.optimizers.optimizer import Optimizer
from lowtide.optimizers.registry import steps
from lowtide.options.options import Options


@steps("lion")
class Lion(Optimizer):
    """Lion (Chen et al., arXiv 2302.06675, algorithm 2): every element moves by lr, in the sign of an interpolation.

        c = β1 m + (1 − β1) g        p = (1 − lr λ) p − lr sign(c)        m = β2 m + (1 − β2) g

    State per parameter: "exp_avg" (m), of the parameter's shape; half the bytes of `AdamW`'s. The paper takes
    lr 3 to 10 times smaller and weight_decay as many times larger than for AdamW.

    Args:
        params, lr, options: as `AdamW`.
        betas: β1 of the interpolation and β2 of the momentum, each in [0, 1).
        weight_decay: λ, finite and ≥ 0.

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
        super().__init__(params, "lion", locals(), options)


@steps("sgd")
class SGD(Optimizer):
    """Stochastic gradient descent with momentum (Sutskever et al., 2013), in the form of torch.optim.SGD:

        g = g + λ p                  b = μ b + (1 − dampening) g, but b = g at the first step
        p = p − lr · (g + μ b if nesterov, else b)

    State per parameter: "momentum_buffer" (b), of the parameter's shape, half the bytes of `AdamW`'s; none
    without momentum.

    Args:
        params, lr, options: as `AdamW`.
        momentum: μ, finite and ≥ 0.
        dampening: finite; must be 0 with nesterov.
        weight_decay: λ, finite and ≥ 0.
        nesterov: needs momentum > 0.

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
        super().__init__(params, "sgd", locals(), options)


@steps("adagrad")
class Adagrad(Optimizer):
    """Adagrad (Duchi et al., JMLR 12, 2011, diagonal form), as torch.optim.Adagrad:

        g = g + λ p        s = s + g², from the initial value
        p = p − lr / (1 + (t − 1) lr_decay) · g / (√s + eps)

    State per parameter: "sum" (s, without the initial value until the first step), of the parameter's shape; half the
    bytes of `AdamW`'s. A sum that only grows stops growing where an addend is below half a step of its format.

    Args:
        params, lr, options: as `AdamW`.
        lr_decay: finite and ≥ 0.
        weight_decay: λ, finite and ≥ 0.
        initial_accumulator_value: finite and ≥ 0.
        eps: added to the root of the sum, > 0.

    Raises: as `AdamW`.
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
    """RMSprop (Tieleman & Hinton, Coursera lecture 6e, 2012), as torch.optim.RMSprop:

        g = g + λ p                  s = α s + (1 − α) g²
        p = p − lr d, d = g / (√s + eps); with momentum: p = p − lr b, b = μ b + d

    centered (Graves, arXiv 1308.0850, equations 38-45): √(s − a²) in place of √s, with a = α a + (1 − α) g.
    State per parameter: "square_avg" (s), "momentum_buffer" (b) with momentum, "grad_avg" (a) if centered, of the
    parameter's shape, each half the bytes of `AdamW`'s.

    Args:
        params, lr, options: as `AdamW`.
        alpha: α, in [0, 1).
        eps: added to the root, > 0.
        weight_decay: λ, finite and ≥ 0.
        momentum: μ, finite and ≥ 0. Whether it is 0 is fixed when a group is added.
        centered: fixed when a group is added.

    Raises: as `AdamW`.
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
