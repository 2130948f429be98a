"""Torch's xpu (xpu_device.py) around Lowtide's steps: its memory counters, its engine and scaler, FSDP2 and DDP over a mesh of
it, and checkpoints that go to the CPU. Bits equal those of the same run on the CPU."""

from __future__ import annotations

import gc
import re
import runpy
import sys
from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import lowtide
import pytest
import torch
import torch.distributed.checkpoint as dcp
from distributed_support import differing, shared_ranks
from llama_support import EXAMPLES  # puts the example on the path
from lowtide.devices import places
from lowtide.distributed import ErrorFeedbackSign, SignVote
from support import bits
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from xpu_device import MEMORY, Xpu


Figure = Callable[[str], None]
MIB = 1 << 20


def test_state_is_torchs_memory(xpu: Xpu, figure: Figure) -> None:
    """torch.xpu counts it, its cache gives it, and the rest is the room for automatic residency."""
    (param,) = xpu.parameters([torch.zeros(MIB)])
    param.grad = torch.ones_like(param)
    place = places.place_of(param, "")
    before, free = torch.xpu.memory_allocated(), place.free()
    opt = lowtide.AdamW([param], state="fp32")
    opt.step()
    xpu.synchronize()
    state = torch.xpu.memory_allocated() - before
    assert state == opt.report()["device_bytes"] >= 8 * MIB and torch.xpu.max_memory_allocated() >= before + state
    assert place.free() == free - state == torch.xpu.mem_get_info()[0]
    opt.offload()
    assert torch.xpu.memory_allocated() == before
    opt.onload()
    assert torch.xpu.memory_allocated() == before + state
    del opt
    gc.collect()
    assert torch.xpu.memory_allocated() == before and place.free() == free
    # Activations that come and go leave less room for state than there is between passes.
    torch.xpu.reset_peak_memory_stats()
    torch.zeros(2 * MIB, device="xpu")
    assert place.free() == free and place.room() == free - 8 * MIB
    figure(f"{state} bytes of state in torch.xpu.memory_allocated(), until they leave")


def test_automatic_residency_keeps_to_the_room(xpu: Xpu, figure: Figure) -> None:
    (param,) = xpu.parameters([torch.zeros(MIB)])
    param.grad = torch.ones_like(param)
    xpu.allow(torch.xpu.memory_allocated() + 4 * MIB)  # state is 8 MiB
    opt = lowtide.AdamW([param], state="fp32", memory=lowtide.Memory(device="auto", chunk="256KiB"))
    for _ in range(2):
        opt.step()
    xpu.synchronize()
    report = opt.report()
    assert report["moved_per_step"] > 0 and torch.xpu.max_memory_allocated() <= torch.xpu.get_device_properties().total_memory
    xpu.allow(MEMORY)
    figure(f"{report['device_bytes']} bytes on a device with 4 MiB left, {report['moved_per_step']} moved in a step")


def test_a_step_in_a_recording_is_refused(xpu: Xpu) -> None:
    """The SYCL backend records nothing: the step would be taken at once, and no replay would take it."""
    (param,) = xpu.parameters([torch.ones(5)])
    param.grad = torch.ones_like(param)
    opt = lowtide.AdamW([param])
    before = bits(param)
    xpu.capturing = True
    for call in (opt.step, lambda: opt.clip_grad_norm_(1.0)):
        with pytest.raises(NotImplementedError, match="xpu:0 while a graph is captured, wanted a step without one: the sycl backend"):
            call()
    xpu.capturing = False
    assert bits(param) == before
    opt.step()


def net(device: Any) -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(32, 160), torch.nn.Tanh(), torch.nn.Linear(160, 32)).to(device)


def batch(number: int, device: Any) -> torch.Tensor:
    return torch.randn(8, 32, generator=torch.Generator().manual_seed(number)).to(device)


@pytest.mark.parametrize("way", ["clipped", "scaler", "in backward", "host", "streaming"])
def test_training_is_that_of_the_cpu(xpu: Xpu, way: str) -> None:
    budgets = {"host": lowtide.Memory(step="host"), "streaming": lowtide.Memory(device="16KiB", chunk="4KiB", transfer="copy")}

    def train(device: str) -> list[bytes]:
        model = net(device)
        options: dict[str, Any] = {"amp_scaling": way == "scaler", "step_in_backward": way == "in backward", "min_quantized_numel": 0}
        opt = lowtide.AdamW(model.parameters(), lr=1e-2, memory=budgets.get(way) if device == "xpu" else None, **options)
        scaler = torch.amp.GradScaler(device, init_scale=2.0**20) if way == "scaler" else None
        for number in range(4):
            loss = model(batch(number, device)).square().mean()
            (scaler.scale(loss) if scaler else loss).backward()
            if way == "clipped":
                opt.clip_grad_norm_(0.1)
            scaler.step(opt) if scaler else opt.step()
            if scaler:
                scaler.update()
            opt.zero_grad()
        opt.synchronize()
        return [bits(param) for param in model.parameters()]

    assert train("xpu") == train("cpu")


