"""DTensors whose local part is on a device: the steps of CPU meshes, checkpoints from and to them, saves under way. Torch takes
the stand-ins' memory for the CPU's, so these tests do not see how torch moves DTensors of a device."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import distributed_jobs as jobs
import emulated_cuda
import lowtide
import pytest
import stand_in
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import xpu_device
from distributed_jobs import Layout, Net
from distributed_support import differing, shared_ranks, size
from support import make
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.tensor import DTensor

BUDGETS: dict[str, lowtide.Memory | None] = {
    "auto": None,
    "streaming": lowtide.Memory(device="16KiB", chunk="4KiB", transfer="copy"),
}


@contextmanager
def opened(kind: str) -> Iterator[stand_in.StandIn | None]:
    """A device in this process; None for "cpu". "cuda+cpu": only for half of the parameters."""
    if kind == "cpu":
        yield None
        return
    with pytest.MonkeyPatch.context() as patch:
        on_cuda = kind.startswith("cuda")
        reason = emulated_cuda.prepare(patch) if on_cuda else xpu_device.missing()
        assert not reason, reason
        device = emulated_cuda.EmulatedCuda(patch) if on_cuda else xpu_device.Xpu(patch)
        device.shares = kind.endswith("+cpu")
        yield device
        gc.collect()
        device.close()


def there(value: DTensor, device: stand_in.StandIn) -> DTensor:
    """A copy of a DTensor with its local part in the device's memory."""
    return DTensor(device.tensor(value.to_local()), value._spec, requires_grad=False)


class DeviceNet(Net):
    def __init__(self, layout: Layout, device: stand_in.StandIn | None) -> None:
        super().__init__(layout)
        self.device = device
        self.at_home: set[str] = set()  # names of parameters that stay on the CPU
        if device and device.shares:
            self.at_home = {name for name, _ in [*self.named_parameters()][1::2]}
        for name, param in list(self.named_parameters()) if device else ():
            if name in self.at_home:
                continue
            moved = torch.nn.Parameter(there(param.detach(), device), requires_grad=param.requires_grad)
            self.register_parameter(name, moved)

    def set_gradients(self, step: int) -> None:
        if self.device is None:
            super().set_gradients(step)
            return
        self.device.synchronize()  # what reads the gradients before
        for name, param in self.named_parameters():
            if name not in ("frozen", "idle"):
                grad = jobs.random_tensor(name, step).to(param.dtype)
                grad = jobs.distribute_tensor(grad, param.device_mesh, param.placements, src_data_rank=None)
                param.grad = grad if name in self.at_home else there(grad, self.device)


def build(
    layout: Layout, rule: str, state: str, device: stand_in.StandIn | None, budget: str = "auto", **options: Any
) -> tuple[DeviceNet, lowtide.Optimizer]:
    net = DeviceNet(layout, device)
    named = list(net.named_parameters())
    groups = [{"params": named[::2]}, {"params": named[1::2], "lr": 3e-3, "weight_decay": 0.1}]
    memory = BUDGETS[budget] if device else None
    return net, make(rule, groups, lr=1e-2, state=state, memory=memory, **options)


def snapshot(net: DeviceNet, opt: lowtide.Optimizer) -> dict[str, bytes]:
    opt.synchronize()
    if net.device:
        net.device.synchronize()
    return jobs.snapshot(net, opt)


def uninterrupted(
    kind: str,
    layout: Layout,
    rule: str,
    state: str,
    budget: str = "auto",
    path: str | None = None,
    master: str | None = None,
) -> tuple[dict[str, bytes], int]:
    """Takes six steps. With a path, saves a checkpoint after three. Also returns the bytes of state on the device."""
    with opened(kind) as device:
        net, opt = build(layout, rule, state, device, budget, master=master)
        jobs.train(net, opt, range(3))
        if path is not None:
            save(net, opt, path)
        jobs.train(net, opt, range(3, 6))
        found = snapshot(net, opt), opt.report()["device_bytes"]
        del net, opt
    return found


def resumed(
    kind: str, layout: Layout, rule: str, state: str, path: str, budget: str = "auto", master: str | None = None
) -> dict[str, bytes]:
    """Takes the last three of the six steps from the checkpoint, starting with other weights."""
    with opened(kind) as device:
        net, opt = build(layout, rule, state, device, budget, master=master)
        with torch.no_grad():
            for param in net.parameters():
                param.add_(1)
        jobs.load(net, opt, path)
        jobs.train(net, opt, range(3, 6))
        found = snapshot(net, opt)
        del net, opt
    return found


def save(net: DeviceNet, opt: lowtide.Optimizer, path: str) -> None:
    if net.device:
        net.device.synchronize()
    jobs.save(net, opt, path)


