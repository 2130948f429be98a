"""Lowtide under torch's own CUDA: streams, graphs, hooks and checkpoints, with the bits of the same steps on the CPU. Needs a
GPU (tools/gpu_check.py runs it). LOWTIDE_ON_GPU=cpu runs it without one, as far as that means anything."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

import lowtide
from lowtide.engine import host_steps
from on_gpu import GPU, REHEARSED, differing  # first: it puts bench on the path

from bench.cuda import contenders

SHAPES = ((300, 1024), (4096, 1024), (7,), (1_000_001,))
STREAMING = {"device": "8MiB"}
STEPS = 4
needs_gpu = pytest.mark.skipif(REHEARSED, reason="needs a GPU: a rehearsal has none")


def gradients(step: int) -> list[torch.Tensor]:
    source = torch.Generator().manual_seed(100 + step)
    return [torch.randn(shape, generator=source) for shape in SHAPES]


def made(device: torch.device | str, dtype: torch.dtype = torch.bfloat16) -> list[torch.nn.Parameter]:
    source = torch.Generator().manual_seed(1)
    return [torch.nn.Parameter(torch.randn(s, generator=source).to(device, dtype, copy=True)) for s in SHAPES]


def adamw(params: list[torch.nn.Parameter], **options: Any) -> Any:
    return lowtide.AdamW(params, lr=1e-3, weight_decay=0.1, **options)


def take_steps(params: list[torch.nn.Parameter], optimizer: Any, steps: range) -> None:
    for step in steps:
        for param, grad in zip(params, gradients(step), strict=True):
            param.grad = grad.to(param.device, param.dtype)
        optimizer.step()


def on_cpu(dtype: torch.dtype = torch.bfloat16, steps: range = range(STEPS), **options: Any) -> list[torch.nn.Parameter]:
    params = made("cpu", dtype)
    take_steps(params, adamw(params, **options), steps)
    return params


@pytest.mark.parametrize("streams", [False, True], ids=["resident", "streaming"])
@pytest.mark.parametrize("state", ["dynamic8", "fp32"])
def test_side_streams_have_the_bits_of_the_cpu(state: str, streams: bool, figure: Callable[[str], None]) -> None:
    params = made(GPU.device)
    memory = contenders.budget(GPU, **(STREAMING if streams else {"device": "1GiB"}))
    optimizer = adamw(params, state=state, memory=memory)
    side = GPU.cuda.Stream()
    side.wait_stream(GPU.cuda.current_stream())
    with GPU.cuda.stream(side):
        busy = torch.ones(GPU.size(4096, 64), GPU.size(4096, 64), device=GPU.device)
        for step in range(STEPS):
            for param, grad in zip(params, gradients(step), strict=True):
                for _ in range(GPU.size(4, 1)):
                    busy = busy @ busy * 0  # gradients come late
                param.grad = grad.to(param.device, param.dtype) + busy[0, 0].to(param.dtype)
            optimizer.step()
        after = [param.detach() * 1 for param in params]  # ordered after the step without any wait
    GPU.cuda.current_stream().wait_stream(side)
    assert differing(after, on_cpu(state=state)) == 0
    figure(f"{sum(p.numel() for p in params)} parameters, {STEPS} steps: 0 differing bytes")


@pytest.mark.parametrize("way", ["host", "split", "disk", "disk to device"])
def test_state_in_all_tiers_has_the_bits_of_the_cpu(way: str, tmp_path: Path, figure: Callable[[str], None]) -> None:
    budgets: dict[str, dict[str, Any]] = {
        "host": {"step": "host"},
        "split": {"device": "4MiB", "host": "64MiB", "step": "auto"},
        "disk": {"device": "2MiB", "host": "6MiB", "disk": tmp_path},
        "disk to device": {"device": "1MiB", "host": "1MiB", "disk": tmp_path, "step": "device"},
    }
    params = made(GPU.device)
    optimizer = adamw(params, memory=lowtide.Memory(**budgets[way]))
    take_steps(params, optimizer, range(STEPS))
    report = optimizer.report()
    assert differing(params, on_cpu()) == 0
    by_host = sum(param.place.mirrored for param in optimizer.engine.params)
    assert REHEARSED or ((by_host > 0) == (way != "disk to device") and (way == "host") == (by_host == len(params)))
    assert not way.startswith("disk") or report["disk_bytes"] > 0
    where = {name: report[name] for name in ("device_bytes", "allocated_bytes", "disk_bytes")}
    link = "" if REHEARSED else f"; link {host_steps.link_rate(params[0].device) / 1e9:.1f} GB/s"
    figure(f"{by_host} of {len(params)} parameters stepped by the CPU, state {where}: 0 differing bytes{link}")


def test_parameters_on_several_devices_have_the_bits_of_the_cpu(tmp_path: Path, figure: Callable[[str], None]) -> None:
    """The CPU and every GPU in one optimizer. Its file continues on the CPU alone."""
    places = [torch.device("cpu"), GPU.device, *(torch.device("cuda", i) for i in range(1, torch.cuda.device_count()))]
    params = [torch.nn.Parameter(p.detach().to(places[i % len(places)])) for i, p in enumerate(made("cpu"))]
    optimizer = adamw(params)
    take_steps(params, optimizer, range(STEPS - 1))
    optimizer.save(tmp_path / "file")
    alone = [torch.nn.Parameter(param.detach().cpu().clone()) for param in params]
    loaded = adamw(alone)
    loaded.load(tmp_path / "file")
    take_steps(params, optimizer, range(STEPS - 1, STEPS))
    take_steps(alone, loaded, range(STEPS - 1, STEPS))
    assert differing(params, on_cpu()) == 0 and differing(alone, on_cpu()) == 0
    figure(f"{len(params)} parameters on {len(places)} devices, {STEPS} steps: 0 differing bytes")


@needs_gpu
@pytest.mark.parametrize("module", ["cuda", "accelerator"])
def test_a_replayed_graph_has_the_bits_of_the_cpu(module: str, figure: Callable[[str], None]) -> None:
    if module == "accelerator" and not hasattr(torch.accelerator, "Graph"):
        pytest.skip("torch.accelerator has graphs since torch 2.15")
    params = made(GPU.device)
    optimizer = adamw(params, memory=lowtide.Memory(device="1GiB"))
    take_steps(params, optimizer, range(1))
    graph: Any = torch.cuda.CUDAGraph() if module == "cuda" else torch.accelerator.Graph()
    torch.cuda.synchronize()
    with ExitStack() as capture:
        for each in (torch.cuda.graph(graph),) if module == "cuda" else (torch.Stream(), graph):
            capture.enter_context(each)
        optimizer.step()
    for step in range(1, STEPS):
        for param, grad in zip(params, gradients(step), strict=True):
            param.grad.copy_(grad)
        optimizer.prepare_replay()
        graph.replay()
    assert differing(params, on_cpu()) == 0
    figure(f"{STEPS - 1} replays: 0 differing bytes")


@needs_gpu
@pytest.mark.parametrize("inside", [False, True], ids=["unscaled", "max_grad_norm"])
def test_a_graph_with_a_scaler_and_clipping_has_the_bits_of_steps(inside: bool, figure: Callable[[str], None]) -> None:
    """Backward, torch's GradScaler, clipping and the step in one graph, whose replays meet an infinity."""
    results = []
    for captured in (False, True):
        torch.manual_seed(7)
        model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(3)]).to(GPU.device)
        optimizer = lowtide.AdamW(
            model.parameters(), lr=1e-3, amp_scaling=True, max_grad_norm=0.1 if inside else None, memory=lowtide.Memory(device="1GiB")
        )
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10, growth_interval=2)
        x = torch.zeros(32, 512, device=GPU.device)

        def train(model: Any = model, optimizer: Any = optimizer, scaler: Any = scaler, x: torch.Tensor = x) -> None:
            optimizer.zero_grad(set_to_none=False)
            scaler.scale(model(x).square().mean()).backward()
            if not inside:
                scaler.unscale_(optimizer)
                optimizer.clip_grad_norm_(0.1)
            scaler.step(optimizer)
            scaler.update()

        def feed(step: int, x: torch.Tensor = x) -> None:
            x.copy_(torch.randn(32, 512, generator=torch.Generator().manual_seed(step)))
            if step == 3:
                x[0, 0] = float("inf")

        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            feed(0)
            train()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        if captured:
            with torch.cuda.graph(graph):
                train()
        for step in range(1, 7):
            feed(step)
            if captured:
                optimizer.prepare_replay()
                graph.replay()
            else:
                train()
        assert optimizer.skipped_steps == 1
        results.append([param.detach() for param in model.parameters()])
    assert differing(*results) == 0
    figure(f"{'max_grad_norm' if inside else 'unscale_ and clip_grad_norm_'}: 6 replays, one with an infinity: 0 differing bytes")


