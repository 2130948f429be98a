"""Other tensors instead of an optimizer's parameters, in one process: followed, or refused."""

from __future__ import annotations

import contextlib
import copy
import gc
import sys
import timeit
import weakref
from collections.abc import Callable
from typing import Any

import lowtide
import pytest
import torch
from lowtide.optimizers.master import join, split
from lowtide.state.elsewhere import Elsewhere
from torch import nn
from torch._subclasses import FakeTensorMode

from support import RULES, SINGLE_STEPS, bits, copies_of, make, parameter, random_gradients, state_bits, step_alike, take_steps

SHAPES = ((64, 256), (70, 100), (9,), ())


def pair(rule: str = "adamw") -> tuple[list[nn.Parameter], lowtide.Optimizer, list[nn.Parameter], lowtide.Optimizer]:
    """Two optimizers of equal parameters, in two groups with different options."""
    params = [parameter(*shape) for shape in SHAPES]
    twins = copies_of(params)
    made = [make(rule, [{"params": of[:2]}, {"params": of[2:], "lr": 0.01}]) for of in (params, twins)]
    return params, made[0], twins, made[1]


def swap(opt: torch.optim.Optimizer) -> list[nn.Parameter]:
    """Puts other tensors of the same values into the groups, as wrappers do."""
    for group in opt.param_groups:
        group["params"] = [nn.Parameter(p.detach().clone(), p.requires_grad) for p in group["params"]]
    return [p for group in opt.param_groups for p in group["params"]]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("at", [0, 2])
def test_other_tensors_go_on_with_the_state(rule, at, seed, figure):
    """Has the bits of an optimizer whose parameters stayed. `state_dict()` and `state` know the new tensors before a step."""
    params, opt, twins, other = pair(rule)
    for step in range(5):
        if step == at:
            old, params = params, swap(opt)
            assert [*opt.state_dict()["state"]] == ([0, 1, 2, 3] if at else [])
            assert {*map(id, opt.state)} == ({*map(id, params)} if at else set()) and not {*map(id, old)} & {*map(id, opt.state)}
        step_alike((params, opt), (twins, other))
    assert [*map(bits, params)] == [*map(bits, twins)] and state_bits(opt) == state_bits(other)
    assert opt.report()["steps"] == other.report()["steps"] == 5
    figure(f"{rule}, after {at} steps: 0 bits differ")


def test_a_step_follows_without_a_state_dict(seed):
    params, opt, twins, other = pair()
    for step in range(4):
        params = swap(opt)  # before every step
        step_alike((params, opt), (twins, other))
    assert [*map(bits, params)] == [*map(bits, twins)] and state_bits(opt) == state_bits(other)


def test_before_the_first_step_anything_may_come(seed, figure):
    """Torch's own AdamW is the reference: one flat tensor for a group, and temporarily empty ones."""
    mine, theirs = ([nn.Parameter(torch.ones(7)) for _ in range(3)] for _ in range(2))
    opt: Any = lowtide.AdamW(mine, lr=0.1, state="fp32")
    reference = torch.optim.AdamW(theirs, lr=0.1)
    for optimizer in (opt, reference):
        optimizer.param_groups[0]["params"] = [torch.empty(1) for _ in range(3)]  # as Accelerate does for a while
        optimizer.zero_grad()
        optimizer.state_dict()
    flats = []
    for optimizer in (opt, reference):
        flat = nn.Parameter(torch.arange(21.0))
        optimizer.param_groups[0]["params"] = [flat]
        flats.append(flat)
        for scale in (1.0, -0.5):
            flat.grad = torch.full((21,), scale)
            optimizer.step()
    worst = float((flats[0] - flats[1]).abs().max().detach())
    # Both compute in float32 and round at most eight times a step, of values up to 21: 2 steps * 8 * 21 * 2^-24.
    assert worst <= 2 * 8 * 21 * 2**-24
    assert int(opt.state[flats[0]]["step"]) == 2 and len(opt.state) == 1
    figure(f"one flat tensor in place of 3: {worst:.1e} from torch")


def test_options_of_single_parameters_stay_with_their_places(seed):
    """Even through placeholders of another shape."""
    params = [parameter(64, 256), parameter(64, 256)]
    lowtide.override(params[1], state="fp32", lr=0.5)
    opt = lowtide.AdamW(params)
    for made in ([torch.empty(1), torch.empty(1)], [nn.Parameter(p.detach().clone()) for p in params]):
        opt.param_groups[0]["params"] = made
        opt.state_dict()
    take_steps(made, opt)
    assert "exp_avg_scale" in opt.state[made[0]] and "exp_avg_scale" not in opt.state[made[1]]
    again = swap(opt)
    opt.state_dict()
    assert "exp_avg_scale" in opt.state[again[0]] and opt.state[again[1]]["exp_avg"].dtype == torch.float32


