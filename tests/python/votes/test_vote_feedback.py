"""ErrorFeedbackSign: what one bit leaves out comes later, whatever residuals are kept in, over checkpoints and changes
of the number of workers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from distributed_support import alike, on_ranks, shared_ranks
from lowtide.distributed import ErrorFeedbackSign
from torch.nn.parallel import DistributedDataParallel
from support import bits, raised
from vote_reference import aligned, generator

SHAPES = ((1500,), (40, 30), (3,), (2, 1030))


class Given(torch.nn.Module):
    """Every parameter's gradient is the argument of `forward`, times `scale`."""

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
    """Each parameter's residuals: the weighted mean over workers, plus the shards' residuals."""
    layout, share = run.hook._layout, weights[dist.get_rank()] / sum(weights)
    found = torch.zeros(layout.count)
    for kept, offset in zip(run.hook._residuals.parts, layout.offsets, strict=True):
        found[offset : offset + kept.numel] += kept.values() * share
    values = run.hook._shard.values()
    found[run.hook._shard.first : run.hook._shard.first + len(values)] += values
    dist.all_reduce(found)
    pairs = zip(layout.offsets, SHAPES, strict=True)
    return [found[offset : offset + torch.Size(shape).numel()].view(shape) for offset, shape in pairs]


PASSES = 100


# The share of the sum that rounding may lose: residuals of some 20 gradients, in each of 100 passes on two sides, at
# random.
ROUNDING = {"fp32": 1e-5, "bf16": 20 * 2**-9 * 200**0.5 / 100, "dynamic8": 20 * 2**-6 * 200**0.5 / 100}


def sums_of(residual: str, feedback: bool, weights: list[int]) -> tuple[float, float, int]:
    """The largest relative error of the total output, without and with the residuals; and bytes of residuals."""
    run = Run(residual=residual, weight=weights[dist.get_rank()])
    sent, due = ([torch.zeros(shape) for shape in SHAPES] for _ in range(2))
    out: list[torch.Tensor] = []
    for number in range(PASSES):
        out = run.backward(number)
        add(sent, out)
        add(due, mean(number, weights))
        if not feedback:
            for kept, numel in zip(run.hook._residuals.parts, run.hook._layout.numels, strict=True):
                kept.put(torch.zeros(numel))
            run.hook._shard.clear()
    alike([*map(bits, out)])
    found = max(errors(sent, due))
    add(sent, left_out(run, weights))
    return found, max(errors(sent, due)), run.hook.residual_bytes()


@pytest.mark.parametrize(
    ("residual", "world", "weights"),
    [("fp32", 3, [1, 1, 1]), ("fp32", 2, [1, 3]), ("bf16", 3, [1, 1, 1]), ("dynamic8", 3, [1, 1, 1])],
)
@on_ranks()
def test_sums_are_those_of_means(residual: str, world: int, weights: list[int]) -> str:
    error, whole, kept = sums_of(residual, True, weights)
    # Without the residuals, which are bounded and so 1 / PASSES of the sum.
    assert whole < ROUNDING[residual] and error < 0.15
    numel = sum(torch.Size(shape).numel() for shape in SHAPES)
    width = {"fp32": 4, "bf16": 2, "dynamic8": 1}[residual]
    signs = sum(aligned(torch.Size(shape).numel()) for shape in SHAPES)
    assert numel * width <= kept <= 1.02 * width * (numel + 2 * (signs / world + 1024))
    return (
        f"{residual}, weights {weights}: {PASSES} passes within {error:.2%} of the sum of means, with "
        f"what is left {whole:.5%}; {kept} bytes of residuals for {numel} elements"
    )


@on_ranks(3)
def test_without_feedback() -> str:
    """Control."""
    error, _, _ = sums_of("fp32", False, [1, 1, 1])
    assert error > 0.3
    return f"{PASSES} passes within {error:.2%} of the sum of means"


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    if a.keys() != b.keys():
        return False
    return all(
        same(a[k], b[k]) if isinstance(a[k], dict)
        else bool((a[k] == b[k]).all()) if isinstance(a[k], torch.Tensor) else a[k] == b[k]
        for k in a
    )  # fmt: skip


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("residual", ["fp32", "bf16", "dynamic8"])
@on_ranks(3)
def test_resumes_bit_for_bit(residual: str, dtype: torch.dtype) -> None:
    """A loss scale that changes, a pass with an infinity on one rank, another hook that takes over, and dicts that it refuses."""

    def equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
        return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))

    run, scaled = Run(dtype, residual=residual), Run(dtype, residual=residual)
    for number in range(4):
        scaled.scale = 2.0 ** (number % 3 * 2)
        assert equal(run.backward(number), scaled.backward(number))
    before = run.hook.state_dict()
    assert all(bool(out.isnan().all()) for out in run.backward(4, spoil=dist.get_rank() == 0))
    assert same(before, run.hook.state_dict())
    other = Run(dtype, residual=residual)
    other.hook.load_state_dict(before)
    assert all(equal(run.backward(number), other.backward(number)) for number in range(5, 8))
    assert not same(before, run.hook.state_dict())
    words = ("residual: got 'none'", "average_state()", "other parameters", "got nothing", "shard", "got no")
    for bad, word in zip(spoilt_dicts(before), words, strict=True):
        kind, text = raised(lambda: other.hook.load_state_dict(bad))
        assert kind == "ValueError" and word in text, (kind, text)
    assert same(other.hook.state_dict(), run.hook.state_dict())
    run.scale = float(dist.get_rank() + 1)
    kind, text = raised(lambda: run.backward(9))
    assert kind == "RuntimeError" and "loss_scale" in text, text


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
    """Goes on from there, with and without residuals; returns errors of the sums over both halves."""
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


@pytest.mark.parametrize(("weights", "then"), [([1, 1, 1, 1], 2), ([2, 1], 3)])
def test_another_number_of_workers(weights: list[int], then: int, tmp_path: Path, figure: Callable[[str], None]) -> None:
    path = str(tmp_path / "rank0")
    before = shared_ranks().run(len(weights), first_half, path, 10, weights)
    for moved, size, _ in before:
        assert moved <= size * 2**-20 and size > 1
    after = shared_ranks().run(then, second_half, path, range(10, 20))
    for kept, lost, refusal in after:
        assert kept == after[0][0] and max(kept) < max(lost)
        assert refusal[0] == "nothing" if then == len(weights) else "average_state" in refusal[1]
    figure(
        f"{len(weights)} -> {then} workers: the mean residual moved by {before[0][0]:.1e} of {before[0][1]:.1e}; sums "
        f"over both within {max(after[0][0]):.2%} (without taking over {max(after[0][1]):.2%})"
    )
