"""Parameters on an accelerator without Lowtide kernels (docs/gpu.md): torch's xpu of xpu_device.py, whose kernels are hidden
from Lowtide. It computes with torch's CPU kernels, so that gradients there have the bits of the CPU. Copies that are late or fail:
test_host_steps.py."""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lowtide
import lowtide.distributed
import movers
import pytest
import torch
from lowtide.devices import places
from support import CODECS, DTYPES, RULES, bits, parameter, random_gradients
from twins import Count, Twins
from xpu_device import Xpu

Figure = Callable[[str], None]
SHAPES = ((33, 300), (5000,), (7,), ())


@pytest.fixture
def accelerator(xpu: Xpu, monkeypatch: pytest.MonkeyPatch) -> Xpu:
    monkeypatch.delitem(places.KINDS, "xpu")
    return xpu


def on_disk(folder: Path) -> lowtide.Memory:
    return lowtide.Memory(host="256KiB", disk=folder, chunk="16KiB")


def test_every_rule(accelerator: Xpu, in_share: Callable[[int, int, int], bool], tmp_path: Path, seed: int, figure: Figure) -> None:
    cells = compared = 0
    columns = [*itertools.product(CODECS, DTYPES, (None, on_disk(tmp_path)))]
    for row, rule in enumerate(RULES):
        for column, (state, dtype, memory) in enumerate(columns):
            if not in_share(row, column, len(columns)):
                continue
            master = {"master": "residual16"} if dtype == torch.bfloat16 and rule == "adamw" else {}
            twins = Twins(accelerator, SHAPES, rule, dtypes=[dtype], lr=1e-2, state=state, memory=memory, **master)
            twins.step()
            twins.compare_state()
            cells, compared = cells + 1, compared + twins.compared
    figure(f"{cells} cells of rule, format, dtype and budget: {compared} bytes alike")


