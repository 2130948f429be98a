"""The ranks' jobs of test_sign_exchange.py."""

from __future__ import annotations

import threading

import torch
import torch.distributed as dist
from lowtide.distributed import DistributedLion, ErrorFeedbackSign, ShardVote, SignOptimizer, Signum


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


def interrupted_hook() -> str:
    """How backward() ends where one rank's hook meets what is no Exception."""

    def scale() -> float:
        if dist.get_rank() == 1:
            raise SystemExit("enough")
        return 2.0

    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    ErrorFeedbackSign(model, loss_scale=scale).register(model)
    ended = ["backward() hangs"]

    def run() -> None:
        try:
            model(torch.randn(2, 64)).sum().backward()
            ended[0] = "nothing"
        except RuntimeError as error:
            ended[0] = str(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(15)
    return ended[0]


def misaligned_shard() -> list[str]:
    """Texts of a vote with a tensor that is not aligned to its elements on one rank, and of the next ("" for none)."""
    vote = ShardVote(group=dist.group.WORLD)
    raw = torch.ones(4 * 256 + 1, dtype=torch.uint8)
    texts = []
    for begin in (int(dist.get_rank() == 0), 0):
        tensor = torch.frombuffer(bytearray(raw.tolist()), dtype=torch.float32, count=256, offset=begin)
        try:
            vote(tensor)
            texts.append("")
        except (ValueError, RuntimeError) as error:
            texts.append(f"{type(error).__name__}: {error}")
    return texts
