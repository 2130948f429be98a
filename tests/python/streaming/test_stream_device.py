"""Weights in host memory, of layers that compute on a device (torch's xpu, xpu_device.py): every bit is that of a model on the device, and
memory and copies are those of the plan."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from stream_support import Net, train, values
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from xpu_device import Xpu

import lowtide
from lowtide.devices.sharding import local_of
from lowtide.planning import units as planning
from lowtide.planning.layers import layers_of, units_for_device
from lowtide.planning.schedule import Schedule
from lowtide.planning.units import Layout
from lowtide.streaming import stream as streaming

Figure = Callable[[str], None]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes of these nets, whose table and head take turns like layers."""
    monkeypatch.setattr(planning, "STREAMED_STATE", 256 << 10)
    monkeypatch.setattr(planning, "SMALL", 1024)


def layout_of(net: nn.Module) -> Layout:
    return units_for_device(net, layers_of(net, None))


def least_host(net: nn.Module, in_backward: bool | int) -> int:
    """Bytes of host memory for three units; the others are on the disk."""
    layout = layout_of(net)
    return Schedule.least(layout.sizes) + layout.kept.bytes + gradients_of(layout, in_backward) + planning.STREAMED_STATE


def gradients_of(layout: Layout, in_backward: bool | int) -> int:
    return layout.gradients(streaming.bucket_of(in_backward), 0)


def resident(net: nn.Module, **options: Any) -> tuple[nn.Module, lowtide.Optimizer]:
    return net.to("xpu"), lowtide.AdamW(net.parameters(), **options)


def streamed(net: nn.Module, host: int | None = None, disk: Path | None = None, **options: Any) -> tuple[nn.Module, lowtide.Optimizer]:
    """Streams with the least device memory that suffices and, with weights on the disk, the least host memory."""
    if disk and host is None:
        host = least_host(net, options.get("step_in_backward", True))
    found = lowtide.stream(net, {"device": layout_of(net).device_bytes(), "host": host, "disk": disk}, **options)
    assert net in streaming._STREAMED
    return found


