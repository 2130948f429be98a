"""Prodigy against the package prodigyopt, and d over groups, shards, tiers and checkpoints."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lowtide
import pytest
import torch
from support import (
    CODECS, DTYPES, WAYS, bits, carried, copies_of, disk_that_refuses, parameter, random_gradients, refused, state_bits, through_file,
)  # fmt: skip

STEPS = 200
SHAPES = ((48, 256), (7,), ())
ESTIMATE = ("d", "d_max", "d_numerator", "k")
OPTIONS: list[dict[str, Any]] = [
    {},
    {"weight_decay": 0.1, "betas": (0.9, 0.99), "use_bias_correction": True, "safeguard_warmup": True, "d_coef": 0.5},
    {"beta3": 0.95, "growth_rate": 1.02, "d0": 1e-4, "lr": 0.5},
    {"betas": (0.0, 0.999), "eps": 1e-4},
]


def theirs(params: list[torch.nn.Parameter], **options: Any) -> Any:
    package = pytest.importorskip("prodigyopt", reason="the package prodigyopt is not installed")
    return package.Prodigy(params, **options)


class Valley:
    """A loss of which the weights are `far` from the least value; some noise in its gradients."""

    def __init__(self, params: list[torch.nn.Parameter], seed: int = 0) -> None:
        self._noise = torch.Generator().manual_seed(seed + 12345)  # other numbers than the weights
        self._centers = [torch.randn(p.shape, generator=self._noise) for p in params]
        self._steep = [torch.rand(p.shape, generator=self._noise) + 0.1 for p in params]

    def gradients(self, *copies: list[torch.nn.Parameter]) -> None:
        """To each copy the gradients at the first one's weights."""
        for i, first in enumerate(copies[0]):
            far = first.detach().float() - self._centers[i]
            grad = far * self._steep[i] + 0.1 * torch.randn(far.shape, generator=self._noise)
            for each in copies:
                each[i].grad = grad.clone().to(each[i])


def run(params: list[torch.nn.Parameter], opt: torch.optim.Optimizer, valley: Valley, steps: int) -> None:
    for _ in range(steps):
        valley.gradients(params)
        opt.step()


def shown(opt: torch.optim.Optimizer) -> list[float]:
    return [opt.param_groups[0][name] for name in ESTIMATE]


def apart(some: list[torch.nn.Parameter], others: list[torch.nn.Parameter]) -> float:
    """The largest difference, as a part of the largest weight."""
    largest = max(float(p.detach().abs().max()) for p in others)
    return max(float((p.detach() - q.detach()).abs().max()) for p, q in zip(some, others, strict=True)) / largest


