"""`state[p]`: what is read there and what is assigned; nothing is lost, or misread, in silence, also of state that no view can show."""

from __future__ import annotations

import copy
import gc
import io
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lowtide
import numpy as np
import pytest
import torch
from lowtide.compat import bitsandbytes
from lowtide.state import views
from lowtide.state.elsewhere import Elsewhere
from support import bits, parameter, random_gradients, take_steps, through_file

CODED = ("dynamic8", "float8", "dynamic4")


def made(state: str = "dynamic8", seed: int = 0, rule: type[lowtide.Optimizer] = lowtide.AdamW, **options: object):
    generator = torch.Generator().manual_seed(seed)
    params = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((64, 128), (16,))]
    return params, rule(params, lr=1e-2, state=state, **options)


def step(params: list[torch.nn.Parameter], optimizer: torch.optim.Optimizer, number: int) -> None:
    generator = torch.Generator().manual_seed(1000 + number)
    for param in params:
        param.grad = torch.randn(param.shape, generator=generator).to(param.dtype)
    optimizer.step()


def weight_bits(params: list[torch.nn.Parameter]) -> list[bytes]:
    return [param.detach().view(torch.uint8).numpy().tobytes() for param in params]


@pytest.mark.parametrize("state", [*CODED, "bf16", "fp32"])
@pytest.mark.parametrize("moved", ["tensors", "entries", "all"])
def test_assigned_copies_are_the_state(state: str, moved: str) -> None:
    """Loops that move state assign what .clone(), .pin_memory() or .to() returned: steps and dicts go on with its values."""
    params, optimizer = made(state)
    others, plain = made(state)
    for number in range(3):
        step(params, optimizer, number)
        step(others, plain, number)
        for param in params:
            if moved == "tensors":
                for name, tensor in optimizer.state[param].items():
                    optimizer.state[param][name] = tensor.clone()
            elif moved == "entries":
                optimizer.state[param] = {name: tensor.clone() for name, tensor in optimizer.state[param].items()}
        if moved == "all":
            optimizer.state = copy.deepcopy({param: dict(optimizer.state[param]) for param in params}, {id(p): p for p in params})
    saved, wanted = optimizer.state_dict(), plain.state_dict()
    for number, entry in wanted["state"].items():
        assert saved["state"][number].keys() == entry.keys()
        for name, tensor in entry.items():
            assert torch.equal(torch.as_tensor(saved["state"][number][name]), torch.as_tensor(tensor)), name
    assert weight_bits(params) == weight_bits(others)


@pytest.mark.parametrize(("rule", "option", "value"), [(lowtide.AdamWScheduleFree, "lr", 1e-3), (lowtide.NAdam, "betas", (0.5, 0.9))])
def test_assigned_copies_keep_what_state_does_not_show(rule: Any, option: str, value: Any) -> None:
    """Numbers that depend on the options of all earlier steps go on, though no entry shows them."""
    params, optimizer = made("fp32", rule=rule)
    step(params, optimizer, 0)
    optimizer.param_groups[0][option] = value
    step(params, optimizer, 1)
    before = copy.deepcopy(optimizer.state_dict()["state"])
    for param in params:
        optimizer.state[param] = {name: tensor.clone() for name, tensor in optimizer.state[param].items()}
    after = optimizer.state_dict()["state"]
    assert len(before[0]) > len(optimizer.state[params[0]])
    assert all(torch.equal(after[i][name], tensor) for i in before for name, tensor in before[i].items())


@pytest.mark.parametrize("memory", [None, lowtide.Memory(host="64MiB")])
def test_readers_on_other_threads_wait(memory: lowtide.Memory | None, tmp_path: Path) -> None:
    """Neither readers nor the training thread meet an error, and readers get the state between two steps."""
    params, optimizer = made("fp32", memory=memory)
    step(params, optimizer, 0)
    over, read = threading.Event(), list[set[int]]()
    errors = list[BaseException]()

    def look() -> None:
        try:
            while not over.is_set():
                read.append({int(entry["step"].clone()) for entry in copy.deepcopy(optimizer.state_dict())["state"].values()})
                optimizer.save(tmp_path / "file")
                optimizer.report()
                optimizer.state[params[0]]["exp_avg"].clone()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=look)
    thread.start()
    for number in range(100):
        step(params, optimizer, number)
    over.set()
    thread.join()
    assert not errors, errors
    assert read and optimizer.report()["steps"] == 101


