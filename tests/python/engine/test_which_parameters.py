"""Which parameters a step moves: frozen ones, those without a gradient, tied ones and aliases."""

import lowtide
import torch

from support import bits, parameter, snapshot


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


def test_gradients_of_none_are_passed_over(seed):
    a, b = parameter(5000), parameter(5000)
    opt = lowtide.AdamW([a, b])
    b_before = bits(b)
    for _ in range(3):
        a.grad = torch.randn(5000)
        opt.step()
    assert bits(b) == b_before and b not in opt.state and int(opt.state[a]["step"]) == 3
    opt.zero_grad()
    before = snapshot(opt)
    opt.step()
    assert snapshot(opt) == before


def test_tied_parameters_step_once_and_aliases_step_like_torch(seed):
    """`parameters()` yields a tied weight once. Two parameters over one memory are both stepped, in order."""
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
