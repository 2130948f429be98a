"""LAMB and LARS: against their formulas in float64, state_dicts, refusals."""

import copy
from collections.abc import Callable

import lowtide
import pytest
import torch

STEPS = 20
# Parameters are below 4, and steps far smaller: each is off by half an ulp of 4, and by less than another half.
TOLERANCE = STEPS * 2.0**-21


def lamb(p: torch.Tensor, g: torch.Tensor, state: dict, t: int, max_unorm: float) -> torch.Tensor:
    lr, beta1, beta2, eps, decay = 0.01, 0.9, 0.999, 1e-6, 0.1
    m = state["m"] = beta1 * state.get("m", torch.zeros_like(p)) + (1 - beta1) * g
    v = state["v"] = beta2 * state.get("v", torch.zeros_like(p)) + (1 - beta2) * g * g
    r = m / (1 - beta1**t) / ((v / (1 - beta2**t)).sqrt() + eps)
    if max_unorm:
        return p - lr * (min(1.0, max_unorm * float(p.norm() / r.norm())) * r + decay * p)
    r = r + decay * p
    return p - lr * p.norm() / r.norm() * r


def lars(p: torch.Tensor, g: torch.Tensor, state: dict, t: int, max_unorm: float) -> torch.Tensor:
    lr, momentum, decay, trust, eps = 0.1, 0.9, 0.01, 0.05, 1e-8
    local = 1.0 if max_unorm else trust * p.norm() / (g.norm() + decay * p.norm() + eps)
    g = local * (g + decay * p)
    b = state["b"] = g if t == 1 else momentum * state["b"] + g
    ratio = min(1.0, max_unorm * float(p.norm() / b.norm())) if max_unorm else 1.0
    return p - lr * ratio * b


def make(name: str, params: object, max_unorm: float | None, **options: object) -> lowtide.LAMB | lowtide.LARS:
    if name == "LAMB":
        return lowtide.LAMB(params, lr=0.01, weight_decay=0.1, max_unorm=max_unorm, **options)
    return lowtide.LARS(params, lr=0.1, weight_decay=0.01, trust_coefficient=0.05, max_unorm=max_unorm, **options)


@pytest.mark.parametrize("max_unorm", [None, 0.1])
@pytest.mark.parametrize(("name", "formula"), [("LAMB", lamb), ("LARS", lars)])
def test_steps_are_those_of_the_formula(name: str, formula: Callable, max_unorm: float | None) -> None:
    generator = torch.Generator().manual_seed(60)
    params = [torch.randn(shape, generator=generator) for shape in ((30, 40), (257,), (3, 5, 7))]
    wanted = [p.double() for p in params]
    optimizer = make(name, params, max_unorm, state="fp32")
    states: list[dict] = [{} for _ in params]
    for t in range(1, STEPS + 1):
        for i, p in enumerate(params):
            p.grad = torch.randn(p.shape, generator=generator)
            wanted[i] = formula(wanted[i], p.grad.double(), states[i], t, max_unorm or 0.0)
        optimizer.step()
    worst = max(float((p - w).abs().max()) for p, w in zip(params, wanted, strict=True))
    print(f"{name}, max_unorm={max_unorm}: {STEPS} steps, at most {worst:.1e} off")
    assert worst <= TOLERANCE


@pytest.mark.parametrize("name", ["LAMB", "LARS"])
@pytest.mark.parametrize("state", ["fp32", "bf16", "dynamic8"])
def test_state_dicts_and_copies_go_on_alike(name: str, state: str) -> None:
    generator = torch.Generator().manual_seed(61)
    p = torch.randn(64, 256, generator=generator)
    optimizer = make(name, [p], 0.1, state=state, min_quantized_numel=0)
    p.grad = torch.randn(p.shape, generator=generator)
    optimizer.step()
    q = p.clone()
    other = make(name, [q], None, state=state, min_quantized_numel=0)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert other.param_groups[0]["max_unorm"] == 0.1
    q.grad = p.grad
    optimizer.step()
    other.step()
    assert torch.equal(p, q)


@pytest.mark.parametrize("name", ["LAMB", "LARS"])
def test_bad_values_name_themselves(name: str) -> None:
    p = torch.zeros(4)
    with pytest.raises(ValueError, match="max_unorm=-1"):
        make(name, [p], -1.0)
    with pytest.raises(TypeError, match="max_unorm"):
        make(name, [p], "large")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="nesterov"):
        lowtide.LARS([p], momentum=0, nesterov=True)