def test_tensors_that_change_places_keep_their_state(seed):
    """State follows a known tensor, as in torch."""
    params, opt, _, _ = pair()
    step_alike((params, opt))
    before = {id(p): {name: bits(value) for name, value in opt.state[p].items()} for p in params}
    opt.param_groups[0]["params"].reverse()
    opt.zero_grad()
    opt.step()
    assert {id(p): {name: bits(value) for name, value in opt.state[p].items()} for p in params} == before
    assert [*opt.state_dict()["state"][0]["exp_avg_codes"].shape] == [70, 100]


def test_groups_that_change_places_keep_what_is_theirs(seed, tmp_path):
    """Their options, their parameters' state and their budgets."""
    params = [parameter(64, 256), parameter(64, 256)]
    memory = lowtide.Memory(host="16KiB", disk=tmp_path, chunk="4KiB")
    opt = lowtide.AdamW([{"params": params[:1]}, {"params": params[1:], "lr": 0.5, "memory": memory}])
    take_steps(params, opt)
    before, on_disk = [bits(p) for p in params], opt.report()["disk_bytes"]
    opt.param_groups.reverse()
    take_steps(params, opt)
    assert [int(opt.state[p]["step"]) for p in params] == [2, 2]
    assert opt.report()["disk_bytes"] == on_disk > 0
    assert [isinstance(opt.state[p]["exp_avg_codes"], Elsewhere) for p in params] == [False, True]
    assert before != [bits(p) for p in params]


def frozen_codes(*shape):
    return nn.Parameter(torch.ones(shape, dtype=torch.uint8), requires_grad=False)


