"""The ranks' jobs in the tests of voting optimizers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import lowtide
import torch
import torch.distributed as dist
from lowtide.distributed import DistributedLion, SignOptimizer, Signum
from support import bits
from vote_reference import Case, generator, gradient, initial

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


def budgets(case: Case, folder: str, states: Sequence[str]) -> list[tuple[list[bytes], list[bytes], int]]:
    """For every state format: parameters and state without a budget, with one, and bytes on disk."""
    shapes = ((300, 400), (50, 256), (4000,), (9,))
    out = []
    for state in states:
        found, disk = [], 0
        for memory in (None, lowtide.Memory(host="96KiB", disk=f"{folder}/{dist.get_rank()}")):
            params = [torch.nn.Parameter(torch.ones(shape)) for shape in shapes]
            options = {**case.hyper, "state": state, "memory": memory, "min_quantized_numel": 0}
            opt = CLASSES[case.rule](params, vote=case.vote(dist.get_rank()), **options)
            for step in range(case.steps):
                for number, param in enumerate(params):
                    random = generator(case.seed, dist.get_rank(), step, number)
                    param.grad = torch.randn(param.shape, generator=random) if (step + number) % 3 else None
                opt.step()
            disk = max(disk, int(opt.report()["disk_bytes"]))
            found.append(snapshot(params, opt))
        out.append((found[0], found[1], disk))
    return out


def raised(call: Any) -> tuple[str, str]:
    """The name and text of what `call` raises."""
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error)
    return "nothing", ""


def not_finite(case: Case, policy: str, bad_rank: int, value: float) -> dict[str, Any]:
    """Two good steps, one with `value` in a gradient of one rank, one good."""
    params, opt = build(case, nonfinite=policy)
    for step in range(2):
        set_gradients(case, params, step)
        opt.step()
    before = snapshot(params, opt)
    set_gradients(case, params, 2)
    if dist.get_rank() == bad_rank:
        params[0].grad[3, 4] = value
    kind, text = raised(opt.step)
    out: dict[str, Any] = {"raised": kind, "text": text, "untouched": snapshot(params, opt) == before}
    out |= {"skipped": opt.skipped_steps, "votes": opt.param_groups[0]["votes"]}
    out["ranks"] = opt.last_outcome.nonfinite_ranks
    set_gradients(case, params, 3)
    opt.step()
    out["after"] = snapshot(params)
    return out


DIFFERENT: dict[str, dict[str, Any]] = {
    "lr": {"lr": 3e-3}, "betas": {"betas": (0.8, 0.99)}, "weight_decay": {"weight_decay": 0.5},
    "maximize": {"maximize": True}, "nonfinite": {"nonfinite": "propagate"}, "ties": {"vote": {"ties": "plus"}},
    "seed": {"vote": {"seed": 9}}, "algorithm": {"vote": {"algorithm": "one_phase"}},
}  # fmt: skip


def differ(case: Case, what: str) -> tuple[str, str, bool, str]:
    """One rank has another option (or parameters, or steps); and whether all go on once it has been put right."""
    odd = dist.get_rank() == dist.get_world_size() - 1
    params, opt = build(case, **(DIFFERENT.get(what, {}) if odd else {}))
    if odd and what == "shapes":
        params = [torch.nn.Parameter(torch.randn(7, 13)), *params[1:-1], torch.nn.Parameter(torch.randn(70, 64))]
        opt = DistributedLion(params, **case.hyper, vote=case.vote(dist.get_rank()), state="fp32")
    if odd and what == "values":
        with torch.no_grad():
            params[3].add_(1)
    if odd and what == "step":
        for group in opt.param_groups:
            group["votes"] = 5
    for number, param in enumerate(params):
        param.grad = torch.full_like(param, 1.0 + number)
    before = snapshot(params)
    kind, text = raised(opt.step)
    untouched = snapshot(params) == before
    if what in ("lr", "betas", "weight_decay"):
        for group in opt.param_groups:
            group[what] = case.hyper.get(what, {"betas": (0.9, 0.99)}.get(what, 0.0))
    if what == "values":
        lowtide.distributed.broadcast_parameters(params)
    if what == "step":
        for group in opt.param_groups:
            group["votes"] = 0
    after = raised(opt.step)[0] if what in ("lr", "betas", "weight_decay", "values", "step") else "not tried"
    return kind, text, untouched, after


def by_bucket(hook: Any) -> Any:
    """A SignVote whose buckets do not wait for one another, however small they are."""
    hook._least = 1
    return hook


class Bucket:
    """As torch's GradBucket, of gradients one after another in a buffer."""

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