def test_assigned_counts_of_steps_are_the_state() -> None:
    """SGD without momentum keeps nothing else."""
    params, optimizer = made(rule=lowtide.SGD, momentum=0.0)
    step(params, optimizer, 0)
    step(params, optimizer, 1)
    optimizer.state[params[0]]["step"] = optimizer.state[params[0]]["step"].clone()
    assert int(optimizer.state_dict()["state"][0]["step"]) == 2


def test_assigned_values_replace_the_state() -> None:
    """Another checkpoint's entries put into `state`, as wrappers of several optimizers do, take effect."""
    for state in (*CODED, "bf16", "fp32"):
        source_params, source = made(state, seed=1)
        for number in range(3):
            step(source_params, source, number)
        params, optimizer = made(state, seed=1)
        step(params, optimizer, 9)
        for param, other in zip(params, source_params):
            param.data.copy_(other)
            optimizer.state[param] = {name: tensor.clone() for name, tensor in source.state[other].items()}
        step(params, optimizer, 4)
        step(source_params, source, 4)
        assert weight_bits(params) == weight_bits(source_params), state
        assert optimizer.state[params[0]]["step"] == 4


def test_every_way_to_put_an_entry_in_counts() -> None:
    """dict's own methods do not call each other: none may bypass the code that notes changes."""

    def absent(optimizer: lowtide.Optimizer, param: torch.nn.Parameter, entry: dict[str, torch.Tensor]) -> None:
        del optimizer.state[param]
        param.grad = None
        optimizer.step()  # this reads the state and finds no entry
        optimizer.state.setdefault(param, entry)

    ways = {
        "[]": lambda o, p, e: o.state.__setitem__(p, e),
        "update": lambda o, p, e: o.state.update({p: e}),
        "|=": lambda o, p, e: o.state.__ior__({p: e}),
        "setdefault": absent,
        "entry.update": lambda o, p, e: o.state[p].update(e),
        "entry |=": lambda o, p, e: o.state[p].__ior__(e),
    }
    for name, put in ways.items():
        params, optimizer = made("fp32")
        step(params[:1], optimizer, 0)
        values = torch.full_like(params[0], 0.5)
        put(optimizer, params[0], {"step": torch.tensor(7), "exp_avg": values.clone(), "exp_avg_sq": values.clone()})
        saved = optimizer.state_dict()["state"][0]
        assert int(saved["step"]) == 7 and torch.equal(saved["exp_avg"], values), name


def test_assigned_values_of_torch_are_encoded() -> None:
    params, optimizer = made("dynamic8")
    step(params, optimizer, 0)
    values = torch.linspace(-1, 1, params[0].numel()).reshape(params[0].shape)
    optimizer.state[params[0]] = {"step": torch.tensor(7.0), "exp_avg": values, "exp_avg_sq": values.square()}
    got = optimizer.torch_state_dict()["state"][0]
    assert int(got["step"]) == 7
    # A code of dynamic8 is within 1/32 of its block's largest value.
    assert float((got["exp_avg"] - values).abs().max()) <= 1 / 32


def test_what_does_not_fit_is_refused_by_name() -> None:
    params, optimizer = made("dynamic8")
    step(params, optimizer, 0)
    before, kept = weight_bits(params), dict(optimizer.state[params[0]])
    for wrong in (
        {"exp_avg_codes": torch.zeros(3, dtype=torch.uint8)},
        {"exp_avg_scale": torch.full_like(kept["exp_avg_scale"], float("nan"))},
        {"exp_avg_codes": torch.zeros(64, 128)},
        {"step": torch.tensor(-1)},
    ):
        optimizer.state[params[0]] = {**kept, **wrong}
        for call in (lambda: step(params, optimizer, 1), optimizer.state_dict, optimizer.torch_state_dict):
            with pytest.raises(ValueError, match="assigned state of parameter 0"):
                call()
        assert weight_bits(params) == before
    optimizer.state[params[0]] = kept
    step(params, optimizer, 1)
    del optimizer.state[params[0]]["exp_avg_codes"]
    with pytest.raises(ValueError, match="assigned state of parameter 0"):
        optimizer.state_dict()


