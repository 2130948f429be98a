"""The ranks' jobs in the tests of error feedback: a model whose gradients are given."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from lowtide.distributed import ErrorFeedbackSign
from torch.nn.parallel import DistributedDataParallel
from vote_jobs import raised
from vote_reference import generator

SHAPES = ((1500,), (40, 30), (3,), (2, 1030))


class Given(torch.nn.Module):
    """The gradient of every parameter is what `forward` is given, times `scale`."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in SHAPES])

    def forward(self, gradients: list[torch.Tensor], scale: float) -> torch.Tensor:
        pairs = zip(self.weights, gradients, strict=True)
        return sum(((weight * gradient).sum() for weight, gradient in pairs), torch.zeros(())) * scale


def gradients(rank: int, number: int) -> list[torch.Tensor]:
    """The same part in every pass, of magnitudes from 1e-3 to 1e3, and as much noise, of each rank its own."""
    out = []
    for i, shape in enumerate(SHAPES):
        size = 10.0 ** (2 * i - 3)
        fixed = torch.randn(shape, generator=generator(i))
        out.append((fixed + torch.randn(shape, generator=generator(i, rank + 1, number + 1))) * size)
    return out


class Run:
    def __init__(self, dtype: torch.dtype = torch.float32, **options: Any) -> None:
        self.model = Given(dtype)
        self.ddp = DistributedDataParallel(self.model, bucket_cap_mb=0.004)
        self.scale = 1.0
        self.hook = ErrorFeedbackSign(self.ddp, loss_scale=lambda: self.scale, **options)
        self.hook.register(self.ddp)

    def backward(self, number: int, spoil: bool = False) -> list[torch.Tensor]:
        for param in self.model.parameters():
            param.grad = None
        mine = [grad.to(self.model.weights[0].dtype) for grad in gradients(dist.get_rank(), number)]
        if spoil:
            mine[1][3, 4] = float("inf")
        self.ddp(mine, self.scale).backward()
        return [param.grad.float() / self.scale for param in self.model.parameters()]


def mean(number: int, weights: list[int]) -> list[torch.Tensor]:
    """The weighted mean of the ranks' gradients."""
    every = [gradients(rank, number) for rank in range(len(weights))]
    return [
        sum(grad * weight for grad, weight in zip(of, weights, strict=True)) / sum(weights)
        for of in zip(*every, strict=True)
    ]


def errors(sent: list[torch.Tensor], due: list[torch.Tensor]) -> list[float]:
    return [float((a - b).norm() / b.norm()) for a, b in zip(sent, due, strict=True)]


def add(sums: list[torch.Tensor], values: list[torch.Tensor]) -> None:
    for total, value in zip(sums, values, strict=True):
        total += value


def left_out(run: Run, weights: list[int]) -> list[torch.Tensor]:
    """The residuals of each parameter: the weighted mean of the workers', and the shards'."""
    layout, share = run.hook._layout, weights[dist.get_rank()] / sum(weights)
    found = torch.zeros(layout.count)
    for kept, offset in zip(run.hook._residuals.parts, layout.offsets, strict=True):
        found[offset : offset + kept.numel] += kept.values() * share
    values = run.hook._shard.values()
    found[run.hook._shard.first : run.hook._shard.first + len(values)] += values
    dist.all_reduce(found)
    pairs = zip(layout.offsets, SHAPES, strict=True)
    return [found[offset : offset + torch.Size(shape).numel()].view(shape) for offset, shape in pairs]


def sums_of(residual: str, passes: int, feedback: bool, weights: list[int]) -> dict[str, Any]:
    """Relative errors of what came out in all, by parameter, also with what is left; what came out last; bytes."""
    run = Run(residual=residual, weight=weights[dist.get_rank()])
    sent, due = ([torch.zeros(shape) for shape in SHAPES] for _ in range(2))
    out: list[torch.Tensor] = []
    for number in range(passes):
        out = run.backward(number)
        add(sent, out)
        add(due, mean(number, weights))
        if not feedback:
            for kept, numel in zip(run.hook._residuals.parts, run.hook._layout.numels, strict=True):
                kept.put(torch.zeros(numel))
            run.hook._shard.clear()
    found = {"errors": errors(sent, due), "last": b"".join(part.numpy().tobytes() for part in out)}
    add(sent, left_out(run, weights))
    return found | {"whole": errors(sent, due), "bytes": run.hook.residual_bytes()}


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    if a.keys() != b.keys():
        return False
    return all(
        same(a[k], b[k]) if isinstance(a[k], dict)
        else bool((a[k] == b[k]).all()) if isinstance(a[k], torch.Tensor) else a[k] == b[k]
        for k in a
    )  # fmt: skip


