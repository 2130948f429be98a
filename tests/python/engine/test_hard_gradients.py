"""Two threads using one optimizer, and gradients and weights of unusual kinds."""

import sys
import threading
import time

import lowtide
import pytest
import torch

from support import RULES, make, parameter, random_gradients, refused, take_steps


def test_two_threads_at_one_optimizer(seed, figure):
    """Never a crash: a call either steps or is refused as a whole, and the steps taken are the steps counted."""
    params = [parameter(64, 300) for _ in range(20)]
    opt = lowtide.AdamW(params)
    random_gradients(params)
    done, refusals, others = [], [], []

    def work():
        while time.monotonic() < end:
            try:
                opt.step()
                done.append(1)
            except ValueError as error:
                refusals.append(str(error))
            except BaseException as error:  # noqa: BLE001 - anything else is a failure, told by the main thread
                others.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    end = time.monotonic() + 1
    try:
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    figure(f"steps {len(done)}, refused {len(refusals)}, other errors {len(others)}")
    assert not others, others[0]
    assert all("in use" in text for text in refusals), refusals[0]
    assert len(done) == opt.report()["steps"] == int(opt.state[params[0]]["step"]) > 0
    assert all(bool(p.isfinite().all()) for p in params)


@pytest.mark.parametrize("rule", RULES)
def test_gradients_whose_storage_is_gone_are_refused(rule, seed):
    params = [parameter(300), parameter(300)]
    opt = make(rule, params)
    random_gradients(params)
    params[1].grad.untyped_storage().resize_(0)
    with refused(opt, "got", "wanted"):
        opt.step()
    take_steps(params, opt)


@pytest.mark.parametrize("rule", ["adam", "sgd"])
def test_a_huge_weight_under_l2_decay_spares_its_neighbours(rule, seed, figure):
    """A weight of 3e20 under an L2 penalty puts 3e19 into its own gradient. The rest of its block moves as in torch, within the
    cost of quantization beside 3e19, which loses their momentum but no more. Other blocks notice nothing."""
    start = torch.randn(32, 256)
    start[3, 7] = 3e20
    ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    options = {"lr": 1e-3, "weight_decay": 0.1, **RULES[rule][1]}
    reference = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[rule]([theirs], **options)
    opt = make(rule, [ours], lr=1e-3, weight_decay=0.1, state="dynamic8")
    lost = 3 * 1e-3 if rule == "adam" else 0.0  # Adam: as far off as if they had stood still
    for step in range(3):
        ours.grad = torch.randn(32, 256)
        if rule == "sgd":  # what this gradient moves by way of the buffer, in the steps after this one
            lost += 1e-3 * (float(ours.grad.abs().max()) + 1) * sum(0.9**k for k in range(1, 3 - step))
        theirs.grad = ours.grad.clone()
        opt.step()
        reference.step()
    difference = (ours - theirs).detach().abs()
    difference[3, 7] = 0
    others, same_block = difference.clone(), difference[3]
    others[3] = 0
    figure(f"largest difference in its block {float(same_block.max()):.1e}, elsewhere {float(others.max()):.1e}, "
           f"bound {lost:.1e}, steps skipped {opt.skipped_steps}")  # fmt: skip
    assert bool(ours.isfinite().all()) and float(others.max()) < 1e-3 and float(same_block.max()) <= lost
    assert opt.skipped_steps == 0


@pytest.mark.parametrize("state", ["dynamic8", "float8", "dynamic4"])
def test_a_state_that_overflowed_decays_again(state, seed, figure):
    """The square of a weight of 1e20 is infinite, the state as large as its format allows. Without that weight, the block's largest
    value halves in every step, exactly, as every format stores halves of what it has stored."""
    param = torch.nn.Parameter(torch.zeros(2, 256))
    opt = lowtide.Adam([param], betas=(0.9, 0.5), weight_decay=1.0, state=state, min_quantized_numel=0)
    most = []
    for weight, steps in ((1e20, 3), (1.0, 8)):
        for _ in range(steps):
            param.data[0, 0], param.grad = weight, torch.zeros(2, 256)
            opt.step()
        v = opt._core.export_state(0, 1)
        assert bool(v.isfinite().all()) and bool(param.isfinite().all())
        most.append(float(v.max()))
    figure(f"{state}: {most[0]:.4g}, after 8 steps {most[1]:.4g}")
    assert most[0] > 2.0**127 and most[1] == most[0] / 2**8 and opt.skipped_steps == 0


def test_a_weight_of_float16_overflows_as_in_torch(seed):
    """A finite gradient times lr beyond 65504 makes it infinite. The step is taken, and does not count as skipped."""
    params = [torch.nn.Parameter(torch.ones(4, dtype=torch.float16)) for _ in range(2)]
    ours, theirs = lowtide.SGD(params[:1], lr=1.0), torch.optim.SGD(params[1:], lr=1.0)
    for opt, p in zip((ours, theirs), params, strict=True):
        for _ in range(2):
            p.grad = torch.full((4,), 6e4, dtype=torch.float16)
            opt.step()
    assert torch.equal(*params) and bool(params[0].isinf().all()) and ours.skipped_steps == 0


def test_centered_RMSprop_explodes_under_a_constant_gradient_unless_eps_bounds_it(seed, figure):
    """The deviation is only rounding, in torch, too: updates of hundreds of lr. With eps of 1e-3 of the gradient, none exceeds
    1000 lr by more than rounding, in either."""
    worst = {}
    for eps in (1e-8, 0.37e-3):
        for cls, options in ((torch.optim.RMSprop, {}), (lowtide.RMSprop, {"state": "fp32"})):
            p = torch.nn.Parameter(torch.zeros(256))
            opt = cls([p], lr=1e-3, alpha=0.9, centered=True, eps=eps, **options)
            for _ in range(400):
                before = p.detach().clone()
                p.grad = torch.full((256,), 0.37)
                opt.step()
                moved = float((p.detach() - before).abs().max()) / 1e-3
                worst[cls, eps] = max(worst.get((cls, eps), 0.0), moved)
    figure(", ".join(f"{cls.__module__.split('.')[0]}, eps {eps:g}: {most:.0f} lr" for (cls, eps), most in worst.items()))
    assert all(most > 100 for (_, eps), most in worst.items() if eps < 1e-6)
    assert all(most < 1001 for (_, eps), most in worst.items() if eps > 1e-6)
