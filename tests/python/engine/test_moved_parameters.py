"""Which parameters a step moves, and parameters whose memory, shape or type changes after construction: followed or refused."""

import lowtide
import pytest
import torch
from support import RULES, bits, make, parameter, random_gradients


def test_frozen_parameters_wait_for_their_first_gradient(seed):
    a, b = parameter(5000), parameter(5000)
    b.requires_grad_(False)
    opt = lowtide.AdamW([a, b])
    assert not opt.state and opt.report()["params"] == 1
    before = bits(b)
    a.grad = torch.randn(5000)
    opt.step()
    assert set(opt.state[a]) == {"step", "exp_avg_codes", "exp_avg_sq_codes", "exp_avg_scale", "exp_avg_sq_scale"}
    assert b not in opt.state and bits(b) == before
    b.requires_grad_(True)
    b.grad = torch.randn(5000)
    opt.step()
    assert int(opt.state[b]["step"]) == 1 and int(opt.state[a]["step"]) == 2 and opt.report()["params"] == 2
    assert opt.state[b]["exp_avg_codes"].data_ptr() == opt.state_dict()["state"][1]["exp_avg_codes"].data_ptr()


def test_tied_parameters_step_once_and_aliases_step_like_torch(seed):
    """`parameters()` yields a tied weight once. Two parameters that share memory are both stepped, in order."""
    model = torch.nn.Sequential(torch.nn.Linear(16, 16, bias=False), torch.nn.Linear(16, 16, bias=False))
    model[1].weight = model[0].weight
    opt = lowtide.AdamW(model.parameters())
    model(torch.randn(2, 16)).sum().backward()
    opt.step()
    assert len(opt.param_groups[0]["params"]) == 1 and int(opt.state[model[0].weight]["step"]) == 1

    memory = [torch.randn(600) for _ in range(2)]
    memory[1].copy_(memory[0])
    aliases = [[torch.nn.Parameter(m[:400]), torch.nn.Parameter(m[200:])] for m in memory]
    grads = [torch.randn(400), torch.randn(400)]
    for pair in aliases:
        for param, grad in zip(pair, grads, strict=True):
            param.grad = grad.clone()
    lowtide.SGD(aliases[0], lr=0.1).step()
    torch.optim.SGD(aliases[1], lr=0.1).step()
    assert float((memory[0] - memory[1]).abs().max()) < 1e-6


MOVES = {
    "other memory": lambda p: p.detach().clone(),
    "bfloat16": lambda p: p.detach().bfloat16(),
    "float64": lambda p: p.detach().double(),
    "transposed": lambda p: p.detach().t(),
    "transposed copy": lambda p: p.detach().clone().t(),
    "smaller": lambda p: p.detach()[:32],
    "smaller copy": lambda p: p.detach()[:32].clone(),
    "flattened": lambda p: p.detach().reshape(-1),
    "reshaped": lambda p: p.detach().reshape(32, 128),
    "larger": lambda p: torch.zeros(128, 64),
    "expanded": lambda p: p.detach()[:1].expand(64, 64),
    "offset": lambda p: torch.zeros(5000)[100:4196].view(64, 64),
}


@pytest.mark.parametrize("name", MOVES)
@pytest.mark.parametrize("rule", ["adamw", "sgd"])
def test_parameters_swapped_after_construction(name, rule, seed, figure):
    """`p.data = ...` is followed, as torch would, if shape and kind allow, or refused; never silently wrong."""
    p, other = parameter(64, 64), parameter(300)
    opt = make(rule, [other, p], state="fp32", lr=0.1)
    reference_class = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[rule]
    twin, twin_other = torch.nn.Parameter(p.detach().clone()), torch.nn.Parameter(other.detach().clone())
    reference = reference_class([twin_other, twin], lr=0.1, **RULES[rule][1])
    random_gradients([p, other])
    twin.grad, twin_other.grad = p.grad.clone(), other.grad.clone()
    opt.step()
    reference.step()
    opt.zero_grad()
    p.data = MOVES[name](p)
    random_gradients([p, other])
    start = [bits(other), bits(p)]
    shown = {key: bits(value) for key, value in opt.state[p].items()}
    expected = None
    if p.shape == twin.shape and p.dtype == torch.float32:
        twin.data = p.detach().clone()
        twin.grad = p.grad.clone()
        reference.step()
        expected = twin.detach()
    try:
        opt.step()
    except ValueError as error:
        figure(f"refused: {error}")
        assert [bits(other), bits(p)] == start
        assert {key: bits(value) for key, value in opt.state[p].items()} == shown
    else:
        if p.dtype == torch.bfloat16:
            figure("followed")
            return
        assert expected is not None, "stepped a tensor of another shape"
        worst = float((p.detach() - expected).abs().max())
        figure(f"followed, difference from torch {worst:.1e}")
        assert worst < 1e-6


