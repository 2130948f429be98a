"""`Optimizer.clip_grad_norm_` and max_grad_norm compared with torch.nn.utils.clip_grad_norm_: the norm, the steps, and requests
whose gradients are gone."""

import functools
import math
import sys
import weakref
from collections import Counter

import lowtide
import pytest
import torch
from lowtide.optimizers import clipping

from support import bits, snapshot

SHAPES = [(300, 257), (5000,), (7,), (64, 96)]


def leaves(dtype=torch.float32):
    """Equal every time; the last one is transposed."""
    random = torch.Generator().manual_seed(5)
    made = [torch.randn(shape, generator=random).to(dtype) for shape in SHAPES]
    made[-1] = made[-1].t()
    return [torch.nn.Parameter(each) for each in made]


def give_gradients(params, scale, seed, dtype=None):
    random = torch.Generator().manual_seed(seed)
    for param in params:
        grad = torch.randn(param.shape, generator=random) * scale
        param.grad = (torch.empty_like(param).copy_(grad) if param.is_contiguous() else grad).to(param.dtype)


@functools.cache
def exact_norm(dtype):
    """The norm of `wide_gradients` in Python's integers: each float32 is a whole number of 2^-149."""
    total = 0
    for param in wide_gradients(dtype):
        for x in param.grad.float().flatten().tolist():
            total += int(math.ldexp(x, 149)) ** 2
    root = math.isqrt(total << 64)  # of 2^(-298 - 64), less than 2^-53 of it away from the root
    return math.ldexp(root >> max(root.bit_length() - 60, 0), max(root.bit_length() - 60, 0) - 149 - 32)


def wide_gradients(dtype):
    """One parameter's go over almost all magnitudes of the type."""
    params = leaves(dtype)
    give_gradients(params, 1e-3, 1)
    least, count = (-24, 39) if dtype == torch.float16 else (-140, 200)
    numel = params[0].numel()
    params[0].grad = torch.ldexp(torch.ones(numel), torch.arange(numel) % count + least).to(dtype).view_as(params[0])
    return params


@pytest.mark.parametrize("foreach", [True, False])
def test_steps_are_torchs_with_its_own_clipping(foreach, figure):
    """Two groups, steps with and without clipping. torch rounds g c to float32, and so does the step. c equals torch's up to
    rounding, because torch adds up float32: each step's update differs by a few units of 2^-24 of lr."""
    ours, theirs = leaves(), leaves()
    lr, rounds = 1e-2, 8
    opt = lowtide.AdamW([{"params": ours[:2]}, {"params": ours[2:], "lr": lr}], lr=lr, weight_decay=0.01, state="fp32")
    other = torch.optim.AdamW([{"params": theirs[:2]}, {"params": theirs[2:]}], lr=lr, weight_decay=0.01)
    clipped, apart = 0, 0.0
    for step in range(rounds):
        for params in (ours, theirs):
            give_gradients(params, 1e-1 if step % 2 else 1e-4, step)
        norm = opt.clip_grad_norm_(1.0)
        wanted = torch.nn.utils.clip_grad_norm_(theirs, 1.0, foreach=foreach)
        assert norm.dtype == torch.float32 and norm.shape == () and norm == opt.last_grad_norm
        assert float(norm) == pytest.approx(float(wanted), rel=1e-6)
        clipped += bool(norm > 1)
        opt.step()
        other.step()
        apart = max(apart, *(float((p - q).detach().abs().max()) for p, q in zip(ours, theirs, strict=True)))
    figure(f"{clipped} of {rounds} steps clipped, weights at most {apart / lr:.1e} lr from torch's")
    assert clipped == rounds // 2 and apart < rounds * lr * 2e-4  # a few units of weights of magnitude 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("target", lowtide._core.cpu_targets())
def test_norm_is_the_exact_one_rounded_once(dtype, target, figure):
    """On every path, for all thread numbers, strides and orders, whatever the range of magnitudes."""
    params = wide_gradients(dtype)
    norms, threads = set(), torch.get_num_threads()
    for count in (1, 2, 5):
        torch.set_num_threads(count)
        for order in (params, params[::-1]):
            opt = lowtide.SGD(order, lr=0.1, cpu_target=target)
            opt.clip_grad_norm_(1.0)
            norms.add(opt._clipper.clip.norm)
    torch.set_num_threads(threads)
    wanted = exact_norm(dtype)
    figure(f"{target}: {norms}, exact {wanted!r}")
    assert len(norms) == 1 and abs(norms.pop() / wanted - 1) <= 2**-52


