"""Claims: the core has the options that param_groups say, whatever a user, a scheduler or an interrupt did since the
last step; unchanged options are not derived anew."""

import pytest
import torch

import lowtide
from lowtide.engine.family import Family


def pair(**options):
    params = [torch.nn.Parameter(torch.arange(1.0, 9.0)) for _ in range(2)]
    for param in params:
        param.grad = torch.ones(8)
    return params, [lowtide.SGD([param], lr=1.0, **options) for param in params]


def test_unchanged_options_are_not_derived(monkeypatch):
    derived = []
    hyper_of = Family.hyper_of
    monkeypatch.setattr(Family, "hyper_of", lambda *args: derived.append(args[1]) or hyper_of(*args))
    _, (opt, _) = pair()
    opt.step()
    derived.clear()
    for lr in (1.0, 0.5, 0.5, 1.0):
        opt.param_groups[0]["lr"] = lr
        opt.step()
    assert len(derived) == 2


@pytest.mark.parametrize("lr", [0.25, torch.tensor(0.25), torch.tensor([0.25])])
def test_values_that_change_in_place_are_seen(lr):
    (param, twin), (opt, other) = pair()
    for value in (lr, lr, 0.5):
        opt.param_groups[0]["lr"] = value
        other.param_groups[0]["lr"] = float(value)
        opt.step()
        other.step()
        if isinstance(lr, torch.Tensor):
            lr.mul_(2)
    assert torch.equal(param, twin)


def test_an_equal_tensor_in_place_of_a_number_is_another_value():
    (param, twin), (opt, other) = pair()
    opt.param_groups[0]["lr"] = 0.1
    opt.step()
    opt.param_groups[0]["lr"] = torch.tensor(0.1)  # 0.1 as float32: equal by ==, another number
    opt.step()
    for value in (0.1, float(torch.tensor(0.1))):
        other.param_groups[0]["lr"] = value
        other.step()
    assert torch.equal(param, twin)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("name", ["set_hyper", "set_rounding"])
def test_an_interrupt_leaves_no_options_behind(name, before):
    """Ctrl-C before or after the core has taken them: the next step has those of param_groups, also the old ones."""
    (param, twin), (opt, other) = pair(momentum=0.9, state="bf16", min_quantized_numel=0)
    opt.step()
    other.step()
    engine, core = opt.engine, opt.engine.core

    class Interrupted:
        def __getattr__(self, attribute):
            real = getattr(core, attribute)
            if attribute != name:
                return real

            def call(*args):
                if not before:
                    real(*args)
                raise KeyboardInterrupt

            return call

    old = {key: opt.param_groups[0][key] for key in ("lr", "rounding")}
    opt.param_groups[0].update(lr=1e-3, rounding="stochastic")
    engine.core = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        opt.step()
    engine.core = core
    opt.param_groups[0].update(old)
    for _ in range(2):
        opt.step()
        other.step()
    assert torch.equal(param, twin)
    assert torch.equal(opt.state[param]["momentum_buffer"], other.state[twin]["momentum_buffer"])


def test_other_tensors_are_noticed_even_if_equal():
    (param, _), (opt, _) = pair()
    opt.step()
    before = param.detach().clone()
    opt.param_groups[0]["params"][0] = other = torch.nn.Parameter(param.detach().clone())
    other.grad = torch.ones_like(other)
    opt.step()
    assert torch.equal(param, before) and not torch.equal(other, before)
    opt.param_groups[0]["params"][0] = torch.nn.Parameter(torch.zeros(*param.shape, 2))
    with pytest.raises(ValueError, match="got other tensors than those registered"):
        opt.step()