class Moved(TorchDispatchMode):
    """Counts the bytes that torch copies to a device, and from one."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = {"xpu": 0, "cpu": 0}

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = call(*args, **(kwargs or {}))
        if call is torch.ops.aten._to_copy.default and args[0].device.type != found.device.type:
            self.bytes[found.device.type] += found.nbytes
        return found


@pytest.mark.share
@pytest.mark.parametrize(("kind", "options"), [(torch.float32, {}), (torch.bfloat16, {"master": "residual16"})])
@pytest.mark.parametrize(("in_backward", "reentrant"), [(0, None), (True, False), (False, None), (False, True)])
def test_a_device_changes_no_bit(
    xpu: Xpu, kind: torch.dtype, options: dict[str, Any], in_backward: bool | int, reentrant: bool | None, tmp_path: Path, figure: Figure
) -> None:
    """State is in host memory with weights pinned, or on the disk, or weights are there, too. Training clips, accumulates and follows a
    schedule, or steps in backward."""
    clipped = in_backward is False
    options = {"lr": 1e-2, **options, **({"max_grad_norm": 0.1} if clipped else {})}

    def run(net: nn.Module, opt: lowtide.Optimizer) -> tuple[list[float], list[bytes]]:
        schedule = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.1, 4)
        losses = []
        for step in range(4):
            losses += train(net, opt, 1, passes=1 + clipped, first=step, device="xpu")
            schedule.step()
        opt.synchronize()
        xpu.synchronize()
        return losses, values(net)

    wanted = run(*resident(Net(kind, reentrant), **options))
    net, host = Net(kind), planning.STREAMED_STATE + layout_of(Net(kind)).nbytes
    host += gradients_of(layout_of(net), in_backward)
    for budget in ({}, {"host": host, "disk": tmp_path}, {"disk": tmp_path}):
        net, opt = streamed(Net(kind, reentrant), **budget, step_in_backward=in_backward, **options)
        assert all(local_of(param).is_pinned() is not bool(budget) for param in net.parameters())
        assert run(net, opt) == wanted
        assert all(param.grad is None for param in net.parameters())
        assert (opt.report()["disk_bytes"] > 0) is bool(budget)
        if [*budget] == ["disk"]:
            report = lowtide.streaming_report(net)
            assert report["read_bytes"] > 2 * report["planned_read_bytes"] > 0 and report["written_bytes"] > report["planned_written_bytes"] > 0
        lowtide.unstream(net)
    figure(f"{kind}, step_in_backward={in_backward}, {[*options]}: 0 of {sum(map(len, wanted[1]))} bytes differ, in RAM, with state on the disk, and with weights there")


class Uneven(nn.Module):
    """Layers of these widths; if tied, behind a table and before a head that are one matrix, and stay on the device."""

    def __init__(self, widths: tuple[int, ...], tied: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(96, 96 * width), nn.Tanh(), nn.Linear(96 * width, 96)) for width in widths)
        self.table = nn.Embedding(700 if tied else 1, 96)
        self.head = nn.Linear(96, 700 if tied else 1, bias=False)
        if tied:
            self.head.weight = self.table.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


@pytest.mark.parametrize("in_backward", [True, False])
def test_memory_and_copies_are_planned(xpu: Xpu, in_backward: bool, figure: Figure) -> None:
    figures = []
    for widths, tied in (((2, 2, 2, 2), False), ((8, 1, 1, 1), False), ((1, 8, 1, 1), False), ((1, 1, 1, 8), False), ((4,), False), ((4, 4), True), ((1,) * 8, True)):
        net, opt = streamed(Uneven(widths, tied), lr=1e-2, step_in_backward=in_backward)
        for _ in range(2):
            gc.collect()
            before, moved = torch.xpu.memory_allocated(), Moved()
            torch.xpu.reset_peak_memory_stats()
            with moved:
                net(torch.zeros(2, dtype=torch.int64, device="xpu")).square().mean().backward()
            peak = torch.xpu.max_memory_allocated() - before
            opt.step()
            opt.zero_grad()
        report = lowtide.streaming_report(net)
        assert moved.bytes == {"xpu": report["to_device_bytes"], "cpu": report["to_host_bytes"]}
        assert 0.9 <= peak / report["device_bytes"] <= 1.1, (widths, tied)  # activations are small
        figures.append(f"{peak / report['device_bytes']:.3f}")
        lowtide.unstream(net)
    figure(f"peaks over plans: {', '.join(figures)}; bytes copied are those planned")


@pytest.mark.parametrize(("way", "on_disk"), [("dicts", False), ("dicts", True), ("file", False)])
def test_saves_resume_on_either_side(xpu: Xpu, way: str, on_disk: bool, tmp_path: Path, figure: Figure) -> None:
    def save(net: nn.Module, opt: lowtide.Optimizer) -> None:
        torch.save(net.state_dict(), tmp_path / "weights")
        opt.save(tmp_path / "state") if way == "file" else torch.save(opt.state_dict(), tmp_path / "state")

    def load(net: nn.Module, opt: lowtide.Optimizer) -> None:
        net.load_state_dict(torch.load(tmp_path / "weights"))
        opt.load(tmp_path / "state") if way == "file" else opt.load_state_dict(torch.load(tmp_path / "state"))

    def net() -> nn.Module:
        made = Net()
        made.norm = nn.LayerNorm(4800)  # a vector whose state has 8 bits
        return made

    def streams(net: nn.Module, **options: Any) -> tuple[nn.Module, lowtide.Optimizer]:
        return streamed(net, disk=tmp_path if on_disk else None, **options)

    compared = 0
    for first in (resident, streams):
        one, opt = first(net(), lr=1e-2)
        train(one, opt, 2, device="xpu")
        save(one, opt)
        wanted = train(one, opt, 2, first=2, device="xpu"), values(one)
        for then in (resident, streams):
            other, opt = then(net(), lr=1e-2)
            load(other, opt)
            assert (train(other, opt, 2, first=2, device="xpu"), values(other)) == wanted
            compared += 1
            if then is streams:
                lowtide.unstream(other)
        if first is streams:
            lowtide.unstream(one)
    figure(f"{compared} runs go on from saves of the other kind and of their own: 0 bytes differ")


@pytest.mark.parametrize("on_disk", [False, True])
def test_unstream_leaves_nothing(xpu: Xpu, on_disk: bool, tmp_path: Path, figure: Figure) -> None:
    def entries(net: nn.Module) -> list[Any]:
        return [
            (type(module), {name: len(value) if isinstance(value, dict) else None for name, value in vars(module).items()})
            for module in net.modules()
        ]

    wanted, of_wanted = resident(Net(), lr=1e-2)
    train(wanted, of_wanted, 2, device="xpu")
    net = Net()
    net.register_buffer("scale", torch.ones(3))
    before, params, last = entries(net), [*net.parameters()], None
    for turn in range(2):  # as often as one likes
        net, opt = streamed(net, disk=tmp_path if on_disk else None, lr=1e-2)
        assert dist.is_initialized() and entries(net) != before
        if last:
            opt.load_state_dict(last)
        train(net, opt, 1, first=turn, device="xpu")
        last = opt.state_dict()
        lowtide.unstream(net)
        assert entries(net) == before and not dist.is_initialized()
        assert all(param is each for param, each in zip(net.parameters(), params, strict=True)), "others may refer to them"
        assert {value.device.type for value in (*net.parameters(), *net.buffers())} == {"cpu"}
    assert values(net) == values(wanted)
    # The optimizer goes on, on the CPU.
    other = Net()
    other.load_state_dict(wanted.state_dict())
    of_other = lowtide.AdamW(other.parameters(), lr=1e-2)
    of_other.load_state_dict(of_wanted.state_dict())
    assert train(net, opt, 2, first=2) == train(other, of_other, 2, first=2)
    figure(f"{len(before)} modules as they were, twice; 0 bytes differ after 4 steps, 2 of them after it")


def test_what_fits_is_on_the_device(xpu: Xpu, tmp_path: Path, figure: Figure) -> None:
    wanted = train(*resident(Net(), lr=1e-2), 2, device="xpu")
    state = []
    for device in ("1GiB", layout_of(Net()).nbytes * 5 // 2 + 65536):
        net, opt = lowtide.stream(Net(device="meta"), lowtide.Memory(device=device), lr=1e-2)
        net.load_state_dict(Net().state_dict())
        assert not any(lowtide.streaming_report(net).values()) and {param.device.type for param in net.parameters()} == {"xpu"}
        assert train(net, opt, 2, device="xpu") == wanted
        state.append(opt.report()["device_bytes"])
        lowtide.unstream(net)
    assert state[0] > 0 and not dist.is_initialized()
    figure(f"{state} bytes of state on the device")


@pytest.mark.parametrize("on_disk", [False, True])
def test_meta_weights_get_memory(xpu: Xpu, on_disk: bool, tmp_path: Path, figure: Figure) -> None:
    wanted = train(*resident(Net(), lr=1e-2), 2, device="xpu")
    net, opt = streamed(Net(device="meta"), disk=tmp_path if on_disk else None, lr=1e-2)
    assert not any(local_of(param).any() for param in net.parameters())
    with pytest.raises(ValueError, match="load_state_dict: got assign=True, wanted values for the parameters that stream"):
        net.load_state_dict(Net().state_dict(), assign=True)
    net.load_state_dict(Net().state_dict())
    assert train(net, opt, 2, device="xpu") == wanted
    lowtide.unstream(net)
    figure(f"{len(wanted)} losses alike")


def beside_the_file(net: nn.Module) -> int:
    """Bytes of CPU tensors that are not in the file of weights."""
    gc.collect()
    file = streaming._STREAMED[net]._file
    first = file.file.tensor(0, 1).data_ptr()
    found = {}
    for each in gc.get_objects():
        if type(each) in (torch.Tensor, nn.Parameter) and each.device.type == "cpu":
            memory = each.untyped_storage()
            if not first <= memory.data_ptr() < first + sum(file.schedule.sizes):
                found[memory.data_ptr()] = memory.nbytes()
    return sum(found.values())


@pytest.mark.parametrize("before", ["cpu", "meta"])
def test_weights_on_the_disk_have_no_copies_in_memory(xpu: Xpu, before: str, tmp_path: Path, figure: Figure) -> None:
    net, opt = streamed(Net(device=before), disk=tmp_path, lr=1e-2)
    found = [beside_the_file(net)]
    train(net, opt, 2, device="xpu")
    found.append(beside_the_file(net))
    weights = lowtide.streaming_report(net)["weight_bytes"]
    lowtide.unstream(net)
    assert 100 * max(found) < weights
    figure(f"{weights} bytes of weights in the file; beside it {found[0]}, and {found[1]} after two steps")


def test_a_process_group_of_the_user_stays(xpu: Xpu) -> None:
    dist.init_process_group("cpu:gloo,xpu:gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        net, _ = streamed(Net(), lr=1e-2)
        lowtide.unstream(net)
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()


def test_refusals(xpu: Xpu, tmp_path: Path, figure: Figure) -> None:
    layout, before, refused = layout_of(Net()), values(Net()), 0
    shared, mixed = Net(), Net()
    shared.layers[2].up.weight = shared.layers[1].up.weight
    mixed.layers[2].up.bfloat16()
    cases: list[tuple[nn.Module, dict[str, Any], dict[str, Any], str]] = [
        (Net(), {"device": layout.device_bytes() - 1}, {}, r"device: got .*, wanted .*: a layer, its gradients and the last one's"),
        (Net(), {"device": "auto"}, {}, "device: got 'auto', wanted bytes, or a share"),
        (Net(), {"host": layout.nbytes}, {}, r"host: got .* wanted .* of weights, gradients and state, or disk=DIRECTORY$"),
        (Net(), {"host": least_host(Net(), 0) - 1, "disk": tmp_path}, {"step_in_backward": 0}, "host: got .* three layers, their gradients, and"),
        (Net(), {"device": "1GiB", "host": 4096}, {"state": "fp32"}, None),  # all state is on the device
        (shared, {}, {}, "layers.1: got a parameter that other modules share"),
        (mixed, {}, {}, r"layers.2: got trained weights of torch.bfloat16, torch.float32, wanted one type in each layer"),
        (Net(), {"device": layout.device_bytes(), "host": "1GiB", "transfer": "copy"}, {}, "transfer for parameters on cpu"),
    ]  # fmt: skip
    for net, memory, options, words in cases:
        if words is None:
            lowtide.unstream(lowtide.stream(net, memory, lr=1e-2, **options)[0])
            continue
        with pytest.raises(ValueError, match=words):
            lowtide.stream(net, {"device": layout.device_bytes(), **memory}, lr=1e-2, **options)
        assert not dist.is_initialized() and not any(type(module).__name__.startswith("FSDP") for module in net.modules())
        if net not in (shared, mixed):
            assert values(net) == before
        refused += 1
    figure(f"{refused} refusals, after which nothing has changed")


def test_without_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    with pytest.raises(ValueError, match="device=, and no accelerator in torch, wanted host= and disk= alone"):
        lowtide.stream(Net(), {"device": "1GiB"}, lr=1e-2)


def loss_of(net: nn.Module) -> torch.Tensor:
    loss: torch.Tensor = net(torch.zeros(2, dtype=torch.int64, device="xpu")).square().mean()
    return loss


def test_passes_without_backward_leave_no_old_weights(xpu: Xpu, figure: Figure) -> None:
    """The passes run between backward and step, and around Schedule-Free's eval(), which changes weights in place."""
    found: dict[str, list[list[float]]] = {}
    for where in ("xpu", "streamed"):
        found[where] = []
        for kind in (lowtide.AdamW, lowtide.AdamWScheduleFree):
            torch.manual_seed(0)
            net: nn.Module = Uneven((2, 2), True)
            if where == "xpu":
                opt: lowtide.Optimizer = kind(net.to("xpu").parameters(), lr=1e-2)
            else:
                net, opt = streamed(net, optimizer=kind, step_in_backward=False, lr=1e-2)
            losses = []
            for _ in range(4):
                if isinstance(opt, lowtide.AdamWScheduleFree):
                    opt.train()
                loss = loss_of(net)
                loss.backward()
                with torch.no_grad():
                    losses.append(float(loss_of(net)))
                opt.step()
                opt.zero_grad()
                if isinstance(opt, lowtide.AdamWScheduleFree):
                    opt.eval()
                    with torch.no_grad():
                        losses.append(float(loss_of(net)))
                losses.append(float(loss.detach()))
            found[where].append(losses)
            if where == "streamed":
                lowtide.unstream(net)
    assert found["streamed"] == found["xpu"]
    figure(f"{sum(map(len, found['xpu']))} losses: the same bits")


