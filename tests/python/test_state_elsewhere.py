"""`state[p]` of state that no view can show, because it streams or is on a device: its sizes are there, and its values are
not."""

from __future__ import annotations

import gc
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
    """Sizes are those of the copies in `state_dict()`; values cannot be read or written; moving changes nothing."""
    saved = opt.state_dict()["state"]
    params = [param for group in opt.param_groups for param in group["params"]]
    for number, param in enumerate(params):
        assert like(opt.state[param]) == like(saved[number])
    seen = counted(opt.state.values())
    assert seen == counted(saved.values()) and sum(seen.values()) > 0
    away = [one for entry in opt.state.values() for one in entry.values() if isinstance(one, Elsewhere)]
    assert away and {one.device for one in away} == {device}
    for one in away:
        assert one.to("cpu") is one and one.cpu() is one and one.detach() is one and str(tuple(one.shape)) in repr(one)
        for touch in (torch.clone, torch.zero_, torch.sum, torch.Tensor.tolist, lambda x: x + 1, lambda x: x.reshape(-1)):
            with pytest.raises(RuntimeError):
                touch(one)
    with pytest.raises(RuntimeError, match=r"state_dict\(\) has copies"):
        away[0].clone()
    for entry in opt.state.values():  # as frameworks move state to the CPU between phases
        for name, value in entry.items():
            entry[name] = value.to("cpu") if isinstance(value, Elsewhere) else value
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


@pytest.mark.parametrize(("name", "stepped"), [("AdamW8bit", True), ("PagedAdamW8bit", False)])
def test_sizes_of_state_on_a_device(name: str, stepped: bool, device: Any, seed: int, figure: Any) -> None:
    here = [parameter(64, 300), parameter(7)]
    there = device.parameters(here)
    opt = getattr(bitsandbytes.optim, name)(there)
    if stepped:
        device.give_gradients(there, [torch.randn(param.shape) for param in here])
        opt.step()
        device.synchronize()
    check(opt, opt.engine.places[0].device, figure)
    gc.collect()  # of the errors that were raised, whose frames have the optimizer


def test_frozen_parameters_and_ram_have_no_stand_ins(seed: int) -> None:
    frozen, moved = parameter(64, 64).requires_grad_(False), parameter(64, 64)
    for memory in (None, lowtide.Memory(host="1MiB")):
        opt = lowtide.AdamW([frozen, moved], memory=memory)
        random_gradients([moved])
        opt.step()
        assert opt.state[frozen] == {} and not any(isinstance(one, Elsewhere) for one in opt.state[moved].values())