def in_shards(kind: str, path: str) -> dict[str, bytes]:
    """FSDP2 on a mesh of two, clipped, saved after two of three steps. Returns whole weights and state at the end."""
    with pytest.MonkeyPatch.context() as patches, closing(Xpu(patches)) if kind == "xpu" else nullcontext():
        mesh = init_device_mesh(kind, (2,))
        model = net(kind)
        for layer in (model[0], model[2], model):
            fully_shard(layer, mesh=mesh)
        opt = lowtide.AdamW(model.parameters(), lr=1e-2, min_quantized_numel=0)
        for number in range(3):
            if number == 2:
                dcp.save(dict(zip(("net", "opt"), get_state_dict(model, opt), strict=True)), checkpoint_id=path)
            model(batch(2 * number + mesh.get_rank(), kind)).square().mean().backward()
            opt.clip_grad_norm_(0.1)
            opt.step()
            opt.zero_grad()
        opt.synchronize()
        found = whole(model, opt)
        del model, opt
        gc.collect()
    return found


def resumed(path: str) -> dict[str, bytes]:
    """The checkpoint on a mesh of the CPU, and the third step."""
    mesh = init_device_mesh("cpu", (2,))
    model = net("cpu")
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    opt = lowtide.AdamW(model.parameters(), lr=1e-2, min_quantized_numel=0)
    weights, state = get_state_dict(model, opt)
    saved = {"net": weights, "opt": state}
    dcp.load(saved, checkpoint_id=path)
    set_state_dict(model, opt, model_state_dict=saved["net"], optim_state_dict=saved["opt"])
    model(batch(4 + mesh.get_rank(), "cpu")).square().mean().backward()
    opt.clip_grad_norm_(0.1)
    opt.step()
    return whole(model, opt)


def whole(model: torch.nn.Module, opt: lowtide.Optimizer) -> dict[str, bytes]:
    values: dict[str, Any] = dict(model.named_parameters())
    for number, entry in opt.state_dict()["state"].items():
        values.update({f"{number}.{name}": value for name, value in entry.items()})
    return {name: bits(value.full_tensor() if isinstance(value, DTensor) else value) for name, value in values.items()}


def test_shards_on_a_mesh_of_it(xpu: Xpu, tmp_path: Path, figure: Figure) -> None:
    wanted = shared_ranks().run(2, in_shards, "cpu", str(tmp_path / "cpu"))
    found = shared_ranks().run(2, in_shards, "xpu", str(tmp_path / "xpu"))
    again = shared_ranks().run(2, resumed, str(tmp_path / "xpu"))
    assert all(differing(one, other) == [] for one, other in zip((*found, *again), (*wanted, *wanted), strict=True))
    figure(f"{sum(map(len, found[0].values()))} bytes alike after 3 steps, and from a checkpoint that was resumed on the CPU")


def with_votes(kind: str, hook: type[SignVote]) -> list[bytes]:
    with pytest.MonkeyPatch.context() as patches, closing(Xpu(patches)) if kind == "xpu" else nullcontext():
        model = DistributedDataParallel(net(kind))
        model.register_comm_hook(None, hook(model))
        opt = lowtide.SGD(model.parameters(), lr=1e-2)
        for number in range(3):
            model(batch(2 * number + torch.distributed.get_rank(), kind)).square().mean().backward()
            opt.step()
            opt.zero_grad()
        opt.synchronize()
        found = [bits(param) for param in model.parameters()]
        del model, opt
        gc.collect()
    return found


@pytest.mark.parametrize("hook", [SignVote, ErrorFeedbackSign])
def test_votes_under_ddp(xpu: Xpu, hook: type[SignVote]) -> None:
    wanted = shared_ranks().run(2, with_votes, "cpu", hook)
    assert shared_ranks().run(2, with_votes, "xpu", hook) == wanted


def test_the_example_of_phases(
    xpu: Xpu, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], figure: Figure
) -> None:
    """State that leaves for host memory, or for a disk, changes no reward."""
    told = {}
    for device in ("cpu", "xpu"):
        monkeypatch.setattr(sys, "argv", ["rl_handover.py", device, "3"])
        runpy.run_path(str(EXAMPLES / "rl_handover.py"), run_name="__main__")
        told[device] = re.findall(r"([\d.]+) MB of state away .* mean reward ([\d.]+)", capsys.readouterr().out)
    assert [rewards for _, rewards in told["xpu"]] == [rewards for _, rewards in told["cpu"]] and len(told["cpu"]) == 3
    away = float(told["xpu"][-1][0])
    assert away > 2
    figure(f"{away} MB away")