def resume(residual: str, dtype: torch.dtype) -> dict[str, Any]:
    """A pass with an infinity on one rank, a loss scale that changes, and another hook that takes over."""
    run, scaled = Run(dtype, residual=residual), Run(dtype, residual=residual)
    equal = True
    for number in range(4):
        scaled.scale = 2.0 ** (number % 3 * 2)
        pairs = zip(run.backward(number), scaled.backward(number), strict=True)
        equal &= all(bool((a == b).all()) for a, b in pairs)
    before = run.hook.state_dict()
    spoilt = all(bool(out.isnan().all()) for out in run.backward(4, spoil=dist.get_rank() == 0))
    untouched = same(before, run.hook.state_dict())
    other = Run(dtype, residual=residual)
    other.hook.load_state_dict(before)
    resumed = all(
        bool((a == b).all())
        for number in range(5, 8)
        for a, b in zip(run.backward(number), other.backward(number), strict=True)
    )
    changed = not same(before, run.hook.state_dict())
    refused = [raised(lambda: other.hook.load_state_dict(bad)) for bad in spoilt_dicts(before)]
    intact = same(other.hook.state_dict(), run.hook.state_dict())
    run.scale = float(dist.get_rank() + 1)
    differing = raised(lambda: run.backward(9))
    return {
        "equal": equal, "spoilt": spoilt, "untouched": untouched, "resumed": resumed, "changed": changed,
        "refused": refused, "intact": intact, "differing": differing,
    }  # fmt: skip


def spoilt_dicts(good: dict[str, Any]) -> list[dict[str, Any]]:
    name = next(iter(good["residual"]))
    return [
        {**good, "codec": "none"},
        {**good, "workers": [7, 9], "shard_empty": False},
        {**good, "residual": {}},
        {**good, "residual": {**good["residual"], name: {}}},
        {**good, "shard": good["shard"][:-1]},
        {"votes": 3},
    ]


def first_half(path: str, passes: int, weights: list[int]) -> tuple[float, float, list[float]]:
    """Trains and averages; how far the mean of all residuals moved, and how large it is."""
    run = Run(residual="fp32", weight=weights[dist.get_rank()])
    sent, due = ([torch.zeros(shape) for shape in SHAPES] for _ in range(2))
    for number in range(passes):
        add(sent, run.backward(number))
        add(due, mean(number, weights))
    torch.save(run.hook.state_dict(), f"{path}.{dist.get_rank()}.own")
    before = left_out(run, weights)
    run.hook.average_state()
    moved = size = 0.0
    for kept, value in zip(run.hook._residuals.parts, before, strict=True):
        moved = max(moved, float((kept.values() - value.view(-1)).abs().max()))
        size = max(size, float(kept.values().abs().max()))
    if dist.get_rank() == 0:
        torch.save({"hook": run.hook.state_dict(), "sent": sent, "due": due}, path)
    return moved, size, errors(sent, due)


def second_half(path: str, passes: range) -> tuple[list[float], list[float], tuple[str, str]]:
    """Goes on from there, and without residuals; errors of the sums over both halves."""
    found = []
    for take_over in (True, False):
        run = Run(residual="fp32")
        refusal = raised(lambda: run.hook.load_state_dict(torch.load(f"{path}.0.own", weights_only=True)))  # noqa: B023
        saved = torch.load(path, weights_only=True)
        if take_over:
            run.hook.load_state_dict(saved["hook"])
        for number in passes:
            add(saved["sent"], run.backward(number))
            add(saved["due"], mean(number, [1] * dist.get_world_size()))
        found.append(errors(saved["sent"], saved["due"]))
    return found[0], found[1], refusal