def test_the_largest_magnitude_is_torchs(figure):
    ours = leaves()
    give_gradients(ours, 3.0, 2)
    opt = lowtide.SGD(ours, lr=0.1)
    norm, wanted = opt.clip_grad_norm_(1.0, "inf"), torch.nn.utils.get_total_norm([p.grad for p in ours], math.inf)
    before = [p.detach().clone() for p in ours]
    opt.step()
    moved = max(float((p.detach() - b).abs().max()) for p, b in zip(ours, before, strict=True))
    figure(f"largest {float(norm)}, torch {float(wanted)}, moved by {moved}")
    assert bits(norm) == bits(wanted) and moved == pytest.approx(0.1, rel=1e-5)  # weights of magnitude 4


def test_gradients_are_only_read(figure):
    ours = leaves()
    give_gradients(ours, 3.0, 2)
    before = [(bits(p.grad), p.grad._version) for p in ours]
    opt = lowtide.AdamW(ours)
    opt.clip_grad_norm_(1e-3)
    opt.step()
    assert [(bits(p.grad), p.grad._version) for p in ours] == before
    figure(f"{len(before)} gradients as before")


def test_the_option_is_the_call(figure):
    """Bit for bit, even if a closure makes the gradients."""
    runs = []
    for option in (None, 0.5):
        ours = leaves()
        opt = lowtide.AdamW(ours, max_grad_norm=option)
        for step in range(3):
            def closure(ours=ours, step=step):
                give_gradients(ours, 1.0, step)
                return 1.0

            if option is None:
                closure()
                opt.clip_grad_norm_(0.5)
                opt.step()
            else:
                assert opt.step(closure) == 1.0
        runs.append(([bits(p) for p in ours], bits(opt.last_grad_norm)))
    figure(f"norm {float(opt.last_grad_norm)}")
    assert runs[0] == runs[1]