class Exact:
    """prodigyopt's step in float64, with weights that are rounded to float32 as often: early steps are as small as their last bit."""

    def __init__(
        self, params: list[torch.nn.Parameter], lr: float = 1.0, betas: tuple[float, float] = (0.9, 0.999),
        beta3: float | None = None, eps: float = 1e-8, weight_decay: float = 0.0, use_bias_correction: bool = False,
        safeguard_warmup: bool = False, d0: float = 1e-6, d_coef: float = 1.0, growth_rate: float = math.inf,
    ) -> None:  # fmt: skip
        self.lr, self.betas, self.beta3, self.eps, self.decay = lr, betas, beta3 or math.sqrt(betas[1]), eps, weight_decay
        self.corrects, self.safe, self.d_coef, self.growth = use_bias_correction, safeguard_warmup, d_coef, growth_rate
        self.d = self.d0 = self.d_max = d0
        self.n, self.k = 0.0, 0
        self.weights = [p.detach().double() for p in params]
        self.first = [w.clone() for w in self.weights]
        self.m, self.v, self.s, self.path = ([torch.zeros_like(w) for w in self.weights] for _ in range(4))
        self.largest = [w.abs() for w in self.weights]
        self.sizes = [w.abs() for w in self.weights]  # of the last update, with the magnitudes of its terms
        self.off_d = 0.0  # the most that float32 terms make of d

    def read(self, opt: lowtide.Prodigy, params: list[torch.nn.Parameter]) -> None:
        """Takes the weights, the decoded states and the estimate of an optimizer."""
        self.d, self.d_max, self.n, k = shown(opt)
        self.k = int(k)
        self.weights = [p.detach().double() for p in params]
        decoded = [[opt.engine.core_of(i).export_state(i, k).double() for k in range(4)] for i in range(len(params))]
        self.m, self.v, self.s, moved = map(list, zip(*decoded, strict=True))
        self.first = [w - far for w, far in zip(self.weights, moved, strict=True)]

    def step(self, grads: list[torch.Tensor]) -> None:
        beta1, beta2 = self.betas
        d, t = self.d, self.k + 1
        rate = self.lr * d * (math.sqrt(1 - beta2**t) / (1 - beta1**t) if self.corrects else 1)
        along = length = size_along = size_length = 0.0
        for i, (grad, w, first, m, v, s) in enumerate(zip(grads, self.weights, self.first, self.m, self.v, self.s, strict=True)):
            g = grad.double()
            along += float((g * (first - w)).sum())
            size_along += float((g * (first - w)).abs().sum())
            size_length += float((self.beta3 * s.abs() + d / self.d0 * (d if self.safe else rate) * g.abs()).sum())
            self.sizes[i] = beta1 * m.abs() + (1 - beta1) * d * g.abs()
            m.mul_(beta1).add_(g, alpha=(1 - beta1) * d)
            v.mul_(beta2).add_(g * g, alpha=(1 - beta2) * d * d)
            s.mul_(self.beta3).add_(g, alpha=d / self.d0 * (d if self.safe else rate))
            length += float(s.abs().sum())
        self.n = self.beta3 * self.n + d / self.d0 * rate * along
        found = self.d_coef * self.n / length
        off = 4 * 2.0**-24 * (self.d_coef * d / self.d0 * rate * size_along + abs(found) * size_length) / length
        self.off_d = off * max(1.0, self.growth if math.isfinite(self.growth) else 1.0)
        self.d_max = max(self.d_max, found)
        self.d = min(self.d_max, (max(d, found) if d == self.d0 else d) * self.growth)
        for grad, w, m, v, path, largest, size in zip(
            grads, self.weights, self.m, self.v, self.path, self.largest, self.sizes, strict=True
        ):
            size *= rate / (v.sqrt() + self.d * self.eps)
            decayed = (w - w * (rate * self.decay)).float().double()
            over = m if beta1 else grad.double() * self.d
            moved = (decayed - rate * over / (v.sqrt() + self.d * self.eps)).float().double()
            path += (moved - w).abs()
            w.copy_(moved)
            torch.maximum(largest, w.abs(), out=largest)
        self.k = t

    def share(self, params: list[torch.nn.Parameter]) -> float:
        """How far weights are from these, at most, as a share of the bound that the test below derives."""
        bounds = [2.0**-24 * (48 * largest + 4 * path) for largest, path in zip(self.largest, self.path, strict=True)]
        return max(float(((p.detach() - w).abs() / b).max()) for p, w, b in zip(params, self.weights, bounds, strict=True))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_weights_and_d_are_the_packages(options: dict[str, Any], seed: int, figure: Callable[[str], None]) -> None:
    """Both, and float64 states with float32 weights. With e = 2^-24 and t = 200 steps: the roundings of two weights differ by
    sqrt(1/6) units of 2 e |w| in each step, which add up at random, 4 deviations of them to 48 e |w|. m and v have taken 3 roundings in
    each of the last 1 / (1 - beta) or t steps, at random too, so updates are off by 4 e of themselves, and weights by that of their
    path. Hence neither can be within 1e-6 of the other: over 20 runs of these options, d here is at most 8e-7 from float64, 1e-7 in
    half of them (the package: 1e-6, 3e-7), and the weights at most 1.6e-6 of the largest one (2.3e-6)."""
    mine = [parameter(*shape) for shape in SHAPES]
    other = copies_of(mine)
    opt, package, exact = lowtide.Prodigy(mine, state="fp32", **options), theirs(other, **options), Exact(mine, **options)
    valley, worst = Valley(mine, seed), {"the package": 0.0, "float64": 0.0}
    for _ in range(STEPS):
        valley.gradients(mine, other)
        exact.step([p.grad for p in mine if p.grad is not None])
        opt.step()
        package.step()
        for name, d in (("the package", package.param_groups[0]["d"]), ("float64", exact.d)):
            worst[name] = max(worst[name], abs(opt.param_groups[0]["d"] / d - 1))
    share, their_share, grown = exact.share(mine), exact.share(other), exact.d / exact.d0
    far = ", ".join(f"{off:.1e} from {name}'s" for name, off in worst.items())
    figure(f"d {far}; weights at {share:.2f} of the bound, the package's at {their_share:.2f}; d grew {grown:.0f} times")
    assert opt.param_groups[0]["k"] == package.param_groups[0]["k"] == exact.k == STEPS
    assert max(worst.values()) < 1e-5
    assert max(share, their_share) < 1
    assert apart(mine, other) < 1e-5
    assert grown > 10