@pytest.mark.parametrize("option", ["step_in_backward", "prefetch_in_backward", "offload_in_backward"])
def test_backward_options_change_no_bit(option: str, figure: Callable[[str], None]) -> None:
    results = []
    for options in ({}, {option: True}):
        torch.manual_seed(5)
        model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024, bias=False) for _ in range(6)]).to(GPU.device)
        memory = lowtide.Memory(step="host") if option.startswith("offload") else contenders.budget(GPU, device="2MiB")
        try:
            optimizer = lowtide.AdamW(model.parameters(), lr=1e-3, memory=memory, **options)
        except (TypeError, ValueError) as error:
            if not REHEARSED:
                raise
            pytest.skip(f"not on the CPU: {error}")
        x = torch.randn(32, 1024, generator=torch.Generator().manual_seed(6)).to(GPU.device)
        for _ in range(STEPS):
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append([param.detach() for param in model.parameters()])
    assert differing(*results) == 0
    figure(f"{option}: 0 differing bytes")


@pytest.mark.parametrize("streams", [False, True], ids=["resident", "streaming"])
def test_a_checkpoint_goes_on_on_the_cpu(streams: bool, tmp_path: Path) -> None:
    params = made(GPU.device)
    optimizer = adamw(params, memory=contenders.budget(GPU, **(STREAMING if streams else {"device": "1GiB"})))
    take_steps(params, optimizer, range(2))
    optimizer.save(tmp_path / "state.lowtide")
    there = [torch.nn.Parameter(param.detach().cpu().clone()) for param in params]
    again = adamw(there)
    again.load(tmp_path / "state.lowtide")
    take_steps(there, again, range(2, STEPS))
    wanted = on_cpu()
    assert differing(there, wanted) == 0
    take_steps(params, optimizer, range(2, STEPS))
    assert differing(params, wanted) == 0


