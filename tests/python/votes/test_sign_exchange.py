"""Workers that cannot do as the others do, and gradients that only a loss scale keeps within float16."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.distributed as dist
from distributed_support import on_ranks
from lowtide.distributed import DistributedLion, ErrorFeedbackSign, ShardVote, Signum
from support import raised


@on_ranks(3)
def test_two_kinds_of_optimizers_are_refused_on_all() -> None:
    """Lowtide reports the error; gloo would end the processes. After that all have the same kind."""
    param = torch.nn.Parameter(torch.ones(100))
    param.grad = torch.ones(100)
    lion = DistributedLion([param])
    kind, text = raised((Signum([param]) if dist.get_rank() == 1 else lion).step)
    assert kind == "ValueError" and "kind of optimizer" in text and "[1]" in text, text
    lion.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("loss_scale", [1.0, 2.0**16, 3.0 * 2**14])
@on_ranks(2)
def test_error_feedback_under_a_loss_scale(dtype: torch.dtype, loss_scale: float) -> str:
    """A gradient that is always the same on all workers."""
    gradient = 2.0**-26 if loss_scale > 1 else 2.0**-8  # without its scale, 2^-26 is no float16
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64, bias=False).to(dtype))
    hook = ErrorFeedbackSign(model, residual="fp32", loss_scale=lambda: loss_scale)
    hook.register(model)
    weight = model.module.weight
    total = torch.zeros(weight.shape, dtype=torch.float64)
    for _ in range(4):
        weight.grad = None
        model(torch.full((1, 64), gradient * loss_scale).to(dtype)).sum().backward()
        total += weight.grad.double() / loss_scale
    # One sign and one scale say it all; the scale is a power of two, and 3 * 2^-12 is exact in all types.
    assert total.unique().tolist() == [4 * gradient]
    return f"{dtype}, {loss_scale}: a gradient of {gradient} arrives as it is"


@on_ranks(3)
def test_a_hook_that_is_interrupted_ends_backward() -> None:
    """One rank's hook meets a BaseException that is no Exception."""

    def scale() -> float:
        if dist.get_rank() == 1:
            raise SystemExit("enough")
        return 2.0

    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    ErrorFeedbackSign(model, loss_scale=scale).register(model)
    ended: list[str] = []
    batch = torch.randn(2, 64)
    thread = threading.Thread(target=lambda: ended.append(raised(model(batch).sum().backward)[1]), daemon=True)
    thread.start()
    thread.join(15)
    assert ended, "backward() hangs"
    assert ("SystemExit: enough" if dist.get_rank() == 1 else "ranks [1] failed") in ended[0], ended


@on_ranks(2)
def test_a_shard_that_cannot_be_read_fails_on_all() -> None:
    """A tensor on rank 0 that is not aligned to its elements; the next vote is right."""
    vote = ShardVote(group=dist.group.WORLD)
    raw = bytearray(torch.ones(4 * 256 + 1, dtype=torch.uint8).tolist())
    own = dist.get_rank() == 0
    kind, text = raised(lambda: vote(torch.frombuffer(raw, dtype=torch.float32, count=256, offset=int(own))))
    assert kind == ("ValueError" if own else "RuntimeError") and ("aligned" if own else "ranks [0] failed") in text, text
    vote(torch.frombuffer(raw, dtype=torch.float32, count=256))
