"""Coefficients of Muon's iterations compared with emerging-optimizers', state dicts in dion's form, and QK-clip."""

from collections.abc import Callable
from typing import Any

import lowtide
import pytest
import torch
from distributed_support import on_ranks
from lowtide.optimizers.orthogonal import POLAR_EXPRESS, orthogonal, schedule
from support import bits, parameter, random_gradients, refused, take_steps
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

# The coefficients of dion's iterations, and of "quintic" in emerging-optimizers.
OF_DION = (
    (4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377), (3.7418, -5.5913, 2.3037), (2.8769, -3.1427, 1.2046), (2.8366, -3.0525, 1.2012),
)  # fmt: skip


@pytest.mark.parametrize(("name", "given", "steps"), [(POLAR_EXPRESS, POLAR_EXPRESS, 5), (POLAR_EXPRESS, POLAR_EXPRESS, 10),
                                                      ("quintic", OF_DION, 5), ("simple", (3.4445, -4.775, 2.0315), 5)])  # fmt: skip
def test_coefficients_are_those_of_emerging_optimizers(name: str, given: Any, steps: int, seed: int, figure: Callable[[str], None]) -> None:
    """Here singular values go through the polynomials in float64. There, coefficients have four decimals, and products are in
    float32, with errors below 2⁻²⁰ of a value near 1. Slopes carry both from iteration to iteration; second-order terms double
    the bound."""
    theirs = pytest.importorskip("emerging_optimizers.orthogonalized_optimizers.muon_utils", reason="needs emerging-optimizers")
    coefficients = schedule(given, steps)
    assert coefficients is not None and len(coefficients) == steps
    worst = 0.0
    for shape in ((64, 96), (96, 40), (3, 48, 48)):
        u, _, v = torch.linalg.svd(torch.randn(shape, dtype=torch.float64), full_matrices=False)
        x = torch.rand(u.shape[:-2] + u.shape[-1:], dtype=torch.float64) + 0.01
        wanted = theirs.newton_schulz((u @ torch.diag_embed(x) @ v).float(), steps, coefficient_type=name)
        x = x / x.norm(dim=-1, keepdim=True)
        error = torch.zeros_like(x)
        for a, b, c in coefficients:
            error = error * (a + 3 * b * x**2 + 5 * c * x**4).abs() + 5e-5 * (x + x.abs() ** 3 + x.abs() ** 5) + 2**-20
            x = a * x + b * x**3 + c * x**5
        worst = max(worst, float((u @ torch.diag_embed(x) @ v - wanted).norm() / (2 * error.norm())))
    figure(f"{name}, {steps} iterations: {worst:.2f} of what roundings allow")
    assert worst <= 1


def test_polar_express_makes_singular_values_one(seed: int, figure: Callable[[str], None]) -> None:
    """From 0.001 of the norm up, in eight iterations, except for bfloat16 rounding: sums of 64 products of 2⁻⁹ each."""
    u, _, v = torch.linalg.svd(torch.randn(64, 64))
    matrix = u @ torch.diag(torch.logspace(-2, 0, 64)) @ v
    found = {}
    for given in ((3.4445, -4.775, 2.0315), POLAR_EXPRESS):
        coefficients = schedule(given, 8)
        assert coefficients is not None
        found[given] = float((torch.linalg.svdvals(orthogonal(matrix, coefficients, 1e-7).float()) - 1).abs().max())
    figure(f"largest distance of a singular value from 1: {found}")
    assert found[POLAR_EXPRESS] <= 64**0.5 * 2**-8 < found[(3.4445, -4.775, 2.0315)]


def test_coefficients_of_each_iteration_in_a_group(seed: int) -> None:
    params = [parameter(32, 48)]
    opt = lowtide.Muon([{"params": params, "ns_coefficients": [list(one) for one in OF_DION]}], ns_coefficients=POLAR_EXPRESS)
    take_steps(params, opt)
    opt.param_groups[0]["ns_coefficients"] = POLAR_EXPRESS
    opt.step()
    with refused(opt, "torch_state_dict: group 0: ns_coefficients", "3 numbers"):
        opt.torch_state_dict()
    for wrong in ("polar", (), ((1.0, 2.0), (1.0, 2.0)), (1.0, 2.0, "3"), (3.4, float("nan"), 2.0)):
        opt.param_groups[0]["ns_coefficients"] = wrong
        with refused(opt, "ns_coefficients", "3 for each iteration"):
            opt.step()