@pytest.mark.parametrize("state", CODECS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_each_step_is_the_formulas(options: dict[str, Any], state: str, seed: int, figure: Callable[[str], None]) -> None:
    """A step turns the weights, decoded states and d that it finds into those of the formulas. With e = 2^-24: the sums' terms
    are off by 4 e of their magnitudes, and the sums are exact; m by 4 e of its terms' magnitudes, v by 6 e, their quotient by
    18 e; the decay by 4 e. Weights are rounded three times in float32, and once to their type."""
    elements = seen = 0
    worst = 0.0
    for dtype in DTYPES:
        params = [parameter(*shape, dtype=dtype) for shape in SHAPES]
        given = {**options, "d0": 1e-2}
        opt = lowtide.Prodigy(params, state=state, master=None, min_quantized_numel=0, **given)
        valley, exact = Valley(params, seed), Exact(params, **given)
        for number in range(6):
            if number:
                exact.read(opt, params)
            valley.gradients(params)
            before = [w.clone() for w in exact.weights]
            exact.step([p.grad for p in params if p.grad is not None])
            opt.step()
            d, d_max, _, k = shown(opt)
            assert abs(d - exact.d) <= exact.off_d + 1e-14 * d and abs(d_max - exact.d_max) <= exact.off_d + 1e-14 * d_max
            assert k == exact.k == number + 1
            for p, w, was, size in zip(params, exact.weights, before, exact.sizes, strict=True):
                error = (18 * 2.0**-24 + abs(d / exact.d - 1)) * size + 2.0**-24 * (4 * (w - was).abs() + 3 * w.abs())
                bound = error + ((w.abs() + error) * torch.finfo(dtype).eps / 2).clamp(min=2.0**-25)
                apart = ((p.detach().double() - w).abs() / bound).max()
                assert apart <= 1, (dtype, number)
                worst = max(worst, float(apart))
                elements += p.numel()
                seen += int((0.01 * size > 2 * bound).sum())
    figure(f"{elements} elements at {worst:.2f} of the bound; updates that are off by 1 % show in {seen}")
    assert seen > elements / 20, "control"


def test_defaults_are_the_packages() -> None:
    mine, package = lowtide.Prodigy([parameter(3)]).param_groups[0], theirs([parameter(3)]).param_groups[0]
    for key in ("lr", "betas", "beta3", "eps", "weight_decay", "d0", "d_coef", "growth_rate", "use_bias_correction",
                "safeguard_warmup", *ESTIMATE):  # fmt: skip
        assert mine[key] == package[key], key


def test_a_group_with_a_rate_of_0_stands_still_and_is_not_in_the_sums() -> None:
    alone, both, still = [parameter(30, 40)], [parameter(30, 40)], [parameter(9)]
    with torch.no_grad():
        both[0].copy_(alone[0])
    first = lowtide.Prodigy(alone, state="fp32")
    second = lowtide.Prodigy([{"params": both}, {"params": still, "lr": 0.0}], state="fp32", weight_decay=0.1)
    second.param_groups[0]["weight_decay"] = 0.0
    was, valley = bits(still[0]), Valley(alone)
    for _ in range(5):
        valley.gradients(alone, both)
        still[0].grad = torch.ones(9)
        first.step()
        second.step()
    assert shown(first) == shown(second) and bits(alone[0]) == bits(both[0]) and bits(still[0]) == was


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("state", ["fp32", "dynamic8"])
def test_a_run_goes_on_with_the_same_bits(way: str, state: str, tmp_path: Path, seed: int) -> None:
    options: dict[str, Any] = {"state": state, "d0": 1e-3, "use_bias_correction": True}
    params = [parameter(*shape) for shape in SHAPES]
    opt, valley = lowtide.Prodigy(params, **options), Valley(params, seed)
    run(params, opt, valley, 5)
    again, other = carried(way, params, opt, tmp_path, **options)
    assert shown(other) == shown(opt) and opt.param_groups[0]["d"] > 1e-3
    for _ in range(4):
        valley.gradients(params, again)
        opt.step()
        other.step()
    assert [*map(bits, again)] == [*map(bits, params)] and state_bits(other) == state_bits(opt) and shown(other) == shown(opt)


@pytest.mark.parametrize("master", [None, "stochastic", "residual16"])
def test_bfloat16_weights_train(master: str | None, seed: int) -> None:
    params = [parameter(64, 256, dtype=torch.bfloat16)]
    opt, valley = lowtide.Prodigy(params, master=master, d0=1e-3), Valley(params, seed)
    before = (params[0].detach().float() - valley._centers[0]).square().mean()
    run(params, opt, valley, 60)
    after = (params[0].detach().float() - valley._centers[0]).square().mean()
    assert opt.param_groups[0]["d"] > 2e-3 and after < before / 2


def overflowing(what: str, nonfinite: str) -> tuple[list[torch.nn.Parameter], lowtide.Prodigy]:
    """With finite gradients of 100 whose next sum of |s|, or of g (p0 - p), has terms above what float32 holds."""
    params = [parameter(30, 40), parameter(5)]
    opt = lowtide.Prodigy(params, state="fp32", d0=1e-30, nonfinite=nonfinite)
    random_gradients(params)
    opt.step()
    saved = opt.state_dict()
    for each in (saved["param_groups"][0], *saved["state"].values()):  # s takes d^2 / d0 g
        value = 1e4 if what == "s" else 1e-30
        each.update({name: torch.tensor(value, dtype=torch.float64) if "s" in each else value for name in ("d", "d_max")})
    if what != "s":
        saved["state"][1]["p_minus_p0"].fill_(3e38)
    opt.load_state_dict(saved)
    for param in params:
        param.grad = torch.full_like(param, 100.0)
    return params, opt


@pytest.mark.parametrize("what", ["s", "g (p0 - p)"])
def test_sums_that_overflow_are_named(what: str, seed: int) -> None:
    params, opt = overflowing(what, "raise")
    with refused(opt, f"the sum of {'|s|' if what == 's' else what} over all parameters has overflowed", "nothing was changed"):
        opt.step()
    params, opt = overflowing(what, "skip")
    before = shown(opt), state_bits(opt), [*map(bits, params)]
    with pytest.warns(RuntimeWarning, match="skipped after step 1, and nothing changed: a sum over all parameters, though all gradients"):
        opt.step()
    assert opt.skipped_steps == 1 and (shown(opt), state_bits(opt), [*map(bits, params)]) == before
    random_gradients(params)
    if what == "s":
        assert params[0].grad is not None
        params[0].grad[3, 4] = math.inf
        opt.step()
        assert opt.skipped_steps == 2 and (shown(opt), state_bits(opt), [*map(bits, params)]) == before


def test_a_step_that_a_scaler_withholds_leaves_no_trace(seed: int) -> None:
    """Beside a run without that step and without a scaler: the same bits, since scales are powers of two."""
    params = [parameter(*shape) for shape in SHAPES]
    twins = copies_of(params)
    opt, other = lowtide.Prodigy(params, d0=1e-3), lowtide.Prodigy(twins, d0=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    valley = Valley(params, seed)
    for step in range(6):
        valley.gradients(params, twins)
        bad = step in (0, 3)
        for param in params:
            assert param.grad is not None
            param.grad *= scaler.get_scale()
        if bad:
            assert params[0].grad is not None
            params[0].grad[1, 2] = math.inf
        before = shown(opt), state_bits(opt), [*map(bits, params)]
        scaler.scale(torch.ones(()))
        scaler.step(opt)
        scaler.update()
        if bad:
            assert (shown(opt), state_bits(opt), [*map(bits, params)]) == before
        else:
            other.step()
        assert shown(opt) == shown(other) and [*map(bits, params)] == [*map(bits, twins)]
    assert shown(opt)[3] == 4 and state_bits(opt) == state_bits(other)


def scratch_files(folder: Path) -> list[Path]:
    """The unnamed files that streaming state has in this folder."""
    links = {link: os.readlink(link) for link in Path("/proc/self/fd").iterdir() if os.path.lexists(link)}
    return [link for link, target in links.items() if target.startswith(str(folder)) and "deleted" in target]


@pytest.mark.parametrize("fault", ["reads", "writes"])
def test_a_step_that_a_disk_fails_is_whole_and_goes_on(fault: str, tmp_path: Path, seed: int) -> None:
    """Where it cannot be read, the sums are not known and nothing has changed; where it cannot be written, the step is complete. Every
    fault in between: faults_test.cpp."""
    params = [parameter(64, 256) for _ in range(6)]
    twins = copies_of(params)
    opt = lowtide.Prodigy(params, d0=1e-3, memory=lowtide.Memory(host="64KiB", disk=tmp_path, chunk="4KiB"))
    other, valley = lowtide.Prodigy(twins, d0=1e-3), Valley(params, seed)
    for _ in range(3):
        valley.gradients(params, twins)
        opt.step()
        other.step()
    before = shown(opt), [*map(bits, params)]
    valley.gradients(params, twins)
    if fault == "reads":
        kept = [(link, link.read_bytes()) for link in scratch_files(tmp_path)]
        assert sum(len(data) for _, data in kept) > 2**17
        for link, _ in kept:
            os.truncate(link, 0)
        with pytest.raises(OSError, match="disk"):
            opt.step()
        assert (shown(opt), [*map(bits, params)]) == before
        for link, data in kept:
            link.write_bytes(data)
        opt.step()
    else:
        with disk_that_refuses(), pytest.raises(OSError, match="is complete and nothing is lost"):
            opt.step()
    other.step()
    for _ in range(3):
        assert shown(opt) == shown(other) != before[0] and [*map(bits, params)] == [*map(bits, twins)]
        valley.gradients(params, twins)
        opt.step()
        other.step()
    mine, theirs = (each.state_dict()["state"] for each in (opt, other))
    assert all(bits(mine[i][name]) == bits(theirs[i][name]) for i in mine for name in mine[i])


def test_clipping_scales_what_the_sums_see(seed: int) -> None:
    """Gradients clipped in the step, against gradients that were scaled before: by the same factor, a power of two."""
    params, again = [parameter(40, 50)], []
    again = copies_of(params)
    opt, other = lowtide.Prodigy(params, state="fp32", d0=1e-3), lowtide.Prodigy(again, state="fp32", d0=1e-3)
    valley = Valley(params, seed)
    for _ in range(5):
        valley.gradients(params, again)
        grad = params[0].grad
        assert grad is not None
        norm = float(grad.norm())
        opt.clip_grad_norm_(norm / 4)
        again[0].grad = grad / 4
        opt.step()
        other.step()
    assert apart(params, again) < 1e-5 and shown(opt)[0] == pytest.approx(shown(other)[0], rel=1e-5)


def test_reset_begins_with_d0_again() -> None:
    params = [parameter(*shape) for shape in SHAPES]
    opt, valley = lowtide.Prodigy(params, d0=1e-3), Valley(params)
    run(params, opt, valley, 5)
    d = shown(opt)
    opt.reset([params[0]])
    assert shown(opt) == d
    run(params, opt, valley, 1)
    opt.reset()
    assert shown(opt) == [1e-3, 1e-3, 0.0, 0]
    run(params, opt, valley, 2)
    assert shown(opt)[3] == 2


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("change", ["add", "reset"])
def test_parameters_without_steps_have_the_others_d(way: str, change: str, tmp_path: Path, seed: int) -> None:
    """Added or reset, they go on from every kind of save, before a step of theirs."""
    params = [parameter(*shape) for shape in SHAPES]
    opt = lowtide.Prodigy(params, d0=1e-3)
    run(params, opt, Valley(params), 4)
    if change == "add":
        params.append(parameter(30, 3))
        opt.add_param_group({"params": params[-1:]})
    else:
        opt.reset(params[:1])
    assert [group["d"] for group in opt.param_groups] == [shown(opt)[0]] * len(opt.param_groups)
    if way in ("pickle", "copy") or change == "reset":
        again, other = carried(way, params, opt, tmp_path, d0=1e-3)
    else:
        again, other = copies_of(params), None
        other = lowtide.Prodigy(again[:-1], d0=1e-3)
        other.add_param_group({"params": again[-1:]})
        if way == "state_dict":
            other.load_state_dict(through_file(opt.state_dict()))
        else:
            opt.save(tmp_path / "file")
            other.load(tmp_path / "file")
    assert shown(other) == shown(opt) and shown(opt)[3] == 4
    for mine, of in ((params, opt), (again, other)):
        run(mine, of, Valley(params), 2)
    assert [bits(p) for p in params] == [bits(p) for p in again] and shown(other) == shown(opt)


ESTIMATES_THAT_DIFFER: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "another d": (lambda saved: saved["state"][1].update(d=torch.tensor(0.5, dtype=torch.float64)), "state of parameter 1, d: got 0.5"),
    "no d": (
        lambda saved: [entry.pop(name) for entry in saved["state"].values() for name in ESTIMATE],
        "got no d, d_max, d_numerator, k",
    ),
    "d of a group": (lambda saved: saved["param_groups"][0].update(d=0.5), "param_groups[0], d: got 0.5"),
    "d without state": (
        lambda saved: (saved["state"].clear(), saved["param_groups"][0].update(d=0.5)),
        "param_groups[0], d: got 0.5",
    ),
    "options of groups": (
        lambda saved: saved["param_groups"][1].update(beta3=0.1),
        "parameter group 1: beta3: got 0.1",
    ),
}


@pytest.mark.parametrize("spoiler", ESTIMATES_THAT_DIFFER)
def test_dicts_without_one_estimate_are_refused(spoiler: str) -> None:
    """Also those with which a hook replaces the dict."""
    params = [parameter(*shape) for shape in SHAPES]
    opt = lowtide.Prodigy([{"params": params[:2]}, {"params": params[2:]}], d0=1e-3)
    run(params, opt, Valley(params), 3)
    right, saved = opt.state_dict(), copy.deepcopy(opt.state_dict())
    change, words = ESTIMATES_THAT_DIFFER[spoiler]
    change(saved)
    with refused(opt, words):
        opt.load_state_dict(saved)
    opt.register_load_state_dict_pre_hook(lambda *_: saved)
    with refused(opt, words):
        opt.load_state_dict(right)


def test_state_that_is_cleared_shows_d0() -> None:
    params = [parameter(*shape) for shape in SHAPES]
    opt = lowtide.Prodigy(params, d0=1e-3)
    run(params, opt, Valley(params), 3)
    opt.state.clear()
    saved = opt.state_dict()
    assert not saved["state"] and saved["param_groups"][0]["d"] == 1e-3 and shown(opt)[3] == 0
    opt.param_groups[0]["d0"] = 3e-6  # may change before the first step
    opt.load_state_dict(opt.state_dict())
    assert shown(opt)[0] == 3e-6


@pytest.mark.parametrize("way", ["alone", "rebuilt", *WAYS])
def test_d0_may_change_until_a_step_moves_something(way: str, tmp_path: Path, seed: int) -> None:
    """A warm-up begins with lr=0. Another d0 after that counts like one from the start, also from every kind of save."""
    params = [parameter(*shape) for shape in SHAPES]
    twins = copies_of(params)
    opt, other = lowtide.Prodigy(params, state="fp32", lr=0.0), lowtide.Prodigy(twins, state="fp32", d0=1e-3)
    valley = Valley(params, seed)
    run(params, opt, valley, 2)
    if way == "rebuilt":
        lowtide.override(params[0], weight_decay=0.0)
        opt.state_dict()
    opt.param_groups[0].update(lr=1.0, d0=1e-3)
    if way in WAYS:
        params, opt = carried(way, params, opt, tmp_path, state="fp32")
    assert opt.state_dict()["param_groups"][0]["d"] == 1e-3
    for _ in range(3):
        valley.gradients(params, twins)
        opt.step()
        other.step()
        assert shown(opt) == shown(other) and [*map(bits, params)] == [*map(bits, twins)]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_run_of_the_package_goes_on_here(options: dict[str, Any], seed: int, figure: Callable[[str], None]) -> None:
    params = [parameter(*shape) for shape in SHAPES]
    with torch.no_grad():
        params[1].zero_()  # the package keeps one zero as its p0
    package, valley = theirs(params, **options), Valley(params, seed)
    run(params, package, valley, 20)
    again = copies_of(params)
    opt = lowtide.Prodigy(again, state="fp32", **options)
    opt.load_state_dict(through_file(package.state_dict()))
    assert shown(opt) == [package.param_groups[0][name] for name in ESTIMATE]
    for _ in range(20):
        valley.gradients(params, again)
        package.step()
        opt.step()
    far, off = apart(again, params), abs(opt.param_groups[0]["d"] / package.param_groups[0]["d"] - 1)
    figure(f"{options}: d is apart by {off:.1e}, weights by {far:.1e}")
    assert far < 1e-5 and off < 1e-5


SPOILERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "slice_p": (lambda saved: saved["param_groups"][0].update(slice_p=11), "param_groups[0]: slice_p: got 11, wanted 1"),
    "coupled decay": (lambda saved: saved["param_groups"][0].update(decouple=False, weight_decay=0.1), "decouple"),
    "no d_coef": (lambda saved: saved["param_groups"][0].pop("d_coef"), "d_coef"),
    "no s": (lambda saved: saved["state"][0].pop("s"), "no 's'"),
    "p0 of another size": (lambda saved: saved["state"][0].update(p0=torch.zeros(5)), "p0"),
    "d below 0": (lambda saved: saved["param_groups"][0].update(d=-1.0), "d of its group"),
    "NaN": (lambda saved: saved["state"][0]["s"].fill_(math.nan), "s"),
    "an unknown key": (lambda saved: saved["state"][0].update(z=torch.zeros(5)), "z"),
}


