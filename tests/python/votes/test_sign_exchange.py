"""Workers that cannot do what the others do, and gradients that only a loss scale keeps within float16."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from distributed_support import shared_ranks
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


def test_two_kinds_of_optimizers_are_refused_on_all() -> None:
    """Lowtide reports the error; gloo would end the processes."""
    for first, second in shared_ranks().run(3, two_kinds):
        assert "kind of optimizer" in first and "[1]" in first and second == ""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("loss_scale", [1.0, 2.0**16, 3.0 * 2**14])
def test_error_feedback_under_a_loss_scale(
    dtype: torch.dtype, loss_scale: float, figure: Callable[[str], None]
) -> None:
    # Without its scale, 2^-26 is no float16.
    gradient = 2.0**-26 if loss_scale > 1 else 2.0**-8
    for low, high in shared_ranks().run(2, constant_gradients, dtype, gradient, loss_scale, 4):
        # One sign and one scale say it all; the scale is a power of two, and 3 * 2^-12 is exact in all types.
        assert low == high == gradient
    figure(f"{dtype}, {loss_scale}: a gradient of {gradient} arrives as it is")


def test_a_hook_that_is_interrupted_ends_backward() -> None:
    good, bad, _ = shared_ranks().run(3, interrupted_hook)
    assert "SystemExit: enough" in bad, bad
    assert "ranks [1] failed" in good, good


def test_a_shard_that_cannot_be_read_fails_on_all() -> None:
    (own, first), (others, second) = shared_ranks().run(2, misaligned_shard)
    assert own.startswith("ValueError") and "aligned" in own, own
    assert others.startswith("RuntimeError") and "ranks [0] failed" in others, others
    assert first == second == ""