@pytest.mark.parametrize("state", CODED)
def test_codes_are_not_values(state: str) -> None:
    """A loop that zeroes moments in place finds no entry of that name; codes and scales refuse writes."""
    params, optimizer = made(state)
    step(params, optimizer, 0)
    entry = optimizer.state[params[0]]
    assert "exp_avg" not in entry and entry["exp_avg_codes"].dtype == torch.uint8
    assert optimizer.state[params[1]]["exp_avg"].dtype == torch.float32  # small tensors keep values
    saved = copy.deepcopy(optimizer.state_dict())
    for name in ("exp_avg_codes", "exp_avg_scale", "exp_avg_sq_codes", "exp_avg_sq_scale"):
        tensor = entry[name]
        writes = (
            tensor.zero_, lambda t=tensor: t.fill_(1), lambda t=tensor: t.copy_(t + 1), lambda t=tensor: t.view(-1)[:4].zero_(),
            lambda t=tensor: t.__setitem__(0, 0), lambda t=tensor: t.__iadd__(1), lambda t=tensor: torch.add(t, 1, out=t),
            lambda t=tensor: torch._foreach_zero_([t]), lambda t=tensor: t.__imul__(0),
            lambda t=tensor: t.unbind()[0].zero_(), lambda t=tensor: next(iter(t)).zero_(), lambda t=tensor: t.split(8)[1].zero_(),
            lambda t=tensor: t.chunk(2)[0].fill_(1), lambda t=tensor: torch.narrow(input=t, dim=0, start=0, length=1).zero_(),
            lambda t=tensor: t.data.zero_(), lambda t=tensor: t.detach().zero_(), lambda t=tensor: torch.zero_(input=t),
            lambda t=tensor: torch.ops.aten.zero_.default(t), lambda t=tensor: torch._foreach_zero_(self=[t]),
            lambda t=tensor: t.untyped_storage().fill_(1), lambda t=tensor: t.as_subclass(torch.Tensor).zero_(),
        )  # fmt: skip
        for write in writes:
            with torch.no_grad(), pytest.raises(RuntimeError, match="codes and scales of quantized state|invalid python storage"):
                write()
        with pytest.raises(ValueError, match="read-only"):
            tensor.numpy()[0] = 1
        with torch._C.DisableTorchFunctionSubclass(), pytest.raises(RuntimeError, match="codes and scales"):
            tensor.zero_()
        for share in (lambda t=tensor: np.from_dlpack(t), lambda t=tensor: torch.from_dlpack(t), tensor.share_memory_):
            with pytest.raises(RuntimeError, match="wanted .clone"):
                share()
        assert np.array_equal(np.asarray(tensor), tensor.clone().numpy()) and tensor.tolist() == tensor.clone().tolist()
        assert torch.equal(torch.empty_like(tensor.clone()).copy_(tensor), tensor) and repr(tensor) == repr(tensor.clone())
        assert type(tensor.clone()) is torch.Tensor and type(tensor + 1) is torch.Tensor
        torch.save(tensor, io.BytesIO())
    for number, kept in saved["state"].items():
        for name, tensor in kept.items():
            assert torch.equal(tensor, optimizer.state_dict()["state"][number][name]), name
    assert all(type(tensor) is torch.Tensor for tensor in optimizer.state_dict()["state"][0].values())
    optimizer.state.clear()  # the reset that the message names
    others, fresh = made(state)
    for param, other in zip(params, others):
        other.data.copy_(param)
    step(params, optimizer, 5)
    step(others, fresh, 5)
    assert weight_bits(params) == weight_bits(others)


def test_state_is_empty_before_the_first_step() -> None:
    params, optimizer = made()
    assert not optimizer.state
    first = optimizer.state_dict()
    assert first["state"] == {} and not optimizer.state
    step(params, optimizer, 0)
    assert set(optimizer.state) == set(params)
    optimizer.load_state_dict(first)
    assert not optimizer.state
    others, fresh = made(seed=3)
    for param, other in zip(params, others):
        other.data.copy_(param)
    step(params, optimizer, 5)
    step(others, fresh, 5)
    assert weight_bits(params) == weight_bits(others)
    params[1].grad = None
    held, fresh = made(seed=4)
    held[0].grad = torch.ones_like(held[0])
    fresh.step()
    assert set(fresh.state) == {held[0]}
    saved = fresh.state_dict()["state"][1]  # complete, and not the live state
    held[1].grad = torch.ones_like(held[1])
    fresh.step()
    assert int(saved["step"]) == 0 and not saved["exp_avg"].any()


