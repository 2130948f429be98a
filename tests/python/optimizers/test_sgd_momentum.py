"""SGD's buffer and its momentum: switched off and on, saved, copied and loaded as in torch.optim.SGD."""

import copy
import pickle

import lowtide
import pytest
import torch

from support import CODECS, bits, parameter, state_bits, through_file

GRADS = 8


def run(opt, params, grads, momentum=None):
    """One step per entry of `grads`, with `momentum`, if given, set in every group before."""
    if momentum is not None:
        for group in opt.param_groups:
            group["momentum"] = momentum
    for step in grads:
        for param, grad in zip(params, step, strict=True):
            param.grad = grad.clone()
        opt.step()


def twins(count):
    """`count` lists of equal parameters (large enough for quantized state, and small), and gradients for them."""
    start = [parameter(32, 256), parameter(70, 100), parameter(9)]
    lists = [[torch.nn.Parameter(p.detach().clone()) for p in start] for _ in range(count)]
    return lists, [[torch.randn(p.shape) for p in start] for _ in range(GRADS)]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("codec", CODECS)
def test_the_buffer_outlives_a_step_without_momentum(codec, momentum, seed, figure):
    """Three steps at 0.9, one at 0, save and load (into either momentum), deepcopy or pickle, then 0.9 again: bit for bit the
    run without a break."""
    (whole, broken, loaded), grads = twins(3)
    unbroken = lowtide.SGD(whole, lr=0.1, momentum=0.9, dampening=0.3, state=codec)
    opt = lowtide.SGD(broken, lr=0.1, momentum=0.9, dampening=0.3, state=codec)
    for each, params in ((unbroken, whole), (opt, broken)):
        run(each, params, grads[:3])
        run(each, params, grads[3:4], 0.0)
    assert any(name.startswith("momentum_buffer") for name in opt.state[broken[0]]) and opt.param_groups[0]["momentum"] == 0.0
    copies = [copy.deepcopy((broken, opt)), pickle.loads(pickle.dumps((broken, opt)))]
    for p, q in zip(broken, loaded, strict=True):
        q.data.copy_(p)
    resumed = lowtide.SGD(loaded, lr=0.5, momentum=momentum, state=codec)
    resumed.load_state_dict(through_file(opt.state_dict()))
    copies.append((loaded, resumed))
    assert all(state_bits(other) == state_bits(opt) for _, other in copies)
    run(unbroken, whole, grads[4:], 0.9)
    for params, other in copies:
        run(other, params, grads[4:], 0.9)
    equal = [[bits(p) for p in params] == [bits(p) for p in whole] for params, _ in copies]
    figure(f"deepcopy, pickle, load equal to the unbroken run: {equal}")
    assert all(equal) and all(state_bits(other) == state_bits(unbroken) for _, other in copies)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("saved", "live"), [(0.9, 0.0), (0.0, 0.9), (0.0, 0.0), (0.9, 0.9)])
def test_momentum_comes_with_the_dict(saved, live, codec, seed):
    """An optimizer built with another momentum, trained or new, loads a dict and continues alike."""
    (first, second, third), grads = twins(3)
    opt = lowtide.SGD(first, lr=0.1, momentum=saved, state=codec)
    run(opt, first, grads[:2])
    used, new = (lowtide.SGD(params, lr=1.0, momentum=live, state=codec) for params in (second, third))
    run(used, second, grads[2:4])
    run(opt, first, grads[4:5])
    for params, other in ((second, used), (third, new)):
        for p, q in zip(first, params, strict=True):
            q.data.copy_(p)
        other.load_state_dict(through_file(opt.state_dict()))
        assert other.param_groups[0]["momentum"] == saved
        assert [int(other.state[p]["step"]) for p in params] == [3, 3, 3]
    for momentum in (saved, 0.9):  # with the saved momentum, then with some: both buffers start alike
        for params, other in ((first, opt), (second, used), (third, new)):
            run(other, params, grads[5:7], momentum)
        assert [bits(p) for p in first] == [bits(p) for p in second] == [bits(p) for p in third]
    assert state_bits(opt) == state_bits(used) == state_bits(new)


@pytest.mark.parametrize(("theirs", "ours"), [(0.9, 0.0), (0.0, 0.9), (0.9, 0.9)])
def test_momentum_comes_with_the_dict_of_torch(theirs, ours, seed, figure):
    (first, second), grads = twins(2)
    reference = torch.optim.SGD(first, lr=0.1, momentum=theirs)
    run(reference, first, grads[:3])
    opt = lowtide.SGD(second, lr=1.0, momentum=ours, state="fp32")
    run(opt, second, grads[3:4])
    for p, q in zip(first, second, strict=True):
        q.data.copy_(p)
    opt.load_state_dict(through_file(reference.state_dict()))
    run(reference, first, grads[4:])
    run(opt, second, grads[4:])
    worst = max(float((p - q).detach().abs().max()) for p, q in zip(first, second, strict=True))
    figure(f"torch {theirs} into {ours}: largest difference after {GRADS - 4} steps {worst:.1e}")
    assert worst < 1e-6 and opt.param_groups[0]["momentum"] == theirs


def test_a_wrong_buffer_is_refused_whatever_the_momentum(seed):
    (first, second), grads = twins(2)
    opt = lowtide.SGD(first, lr=0.1, momentum=0.9)
    run(opt, first, grads[:1])
    saved = copy.deepcopy(opt.state_dict())
    saved["state"][0]["momentum_buffer_codes"] = saved["state"][0]["momentum_buffer_codes"][:-1]
    plain = lowtide.SGD(second, lr=0.1)
    before = state_bits(plain)
    with pytest.raises(ValueError, match=r"parameter 0, momentum_buffer: got \(31, 256\), wanted \(32, 256\)"):
        plain.load_state_dict(saved)
    assert state_bits(plain) == before and plain.param_groups[0]["momentum"] == 0.0
