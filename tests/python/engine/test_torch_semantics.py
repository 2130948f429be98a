"""Lowtide's classes are torch optimizers: groups, options, closures, hooks."""

import warnings
from typing import Any

import lowtide
import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from support import RULES, bits, make, parameter, random_gradients, refused, state_bits


def test_groups_have_their_own_options(seed, figure):
    """Every option of a group acts on that group alone: it equals a lone optimizer with that option, bit for bit."""
    variants = [
        {"lr": 1e-2},
        {"betas": (0.5, 0.9)},
        {"eps": 1e-3},
        {"weight_decay": 0.3},
        {"maximize": True},
        {"state": "bf16"},
        {"state": "fp32"},
        {"min_quantized_numel": 10**6},
        {},
    ]
    start, grads = torch.randn(32, 256), torch.randn(3, 32, 256)
    together = [torch.nn.Parameter(start.clone()) for _ in variants]
    nearest: dict[str, Any] = {"rounding": "nearest"}  # random bits go by the number of a parameter
    opt = lowtide.AdamW([{"params": [p], **v} for p, v in zip(together, variants, strict=True)], **nearest)
    alone = [torch.nn.Parameter(start.clone()) for _ in variants]
    single = [lowtide.AdamW([p], **nearest, **v) for p, v in zip(alone, variants, strict=True)]
    for grad in grads:
        for param in [*together, *alone]:
            param.grad = grad.clone()
        opt.step()
        for each in single:
            each.step()
    equal = [bits(p) == bits(q) for p, q in zip(together, alone, strict=True)]
    different = len({bits(p) for p in together})
    figure(f"groups equal to a lone optimizer {sum(equal)}/{len(variants)}; distinct results {different}")
    assert all(equal)
    assert different == len(variants) - 1  # state="fp32" and a huge min_quantized_numel are the same thing


def test_tensor_lr(seed, figure):
    """A learning rate in a tensor is read at every step, also when changed in place; betas may be tensors too."""
    lr = torch.tensor(1e-3)
    a, b = parameter(300), None
    b = torch.nn.Parameter(a.detach().clone())
    with_tensor = lowtide.AdamW([a], lr=lr, betas=(torch.tensor(0.9), torch.tensor(0.999)))
    with_float = lowtide.AdamW([b], betas=(float(torch.tensor(0.9)), float(torch.tensor(0.999))))
    for value in (1e-3, 5e-4, 0.0, 2e-3):
        lr.fill_(value)
        with_float.param_groups[0]["lr"] = float(lr)
        a.grad = torch.randn(300)
        b.grad = a.grad.clone()
        with_tensor.step()
        with_float.step()
    figure(f"bits equal: {bits(a) == bits(b)}")
    assert bits(a) == bits(b)
    assert with_tensor.param_groups[0]["lr"] is lr


@pytest.mark.parametrize("rule", RULES)
def test_maximize_is_minimize_of_the_negative(rule, seed):
    a, b = parameter(5000), None
    b = torch.nn.Parameter(a.detach().clone())
    up, down = make(rule, [a], maximize=True, weight_decay=0.0), make(rule, [b], weight_decay=0.0)
    for _ in range(3):
        a.grad = torch.randn(5000)
        b.grad = -a.grad
        up.step()
        down.step()
    assert bits(a) == bits(b)


def test_closure_runs_once_with_gradients_enabled():
    p = parameter(10)
    opt = lowtide.AdamW([p])
    calls = []

    def closure():
        calls.append(torch.is_grad_enabled())
        opt.zero_grad()
        loss = p.square().sum()
        loss.backward()
        return loss

    before = bits(p)
    with torch.no_grad():
        loss = opt.step(closure)
    assert calls == [True] and loss.item() > 0 and bits(p) != before
    assert opt.step() is None


def test_step_leaves_no_trace_in_autograd():
    p = parameter(10)
    opt = lowtide.AdamW([p])
    p.grad = torch.ones(10)
    opt.step()
    assert p.requires_grad and p.is_leaf and p.grad_fn is None and torch.is_grad_enabled()
    assert not any(value.requires_grad for value in opt.state[p].values())


def test_hooks_of_all_kinds_run(seed):
    """Step, state_dict and load_state_dict hooks, before and after, per optimizer and for all optimizers."""
    p = parameter(10)
    opt = lowtide.AdamW([p])
    seen = []
    p.grad = torch.ones(10)
    handles = [
        opt.register_step_pre_hook(lambda *_: seen.append("pre")),
        opt.register_step_post_hook(lambda *_: seen.append("post")),
        register_optimizer_step_pre_hook(lambda *_: seen.append("all pre")),
        register_optimizer_step_post_hook(lambda *_: seen.append("all post")),
        opt.register_state_dict_pre_hook(lambda *_: seen.append("save pre")),
        opt.register_state_dict_post_hook(lambda o, sd: {**sd, "extra": 1}),
        opt.register_load_state_dict_pre_hook(lambda o, sd: {k: v for k, v in sd.items() if k != "extra"}),
        opt.register_load_state_dict_post_hook(lambda *_: seen.append("load post")),
    ]
    try:
        opt.step()
        saved = opt.state_dict()
        assert saved["extra"] == 1
        opt.load_state_dict(saved)
        assert "extra" in saved
    finally:
        for handle in handles:
            handle.remove()
    assert seen == ["all pre", "pre", "post", "all post", "save pre", "load post"]