@pytest.mark.parametrize("memory", [lowtide.Memory(host="64MiB"), None])
def test_an_interrupted_first_step_leaves_dicts_whole(memory: lowtide.Memory | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception while state is shown, such as a signal's, costs no later dict its tensors."""
    params, optimizer = made(memory=memory)
    others, plain = made(memory=memory)
    shown = views.shown

    def interrupted(engine: object, number: int) -> object:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(views, "shown", interrupted)
    with pytest.raises(KeyboardInterrupt):
        step(params, optimizer, 0)
    assert views.shown is shown
    step(others, plain, 0)
    step(params, optimizer, 1)
    step(others, plain, 1)
    for number, entry in plain.state_dict()["state"].items():
        for name, tensor in entry.items():
            got = optimizer.state_dict()["state"][number][name]
            assert type(got) is torch.Tensor and torch.equal(got, tensor), name
    assert through_file(optimizer.state_dict())["state"].keys() == {0, 1}


@pytest.mark.parametrize("memory", [None, lowtide.Memory(host="64MiB")])
@pytest.mark.parametrize("rule", [lowtide.SGD, lowtide.LARS])
@pytest.mark.parametrize("master", ["residual8", "residual16"])
def test_overrides_beside_a_residual_without_momentum(rule: type[lowtide.Optimizer], master: str, memory: lowtide.Memory | None) -> None:
    params = [torch.nn.Parameter(torch.randn(64, 128).bfloat16()) for _ in range(3)]
    params[2].requires_grad_(False)
    optimizer = rule(params, lr=0.1, momentum=0.0, master=master, memory=memory)
    options = {"momentum": 0.0, "master": master, "memory": memory}

    def steps(number: int) -> None:
        for param in params[:2]:
            param.grad = torch.full_like(param, 1e-3 * number)
        optimizer.step()

    steps(1)
    before = optimizer.state_dict()["state"][0].keys()
    handle = lowtide.override(params[1], state="fp32")
    steps(2)
    saved = optimizer.state_dict()
    assert saved["state"][0].keys() == saved["state"][1].keys() == before
    copies = [torch.nn.Parameter(param.detach().clone(), requires_grad=param.requires_grad) for param in params]
    other = rule(copies, lr=0.1, **options)
    other.load_state_dict(copy.deepcopy(saved))
    assert other.state_dict()["state"][0].keys() == before
    steps(3)
    for param, twin in zip(params[:2], copies[:2]):
        twin.grad = param.grad
    other.step()
    assert all(torch.equal(param, twin) for param, twin in zip(params, copies))
    handle.remove()
    steps(4)


def counted(entries: Any) -> dict[str, int]:
    """Counts bytes as loops over an optimizer's state do."""
    found: dict[str, int] = {}
    for entry in entries:
        for name, value in entry.items():
            if name != "step" and torch.is_tensor(value):
                assert value.nbytes == value.numel() * value.element_size() == value.untyped_storage().nbytes()
                found[name] = found.get(name, 0) + value.nbytes
    return found


def like(entry: Any) -> dict[str, Any]:
    return {name: (tuple(value.shape), value.dtype) for name, value in entry.items()}


def check(opt: lowtide.Optimizer, device: torch.device, shown: Callable[[str], None]) -> None:
    """Sizes and values are those of the copies in `state_dict()`; neither writing nor moving changes the state."""
    if not opt.state:
        opt._init_group({})  # as Megatron asks for entries before a step
    saved = opt.state_dict()["state"]
    params = [param for group in opt.param_groups for param in group["params"]]
    for number, param in enumerate(params):
        assert like(opt.state[param]) == like(saved[number])
    seen = counted(opt.state.values())
    assert seen == counted(saved.values()) and sum(seen.values()) > 0
    away = [one for entry in opt.state.values() for one in entry.values() if isinstance(one, Elsewhere)]
    assert away and {one.device for one in away} == {device}
    for one in away:
        assert one.detach() is one and str(tuple(one.shape)) in repr(one)
    written = [
        torch.zero_, torch.Tensor.t_, lambda x: x.data.fill_(0), lambda x: x.reshape(-1), lambda x: x[0],
        lambda x: torch.add(torch.ones(x.shape), 1, out=x), lambda x: torch._foreach_zero_([x]),
    ]  # fmt: skip
    for change in written if device.type == "cpu" else written[:3]:  # torch has no other devices here
        with pytest.raises(RuntimeError, match="got optimizer state that streams or is on a device, wanted .clone"):
            change(away[0])
    for number, param in enumerate(params):
        entry = opt.state[param]
        for name, value in entry.items():
            there = value.cpu()
            assert bits(there.clone()) == bits(saved[number][name]) and value.tolist() == saved[number][name].tolist()
            # Loops that move state assign copies with the same values (test_hand_over.py).
            other = (there.clone().reshape(-1).view(torch.uint8) ^ 1).view(there.dtype).reshape(there.shape)
            for assign in (
                lambda: entry.__setitem__(name, other), lambda: entry.update({name: other}),
                lambda: entry.update([(name, other)], **{name: other}), lambda: entry.__ior__({name: other}),
            ):  # fmt: skip
                if isinstance(value, Elsewhere):
                    with pytest.raises(RuntimeError, match=r"on cpu with other values in the place of .* wanted load_state_dict"):
                        assign()
            assert entry[name] is value is entry.setdefault(name, there) and opt.state[param] is entry
            if isinstance(value, Elsewhere) and device.type == "cpu":
                assert there is value.to("cpu") is value and torch.empty(value.shape).copy_(value).equal(there.float())
                assert bits(value + 1) == bits(saved[number][name] + 1) and bits(value.float()) == bits(there.float())
        entry |= {"note": 1}
        entry.update(note=2)
        assert entry.pop("note") == 2 == entry.setdefault("note", 2) and entry.pop("note") == 2
        if device.type == "cpu":
            assert all(type(one) is torch.Tensor for one in copy.deepcopy(entry).values())
    again = opt.state_dict()["state"]
    assert all(bits(again[i][name]) == bits(value) for i in saved for name, value in saved[i].items())
    shown(f"{len(away)} tensors elsewhere on {device}; bytes by name {seen}, as in state_dict()")


@pytest.mark.parametrize("stepped", [False, True])
def test_sizes_of_state_that_streams_from_a_disk(stepped: bool, tmp_path: Path, seed: int, figure: Any) -> None:
    params = [parameter(64, 300), parameter(48, 256), parameter(7)]
    opt = lowtide.AdamW(params, memory=lowtide.Memory(host="16KiB", disk=tmp_path, chunk="4KiB"))
    if stepped:
        take_steps(params, opt)
    check(opt, torch.device("cpu"), figure)


@pytest.mark.share
@pytest.mark.parametrize(("name", "stepped"), [("AdamW8bit", True), ("PagedAdamW8bit", False)])
def test_sizes_of_state_on_a_device(name: str, stepped: bool, device: Any, seed: int, figure: Any) -> None:
    here = [parameter(64, 300), parameter(7)]
    there = device.parameters(here)
    opt = getattr(bitsandbytes.optim, name)(there)
    if stepped:
        random_gradients(here)
        device.give_gradients(there, here)
        opt.step()
        device.synchronize()
    check(opt, opt.engine.params[0].place.device, figure)
    gc.collect()  # frames of raised errors hold the optimizer


def test_values_are_those_of_the_time_of_reading_while_there_are_any(tmp_path: Path, seed: int) -> None:
    """A step changes no earlier copy; an error names state that is gone."""
    param = parameter(64, 256)
    opt = lowtide.AdamW([param], memory=lowtide.Memory(host="4KiB", disk=tmp_path, chunk="4KiB"))
    take_steps([param], opt)
    away = opt.state[param]["exp_avg_codes"]
    seen = []
    for _ in range(2):
        take_steps([param], opt)
        seen.append((away.clone(), opt.state_dict()["state"][0]["exp_avg_codes"]))
    assert all(torch.equal(*pair) for pair in seen) and not torch.equal(seen[0][0], seen[1][0])
    file = io.BytesIO()
    torch.save(opt.state[param], file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)["exp_avg_codes"], seen[1][1])
    del opt
    gc.collect()
    with pytest.raises(RuntimeError, match="an optimizer or a parameter that is gone"):
        away.clone()


