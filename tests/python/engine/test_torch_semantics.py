"""Lowtide's classes are torch optimizers: groups, options, closures, hooks, versions, scaling and copies."""

import copy
import warnings
from typing import Any

import lowtide
import pytest
import torch
from lowtide.engine.params import name_in
from lowtide import distributed
from support import RULES, bits, make, parameter, random_gradients, refused, snapshot, state_bits, step_alike, take_steps
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook


def test_groups_have_their_own_options(seed, figure):
    """Each option of a group acts only on that group, which equals a separate optimizer with that option, bit for bit."""
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
    """A learning rate in a tensor is read at every step, also after changes in place. Betas may be tensors, too."""
    lr = torch.tensor(1e-3)
    a = parameter(300)
    b = torch.nn.Parameter(a.detach().clone())
    with_tensor = lowtide.AdamW([a], lr=lr, betas=(torch.tensor(0.9), torch.tensor(0.999)))
    with_float = lowtide.AdamW([b], betas=(float(torch.tensor(0.9)), float(torch.tensor(0.999))))
    for value in (1e-3, 5e-4, 0.0, 2e-3):
        lr.fill_(value)
        with_float.param_groups[0]["lr"] = float(lr)
        step_alike(([a], with_tensor), ([b], with_float))
    figure(f"bits equal: {bits(a) == bits(b)}")
    assert bits(a) == bits(b)
    assert with_tensor.param_groups[0]["lr"] is lr


@pytest.mark.parametrize("rule", RULES)
def test_maximize_is_minimize_of_the_negative(rule, seed):
    a = parameter(5000)
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
    a = parameter(5000)
    b = torch.nn.Parameter(a.detach().clone())
    plain, flagged = lowtide.AdamW([a]), lowtide.AdamW([b], **flags)
    step_alike(([a], plain), ([b], flagged))
    flagged.zero_grad(set_to_none=False)
    assert bits(a) == bits(b) and not b.grad.any()
    flagged.zero_grad()
    assert b.grad is None


@pytest.mark.parametrize("name", ["AdamW", "Adam", "NAdam", "SGD", "RMSprop", "Adagrad"])
def test_groups_of_torchs_optimizer_make_one_here(name: str, seed: int) -> None:
    params = [parameter(3, 5)]
    theirs = getattr(torch.optim, name)(params, lr=0.01, weight_decay=0.1)
    opt = getattr(lowtide, name)(theirs.param_groups, lr=0.5)
    assert opt.param_groups[0]["lr"] == 0.01 and opt.param_groups[0]["weight_decay"] == 0.1
    step_alike((params, opt))
    del opt.param_groups[0]["lr"]
    assert "lr=None" in repr(opt)


def test_add_param_group_while_training(seed):
    """A group added after some steps behaves as in a new optimizer; the old one continues as before."""
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
    take_steps([good], opt)
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


def test_named_parameters(seed):
    model = torch.nn.Linear(4, 4)
    opt = lowtide.AdamW(model.named_parameters())
    assert opt.param_groups[0]["param_names"] == ["weight", "bias"]
    opt.load_state_dict(opt.state_dict())
    assert opt.param_groups[0]["param_names"] == ["weight", "bias"]


def test_repr_names_the_budgets():
    text = repr(lowtide.AdamW([{"params": [parameter(3)], "memory": lowtide.Memory(host="2MiB")}], memory=lowtide.Memory(host="1MiB")))
    of_all, of_group = text.splitlines()
    assert "memory=Memory(host='1MiB')" in of_all and "memory=Memory(host='2MiB')" in of_group


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


def versions(params: list[torch.nn.Parameter]) -> list[int]:
    return [param._version for param in params]


@pytest.mark.parametrize("rule", RULES)
def test_versions_rise_where_there_is_a_gradient(rule: str, seed: int) -> None:
    params = [parameter(70, 100), parameter(9), parameter()]
    idle = parameter(5)
    opt = make(rule, [*params, idle])
    for step in range(1, 4):
        random_gradients(params)
        before = versions([*params, idle])
        opt.step()
        assert versions([*params, idle]) == [*(v + 1 for v in before[:3]), before[3]], step


@pytest.mark.parametrize("cls", [torch.optim.AdamW, lowtide.AdamW, lowtide.SGD, lowtide.Muon])
def test_a_stale_graph_is_refused(cls: type[torch.optim.Optimizer], seed: int) -> None:
    """A common mistake in GANs: one loss of the generator, a step of the discriminator, and then the other's backward."""
    p = parameter(4, 4)
    opt = cls([p], lr=0.1)
    loss = (p * p).sum()
    loss.backward(retain_graph=True)
    opt.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_skipped_and_refused_steps_change_nothing(seed: int) -> None:
    p = parameter(300)
    opt = lowtide.AdamW([p])
    p.grad = torch.full_like(p, float("nan"))
    opt.step()
    assert opt.skipped_steps == 1 and p._version == 0
    strict = lowtide.AdamW([p], nonfinite="raise")
    with pytest.raises(ValueError):
        strict.step()
    assert p._version == 0


def test_gradient_release_counts_once(seed: int) -> None:
    layer = torch.nn.Linear(8, 8)
    opt = lowtide.AdamW(layer.parameters(), step_in_backward=True)
    before = versions(list(layer.parameters()))
    layer(torch.randn(2, 8)).sum().backward()
    opt.step()
    assert versions(list(layer.parameters())) == [v + 1 for v in before]


