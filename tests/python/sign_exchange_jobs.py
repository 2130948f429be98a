"""What ranks do in test_sign_exchange.py."""

from __future__ import annotations

import torch
import torch.distributed as dist
from lowtide.distributed import DistributedLion, ErrorFeedbackSign, SignOptimizer, Signum


def two_kinds() -> list[str]:
    """Texts of a step in which one rank has another optimizer, and of one after it took that of the others ("" for
    none)."""
    param = torch.nn.Parameter(torch.ones(100))

    def step(opt: SignOptimizer) -> str:
        param.grad = torch.ones(100)
        try:
            opt.step()
        except ValueError as error:
            return str(error)
        return ""

    lion = DistributedLion([param])
    other = Signum([param]) if dist.get_rank() == 1 else lion
    return [step(other), step(lion)]


def constant_gradients(dtype: torch.dtype, gradient: float, loss_scale: float, steps: int) -> tuple[float, float]:
    """Smallest and largest mean over steps of what error feedback makes of a gradient that is always the same on all
    workers, without the loss scale."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64, bias=False).to(dtype))
    hook = ErrorFeedbackSign(model, residual="fp32", loss_scale=lambda: loss_scale)
    hook.register(model)
    batch = torch.full((1, 64), gradient * loss_scale).to(dtype)
    weight = model.module.weight
    total = torch.zeros(weight.shape, dtype=torch.float64)
    for _ in range(steps):
        weight.grad = None
        model(batch).sum().backward()
        total += weight.grad.double() / loss_scale
    return total.min().item() / steps, total.max().item() / steps
