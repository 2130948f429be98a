"""The ranks' jobs in the tests of voting optimizers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from lowtide.distributed import DistributedLion, SignOptimizer, Signum
from support import bits
from vote_reference import Case, gradient, initial

CLASSES: dict[str, type[SignOptimizer]] = {"lion": DistributedLion, "signum": Signum}


def build(case: Case, **options: Any) -> tuple[list[torch.nn.Parameter], SignOptimizer]:
    params = [torch.nn.Parameter(value) for value in initial(case)]
    vote = {**case.vote(dist.get_rank()), **options.pop("vote", {})}
    # Two groups, so that numbers run over both.
    groups = [{"params": params[:2]}, {"params": params[2:]}]
    hyper = {"state": "fp32", **case.hyper, **case.options, **options}
    return params, CLASSES[case.rule](groups, vote=vote, **hyper)


def set_gradients(case: Case, params: Sequence[torch.nn.Parameter], step: int, rank: int | None = None) -> None:
    for number, param in enumerate(params):
        param.grad = gradient(case, dist.get_rank() if rank is None else rank, step, number)


def snapshot(params: Sequence[torch.Tensor], opt: torch.optim.Optimizer | None = None) -> list[bytes]:
    found = [bits(param) for param in params]
    if opt is not None:
        found += [bits(value) for entry in opt.state_dict()["state"].values() for value in entry.values()]
    return found


def train(case: Case, steps: range | None = None, **options: Any) -> list[bytes]:
    """The parameters after the case's steps."""
    params, opt = build(case, **options)
    scheduler = torch.optim.lr_scheduler.LambdaLR(opt, lambda epoch: 0.5**epoch) if case.decaying else None
    for step in steps or range(case.steps):
        set_gradients(case, params, step)
        opt.step()
        if scheduler:
            scheduler.step()
    return snapshot(params)


def train_all(cases: Sequence[Case]) -> list[list[bytes]]:
    return [train(case) for case in cases]


def by_bucket(hook: Any) -> Any:
    """A SignVote whose buckets do not wait for one another, however small they are."""
    hook._least = 1
    return hook


class Bucket:
    """Like torch's GradBucket: gradients one after another in a buffer."""

    def __init__(self, index: int, last: bool, params: Sequence[torch.nn.Parameter], buffer: torch.Tensor) -> None:
        self._index, self._last, self._params, self._buffer = index, last, params, buffer

    def index(self) -> int:
        return self._index

    def is_last(self) -> bool:
        return self._last

    def buffer(self) -> torch.Tensor:
        return self._buffer

    def parameters(self) -> list[torch.nn.Parameter]:
        return list(self._params)

    def gradients(self) -> list[torch.Tensor]:
        parts = self._buffer.split([param.numel() for param in self._params])
        return [part.view_as(param) for part, param in zip(parts, self._params, strict=True)]


def one_pass(
    hook: Callable[..., Any], params: Sequence[torch.nn.Parameter], grads: Sequence[torch.Tensor], cuts: Sequence[Sequence[int]],
    placed: Callable[[torch.Tensor], torch.Tensor] = lambda buffer: buffer,
) -> list[torch.Tensor]:  # fmt: skip
    """The gradients after a pass whose buckets have these parameters each, as DistributedDataParallel calls the hook."""
    futures, out = [], list(grads)
    for index, numbers in enumerate(cuts):
        buffer = placed(torch.cat([grads[number].reshape(-1) for number in numbers]))
        bucket = Bucket(index, index + 1 == len(cuts), [params[number] for number in numbers], buffer)
        for number, grad in zip(numbers, bucket.gradients(), strict=True):
            out[number] = grad
        futures.append(hook(None, bucket))
    for future in futures:
        future.wait()
    return out
