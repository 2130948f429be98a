"""Parameters whose memory, shape or type changes after construction: followed or refused."""

import pytest
import torch

from support import RULES, bits, make, parameter, random_gradients

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
    """`p.data = ...`: followed, as torch would step it, if shape and kind allow, or refused; never wrong in silence."""
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