def test_profiler_sees_the_step():
    p = parameter(10)
    opt = lowtide.Lion([p])
    p.grad = torch.ones(10)
    with torch.profiler.profile() as profile:
        opt.step()
    assert any(event.key == "Optimizer.step#Lion.step" for event in profile.key_averages())


@pytest.mark.parametrize("flags", [{"foreach": True}, {"fused": True}, {"foreach": False, "fused": None}])
def test_foreach_and_fused_change_nothing(flags, seed):
    a, b = parameter(5000), None
    b = torch.nn.Parameter(a.detach().clone())
    plain, flagged = lowtide.AdamW([a]), lowtide.AdamW([b], **flags)
    a.grad = torch.randn(5000)
    b.grad = a.grad.clone()
    plain.step()
    flagged.step()
    flagged.zero_grad(set_to_none=False)
    assert bits(a) == bits(b) and not b.grad.any()
    flagged.zero_grad()
    assert b.grad is None


def test_add_param_group_while_training(seed):
    """A group added after some steps behaves as a new optimizer for it; the old one goes on as before."""
    a, b = parameter(5000), parameter(40, 256)
    a2, b2 = (torch.nn.Parameter(p.detach().clone()) for p in (a, b))
    opt, first = (lowtide.AdamW([p], rounding="nearest") for p in (a, a2))  # random bits go by a parameter's number
    second = lowtide.AdamW([b2], lr=0.1, rounding="nearest")
    for step in range(5):
        random_gradients([a, b])
        a2.grad, b2.grad = a.grad.clone(), b.grad.clone()
        if step == 2:
            opt.add_param_group({"params": [b], "lr": 0.1})
        opt.step()
        first.step()
        if step >= 2:
            second.step()
    assert bits(a) == bits(a2) and bits(b) == bits(b2)
    assert int(opt.state[a]["step"]) == 5 and int(opt.state[b]["step"]) == 3


def test_a_group_that_is_refused_leaves_no_trace(seed):
    good = parameter(300)
    opt = lowtide.AdamW([good])
    random_gradients([good])
    opt.step()
    stray = parameter(300)
    for bad in (
        {"params": [stray, torch.zeros(3, dtype=torch.float64, requires_grad=True)]},
        {"params": [stray], "lr": -1.0},
        {"params": [stray], "state": "int3"},
        {"params": [stray], "nonfinite": "raise"},
        {"params": [stray], "capturable": True},
        {"params": [stray, stray]},
        {"params": [good]},
        {"lr": 1.0},
    ):
        with refused(opt):
            opt.add_param_group(bad)
    random_gradients([good, stray])
    before = bits(stray)
    opt.step()
    assert bits(stray) == before and len(opt.param_groups) == 1


def test_removing_state_starts_afresh(seed):
    """`opt.state = defaultdict(dict)` or `opt.state.clear()`, the usual reset of a torch optimizer, works here."""
    for rule in RULES:
        a, b = parameter(5000), None
        opt = make(rule, [a])
        for _ in range(3):
            random_gradients([a])
            opt.step()
        b = torch.nn.Parameter(a.detach().clone())
        fresh = make(rule, [b])
        opt.state.clear()
        random_gradients([a])
        b.grad = a.grad.clone()
        opt.step()
        fresh.step()
        assert bits(a) == bits(b) and state_bits(opt) == state_bits(fresh), rule


def test_named_parameters(seed):
    model = torch.nn.Linear(4, 4)
    opt = lowtide.AdamW(model.named_parameters())
    assert opt.param_groups[0]["param_names"] == ["weight", "bias"]
    opt.load_state_dict(opt.state_dict())
    assert opt.param_groups[0]["param_names"] == ["weight", "bias"]


def test_repr_names_the_options_that_matter():
    text = repr(lowtide.AdamW([parameter(3)]))
    assert text.startswith("AdamW (\nlowtide ") and "state: dynamic8" in text and "lowtide_" not in text
    budgets = repr(lowtide.AdamW([{"params": [parameter(3)], "memory": lowtide.Memory(host="2MiB")}],
                                 memory=lowtide.Memory(host="1MiB")))  # fmt: skip
    assert "memory: Memory(" in budgets and "'1MiB'" in budgets and "'2MiB'" in budgets


def test_backends_say_what_is_there():
    found = lowtide.backends()
    assert found["cpu"]["available"] and "scalar" in found["cpu"]["detail"]
    assert list(found) == ["cpu", "sycl", "cuda"]
    # Devices by name, or the way to what is missing.
    for name, there, missing in (
        ("sycl", "libsycl", ("pip install", "build")),
        ("cuda", "CUDA", ("install", "build", "nvcc")),
    ):
        detail = found[name]["detail"]
        assert (there in detail) if found[name]["available"] else any(word in detail for word in missing)
        print(f"{name}: {found[name]}")


def test_sets_of_parameters_are_refused_as_in_torch():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lowtide.AdamW({parameter(3)})
    with pytest.raises(TypeError):
        lowtide.AdamW([{"params": {parameter(3)}}])
    with pytest.raises(TypeError):
        lowtide.AdamW(parameter(3))
    with pytest.raises(ValueError):
        lowtide.AdamW([])
