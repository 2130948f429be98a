"""Optimizers whose steps depend on norms of whole parameters. Each class is a rule's hyper-parameters and defaults; the
mathematics is in the core."""

from torch import Tensor
from torch.optim.optimizer import ParamsT
from typing_extensions import Unpack

from lowtide.optimizers.optimizer import Optimizer
from lowtide.optimizers.registry import steps
from lowtide.options.options import Options


@steps("lamb")
class LAMB(Optimizer):
    """LAMB (You et al., arXiv 1904.00962, algorithm 2): Adam whose update is made as long as the parameter.

        m = β1 m + (1 − β1) g        v = β2 v + (1 − β2) g²
        r = m / (1 − β1ᵗ) / (√v / √(1 − β2ᵗ) + eps) + λ p
        p = p − lr · ‖p‖ / ‖r‖ · r

    The ratio, of norms of whole parameters, may exceed 1, and is 1 where a norm is 0. With max_unorm there is none:
    AdamW then, whose update without its decay is at most max_unorm · ‖p‖ long, as bitsandbytes' LAMB clips it:

        p = p − lr · (min(1, max_unorm ‖p‖ / ‖r‖) · r + λ p),  r without λ p

    State and its bytes per parameter are those of `AdamW`; state that streams is read twice in a step. A DTensor must
    be replicated, and steps cannot be captured in CUDA graphs (docs/rules.md).

    Args:
        params, lr, betas, eps, weight_decay, options: as `AdamW`.
        max_unorm: finite and ≥ 0; None or 0: the trust ratio.

    Raises: as `AdamW`; ValueError for a DTensor that is cut.
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
        max_unorm = 0.0 if max_unorm is None else max_unorm  # groups and the core have 0 for no clipping
        super().__init__(params, "lamb", locals(), options)


@steps("lars")
class LARS(Optimizer):
    """LARS (You, Gitman & Ginsburg, arXiv 1708.03888, algorithm 1): SGD with momentum, and a learning rate of its own
    for each parameter; that of the whole is outside of the momentum, as in torch.optim.SGD.

        η = trust_coefficient · ‖p‖ / (‖g‖ + λ ‖p‖ + eps), 1 where a norm is 0
        g = η (g + λ p)              b = μ b + (1 − dampening) g, but b = g at the first step
        p = p − lr · (g + μ b if nesterov, else b)

    With max_unorm η is 1, and what lr multiplies at most max_unorm · ‖p‖ long, as bitsandbytes' LARS clips it.

    State and its bytes per parameter are those of `SGD`. Only with max_unorm do norms need it: state that streams is
    then read twice in a step. A DTensor must be replicated, and steps cannot be captured in CUDA graphs.

    Args:
        params, lr, options: as `AdamW`.
        momentum: μ, finite and ≥ 0.
        weight_decay: λ, finite and ≥ 0.
        dampening: finite; must be 0 with nesterov.
        nesterov: needs momentum > 0.
        trust_coefficient: finite and ≥ 0.
        eps: added to the norms that divide, > 0.
        max_unorm: finite and ≥ 0; None or 0: the trust ratio.

    Raises: as `LAMB`.
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
        max_unorm = 0.0 if max_unorm is None else max_unorm  # groups and the core have 0 for no clipping
        super().__init__(params, "lars", locals(), options)