@needs_gpu
def test_state_that_was_put_aside_comes_back() -> None:
    params = made(GPU.device)
    optimizer = adamw(params, memory=lowtide.Memory(device="1GiB"))
    take_steps(params, optimizer, range(2))
    before = optimizer.report()["device_bytes"]
    optimizer.offload()
    assert optimizer.report()["device_bytes"] < before
    take_steps(params, optimizer, range(2, STEPS))
    assert differing(params, on_cpu()) == 0


def test_a_bad_gradient_changes_nothing() -> None:
    params = made(GPU.device)
    optimizer = adamw(params)
    take_steps(params, optimizer, range(2))
    before = [param.detach().clone() for param in params]
    params[1].grad[17, 3] = float("nan")
    optimizer.step()
    assert differing(params, before) == 0
    assert optimizer.skipped_steps == 1
    take_steps(params, optimizer, range(2, STEPS))
    assert differing(params, on_cpu()) == 0


@needs_gpu
def test_the_scaler_of_torch_works_as_with_its_own_optimizers() -> None:
    model = torch.nn.Linear(512, 512, device=GPU.device)
    optimizer = lowtide.AdamW(model.parameters(), lr=1e-3, amp_scaling=True)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**40)
    before = model.weight.detach().clone()
    for _ in range(40):
        with torch.autocast("cuda", torch.float16):
            loss = model(torch.randn(64, 512, device=GPU.device)).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert scaler.get_scale() < 2.0**40
    assert bool(torch.isfinite(model.weight).all())
    assert not torch.equal(model.weight, before)


@needs_gpu
@pytest.mark.skipif(REHEARSED or torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_device_of_the_parameters_counts_and_not_the_current_one() -> None:
    params = made("cuda:1")
    with torch.cuda.device(0):
        take_steps(params, adamw(params), range(STEPS))
    assert differing(params, on_cpu()) == 0