def test_dicts_load_after_evaluation_and_part_by_part(xpu: Xpu) -> None:
    """Dicts have tied tables twice."""
    for tied in (True, False):
        net, _ = streamed(Uneven((2, 2), tied), lr=1e-2)
        wanted = {name: torch.full_like(value, 0.5) for name, value in net.state_dict().items()}
        with torch.no_grad():
            loss_of(net)
        net.load_state_dict(wanted)
        part = net.get_submodule("layers.0")
        plain = {name: value.clone() for name, value in part.state_dict().items()}
        assert all(type(value) is torch.Tensor for value in part.state_dict().values())
        part.load_state_dict({name: value + 1 for name, value in plain.items()})
        assert all(float(value.min()) == 1.5 for value in part.state_dict().values())
        lowtide.unstream(net)
        assert all(float(param.max()) in (0.5, 1.5) for param in net.parameters())


def test_what_hangs_on_parameters_stays(xpu: Xpu) -> None:
    class WithCache(Uneven):
        def __init__(self) -> None:
            super().__init__((2, 2), False)
            self.register_buffer("cache", torch.zeros(1), persistent=False)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            self.cache = torch.ones(3, device=tokens.device)
            found: torch.Tensor = super().forward(tokens) + self.cache.sum()
            return found

    net: Any = WithCache()
    lowtide.override(net.table.weight, lr=0.0, weight_decay=0.0)
    net.head.weight.tag = "mine"
    net, opt = streamed(net, lr=1e-1, step_in_backward=False)
    before = {name: local_of(param).clone() for name, param in net.named_parameters()}
    loss_of(net).backward()
    opt.step()
    same = {name for name, param in net.named_parameters() if torch.equal(local_of(param), before[name])}
    assert same == {"table.weight"} and net.head.weight.tag == "mine"
    lowtide.unstream(net)
    assert net.cache.device.type == "cpu" and net.head.weight.tag == "mine"