def give(params, missing=None):
    """Gives every parameter but one a gradient."""
    for i, p in enumerate(params):
        p.grad = None if i == missing else torch.ones_like(p)


def test_memory_changes_while_others_sit_a_step_out(figure):
    """Every step has other parameters than the previous one. A cached list of work must notice."""
    params, twins = ([torch.nn.Parameter(torch.ones(4)) for _ in range(2)] for _ in range(2))
    opt, reference = make("adamw", params, state="fp32", lr=0.1), torch.optim.AdamW(twins, lr=0.1, weight_decay=0)
    opt.param_groups[0]["weight_decay"] = 0
    old = params[1].data
    for missing in (None, 0, None):
        if missing == 0:
            kept = old.clone()
            params[1].data, twins[1].data = torch.full((4,), 5.0), torch.full((4,), 5.0)
        for of, optimizer in ((params, opt), (twins, reference)):
            give(of, missing)
            optimizer.step()
    assert torch.equal(old, kept)
    for p, twin in zip(params, twins, strict=True):
        torch.testing.assert_close(p, twin, rtol=1e-6, atol=1e-6)
    figure("2 parameters as torch's, 0 bytes of the old memory changed")


def pair():
    """Parameters for Lowtide, twins for torch, and a step of both with these gradients (None: without)."""
    params, twins = ([torch.nn.Parameter(torch.ones(4)) for _ in range(2)] for _ in range(2))
    opt, reference = make("adamw", params, state="fp32", lr=0.1), torch.optim.AdamW(twins, lr=0.1)

    def step(*gradients):
        for of in (params, twins):
            for p, gradient in zip(of, gradients, strict=True):
                p.grad = None if gradient is None else gradient.clone()
        opt.step()
        reference.step()
        for p, twin in zip(params, twins, strict=True):
            torch.testing.assert_close(p, twin, rtol=1e-6, atol=1e-6)

    return params, twins, step


def test_gradients_come_and_go(figure):
    params, _, step = pair()
    one, two = torch.ones(4), torch.full((4,), -2.0)
    versions = []
    for gradients in ((one, two), (None, two), (None, None), (one, None), (two, one), (one, None), (one, two)):
        step(*gradients)
        versions.append([p._version for p in params])
    assert versions == [[1, 1], [1, 2], [1, 2], [2, 2], [3, 3], [4, 3], [5, 4]]
    figure("7 steps as torch's; versions rise where there was a gradient")


def test_memory_moves_between_any_two_steps(figure):
    """Swapped, moved by `to`, and moved within one growing storage: each step finds the current memory."""
    params, twins, step = pair()
    module = torch.nn.ParameterList(params)
    gradients = torch.ones(4), torch.full((4,), -2.0)
    step(*gradients)
    for p in params:
        p.data = p.data.clone()
    step(*gradients)
    module.to(torch.bfloat16).to(torch.float32)  # torch swaps the memory below the same Parameter objects
    for p, twin in zip(params, twins, strict=True):
        twin.data.copy_(p.data)
    step(*gradients)
    storage = torch.cat([p.detach() for p in params])
    for p, part in zip(params, storage.split(4), strict=True):
        p.data = part
    step(*gradients)
    storage.untyped_storage().resize_(1 << 20)  # elsewhere: the views of it have moved along
    step(*gradients)
    step(gradients[0], None)
    figure("6 steps as torch's")


@pytest.mark.parametrize("numel", [1, 3])
def test_a_lazy_negative_bit_is_refused_and_nothing_moves(numel):
    """The imaginary part of a conjugate: its memory holds the negative of its values."""
    lazy = torch.full((numel,), 1 + 2j).conj().imag
    assert lazy.is_neg()
    p = torch.nn.Parameter(torch.zeros(numel))
    opt = lowtide.SGD([p], lr=1.0)
    p.grad = lazy
    with pytest.raises(ValueError, match="lazy negative bit"):
        opt.step()
    p.grad = torch.ones(numel)
    opt.step()
    assert torch.equal(p.detach(), torch.full((numel,), -1.0))
    p.data = lazy
    with pytest.raises(ValueError, match="lazy negative bit"):
        opt.step()
    assert torch.equal(p.detach(), lazy)