def test_frozen_parameters_and_ram_have_no_stand_ins(seed: int) -> None:
    frozen, moved = parameter(64, 64).requires_grad_(False), parameter(64, 64)
    for memory in (None, lowtide.Memory(host="1MiB")):
        opt = lowtide.AdamW([frozen, moved], memory=memory)
        take_steps([moved], opt)
        assert opt.state[frozen] == {} and not any(isinstance(one, Elsewhere) for one in opt.state[moved].values())


@pytest.mark.parametrize("then", ["step", "onload", "state_dict"])
@pytest.mark.parametrize("way", ["value", "entry"])
@pytest.mark.parametrize("state", ["dynamic8", "fp32"])
def test_copies_of_state_that_is_put_aside_are_refused(state: str, way: str, then: str, tmp_path: Path) -> None:
    """After offload() the memory that `state` shows is empty: its copies would replace the state by zeros."""
    params, optimizer = made(state, memory=lowtide.Memory(host="4MiB", disk=tmp_path))
    others, twin = made(state)
    for one, opt in ((params, optimizer), (others, twin)):
        step(one, opt, 0)
    optimizer.offload()
    copies = {name: value.clone() for name, value in optimizer.state[params[0]].items()}
    if way == "entry":
        optimizer.state[params[0]] = copies
    else:
        for name, value in copies.items():
            optimizer.state[params[0]][name] = value
    with pytest.raises(ValueError, match="parameter 0: got values after offload.. had put the state aside"):
        step(params, optimizer, 1) if then == "step" else getattr(optimizer, then)()
    optimizer.onload()
    step(params, optimizer, 1)
    step(others, twin, 1)
    assert weight_bits(params) == weight_bits(others)


