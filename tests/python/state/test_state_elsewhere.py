"""`state[p]` of state that no view can show, because it streams or is on a device: its sizes are there, and its values when
they are read."""

from __future__ import annotations

import copy
import gc
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lowtide
import pytest
import torch
from lowtide.compat import bitsandbytes
from lowtide.engine.elsewhere import Elsewhere
from support import bits, parameter, random_gradients


def counted(entries: Any) -> dict[str, int]:
    """As loops over an optimizer's state count its bytes."""
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
            # As loops move state to the CPU between phases, and back: a copy that no step changes is refused.
            for assign in (
                lambda: entry.__setitem__(name, there), lambda: entry.update({name: there}),
                lambda: entry.update([(name, there)], **{name: there}), lambda: entry.__ior__({name: there}),
            ):  # fmt: skip
                if there is value:
                    assign()
                else:
                    with pytest.raises(RuntimeError, match=r"on cpu in the place of .* wanted opt.offload\(\) and opt.onload"):
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
        random_gradients(params)
        opt.step()
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
    gc.collect()  # of the errors that were raised, whose frames have the optimizer


def test_values_are_those_of_the_time_of_reading_while_there_are_any(tmp_path: Path, seed: int) -> None:
    """A copy of before a step is not changed by it; state that is no longer there is named."""
    param = parameter(64, 256)
    opt = lowtide.AdamW([param], memory=lowtide.Memory(host="4KiB", disk=tmp_path, chunk="4KiB"))
    random_gradients([param])
    opt.step()
    away = opt.state[param]["exp_avg_codes"]
    seen = []
    for _ in range(2):
        random_gradients([param])
        opt.step()
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
        random_gradients([moved])
        opt.step()
        assert opt.state[frozen] == {} and not any(isinstance(one, Elsewhere) for one in opt.state[moved].values())