def test_a_model_that_goes_ends_the_process_group(xpu: Xpu) -> None:
    for _ in range(2):
        net, opt = streamed(Uneven((2, 2), False), lr=1e-2)
        assert dist.is_initialized()
        del net, opt
        gc.collect()
        assert not dist.is_initialized()


def test_attention_is_clipped_in_weights_of_the_host(xpu: Xpu) -> None:
    net, opt = streamed(Uneven((2, 2), False), lr=0.0, weight_decay=0.0)
    table = net.get_parameter("table.weight")
    clip = lowtide.QKClip(opt, threshold=50.0)
    number, before = clip.watch(table, table, heads=1), local_of(table).clone()
    clip.observe(number, torch.full((1,), 200.0, device="xpu"))
    clip.apply()
    torch.testing.assert_close(local_of(table), before * 0.25)
    lowtide.unstream(net)


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("in_backward", [True, False])
def test_a_pass_that_fails_leaves_nothing(xpu: Xpu, on_disk: bool, in_backward: bool, tmp_path: Path, figure: Figure) -> None:
    """An exception in backward, or in a forward pass of an evaluation: training goes on with the bits of a model on the device."""

    def fails(*_: Any) -> None:
        raise MemoryError("out of memory")

    def run(net: nn.Module, opt: lowtide.Optimizer) -> tuple[list[float], list[bytes]]:
        losses = train(net, opt, 1, device="xpu")
        for hooked in ("register_full_backward_hook", "register_forward_hook"):
            handle = getattr(net.layers[2], hooked)(fails)
            with pytest.raises(MemoryError):
                train(net, opt, 1, first=1, device="xpu")
            handle.remove()
            opt.zero_grad()
            if opt.in_backward:  # as its error says
                opt.step()
            losses += train(net, opt, 2, first=2, device="xpu")
        opt.synchronize()
        xpu.synchronize()
        return losses, values(net)

    options = {"lr": 1e-2, "step_in_backward": False}
    wanted = run(*resident(Net(), **options))
    options["step_in_backward"] = in_backward
    found = run(*(made := streamed(Net(), disk=tmp_path if on_disk else None, **options)))
    lowtide.unstream(made[0])
    # In backward, layers have stepped before it failed, so the bits are others; but weights go on moving.
    assert found == wanted or (in_backward and len({*found[0]}) == len(found[0]))
    figure(f"losses {found[0]}")


def test_making_takes_the_device_memory_of_the_plan(xpu: Xpu, figure: Figure) -> None:
    torch.xpu.reset_peak_memory_stats()
    before = torch.xpu.memory_allocated()
    net, _ = streamed(Net(), lr=1e-2)
    peak = torch.xpu.max_memory_allocated() - before
    planned = lowtide.streaming_report(net)["device_bytes"]
    lowtide.unstream(net)
    assert peak <= 1.1 * planned
    figure(f"peak while it is made {peak}, planned for steps {planned}")


def test_streaming_after_fitting_is_reported(tmp_path: Path) -> None:
    net = Net()
    lowtide.stream(net, {"host": "1GiB"}, lr=1e-2)
    net, _ = lowtide.stream(net, {"host": 2 * planning.STREAMED_STATE + 1_000_000, "disk": tmp_path}, lr=1e-2, step_in_backward=0)
    assert lowtide.streaming_report(net)["weight_bytes"] > 0
    lowtide.unstream(net)
    with pytest.raises(ValueError):
        lowtide.streaming_report(net)