def train(device: str, steps: int, way: str, folder: Path, cut: int = -1) -> list[bytes]:
    """Trains with clipping, a schedule and two micro-batches per step. After step `cut`, continues with the optimizer from a
    file and then from a dict."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 256), torch.nn.Tanh(), torch.nn.Linear(256, 16)).to(device)
    options: dict[str, Any] = {"max_grad_norm": 0.1} if way == "option" else {"amp_scaling": way == "scaler"}
    if way == "backward":
        options = {"step_in_backward": True}
    if way.startswith("offload") and device != "cpu":
        options = {"offload_in_backward": True}
    if way == "offload, option":
        options["max_grad_norm"] = 0.1

    def optimizer() -> lowtide.AdamW:
        return lowtide.AdamW(model.parameters(), lr=1e-2, memory=on_disk(folder), **options)

    opt = optimizer()
    schedule = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**20) if way == "scaler" else None
    data = torch.Generator().manual_seed(1)
    for step in range(steps):
        for _ in range(1 if way == "backward" else 2):
            loss = model(torch.randn(8, 32, generator=data).to(device)).square().mean()
            (scaler.scale(loss) if scaler else loss).backward()
        if "offload" in way:
            assert all((param.grad is None) == (device != "cpu") for param in model.parameters()), "gradients left the device"
        if way in ("call", "offload"):
            opt.clip_grad_norm_(0.1)
        scaler.step(opt) if scaler else opt.step()
        if scaler:
            scaler.update()
        schedule.step()
        opt.zero_grad()
        if step == cut:
            opt.save(folder / "state.lt")
            opt = optimizer()
            opt.load(folder / "state.lt")
            saved = copy.deepcopy(opt.state_dict())
            opt = optimizer()
            opt.load_state_dict(saved)
            last = schedule.state_dict()
            schedule = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)
            schedule.load_state_dict(last)
    opt.synchronize()
    return [bits(param) for param in model.parameters()]


@pytest.mark.parametrize("way", ["call", "option", "scaler", "backward", "offload", "offload, option", "resumed", "no streams"])
def test_training(accelerator: Xpu, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "no streams":
        monkeypatch.delattr(torch.xpu, "current_stream")
    known = way not in ("resumed", "no streams")
    wanted = train("cpu", 6, way if known else "call", tmp_path)
    assert train("xpu", 6, way if known else "call", tmp_path, cut=2 if way == "resumed" else -1) == wanted


def test_traffic(accelerator: Xpu, seed: int, figure: Figure) -> None:
    """A step brings gradients and weights to the host, only once even if the norm was read before, and weights back. State
    never moves."""
    twins = Twins(accelerator, SHAPES, dtypes=[torch.bfloat16], lr=1e-2)
    elements = sum(param.numel() for param in twins.there)
    twins.gradients()
    start = accelerator.copied()
    twins.second.clip_grad_norm_(1.0)
    norm = accelerator.copied()[1] - start[1]
    twins.second.step()
    down, up = (now - then for now, then in zip(accelerator.copied(), start, strict=True))
    assert (down, up - norm, norm) == (4 * elements, 2 * elements, 8), (down, up, norm, elements)
    figure(f"{down / elements} bytes a bf16 parameter to the host, {(up - norm) / elements} back")


def test_refused(accelerator: Xpu) -> None:
    there = accelerator.parameters([torch.randn(shape) for shape in SHAPES])
    for options, words in (
        ({"memory": lowtide.Memory(device="1MiB")}, "device='1MiB'.*host=BYTES"),
        ({"memory": lowtide.Memory(managed=True)}, "managed"),
        ({"offload_in_backward": True, "amp_scaling": True}, "offload_in_backward.*GradScaler"),
        ({"offload_in_backward": True, "step_in_backward": True}, "step_in_backward and offload_in_backward"),
        ({"arithmetic": "fast"}, "arithmetic: got 'fast'"),
    ):
        with pytest.raises(ValueError, match=words):
            lowtide.AdamW(there, **options)  # type: ignore[arg-type]
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(NotImplementedError, match="got parameters on xpu:0"):
            lowtide.distributed.DistributedLion(there, lr=1e-2)
    finally:
        torch.distributed.destroy_process_group()
    lowtide.AdamW(there, memory=lowtide.Memory(device=0, host="1MiB"))


@pytest.mark.parametrize("master", ["auto", "residual16"])
def test_matrices_of_muon(accelerator: Xpu, master: str, seed: int, figure: Figure) -> None:
    """The CPU steps matrices, and the device orthogonalizes them."""
    shapes = [(64, 96), (40, 300), (9,)]  # bits of products follow strides, which those of a tall matrix lose on the way
    dtypes = [torch.bfloat16, torch.float32]
    twins = Twins(accelerator, shapes, lowtide.Muon, dtypes=dtypes, lr=1e-2, master=master, row_beta2=0.9)
    twins.step()
    twins.compare_state()
    figure(f"{master}: {twins.compared} bytes alike, 0 differ")


@pytest.mark.parametrize("nonfinite", ["skip", "raise"])
def test_gradients_that_are_not_finite(accelerator: Xpu, nonfinite: str, seed: int) -> None:
    twins = Twins(accelerator, SHAPES, nonfinite=nonfinite)
    twins.gradients()
    twins.there[0].grad[0, 0] = float("nan")  # type: ignore[index]
    before = twins.weights()
    words = pytest.raises(ValueError, match="NaN.*nothing was changed")
    with words if nonfinite == "raise" else contextlib.nullcontext():
        twins.second.step()
    assert twins.weights() == before and (nonfinite == "raise" or twins.second.skipped_steps == 1)


def test_parameters_here_and_there(accelerator: Xpu, seed: int) -> None:
    """Also a frozen parameter. Users change weights in place, even where torch's version counters miss it."""
    here = [parameter(*shape) for shape in (*SHAPES[:2], (64, 64))]
    here[2].requires_grad_(False)
    there = [copy.deepcopy(here[0]), *accelerator.parameters(here[1:])]
    there[2].requires_grad_(False)
    opts = [lowtide.AdamW(params, lr=1e-2) for params in (here, there)]
    for _ in range(3):
        random_gradients(here[:2])
        for one, other in zip(here[:2], there[:2], strict=True):
            assert one.grad is not None
            other.grad = one.grad.to(other.device)
            one.data.mul_(0.5)
            other.data.mul_(0.5)
        for opt in opts:
            opt.step()
    Count().compare(here, there)


@pytest.mark.parametrize("disk", [False, True], ids=["memory", "disk"])
@pytest.mark.parametrize("project", sorted(movers.MOVERS.keys() - movers.BY_CUDA - {"deepspeed_adam"}))
def test_hand_over_loops(project: str, disk: bool, accelerator: Xpu, tmp_path: Path, seed: int, figure: Figure) -> None:
    """Other projects' loops take the state to the device, where it has no place, so copies there are dropped at once.
    (deepspeed_adam needs torch's tensor of a device's host memory.)"""
    memory = on_disk(tmp_path) if disk else None
    figure(movers.hand_over(accelerator, movers.MOVERS[project](), memory, state=movers.state_of(project)))


def test_assigned_copies_on_the_device_are_dropped(accelerator: Xpu, seed: int) -> None:
    twins = Twins(accelerator, SHAPES, lr=1e-2)
    twins.step()
    entry = twins.second.state[twins.there[0]]
    for name, value in entry.items():
        entry[name] = value.to("xpu")
        assert entry[name] is value and value.device.type == "cpu"
    twins.step()
    twins.compare_state()
