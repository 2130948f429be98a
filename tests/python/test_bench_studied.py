"""bench/quality: the optimizers that are studied there compute what their sources say."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

from quality.flashoptim_rule import Companded, Root  # noqa: E402
from quality.grids import BF16, E4M3, Grid  # noqa: E402
from quality.resets import Resets, interval  # noqa: E402
from quality.studied import AdamW, Exact, Weights  # noqa: E402

HYPER = {"lr": 1e-3, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1}


def spread(rows: int, columns: int, seed: int) -> torch.Tensor:
    """Numbers over six decades."""
    source = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=source) * 10 ** (6 * torch.rand(rows, columns, generator=source) - 5)


def test_grids_are_those_of_torchs_types() -> None:
    x = spread(64, 300, 1)
    x[3] = 0
    assert torch.equal(BF16.rounded(x), x.bfloat16().float())
    rounded = E4M3.rounded(x)
    scale = torch.exp2(torch.ceil(torch.log2(x.double().abs().amax(dim=1, keepdim=True).clamp(min=2.0**-100) / 448))).float()
    assert torch.equal(rounded, (x / scale).to(torch.float8_e4m3fn).float() * scale)
    assert torch.equal(E4M3.rounded(rounded), rounded)
    assert torch.equal(E4M3.rounded(x[0]), x[0])  # vectors stay


@pytest.mark.parametrize("grid", [BF16, E4M3], ids=["bf16", "E4M3"])
def test_stochastic_rounding_is_unbiased_and_leaves_what_is_on_the_grid(grid: Grid, figure: Callable[[str], None]) -> None:
    x, source, draws = spread(16, 128, 2), torch.Generator().manual_seed(3), 2000
    low, high = torch.full_like(x, torch.inf), torch.full_like(x, -torch.inf)
    total = torch.zeros_like(x, dtype=torch.float64)
    for _ in range(draws):
        rounded = grid.rounded(x, source)
        low, high = torch.minimum(low, rounded), torch.maximum(high, rounded)
        total += rounded
    assert torch.equal(grid.rounded(rounded, source), rounded)
    both = high > low  # values close to one neighbour may never take the other
    assert float(both.float().mean()) > 0.9
    wrong = float(((total / draws - x).abs() / (high - low).double())[both].max())
    figure(f"largest error of a mean of {draws}: {wrong:.3f} steps")
    assert wrong < 0.06  # five standard deviations of such a mean are 5 / 2 / sqrt(2000) = 0.056


def test_an_error_in_the_momentum_comes_back() -> None:
    """Steps that are all lost to nearest rounding add up, and the weight follows. It lags: the momentum pays back a tenth of
    what it owes in each step, so that it owes ten times half a step of the grid before the weight moves."""
    steps = {}
    for error in ("dropped", "momentum", "master"):
        param = torch.nn.Parameter(torch.ones(4, 4))
        optimizer = AdamW([param], Exact(), Exact(), weights=Weights(E4M3, error=error), **HYPER | {"weight_decay": 0.0})
        for _ in range(600):
            param.grad = torch.ones(4, 4)
            optimizer.step()
        steps[error] = float(1 - param.detach().mean())
    assert steps["dropped"] == 0  # a step of 0.001 is below half of the grid's 0.0625
    assert abs(steps["master"] - 0.6) <= 0.0625
    assert abs(steps["momentum"] - 0.6) <= 10 * 0.0625 / 2 + 0.0625


def test_studied_adamw_is_torchs() -> None:
    params = [torch.nn.Parameter(spread(8, 40, 4)) for _ in range(2)]
    made = [AdamW(params[:1], Exact(), Exact(), **HYPER), torch.optim.AdamW(params[1:], **HYPER)]
    for seed in range(20):
        for param, optimizer in zip(params, made, strict=True):
            param.grad = spread(8, 40, seed)
            optimizer.step()
    torch.testing.assert_close(params[0], params[1], rtol=1e-5, atol=1e-7)  # some roundings of float32 in 20 steps


def test_studied_muon_is_torchs() -> None:
    pytest.importorskip("torch.optim._muon", reason="torch has Muon from 2.9 on")
    from quality.muon import Muon, matrices_by

    params = [torch.nn.Parameter(spread(24, 40, 5)) for _ in range(2)]
    made = [Muon(params[:1], Exact(), lr=1e-3, weight_decay=0.1), matrices_by("torch", params[1:], lr=1e-3, weight_decay=0.1)]
    for seed in range(5):
        for param, optimizer in zip(params, made, strict=True):
            param.grad = spread(24, 40, seed)
            optimizer.step()
    assert torch.equal(params[0], params[1])


def test_flashoptims_codes_are_read_as_lowtide_reads_them() -> None:
    """By Lowtide's reader of FlashOptim's state dicts, which knows the package's own."""
    from lowtide.state.foreign.flashoptim import _moment

    x = spread(5, 64, 6)
    for codec, signed, moment in ((Companded(), True, x), (Root(), False, x.square())):
        kept = codec.encode(moment, 0, signed)
        entry = {"m::quantized": kept.codes.view(x.shape), "m::scales": kept.scales.flatten()}
        torch.testing.assert_close(codec.decode(kept, x.shape), _moment(entry, "m", x.shape, signed, "here"), rtol=1e-6, atol=0)
    near = (Companded().decode(Companded().encode(x, 0, True), x.shape) - x).abs()
    assert bool((near <= x.view(-1, 32).abs().amax(dim=1, keepdim=True).expand(-1, 32).reshape(x.shape) / 120).all())


def test_resets_start_anew() -> None:
    """After an interval a step is that of a fresh optimizer: of the size of lr."""
    every = interval(HYPER["betas"])  # type: ignore[arg-type]
    param = torch.nn.Parameter(torch.zeros(2, 256))
    optimizer = Resets(torch.optim.AdamW, [param], **HYPER | {"weight_decay": 0.0})  # type: ignore[arg-type]
    for step in range(every + 1):
        before = param.detach().clone()
        param.grad = torch.full((2, 256), 100.0 if step < every else 1.0)
        optimizer.step()
    torch.testing.assert_close(before - param.detach(), torch.full((2, 256), 1e-3), rtol=1e-3, atol=0)
