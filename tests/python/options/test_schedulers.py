"""Torch's schedulers and changes by hand set hyper-parameters at any step."""

import copy

import lowtide
import pytest
import torch
from torch.optim import lr_scheduler

from support import RULES, make, parameter, refused, state_bits

SCHEDULERS = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 4]),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda t: 1 / (1 + t)),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda t: 0.9),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, total_iters=4),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 4),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 5),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 1e-4, 1e-2, step_size_up=3, base_momentum=0.8, max_momentum=0.9),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 1e-2, total_steps=10),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)], [3]
    ),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1),
}


def twin(param):
    return torch.nn.Parameter(param.detach().clone())


def stepped(*optimizers, steps, schedule=None):
    """Yields the number of each step after it: of optimizers with one parameter each, which get the same gradients, and under
    a scheduler of their own each, if any."""
    params = [opt.param_groups[0]["params"][0] for opt in optimizers]
    schedulers = [SCHEDULERS[schedule](opt) for opt in optimizers] if schedule else []
    for step in range(steps):
        grad = torch.randn(params[0].shape)
        for param, opt in zip(params, optimizers, strict=True):
            param.grad = grad.clone()
            opt.step()
        for scheduler in schedulers:
            scheduler.step(*([1.0] if schedule == "ReduceLROnPlateau" else []))
        yield step


def apart(a, b):
    return float((a - b).detach().abs().max())


@pytest.mark.parametrize("rule", ["adamw", "sgd"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_drive_the_step(name, rule, seed, figure):
    """lr, betas and momentum take the values that they take under torch.optim, and the step uses them."""
    ours = parameter(300)
    theirs = twin(ours)
    a = make(rule, [ours], lr=1e-3, state="fp32")
    b = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[rule]([theirs], lr=1e-3, **RULES[rule][1])
    worst = 0.0
    for _ in stepped(a, b, steps=8, schedule=name):
        for key in set(a.param_groups[0]) & set(b.param_groups[0]) - {"params"}:
            assert a.param_groups[0][key] == b.param_groups[0][key], key
        worst = max(worst, apart(ours, theirs))
    figure(f"largest difference from torch after 8 steps {worst:.1e}")
    assert worst < 1e-5


@pytest.mark.parametrize("name", ["CyclicLR", "OneCycleLR"])
@pytest.mark.parametrize("cls", [lowtide.RMSprop, lowtide.compat.bitsandbytes.optim.RMSprop32bit])
def test_a_momentum_that_a_scheduler_brings_is_taken_before_the_first_step(name, cls, seed, figure):
    """RMSprop without momentum, and a scheduler's default cycle_momentum. The last bits of a step differ, by some 2e-6 of
    the way a step (test_against_torch.py): 1e-5 of lr for each of 10 steps and each of the 1 / (1 - 0.95) steps
    that momentum remembers."""
    ours = parameter(300)
    theirs = twin(ours)
    options = {"state": "fp32"} if cls is lowtide.RMSprop else {}
    a, b = cls([ours], lr=1e-3, **options), torch.optim.RMSprop([theirs], lr=1e-3)
    for _ in stepped(a, b, steps=8, schedule=name):
        assert a.param_groups[0]["momentum"] == b.param_groups[0]["momentum"] > 0
    torch.testing.assert_close(a.state[ours]["momentum_buffer"], b.state[theirs]["momentum_buffer"], rtol=1e-4, atol=1e-5)
    figure(f"{name}: {apart(ours, theirs):.1e} from torch after 8 steps")
    assert apart(ours, theirs) < 8 * 20 * 1e-5 * 1e-2


@pytest.mark.parametrize(
    "name, key, value", [("RMSprop", "momentum", 0.9), ("RMSprop", "centered", True), ("AdamW", "amsgrad", True)]
)
def test_states_come_with_options_before_the_first_step_alone(name, key, value, seed):
    """As in torch, which then goes on; after a step the error names the class and the option, and nothing has changed."""
    a = parameter(300)
    b, c = twin(a), twin(a)
    opt, other = getattr(lowtide, name)([a], lr=0.01), getattr(lowtide, name)([c], lr=0.01, **{key: value})
    theirs = getattr(torch.optim, name)([b], lr=0.01)
    opt.param_groups[0][key] = theirs.param_groups[0][key] = value
    for _ in stepped(opt, theirs, other, steps=3):
        pass
    assert state_bits(opt) == state_bits(other) and torch.equal(a, c)
    assert set(opt.state[a]) - {"step"} == set(theirs.state[b]) - {"step"}
    opt.param_groups[0][key] = type(value)(0)
    with refused(opt, name, key, "first step"):
        opt.step()
    opt.param_groups[0][key] = value
    opt.step()


@pytest.mark.parametrize("momentum", [(0.0, 0.9), (0.9, 0.0)])
def test_momentum_may_be_switched_while_training(momentum, seed):
    a = parameter(300)
    b = twin(a)
    ours, theirs = lowtide.SGD([a], 0.1, momentum[0]), torch.optim.SGD([b], 0.1, momentum[0])
    for step in stepped(ours, theirs, steps=6):
        if step == 2:
            ours.param_groups[0]["momentum"] = theirs.param_groups[0]["momentum"] = momentum[1]
    assert apart(a, b) < 1e-5
    assert "momentum_buffer" in ours.state[a]  # kept, as torch keeps it, when momentum is switched off


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has Muon since 2.9")
@pytest.mark.parametrize("name", ["CyclicLR", "OneCycleLR"])
def test_the_momentum_of_muon_is_cycled_as_torch_does(name, seed, figure):
    """torch's schedulers cycle `betas` of optimizers that have them among their defaults, and `momentum` of others."""
    ours = parameter(24, 40)
    a, b = lowtide.Muon([ours], lr=1e-3, state="fp32"), torch.optim.Muon([twin(ours)], lr=1e-3)
    seen = []
    for _ in stepped(a, b, steps=8, schedule=name):
        seen.append(a.param_groups[0]["momentum"])
        assert seen[-1] == b.param_groups[0]["momentum"]
    assert a.param_groups[0]["betas"] == (0.9, 0.95) and len(set(seen)) > 2
    a.step()
    assert next(each for each in a.engine.groups if each.params).pushed["momentum"] == seen[-1]
    figure(f"{name}: momentum of 8 steps {sorted({round(m, 4) for m in seen})}, as torch's")


def test_betas_of_muon_are_options_of_its_groups(seed):
    """They are not among `defaults`, yet are given, changed, copied and saved like all others."""
    vectors = [parameter(30), parameter(30)]
    opt = lowtide.Muon([{"params": vectors[:1], "betas": (0.5, 0.6)}, {"params": vectors[1:]}], betas=(0.7, 0.8))
    twins, other = copy.deepcopy((vectors, opt))
    for each in (opt, other):
        assert [group["betas"] for group in each.param_groups] == [(0.5, 0.6), (0.7, 0.8)]
        each.param_groups[1]["betas"] = (0.1, 0.2)
    for params, each in ((vectors, opt), (twins, other)):
        for param in params:
            param.grad = torch.ones(30)
        each.step()
        assert each.engine.groups[-1].pushed["beta1"] == 0.1
        each.add_param_group({"params": [parameter(3)]})
        assert each.param_groups[2]["betas"] == (0.7, 0.8)
    assert opt.state_dict()["param_groups"][1]["betas"] == (0.1, 0.2)