def of_dion(params: list[torch.nn.Parameter], steps: int, **options: Any) -> dict[str, Any]:
    """A state dict of dion's Muon over a matrix, and a vector and a matrix that AdamW steps."""
    common = {"lr": 0.02, "mu": 0.9, "beta1": 0.8, "beta2": 0.95, "weight_decay": 0.1, "step": steps, "epsilon": 1e-8,
              "nesterov": True, "adjust_lr": "spectral_norm", "flatten": False, **options}  # fmt: skip
    state: dict[int, dict[str, torch.Tensor]] = {0: {"momentum": torch.randn_like(params[0])}}
    for i in (1, 2):
        state[i] = {"momentum": torch.randn_like(params[i]), "variance": torch.rand_like(params[i])}
    groups = [{**common, "algorithm": "muon", "params": [0]}, {**common, "lr": 1e-3, "algorithm": "adamw", "params": [1, 2]}]
    return {"state": state, "param_groups": groups}


def test_state_dicts_of_dion(seed: int, figure: Callable[[str], None]) -> None:
    """The next step is dion's: its momentum is μ times itself plus the gradient, and its rates scale with √(rows / columns).
    The tolerance for the matrix allows a direction that rounds to another bfloat16 (test_muon.py)."""
    params = [parameter(40, 64), parameter(64), parameter(20, 64)]
    opt = lowtide.Muon(
        [{"params": params[:1]}, {"params": params[1:], "use_muon": False}], state="fp32", ns_coefficients=OF_DION
    )
    saved = of_dion(params, 7)
    opt.load_state_dict(saved)
    random_gradients(params)
    twins = [torch.nn.Parameter(p.detach().clone()) for p in params[1:]]
    adamw = torch.optim.AdamW(twins, lr=1e-3, betas=(0.8, 0.95), weight_decay=0.1, eps=1e-8)
    for i, (p, q) in enumerate(zip(params[1:], twins, strict=True), 1):
        q.grad = p.grad
        entry = saved["state"][i]
        adamw.state[q] = {"step": torch.tensor(7.0), "exp_avg": entry["momentum"].clone(), "exp_avg_sq": entry["variance"].clone()}
    grad, start = params[0].grad, params[0].detach().clone()
    assert grad is not None
    opt.step()
    adamw.step()
    for p, q in zip(params[1:], twins, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-7)
    momentum = 0.9 * saved["state"][0]["momentum"] + grad
    coefficients = schedule(OF_DION, 5)
    assert coefficients is not None
    moved = 0.02 * (40 / 64) ** 0.5 * orthogonal(grad + 0.9 * momentum, coefficients, 1e-8).float()
    apart = float((params[0].detach() - ((1 - 0.002) * start - moved)).norm() / moved.norm())
    figure(f"{apart:.1e} of the move apart")
    assert apart < 0.015 and int(opt.state[params[0]]["step"]) == 8
    torch.testing.assert_close(opt.state[params[0]]["momentum_buffer"], momentum, rtol=1e-6, atol=1e-6)
    opt.load_state_dict(of_dion(params, 0))  # dion has state from the start
    for options, words in (
        ({"adjust_lr": None}, ["adjust_lr", "None"]),
        ({"cautious_wd": True}, ["cautious_wd"]),
    ):
        with refused(opt, *words):
            opt.load_state_dict(of_dion(params, 7, **options))
    bad = of_dion(params, 7)
    bad["param_groups"][0]["algorithm"] = "muon2"
    with refused(opt, "algorithm", "muon2"):
        opt.load_state_dict(bad)
    with pytest.raises(ValueError, match="a group from the package dion"):
        lowtide.AdamW([{"params": params[:1]}, {"params": params[1:]}]).load_state_dict(of_dion(params, 7))