@pytest.mark.parametrize("then", ["step", "onload", "state_dict"])
def test_state_assigned_before_it_is_put_aside_counts(then: str, tmp_path: Path) -> None:
    """offload() takes values that were assigned to `state` before it: they were no zeros."""
    params, optimizer = made("dynamic8", memory=lowtide.Memory(host="4MiB", disk=tmp_path))
    others, twin = made("dynamic8")
    for one, opt in ((params, optimizer), (others, twin)):
        step(one, opt, 0)
        once = {name: value.clone() for name, value in opt.state[one[0]].items()}
        step(one, opt, 1)
        opt.state[one[0]] = once
    optimizer.offload()
    if then != "step":
        getattr(optimizer, then)()
    step(params, optimizer, 2)
    step(others, twin, 2)
    assert weight_bits(params) == weight_bits(others)


def test_other_state_that_is_read_brings_no_zeros_in(tmp_path: Path) -> None:
    """Reading what streams brings all state back, unseen by who has copies of zeros; all such copies are dropped at once."""
    params = [torch.nn.Parameter(torch.randn(64, 256)) for _ in range(3)]
    small = lowtide.Memory(host="16KiB", disk=tmp_path, chunk="4KiB")
    groups = [{"params": params[:2], "memory": lowtide.Memory(host="4MiB", disk=tmp_path)}, {"params": params[2:], "memory": small}]
    optimizer = lowtide.AdamW(groups)
    step(params, optimizer, 0)
    wanted = copy.deepcopy(optimizer.state_dict()["state"])
    optimizer.offload()
    for param in params:
        optimizer.state[param] = {name: value.clone() for name, value in optimizer.state[param].items()}
    with pytest.raises(ValueError, match="parameter 0: got values after offload"):
        optimizer.state_dict()
    found = optimizer.state_dict()["state"]
    assert all(torch.equal(found[i][name], value) for i in wanted for name, value in wanted[i].items())


def test_a_moment_that_is_stored_in_codes_says_so() -> None:
    params, optimizer = made("dynamic8")
    step(params, optimizer, 0)
    with pytest.raises(KeyError, match="exp_avg: stored as exp_avg_codes and exp_avg_scale"):
        optimizer.state[params[0]]["exp_avg"]
    assert optimizer.state[params[0]].get("exp_avg") is None