WRONG = {
    "fewer": (lambda old: old[:1], "got 1 tensors, wanted 2 as registered"),
    "more": (lambda old: [*old, parameter(3)], "got 3 tensors, wanted 2 as registered"),
    "shape": (lambda old: [parameter(256, 64), old[1]], "of shape (256, 64), wanted shape (64, 256)"),
    "placeholders": (lambda old: [torch.empty(1), torch.empty(1)], "of shape (1,), wanted shape (64, 256)"),
    "meta": (lambda old: [nn.Parameter(torch.empty(64, 256, device="meta")), old[1]], "one that has taken steps"),
    "codes": (lambda old: [frozen_codes(64, 256), old[1]], "got a torch.uint8 tensor on cpu in the place of one that"),
    "float64": (lambda old: [nn.Parameter(old[0].detach().double()), old[1]], "got torch.float64"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_after_a_step_what_does_not_fit_is_refused_by_name(kind, seed, figure):
    """A placeholder is tolerated until then: `zero_grad` and `report` work."""
    params, opt, _, _ = pair()
    step_alike((params, opt))
    old, before = opt.param_groups[0]["params"], state_bits(opt)
    make_wrong, words = WRONG[kind]
    opt.param_groups[0]["params"] = make_wrong(old)
    opt.zero_grad()
    opt.report()
    with pytest.raises(ValueError) as caught:
        opt.step()
    assert "param_groups[0]['params']" in str(caught.value) and words in str(caught.value)
    opt.param_groups[0]["params"] = old
    assert state_bits(opt) == before
    step_alike((params, opt))
    assert [int(opt.state[p]["step"]) for p in params] == [2, 2, 2, 2]
    figure(str(caught.value))


def test_weights_of_another_type_keep_the_state(seed, figure):
    """FSDP2's mixed precision turns bfloat16 weights into float32 ones."""
    for dtype, other in ((torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)):
        p = parameter(64, 256, dtype=dtype)
        opt = lowtide.AdamW([p], state="fp32")
        take_steps([p], opt)
        before = state_bits(opt)
        opt.param_groups[0]["params"] = [nn.Parameter(p.detach().to(other))]
        assert [entry["exp_avg"] for entry in state_bits_of(opt)] == [entry["exp_avg"] for entry in before]
        take_steps(opt.param_groups[0]["params"], opt)
    for dtype, other, steps in ((torch.bfloat16, torch.float32, 0), (torch.float32, torch.bfloat16, 1)):
        p = parameter(64, 256, dtype=dtype)
        opt = lowtide.AdamW([p], master="residual16")
        take_steps([p], opt, steps)
        opt.param_groups[0]["params"] = [nn.Parameter(p.detach().to(other))]  # there is no residual to lose
        take_steps(opt.param_groups[0]["params"], opt)
    figure("state of float32 and bfloat16 weights is equal")


@pytest.mark.parametrize("began", ["by a step", "by an assigned residual"])
@pytest.mark.parametrize("master", ["residual16", "residual8"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_residual_stays_with_its_type_and_master(began, master, dtype, seed):
    """Others would drop its bits or take them for bits of their own. Refused by name, whichever way they come."""
    half, rest = split(torch.randn(64, 256), dtype, master)
    p = nn.Parameter(half)
    opt = lowtide.AdamW([p], master=master)
    opt.state[p] = {"residual": rest}
    opt.state_dict()  # takes it
    if began == "by a step":
        take_steps([p], opt)
    kept = join(p, opt._core.state(0)["residual"])
    for other in {torch.float32, torch.bfloat16, torch.float16} - {dtype}:
        words = ("param_groups[0]['params'][0]", f"got {other} with master='{master}'", f"wanted {dtype} with master='{master}'")
        opt.param_groups[0]["params"] = [nn.Parameter(p.detach().to(other))]
        random_gradients(opt.param_groups[0]["params"])
        with pytest.raises(ValueError) as caught:
            opt.step()
        assert all(word in str(caught.value) for word in words), caught.value
        opt.param_groups[0]["params"] = [p]
        p.data, taken = p.data.to(other), lowtide.override(p, eps=1e-6)
        with pytest.raises(ValueError) as caught:
            opt.step()
        assert all(word in str(caught.value) for word in words), caught.value
        p.data = half
        taken.remove()
    for other_master in {None, "stochastic", "residual16", "residual8"} - {master}:
        taken = lowtide.override(p, master=other_master)
        with pytest.raises(ValueError, match=rf"got {dtype} with master={other_master!r}, wanted {dtype} with master='{master}'"):
            opt.step()
        taken.remove()
    lowtide.override(p, eps=1e-6)  # a new core
    opt.report()
    take_steps([p], opt, 0)
    opt.state_dict()
    assert torch.equal(join(p, opt._core.state(0)["residual"]), kept)
    take_steps([p], opt)


def state_bits_of(opt: Any) -> list[dict[str, bytes]]:
    opt.state_dict()
    return state_bits(opt)


@pytest.mark.skipif(not hasattr(torch.optim, "swap_in_optimizer_params_and_state"), reason="torch 2.15 introduced it")
@pytest.mark.parametrize("state", ["fp32", "dynamic8"])
@pytest.mark.parametrize("kind", ["other tensors", "the same tensors", "fake tensors"])
def test_lent_parameters_and_state_are_refused_before_a_bit_changes(kind: str, state: str, seed: int) -> None:
    """torch.optim.swap_in_optimizer_params_and_state; its documentation lends fake tensors."""
    params = [parameter(64, 256), parameter(9)]
    opt = lowtide.AdamW(params, state=state)
    step_alike((params, opt))
    kept = [bits(param) for param in params], state_bits(opt)
    lent, given = [param.detach().clone() for param in params], copy.deepcopy(opt.state_dict())
    mode = FakeTensorMode(allow_non_fake_inputs=True) if kind == "fake tensors" else contextlib.nullcontext()
    if kind == "the same tensors":
        lent = [*params]
    elif isinstance(mode, FakeTensorMode):
        lent, given = torch.utils._pytree.tree_map_only(torch.Tensor, mode.from_tensor, (lent, given))
    swapped = torch.optim.swap_in_optimizer_params_and_state
    with mode, swapped(opt, dict(zip("ab", lent)), given), pytest.raises(NotImplementedError, match="swap_in_optimizer"):
        for param in lent:
            param.grad = torch.ones_like(param)
        opt.step()
    assert kept == ([bits(param) for param in params], state_bits(opt))
    take_steps(params, opt)
    assert opt.report()["steps"] == 2


def test_what_hangs_on_an_optimizer_follows(seed, figure):
    """Hooks of `step_in_backward` and `prefetch_in_backward`, a scheduler, a copy, a loaded dict."""
    for options in ({"step_in_backward": True}, {"prefetch_in_backward": True}, {}):
        torch.manual_seed(seed)
        nets = [nn.Linear(64, 64), nn.Linear(64, 64)]
        nets[1].load_state_dict(nets[0].state_dict())
        optimizers = [lowtide.AdamW(net.parameters(), lr=0.1, **options) for net in nets]  # type: ignore[arg-type]
        schedulers = [torch.optim.lr_scheduler.ExponentialLR(opt, 0.5) for opt in optimizers]
        for step in range(4):
            if step == 2:
                made = swap(optimizers[0])
                nets[0].weight, nets[0].bias = made
                assert optimizers[0].param_groups[0]["lr"] == 0.025
            for net, opt, scheduler in zip(nets, optimizers, schedulers, strict=True):
                net(torch.ones(3, 64)).square().sum().backward()
                if "step_in_backward" in options:  # hooks are on the new tensors from the first step() on
                    assert (net.weight.grad is None) == (step != 2 or net is nets[1])
                opt.step()
                opt.zero_grad()
                scheduler.step()
        assert [*map(bits, nets[0].parameters())] == [*map(bits, nets[1].parameters())]
        if not options:
            made = swap(optimizers[0])
            copied = copy.deepcopy(optimizers[0])
            assert state_bits(copied) == state_bits(optimizers[1])
            swap(optimizers[0])
            optimizers[0].load_state_dict(optimizers[1].state_dict())
            assert state_bits(optimizers[0]) == state_bits(optimizers[1])
    figure("3 kinds of optimizers, 0 bits differ")


def test_a_captured_step_forbids_other_tensors(seed):
    """Replays need memory where it was. (The test itself claims a capture, because the CPU has no graphs.)"""
    params, opt, _, _ = pair()
    step_alike((params, opt))
    opt.engine.captured = True
    old = opt.param_groups[0]["params"]
    opt.param_groups[0]["params"] = [nn.Parameter(p.detach().clone()) for p in old]
    with pytest.raises(ValueError, match="after a step was captured in a graph"):
        opt.step()
    opt.param_groups[0]["params"] = old
    step_alike((params, opt))


def calls_of(look: Callable[[], object]) -> int:
    """Calls that Python makes while it runs `look`, including compiled functions but not those made by `map`."""
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        look()
    finally:
        sys.setprofile(None)
    return count


def test_checks_of_many_tensors_cost_little(figure):
    """Half of them are frozen and foreign, and nothing has changed since the last step."""
    found = []
    for count in (50, 5000):
        params = [nn.Parameter(torch.zeros(1)) for _ in range(count)]
        params += [nn.Parameter(torch.zeros(1, dtype=torch.uint8), requires_grad=False) for _ in range(count)]
        opt = lowtide.SGD(params, lr=0.1)
        params[0].grad = torch.ones(1)
        opt.step()
        found.append(calls_of(opt._push_options))
    look = min(timeit.repeat(opt._push_options, number=1, repeat=100))
    read = min(timeit.repeat(lambda: [p.grad for p in params], number=1, repeat=100))
    opt.param_groups[0]["params"] = [nn.Parameter(torch.zeros(1)), *params[1:]]
    assert calls_of(opt._push_options) > len(params), "control: who compares tensor by tensor is seen"
    assert found[0] == found[1]
    figure(f"{found[1]} calls for 100 tensors and for 10,000; {look / read:.2f} of the time in which Python reads their gradients")


def test_the_former_tensors_are_let_go(seed):
    """Even at `zero_grad`, because a wrapper that shards a model relies on their memory."""
    params, opt, _, _ = pair()
    refs = [weakref.ref(p) for p in params]
    swap(opt)
    del params
    opt.zero_grad()
    gc.collect()
    assert [ref() for ref in refs] == [None] * 4


def test_groups_without_parameters_may_be_dropped(seed):
    """As in trainers that sort parameters into groups. Options and numbers of other groups stay."""
    params = [parameter(64, 256), parameter(64)]
    for steps in (0, 1):
        first, last = {"params": params[:1]}, {"params": params[1:], "lr": 0.5}
        opt = lowtide.AdamW([{"params": []}, first, {"params": [], "lr": 5.0}, last])
        take_steps(params, opt, steps)
        opt.param_groups = [group for group in opt.param_groups if group["params"]]
        assert [group["lr"] for group in opt.state_dict()["param_groups"]] == [opt.defaults["lr"], 0.5]
        random_gradients(params)
        before = params[1].detach().clone()
        opt.step()
        assert [int(opt.state[p]["step"]) for p in params] == [steps + 1] * 2
        assert float((params[1] - before).abs().max()) > 0.1
        opt.param_groups = opt.param_groups[:1]
        random_gradients(params)
        opt.step()  # of that group alone
        assert [int(opt.state[p]["step"]) for p in params] == [steps + 2, steps + 1]


def in_parts(opt: torch.optim.Optimizer, size: int, **others: Any) -> None:
    """Steps like wrappers that keep only some parameters' state on a device at a time: in copies of the groups."""
    groups = opt.param_groups
    for group in groups:
        for first in range(0, len(group["params"]), size):
            opt.param_groups = [{**group, **others, "params": group["params"][first : first + size]}]
            try:
                opt.step()
            finally:
                opt.param_groups = groups


@pytest.mark.parametrize("rule", SINGLE_STEPS)
@pytest.mark.parametrize("size", [1, 2])
def test_copies_of_groups_step_their_parameters(rule, size, seed, figure):
    """From the first step on, and with changing options."""
    params, opt, twins, other = pair(rule)
    for step in range(4):
        random_gradients(params)
        for param, twin in zip(params, twins, strict=True):
            twin.grad = param.grad.clone()
        for group in [*opt.param_groups, *other.param_groups]:
            group["lr"] *= 0.9
        in_parts(opt, size)
        other.step()
        assert [*map(bits, params)] == [*map(bits, twins)] and state_bits(opt) == state_bits(other)
    assert opt.report()["steps"] == other.report()["steps"] == 4
    figure(f"{rule}, {size} parameters at a time: 0 bits differ")


def test_copies_of_groups_may_be_empty_or_cover_all(seed):
    """One group, or both halves of a group, as a split by hand leaves them."""
    params, opt, _, _ = pair()
    random_gradients(params)
    groups = opt.param_groups
    owned = groups[0]["params"]
    opt.param_groups = [{**group, "params": group["params"] if group is groups[0] else []} for group in groups]
    opt.step()
    assert [param in opt.state for param in params] == [any(param is one for one in owned) for param in params]
    params, opt, twins, other = pair()
    random_gradients(params)
    for param, twin in zip(params, twins, strict=True):
        twin.grad = param.grad.clone()
    groups = opt.param_groups
    opt.param_groups = [{**group, "params": part} for group in groups for part in (group["params"][:1], group["params"][1:]) if part]
    opt.step()
    other.step()
    assert [*map(bits, params)] == [*map(bits, twins)] and state_bits(opt) == state_bits(other)


def test_copies_of_groups_with_options_of_their_own_are_refused(seed):
    """They would be ignored, and within a part the norm of all gradients is unknown."""
    params, opt, _, _ = pair()
    random_gradients(params)
    before = [*map(bits, params)]
    with pytest.raises(ValueError, match=r"param_groups\[0\], a copy: got other values of lr, wanted the group's own"):
        in_parts(opt, 1, lr=0.5)
    clipping = lowtide.AdamW(params, max_grad_norm=1.0)
    with pytest.raises(ValueError, match="step of some parameters of a group: got max_grad_norm=1.0"):
        in_parts(clipping, 1)
    assert [*map(bits, params)] == before
    in_parts(opt, 1)
    assert [*map(bits, params)] != before


@pytest.mark.parametrize("kind", [tuple, iter, lambda params: params[0]], ids=["tuple", "iterator", "tensor"])
def test_other_collections_in_a_group_become_lists(kind, seed):
    """Like torch when it builds an optimizer. Otherwise an iterator would be empty in the second step, and a tensor would be
    taken for its rows."""
    params = [parameter(4, 4)]
    opt = lowtide.AdamW(params)
    opt.param_groups[0]["params"] = kind(params)
    for step in (1, 2):
        random_gradients(params)
        before = bits(params[0])
        opt.step()
        assert bits(params[0]) != before and int(opt.state[params[0]]["step"]) == step
    assert opt.param_groups[0]["params"] == params


def spoil(group, key, value):
    group[key] = value


BROKEN = {
    "no params": (lambda group: group.pop("params"), ValueError, "'params' among them"),
    "a number": (lambda group: spoil(group, "params", 3), TypeError, "param_groups[0]['params']: got int, wanted a list"),
    "None": (lambda group: spoil(group, "params", [None]), TypeError, "['params'][0]: got NoneType, wanted a tensor"),
    "no state": (lambda group: group.pop("state"), ValueError, "param_groups[0]: got no ['state']"),
    "lr on meta": (
        lambda group: spoil(group, "lr", torch.ones((), device="meta")), ValueError, "one real element with a value"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_groups_that_lack_something_are_named(name, seed):
    params = [parameter(4, 4)]
    opt = lowtide.AdamW(params)
    take_steps(params, opt)
    whole, before = dict(opt.param_groups[0]), bits(params[0])
    change, kind, words = BROKEN[name]
    change(opt.param_groups[0])
    with pytest.raises(kind) as caught:
        opt.step()
    assert words in str(caught.value) and bits(params[0]) == before
    opt.param_groups[0].update(whole)
    opt.step()
    assert int(opt.state[params[0]]["step"]) == 2