def saved_while_stepping(
    kind: str, layout: Layout, state: str, path: str, blocking: bool, budget: str = "auto"
) -> dict[str, bytes]:
    """Takes three steps, calls `async_save`, and takes three more steps at once, while it writes what existed at the call.
    blocking: torch's older stager. The writing thread and the steps each need a process group, because gloo's calls keep their
    order within one."""
    own = dist.new_group()
    with opened(kind) as device:
        net, opt = build(layout, "adamw", state, device, budget, master="residual16")
        jobs.train(net, opt, range(3))
        at_the_call = snapshot(net, opt)
        weights, of_opt = get_state_dict(net, opt)
        stager = BlockingAsyncStager() if blocking else None
        both = {"net": weights, "opt": of_opt}
        writing = dcp.async_save(both, checkpoint_id=path, async_stager=stager, process_group=own)
        jobs.train(net, opt, range(3, 6))
        writing.result()
        assert at_the_call != snapshot(net, opt), "control: steps change something"
        dist.barrier()
        del net, opt, weights, of_opt
    return at_the_call


def read_back(layout: Layout, state: str, path: str) -> dict[str, bytes]:
    """Reads a checkpoint into a new optimizer on the CPU."""
    net, opt = build(layout, "adamw", state, None, master="residual16")
    jobs.load(net, opt, path)
    return snapshot(net, opt)


ROWS, COLUMNS = Layout("rows", (2,)), Layout("columns", (2,))


@pytest.fixture(autouse=True)
def _there(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, figure) -> None:
    kind = request.node.callspec.params["kind"]
    checks = {"xpu": xpu_device.missing, "cuda": lambda: emulated_cuda.prepare(monkeypatch)}
    reason = checks.get(kind.partition("+")[0])
    if reason and (text := reason()):
        figure(f"skipped: {text}")
        pytest.skip(text)


@pytest.mark.parametrize(
    ("kind", "rule", "state", "master", "budget", "layout"),
    [  # a SYCL device compiles kernels in each process: one combination is enough for it
        ("xpu", "adamw", "dynamic8", "residual16", "auto", ROWS),
        ("cuda", "adamw", "dynamic8", "residual16", "auto", ROWS),
        ("cuda", "lion", "float8", None, "streaming", COLUMNS),
        ("cuda+cpu", "adamw", "dynamic8", "residual16", "auto", ROWS),
    ],
    ids=str,
)
def test_steps_are_those_of_a_mesh_of_the_cpu(
    kind: str, rule: str, state: str, master: str | None, budget: str, layout: Layout, figure
) -> None:
    """Under FSDP2's cut by rows, and the other cut by tensor parallelism."""
    compared = on_device = 0
    wanted, _ = shared_ranks().run(2, uninterrupted, "cpu", layout, rule, state, master=master)[0]
    for found, there in shared_ranks().run(2, uninterrupted, kind, layout, rule, state, budget, master=master):
        assert differing(found, wanted) == []
        compared += size(found)
        on_device += there
    assert on_device
    figure(f"{compared} bytes compared, 0 differ; {on_device} bytes of state on devices")


@pytest.mark.parametrize("kind", ["xpu", "cuda"])
def test_checkpoints_go_to_meshes_of_the_cpu_and_back(kind: str, tmp_path: Path, figure) -> None:
    compared = 0
    what = ("adamw", "dynamic8")
    for source, target, budget in ((kind, "cpu", "auto"), ("cpu", kind, "streaming")):
        path = str(tmp_path / source)
        wanted, _ = shared_ranks().run(
            2, uninterrupted, source, ROWS, *what, budget, path=path, master="residual16"
        )[0]
        one = Layout("rows", (1,))
        for found in shared_ranks().run(1, resumed, target, one, *what, path, budget, master="residual16"):
            assert differing(found, wanted) == [], source
            compared += size(found)
    figure(f"{compared} bytes compared, 0 differ")


@pytest.mark.parametrize(
    ("kind", "blocking", "budget"),
    [("cpu", False, ""), ("cpu", True, ""), ("xpu", False, "auto"), ("cuda", False, "streaming")],
)
def test_a_save_under_way_has_the_state_of_the_call(
    kind: str, blocking: bool, budget: str, tmp_path: Path, figure
) -> None:
    path = str(tmp_path)
    wanted = shared_ranks().run(2, saved_while_stepping, kind, ROWS, "dynamic8", path, blocking, budget)[0]
    [found] = shared_ranks().run(1, read_back, Layout("rows", (1,)), "dynamic8", path)
    assert differing(found, wanted) == []
    figure(f"{size(found)} bytes compared, 0 differ")