@pytest.mark.parametrize("cls", [distributed.DistributedLion, distributed.Signum])
def test_votes_count(cls: type[torch.optim.Optimizer], seed: int, tmp_path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        p = parameter(100)
        opt = cls([p], lr=0.1)
        take_steps([p], opt)
        assert p._version == 1
    finally:
        torch.distributed.destroy_process_group()


def test_older_torch_takes_one_tensor_at_a_time(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    raised = torch.autograd.graph.increment_version

    def one(tensor: torch.Tensor) -> None:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError("wanted a tensor")
        raised(tensor)

    monkeypatch.setattr(torch.autograd.graph, "increment_version", one)
    params = [parameter(3), parameter(4)]
    opt = lowtide.AdamW(params)
    take_steps(params, opt, 2)
    assert versions(params) == [2, 2]


@pytest.mark.parametrize(("in_step", "bad"), [(False, "inf"), (True, "nan")])
def test_grad_scaler(in_step, bad, seed, figure):
    """GradScaler unscales before the step and withholds steps with an infinity. With amp_scaling it passes its scale: gradients
    stay scaled, and the step skips and counts."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    a = parameter(300)
    b = torch.nn.Parameter(a.detach().clone())
    opt, plain = lowtide.AdamW([a], state="fp32", amp_scaling=in_step), lowtide.AdamW([b], state="fp32")
    assert hasattr(opt, "_step_supports_amp_scaling") == in_step
    for step in range(4):
        grad = torch.randn(300)
        scaler.scale(torch.zeros(()))
        a.grad = grad * scaler.get_scale()
        b.grad = grad.clone()
        if step == 2:
            a.grad[7] = float(bad)
            before = snapshot(opt)
        scaled = bits(a.grad)
        scaler.step(opt)
        assert not in_step or bits(a.grad) == scaled
        scaler.update()
        if step == 2:
            assert snapshot(opt) == before
        else:
            plain.step()
    figure(f"scale after a bad step {scaler.get_scale():g}, skipped {opt.skipped_steps}")
    assert scaler.get_scale() == 512.0 and bits(a) == bits(b)
    assert opt.skipped_steps == opt.report()["skipped_steps"] == int(in_step)
    # After unscale_ the gradients are final, and without a scaler there is nothing to unscale.
    a.grad = torch.full((300,), 512.0)
    b.grad = torch.ones(300)
    scaler.unscale_(opt)
    scaler.step(opt)
    plain.step()
    a.grad = torch.ones(300)
    opt.step()
    plain.step()
    assert bits(a) == bits(b)


def test_scales_set_by_hand_are_those_of_torch(seed):
    """Even without amp_scaling, as in torch.optim's fused optimizers."""
    a = parameter(300)
    b = torch.nn.Parameter(a.detach().clone())
    opt, theirs = lowtide.AdamW([a], state="fp32"), torch.optim.AdamW([b], fused=True)
    for scale, found in ((None, None), (4.0, 0.0), (8.0, None), (2.0, 1.0), (None, 1.0), (None, 0.0)):
        grad = torch.randn(300)
        a.grad, b.grad = grad.clone(), grad.clone()
        before = bits(a)
        for each in (opt, theirs):
            each.grad_scale = None if scale is None else torch.tensor(scale)
            each.found_inf = None if found is None else torch.tensor(found)
            each.step()
        assert (bits(a) == before) == (found == 1.0)
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert opt.skipped_steps == 2


def test_errors_name_parameters(seed):
    params = [parameter(8), parameter(8)]
    opt = lowtide.AdamW([("body.weight", params[0]), ("head.bias", params[1])], nonfinite="raise")
    take_steps(params, opt)
    saved = copy.deepcopy(opt.state_dict())
    saved["state"][1]["exp_avg"] = torch.zeros(3)
    with refused(opt, "parameter 1 (head.bias)"):
        opt.load_state_dict(saved)
    params[1].grad[3] = float("nan")
    with refused(opt, "parameter 1 (head.bias)"):
        opt.step()
    groups = [{"params": [("alpha", params[0])]}, {"params": [("delta", params[1])]}]
    error = ValueError("parameter group 1, parameter 0: got this; parameter 1: that; parameter group 2, parameter 0: a new one")
    name_in(error, lowtide.AdamW(groups).param_groups)
    wanted = "parameter group 1, parameter 0 (delta): got this; parameter 1 (delta): that; parameter group 2, parameter 0: a new one"
    assert str(error) == wanted


def test_a_step_inside_compiled_code(seed):
    """torch.compile leaves the step to Python, with the same bits."""
    models = [torch.nn.Linear(64, 80)]
    models.append(copy.deepcopy(models[0]))
    opts = [lowtide.AdamW(model.parameters(), lr=0.1) for model in models]

    def train(model, opt, x):
        model(x).square().sum().backward()
        opt.step()
        opt.zero_grad()

    compiled = torch.compile(train, backend="eager")
    for _ in range(3):
        x = torch.randn(4, 64)
        compiled(models[0], opts[0], x)
        train(models[1], opts[1], x)
    assert [bits(p) for p in models[0].parameters()] == [bits(p) for p in models[1].parameters()]
    assert state_bits(opts[0]) == state_bits(opts[1])