@pytest.mark.parametrize("spoiler", SPOILERS)
def test_dicts_that_do_not_fit_are_refused(spoiler: str) -> None:
    params = [parameter(*shape) for shape in SHAPES]
    package = theirs(params)
    run(params, package, Valley(params), 3)
    saved = copy.deepcopy(package.state_dict())
    change, word = SPOILERS[spoiler]
    change(saved)
    opt = lowtide.Prodigy(copies_of(params))
    with refused(opt, word):
        opt.load_state_dict(saved)
    with pytest.raises(ValueError, match="prodigyopt"):
        lowtide.AdamW(copies_of(params)).load_state_dict(package.state_dict())


@pytest.mark.parametrize(
    "bad",
    [{"slice_p": 11}, {"decouple": False}, {"beta3": 0.0}, {"beta3": 1.0}, {"d0": 0.0}, {"d_coef": -1.0}, {"growth_rate": 0.5},
     {"growth_rate": math.nan}, {"lr": -1.0}, {"betas": (0.9, 1.0)}, {"step_in_backward": True}],
    ids=str,
)  # fmt: skip
def test_what_does_not_fit_is_refused_by_name(bad: dict[str, Any]) -> None:
    (name,) = bad
    words = {"beta3": "beta3: got .*, wanted above 0 and below 1", "betas": "beta2", "slice_p": "slice_p: got 11, wanted 1: .* 4.06 bytes"}
    with pytest.raises(ValueError, match=words.get(name, name)):
        lowtide.Prodigy([parameter(3)], **bad)


def test_steps_of_some_parameters_are_refused() -> None:
    params = [parameter(64, 256), parameter(9)]
    opt = lowtide.Prodigy(params)
    random_gradients(params)
    with pytest.raises(ValueError, match="whose d needs all gradients"):
        opt.step_param(params[0])
    for option, value in {"betas": (0.8, 0.9), "beta3": 0.5, "d0": 1e-3}.items():
        with pytest.raises(ValueError, match=f"parameter group 1: {option}: got .* one d serves all groups"):
            lowtide.Prodigy([{"params": params[:1]}, {"params": params[1:], option: value}])
    other = lowtide.Prodigy([{"params": params[:1]}, {"params": params[1:]}])
    other.param_groups[1]["beta3"] = 0.5
    with pytest.raises(ValueError, match="parameter group 1: beta3: got 0.5, wanted None as in group 0"):
        other.step()