def logits_of(query: torch.Tensor, key: torch.Tensor, x: torch.Tensor, heads: int, key_heads: int) -> torch.Tensor:
    """[heads, tokens, tokens]."""
    q, k = ((x @ w.T).view(len(x), count, -1).transpose(0, 1) for w, count in ((query, heads), (key, key_heads)))
    return q @ k.repeat_interleave(heads // key_heads, dim=0).mT


@pytest.mark.parametrize(("heads", "key_heads"), [(4, 4), (8, 2)])
def test_qk_clip_bounds_the_heads_that_are_too_large(heads: int, key_heads: int, seed: int, figure: Callable[[str], None]) -> None:
    """Up to float32 rounding: 2⁻²⁴ for each of a few operations and a sum of 16 products. Other heads keep their logits."""
    query, key = parameter(heads * 8, 16), parameter(key_heads * 8, 16)
    x = torch.randn(20, 16)
    with torch.no_grad():
        query[:8] *= 30
    opt = lowtide.Muon([query, key], lr=0.0, weight_decay=0.0, state="fp32")
    before = logits_of(query.detach(), key.detach(), x, heads, key_heads)
    largest = before.amax(dim=(1, 2))
    threshold = float(largest.sort().values[-2]) + 1e-3
    clip = lowtide.QKClip(opt, threshold=threshold)
    number = clip.watch(query, key, heads, key_heads)
    random_gradients([query, key])
    opt.step()  # nothing was observed
    assert torch.equal(logits_of(query.detach(), key.detach(), x, heads, key_heads), before)
    clip.observe(number, largest * 0.5)
    clip.observe(number, largest)
    opt.step()
    after = logits_of(query.detach(), key.detach(), x, heads, key_heads)
    factors = (threshold / largest).clamp(max=1)
    assert int((factors < 1).sum()) == 1
    torch.testing.assert_close(after, before * factors[:, None, None], rtol=2**-18, atol=2**-18 * float(largest.max()))
    figure(f"{heads} heads, {key_heads} of keys: {float(largest.max()):.1f} became {float(after.max()):.6f}, wanted {threshold:.6f}")
    kept = bits(query), bits(key)
    opt.step()  # what was observed counts once
    assert (bits(query), bits(key)) == kept
    clip.observe(number, largest)
    clip.remove()
    opt.step()
    assert (bits(query), bits(key)) == kept
    with pytest.raises(ValueError, match="largest: got shape"):
        clip.observe(number, largest[:2])
    with pytest.raises(ValueError, match="key_heads: got 3"):
        clip.watch(query, key, heads, 3)


@on_ranks(2)
def test_qk_clip_of_shards_has_the_bits_of_one_process() -> str:
    mesh = init_device_mesh("cpu", (2,))
    ends = []
    for placement in (None, Shard(0), Shard(1), Replicate()):
        torch.manual_seed(3)
        weights = [torch.randn(12, 10), torch.randn(12, 10)]
        if placement is not None:
            weights = [distribute_tensor(weight, mesh, [placement], src_data_rank=None) for weight in weights]
        params = [torch.nn.Parameter(weight) for weight in weights]
        opt = lowtide.Muon(params, lr=0.01)
        clip = lowtide.QKClip(opt, threshold=1.0)
        clip.observe(clip.watch(params[0], params[1], heads=4), torch.tensor([0.5, 2.0, 3.0, 1.0]))
        clip.apply()
        ends.append([bits(p if placement is None else p.full_tensor()) for p in params])
    assert all(end == ends[0] for end in ends)
    return f"{len(ends)} placements"


def test_logits_that_are_not_finite_clip_nothing(seed: int) -> None:
    """A step that overflowed is skipped, or never taken (GradScaler). The weights must survive it."""
    query, key = parameter(16, 8), parameter(8, 8)
    before = [bits(query), bits(key)]
    opt = torch.optim.SGD([query, key], lr=0.0)
    clip = lowtide.QKClip(opt, threshold=10.0)
    layer = clip.watch(query, key, heads=4, key_heads=2)
    for largest in ([float("inf"), 1.0, 2.0, 3.0], [1.0, float("nan"), 2.0, 3.0]):
        clip.observe(layer, torch.tensor(largest))
    opt.step()
    assert [bits(query), bits(key)] == before
    clip.observe(layer, torch.tensor([1.0, 1.0, 40.0, 1.0]))
    clip.observe(layer, torch.tensor([float("inf")] * 4))  # does not hide what came before
    opt.step()
    assert bits(query[:8]) == before[0][: len(before[0]) // 2] and bits(query) != before[0] and bits(key) != before[1]