@pytest.mark.parametrize("amp", [False, True])
def test_the_norm_is_of_unscaled_gradients(amp, figure):
    """GradScaler unscales before the step, or passes its scale (amp_scaling)."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    ours, plain = leaves(), leaves()
    opt = lowtide.AdamW(ours, amp_scaling=amp, max_grad_norm=0.5)
    wanted = lowtide.AdamW(plain, max_grad_norm=0.5)
    for step in range(2):
        give_gradients(ours, 1024.0, step)
        give_gradients(plain, 1.0, step)
        scaler.scale(torch.zeros(()))
        scaler.step(opt)
        scaler.update()
        wanted.step()
        assert bits(opt.last_grad_norm) == bits(wanted.last_grad_norm)
    figure(f"norm {float(opt.last_grad_norm)}")
    apart = max(float((p - q).detach().abs().max()) for p, q in zip(ours, plain, strict=True))
    assert apart < 1e-6 if amp else apart == 0  # the scale is a power of two, but not the factor that it is multiplied with


def test_a_request_lapses_with_its_gradients(figure):
    ours, plain = leaves(), leaves()
    opt, never = lowtide.AdamW(ours, state="fp32"), lowtide.AdamW(plain, state="fp32")
    give_gradients(ours, 3.0, 1)
    opt.clip_grad_norm_(0.01)
    for param in ours:
        param.grad = None
    for params in (ours, plain):
        give_gradients(params, 3.0, 2)
    opt.step()
    never.step()
    assert [bits(p) for p in ours] == [bits(p) for p in plain]
    opt.clip_grad_norm_(0.01)
    opt.zero_grad(set_to_none=False)  # in place: the request goes with it
    for params in (ours, plain):
        give_gradients(params, 3.0, 3)
    opt.step()
    never.step()
    assert [bits(p) for p in ours] == [bits(p) for p in plain]
    opt.clip_grad_norm_(0.01)
    opt.step()
    never.step()
    apart = max(float((p - q).detach().abs().max()) for p, q in zip(ours, plain, strict=True))
    opt.step()  # the same gradients once more, and no request: it was for one step
    never.step()
    figure(f"unclipped after two lapses; then {apart:g} apart by the one clipped step")
    assert apart > 0 and opt._clipper.clip is None


@pytest.mark.parametrize("how", ["in place", "one replaced", "one gone"])
def test_other_gradients_than_those_measured_are_refused(how):
    ours = leaves()
    opt = lowtide.AdamW(ours)
    give_gradients(ours, 3.0, 1)
    opt.clip_grad_norm_(0.5)
    if how == "in place":
        ours[1].grad.mul_(2)
    else:
        ours[1].grad = None if how == "one gone" else ours[1].grad.clone()
    before, values = snapshot(opt), [bits(p) for p in ours]
    for _ in range(2):  # a second try is not unclipped
        with pytest.raises(ValueError, match="after clip_grad_norm_, wanted the gradients that it measured"):
            opt.step()
    assert snapshot(opt) == before and [bits(p) for p in ours] == values
    opt.clip_grad_norm_(0.5)
    opt.step()


def test_a_change_while_the_norm_is_measured_is_noticed(monkeypatch):
    """By another thread, say."""
    ours = leaves()
    opt = lowtide.AdamW(ours)
    give_gradients(ours, 3.0, 1)
    measure = clipping.measure

    def and_then(*arguments):
        found = measure(*arguments)
        ours[2].grad.mul_(2)
        return found

    monkeypatch.setattr(clipping, "measure", and_then)
    opt.clip_grad_norm_(0.5)
    with pytest.raises(ValueError, match="gradients that were changed in place after clip_grad_norm_"):
        opt.step()


def test_groups_that_step_one_after_another_are_clipped_alike(figure):
    """A wrapper leaves one group at a time in param_groups. One call clips all groups; the option, which would clip each to its
    own norm, is refused."""

    def moves(each, **options):
        params = leaves()[:2]
        opt = lowtide.SGD([{"params": [param]} for param in params], lr=1.0, **options)
        give_gradients(params, 3.0, 1)
        if not options:
            opt.clip_grad_norm_(0.5)
        before, groups = [param.detach().clone() for param in params], opt.param_groups
        for shown in [[group] for group in groups] if each else [groups]:
            opt.param_groups = shown
            try:
                opt.step()
            finally:
                opt.param_groups = groups
        return [float((param - was).detach().norm()) for param, was in zip(params, before, strict=True)]

    together, apart = moves(False), moves(True)
    figure(f"moved by {apart}, in one step by {together}")
    assert apart == together
    with pytest.raises(ValueError, match="max_grad_norm: got groups that are stepped one after another"):
        moves(True, max_grad_norm=0.5)


def test_gradients_of_inference_mode_are_clipped():
    """torch counts no versions for these."""
    ours, plain = leaves(), leaves()
    with torch.inference_mode():
        give_gradients(ours, 3.0, 1)
    give_gradients(plain, 3.0, 1)
    for params in (ours, plain):
        opt = lowtide.AdamW(params, state="fp32")
        opt.clip_grad_norm_(0.5)
        opt.step()
    assert [bits(p) for p in ours] == [bits(p) for p in plain]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("policy", ["skip", "raise", "propagate"])
def test_a_norm_that_is_not_finite_leaves_the_answer_to_the_step(bad, policy):
    ours = leaves()
    opt = lowtide.AdamW(ours, nonfinite=policy, state="fp32")
    give_gradients(ours, 3.0, 1)
    ours[1].grad[77] = bad
    with pytest.raises(RuntimeError, match="clip_grad_norm_: got gradients with a norm of"):
        opt.clip_grad_norm_(0.5, error_if_nonfinite=True)
    assert opt._clipper.clip is None
    norm = opt.clip_grad_norm_(0.5)
    assert math.isnan(norm) if math.isnan(bad) else math.isinf(norm)
    before = [bits(p) for p in ours]
    if policy == "raise":
        with pytest.raises(ValueError, match="gradient of parameter 1"):
            opt.step()
    else:
        opt.step()
    assert ([bits(p) for p in ours] == before) == (policy != "propagate")
    assert opt.skipped_steps == (policy == "skip")


def test_a_measured_step_does_not_read_gradients_for_a_check(monkeypatch):
    """The core is told that they are finite."""
    ours = leaves()
    opt = lowtide.AdamW(ours)
    told = []
    monkeypatch.setattr(opt, "_step_core", lambda scale, finite, *rest: told.append((scale, finite)) or -1)
    give_gradients(ours, 3.0, 1)
    opt.step()
    norm = float(opt.clip_grad_norm_(0.5))
    opt.step()
    assert told[0] == (1.0, False) and told[1][1] is True and told[1][0] == pytest.approx(0.5 / norm, rel=1e-5)


def test_python_does_no_work_for_each_tensor(figure):
    """Neither in the call nor in the following step: Python makes as many calls for 40 times as many tensors."""
    calls = []
    for tensors in (5, 200):
        params = [torch.nn.Parameter(torch.ones(8)) for _ in range(tensors)]
        opt, made = lowtide.AdamW(params), Counter()

        def count(frame, event, of, made=made):
            if event in ("call", "c_call"):
                made[frame.f_code.co_name if event == "call" else of.__qualname__] += 1

        for _ in range(2):  # the first step makes the state
            for param in params:
                param.grad = torch.ones(8)
            made.clear()
            sys.setprofile(count)
            try:
                opt.clip_grad_norm_(1.0)
                opt.step()
            finally:
                sys.setprofile(None)
        calls.append(made)
    figure(f"{calls[0].total()} calls for 5 tensors, {calls[1].total()} for 200")
    assert calls[0] == calls[1], calls[1] - calls[0]


def test_a_request_keeps_no_gradient_alive():
    ours = leaves()
    opt = lowtide.AdamW(ours)
    give_gradients(ours, 3.0, 1)
    opt.clip_grad_norm_(0.5)
    seen = [weakref.ref(param.grad) for param in ours]
    for param in ours:
        param.grad = None
    assert opt._clipper.clip is not None and not any(grad() is not None for grad in seen)


def test_magnitudes_that_a_step_would_refuse_are_checked():
    """Magnitudes of 2^62 and above, whose squares would overflow, unless clipping reduces them."""
    p = torch.nn.Parameter(torch.ones(4))
    for limit, skipped in ((math.inf, 1), (1.0, 0)):
        opt = lowtide.AdamW([p])
        p.grad = torch.full((4,), 2.0**62)
        assert float(opt.clip_grad_norm_(limit)) == 2.0**63
        opt.step()
        assert opt.skipped_steps == skipped


def test_nothing_to_measure():
    p = torch.nn.Parameter(torch.ones(4))
    opt = lowtide.AdamW([p])
    assert float(opt.clip_grad_norm_(1.0)) == 0
    opt.step()
    p.grad = torch.zeros(4)
    assert float(opt.clip_grad_norm_(1.0)) == 0
    opt.step()
    with pytest.raises(ValueError, match="sparse"):
        p.grad = torch.sparse_coo_tensor(torch.tensor([[1]]), torch.ones(1), (4,))
        opt.clip_grad_norm_(1.0)


def test_values_that_cannot_be_had():
    p = torch.nn.Parameter(torch.ones(4))
    opt = lowtide.AdamW([p])
    for arguments, words in ((-1.0, 2.0), "max_norm: got -1.0"), ((math.nan, 2.0), "max_norm"), ((1.0, 3), "norm_type: got 3"):
        with pytest.raises(ValueError, match=words):
            opt.clip_grad_norm_(*arguments)
    for arguments, words in ((None, 2.0), "max_norm: got None"), ((1.0, "two"), "norm_type: got 'two'"):
        with pytest.raises(TypeError, match=words):
            opt.clip_grad_norm_(*arguments)
    for value, kind in ((-1.0, ValueError), (math.nan, ValueError), ("1", TypeError), (True, TypeError)):
        with pytest.raises(kind, match="max_grad_norm"):
            lowtide.AdamW([p], max_grad_norm=value)
    with pytest.raises(ValueError, match="among the options of the whole optimizer"):
        lowtide.AdamW([{"params": [p], "max_grad_norm": 1.0}])
    with pytest.raises(ValueError, match="step_in_backward: got max_grad_norm=1.0"):
        lowtide.AdamW([p], max_grad_norm=1.0, step_in_backward=True)
    with pytest.raises(ValueError, match="clip_grad_norm_: got step_in_backward"):
        lowtide.AdamW([p], step_in_backward=True).clip_grad_norm_(1.0)
