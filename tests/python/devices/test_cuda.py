"""Parameters on CUDA: memory from torch's cache, paths, automatic residency, work inside backward, graphs. On the emulated
runtime (emulated_cuda.py); skipped without it. test_device_steps.py tests what all devices share."""

from __future__ import annotations

import ctypes
import gc
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lowtide
import pytest
import torch
from emulated_cuda import EmulatedCuda
from lowtide.optimizers import backward
from lowtide.report.fields import Report
from support import bits, parameter, random_gradients
from twins import Twins

Figure = Callable[[str], None]
SHAPES = ((64, 300), (70, 100), (9,))
AUTO = lowtide.Memory(device="auto", chunk=4096, transfer="copy")
STREAMING = lowtide.Memory(device="20KiB", chunk=4096, transfer="copy")
ROOMY = EmulatedCuda.roomy


def pair(
    cuda: EmulatedCuda, memory: lowtide.Memory | None, rule: Any = lowtide.AdamW, **options: Any
) -> tuple[Twins, Any, Any]:
    """Equal parameters here and there, with an optimizer each."""
    twins = Twins(cuda, SHAPES, rule, memory=memory, **options)
    return twins, twins.first, twins.second


def test_device_memory_is_torchs(cuda: EmulatedCuda, seed: int, figure: Figure) -> None:
    twins, first, second = pair(cuda, ROOMY)
    twins.step()
    held = sum(size for size, _ in cuda.cached.values())
    assert held == second.report()["device_bytes"] > 0
    second.offload()
    assert not cuda.cached, "offloaded state leaves torch's cache"
    twins.step()
    twins.compare_state()
    assert cuda.cached
    del second, twins.second
    gc.collect()
    assert not cuda.cached, "the memory goes with the optimizer"
    figure(f"{held} bytes of torch's; {twins.compared} bytes alike")


def test_torch_has_no_memory(cuda: EmulatedCuda, seed: int, figure: Figure) -> None:
    cuda.cache_limit = 4096
    twins, first, second = pair(cuda, ROOMY)
    twins.gradients()
    before = twins.weights()
    with pytest.raises(MemoryError):
        second.step()
    cuda.synchronize()
    assert twins.weights() == before and not cuda.cached
    cuda.cache_limit = 1 << 30
    twins.step()
    figure("an OOM of torch is a MemoryError that changed nothing; the step after it is taken")


@pytest.mark.parametrize("transfer", ["copy", "zero_copy", "hybrid", None])
def test_transfer_modes(
    cuda: EmulatedCuda, monkeypatch: pytest.MonkeyPatch, transfer: str | None, seed: int, tmp_path: Path, figure: Figure
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    twins, first, second = pair(cuda, lowtide.Memory(device="20KiB", chunk=4096, transfer=transfer))
    twins.step()
    twins.compare_state()
    report = second.report()
    assert report["moved_per_step"] > 0
    assert report["transfer"] == transfer or (transfer is None and report["transfer"] in ("copy", "zero_copy", "hybrid"))
    figure(f"{report['transfer']}: {twins.compared} bytes alike, {report['moved_per_step']} moved a step")


def test_automatic_residency(cuda: EmulatedCuda, seed: int, figure: Figure, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lowtide")
    twins, first, second = pair(cuda, AUTO)
    first._init_group({})
    second.load_state_dict(first.state_dict())
    twins.step(1)
    report = second.report()
    assert report["promotions"] == 0 and report["moved_per_step"] > 0, "what is loaded before a step begins on the host"
    twins.step(6)
    there = second.report()
    assert there["promotions"] > 0 and there["moved_per_step"] == 0, "and then there is room"
    freed = second.demote()
    away = second.report()
    assert freed > 0 and away["device_bytes"] <= there["device_bytes"] - freed and away["demotions"] > 0
    twins.step(2)
    twins.compare_state()
    told = [record.getMessage() for record in caplog.records if "was moved to the device" in record.getMessage()]
    assert len(told) >= 2
    figure(f"{there['promotions']} promotions, {freed} bytes demoted, {twins.compared} bytes alike; {told}")


def test_new_state_begins_where_there_is_room(cuda: EmulatedCuda, seed: int, figure: Figure) -> None:
    twins, first, second = pair(cuda, AUTO)
    twins.step()
    report = second.report()
    assert report["allocated_bytes"] == report["moved_per_step"] == report["promotions"] == 0 < report["device_bytes"]
    cuda.activations = cuda.limits()[0]  # gone when the optimizer asks, and back in the next step
    twins, first, second = pair(cuda, AUTO)
    twins.step(30)
    full = second.report()
    assert full["allocated_bytes"] > 0 and full["moved_per_step"] > 0 and full["promotions"] == 0
    figure(f"with room: {report['device_bytes']} bytes on the device, 0 pinned; without: {full['allocated_bytes']} pinned")


def test_reports(cuda: EmulatedCuda, seed: int, figure: Figure) -> None:
    """report() gives the device memory that torch's cache gave, whatever has moved."""
    twins, first, second = pair(cuda, STREAMING)
    seen: list[int] = []

    def look() -> Report:
        report = second.report()
        assert report["device_bytes"] == sum(size for size, _ in cuda.cached.values())
        seen.append(report["device_bytes"])
        return report

    twins.step(2)
    look()
    taken = second.prefetch("64KiB")
    assert taken > 0 and look()["device_bytes"] == seen[0] + taken
    twins.step(1)
    look()
    second.synchronize()  # what has been read ahead is given back when what the step queued has happened,
    twins.step(1)  # by the next call that looks
    assert look()["device_bytes"] == seen[0]
    second.prefetch("64KiB")
    freed = second.demote()
    look()
    second.synchronize()
    twins.step(2)
    assert look()["steps"] == first.report()["steps"] == 6 and seen[-1] <= seen[0]
    twins.compare_state()
    figure(f"{seen} bytes on the device after steps, prefetch (of {taken}) and demote (of {freed})")


def test_the_guard_makes_room(cuda: EmulatedCuda, seed: int, figure: Figure) -> None:
    twins, first, second = pair(cuda, lowtide.Memory(device="50%", chunk=4096))
    twins.step()
    before = second.report()["device_bytes"]
    calls: list[int] = []

    def micro_batch() -> str:
        calls.append(sum(size for size, _ in cuda.cached.values()))
        if calls[-1] > before // 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return "done"

    assert second.oom_guard()(micro_batch)() == "done"
    assert len(calls) == 2 and cuda.emptied == 1
    twins.step()
    twins.compare_state()
    figure(f"{calls[0]} bytes of state before, {calls[1]} when called again; {twins.compared} bytes alike")


def losses(params: Sequence[torch.Tensor], weight: float) -> torch.Tensor:
    total: torch.Tensor = sum(((param * weight) ** 2).sum() for param in params)  # type: ignore[assignment]
    return total


@pytest.mark.parametrize("option", ["step_in_backward", "prefetch_in_backward"])
@pytest.mark.parametrize("memory", [ROOMY, STREAMING], ids=["roomy", "streaming"])
def test_work_inside_backward(
    cuda: EmulatedCuda, monkeypatch: pytest.MonkeyPatch, option: str, memory: lowtide.Memory, seed: int, figure: Figure
) -> None:
    monkeypatch.setattr(backward, "_ASK_AFTER", 0)
    torch.set_num_threads(1)
    twins, first, second = pair(cuda, memory, **{option: 0 if option == "step_in_backward" else "1MiB"})
    ahead = borrowed = 0
    for i in range(4):
        for params in (twins.here, twins.there):
            for param in params:  # autograd adds to what is there, which is where the device can read it
                param.grad = torch.zeros_like(param) if params is twins.here else cuda.tensor(torch.zeros_like(param))
            losses(params, 1.0 + i).backward()
        if option == "step_in_backward":
            assert sum(param.grad is not None for param in twins.there) == (i == 0), "but for the one that tells of clipping"
        else:
            held = sum(size for size, _ in cuda.cached.values())
            ahead = max(ahead, held - second.report()["device_bytes"])
            borrowed += cuda.recorded
        twins.take()
    twins.compare_state()
    assert (borrowed > 0) == (memory is STREAMING and option == "prefetch_in_backward"), "transfers still used them"
    figure(f"4 steps; {twins.compared} bytes of state alike; {borrowed} blocks given back while transfers used them")


def test_verdicts_come_later(cuda: EmulatedCuda, figure: Figure) -> None:
    for nonfinite in ("skip", "raise"):
        (there,) = cuda.parameters([parameter(64, 128)])
        opt = lowtide.AdamW([there], nonfinite=nonfinite, memory=ROOMY)
        there.grad = cuda.tensor(torch.full((64, 128), float("nan")))
        before = bits(there)
        opt.step()  # waits for nothing
        there.grad = cuda.tensor(torch.ones(64, 128))
        if nonfinite == "raise":
            with pytest.raises(ValueError, match="holds a NaN"):
                opt.step()
            cuda.synchronize()
            assert bits(there) == before
            opt.step()
        else:
            opt.step()
            assert opt.skipped_steps == 1
        cuda.synchronize()
        report = opt.report()
        assert bits(there) != before and report["steps"] == 1 and int(opt.state[there]["step"]) == 1
    figure("a skipped step is uncounted, and raised, by the next")


class Graph:
    """A captured step: does what torch.cuda.graph() does, on the emulated runtime."""

    def __init__(self, cuda: EmulatedCuda, step: Callable[[], object]) -> None:
        self._cuda = cuda
        self._stream, self._graph, self._ready = ctypes.c_void_p(cuda.queues[0]), ctypes.c_void_p(), ctypes.c_void_p()
        cuda.call("cudaStreamBeginCapture", self._stream, 2)
        cuda.capturing = True
        step()
        cuda.capturing = False
        cuda.call("cudaStreamEndCapture", self._stream, ctypes.byref(self._graph))
        cuda.call("cudaGraphInstantiate", ctypes.byref(self._ready), self._graph, ctypes.c_uint64(0))
        cuda.synchronize()

    def replay(self) -> None:
        self._cuda.call("cudaGraphLaunch", self._ready, self._stream)
        self._cuda.synchronize()

    def close(self) -> None:
        self._cuda.call("cudaGraphExecDestroy", self._ready)
        self._cuda.call("cudaGraphDestroy", self._graph)


@pytest.mark.parametrize(("rule", "options"), [("Prodigy", {"d0": 1e-3}), ("Muon", {"use_muon": False})])
def test_graphs_refuse_rules_that_the_host_steps(cuda: EmulatedCuda, rule: str, options: dict[str, Any]) -> None:
    twins, _, second = pair(cuda, ROOMY, getattr(lowtide, rule), **options)
    twins.step(2)

    def refused() -> None:
        with pytest.raises(ValueError, match=f"got {rule} while a graph is captured"):
            second.step()

    Graph(cuda, refused).close()
    twins.step(2)
    twins.compare_state()


@pytest.mark.parametrize(
    ("rule", "nonfinite"),
    [("AdamW", "skip"), ("AdamW", "raise"), ("AdamW", "propagate"), ("LAMB", "skip"), ("LARS", "propagate")],
)
def test_graphs(cuda: EmulatedCuda, rule: str, nonfinite: str, seed: int, figure: Figure) -> None:
    twins, first, second = pair(cuda, ROOMY, getattr(lowtide, rule), nonfinite=nonfinite)
    twins.step(1)
    with pytest.raises(ValueError):
        second.prepare_replay()
    graph = Graph(cuda, second.step)

    def replays(count: int) -> None:
        for i in range(count):
            twins.gradients()
            for opt in (first, second):
                opt.param_groups[0]["lr"] = 0.01 / (i + 1)
            first.step()
            second.prepare_replay()
            graph.replay()
            twins.compare_weights()

    replays(3)
    before = twins.weights()
    if nonfinite != "propagate":
        gradient = twins.there[1].grad
        assert gradient is not None
        gradient[3, 5] = float("nan")
        second.prepare_replay()
        graph.replay()
        assert twins.weights() == before, "a replay of gradients that are not finite"
        if nonfinite == "raise":
            with pytest.raises(ValueError, match="parameter 1 holds a NaN"):
                second.prepare_replay()
        assert second.skipped_steps == (nonfinite == "skip")
        replays(1)
    twins.compare_state()
    assert second.report()["steps"] == first.report()["steps"]
    before = twins.weights()
    graph.replay()
    assert twins.weights() == before, "a replay that was not prepared"
    with pytest.raises(ValueError):
        second.step()
    graph.close()
    figure(f"{rule}, {nonfinite}: replays with their own lr, {twins.compared} bytes alike")


@pytest.mark.parametrize(("rule", "nonfinite"), [("AdamW", "skip"), ("LAMB", "skip"), ("AdamW", "propagate")])
@pytest.mark.parametrize("inside", [False, True])
def test_graphs_clip(cuda: EmulatedCuda, rule: str, nonfinite: str, inside: bool, seed: int, figure: Figure) -> None:
    """Each replay clips by its own norm. inside: step() clips."""
    limit = 0.5 if inside else None
    twins, first, second = pair(cuda, ROOMY, getattr(lowtide, rule), nonfinite=nonfinite, max_grad_norm=limit)
    norms: list[torch.Tensor] = []

    def clipped(opt: Any) -> torch.Tensor:
        if not inside:
            opt.clip_grad_norm_(0.5)
        opt.step()
        return opt.last_grad_norm

    twins.gradients()
    clipped(first), clipped(second)
    graph = Graph(cuda, lambda: norms.append(clipped(second)))
    for scale in (1.0, 1e-4, 30.0):  # the second clips nothing
        random_gradients(twins.here)
        for param in twins.here:
            param.grad.mul_(scale)
        twins.give()
        found = clipped(first)
        second.prepare_replay()
        graph.replay()
        assert bits(norms[0]) == bits(found)
        twins.compare_weights()
    if nonfinite == "skip":
        before = twins.weights()
        twins.there[0].grad[0, 0] = float("inf")
        second.prepare_replay()
        graph.replay()
        assert twins.weights() == before and second.skipped_steps == 1
    if not inside:
        second.clip_grad_norm_(1.0)
        with pytest.raises(ValueError, match="prepare_replay: got clip_grad_norm_ outside of the graph"):
            second.prepare_replay()
    twins.compare_state()
    graph.close()
    figure(f"{rule}, {nonfinite}: replays clip by their own norms, {twins.compared} bytes alike")


@pytest.mark.parametrize("clip", ["no", "asked", "inside"])
@pytest.mark.parametrize(("rule", "nonfinite"), [("AdamW", "raise"), ("LAMB", "skip"), ("AdamW", "propagate")])
def test_graphs_scale(cuda: EmulatedCuda, rule: str, nonfinite: str, clip: str, seed: int, figure: Figure) -> None:
    """Each replay divides by the current loss scale, and does nothing if an infinity was found. The test plays GradScaler's
    part, which computes on the device. clip: of raw gradients, or max_grad_norm's, of divided ones."""
    twins, first, second = pair(
        cuda, ROOMY, getattr(lowtide, rule), nonfinite=nonfinite, amp_scaling=True, max_grad_norm=0.5 if clip == "inside" else None
    )
    scale, found = cuda.tensor(torch.tensor(8.0)), cuda.tensor(torch.tensor(0.0))

    def step(opt: Any, grad_scale: torch.Tensor, found_inf: torch.Tensor) -> None:
        opt.grad_scale, opt.found_inf = grad_scale, found_inf
        if clip == "asked":
            opt.clip_grad_norm_(3.0)
        opt.step()
        del opt.grad_scale, opt.found_inf

    def gradients() -> None:
        random_gradients(twins.here)
        for param in twins.here:
            param.grad.mul_(float(scale))
        twins.give()

    gradients()
    step(first, scale.clone(), found.clone()), step(second, scale, found)
    graph = Graph(cuda, lambda: step(second, scale, found))
    skipped = 0
    for factor, infinity in ((8.0, 0.0), (4.0, 1.0), (3.0, 0.0), (1e-3, 0.0), (2.0**16, 2.0), (65536.0, 0.0)):
        for word, value in ((scale, factor), (found, infinity)):
            word.copy_(torch.tensor(value))
        gradients()
        before = twins.weights()
        step(first, scale.clone(), found.clone())
        second.prepare_replay()
        graph.replay()
        after = twins.weights()
        assert (after == before) == (infinity > 0), factor
        twins.compare_weights()
        skipped += infinity > 0
    assert first.skipped_steps == second.skipped_steps == skipped
    twins.compare_state()
    assert first.report()["steps"] == second.report()["steps"]
    graph.close()
    figure(f"{rule}, {nonfinite}, clip {clip}: 6 replays by their own loss scale, {skipped} skipped, {twins.compared} bytes alike")


def test_loss_scaling_in_a_graph_refuses_words_elsewhere(cuda: EmulatedCuda, seed: int) -> None:
    twins, first, second = pair(cuda, ROOMY, amp_scaling=True)
    twins.step(1)
    for scale, found in ((None, torch.tensor(0.0)), (torch.tensor(2.0), cuda.tensor(torch.tensor(0.0)))):
        second.grad_scale, second.found_inf = scale, found
        cuda.capturing = True
        with pytest.raises(ValueError, match=r"got tensor\(.*, wanted a float32 on cuda:0 while a graph is captured"):
            second.step()
        cuda.capturing = False
    del second.grad_scale, second.found_inf
    words = cuda.tensor(torch.ones(2))
    for core, queue in ((first.engine.core, 0), (second.engine.core, second.engine.queue())):
        with pytest.raises(ValueError, match="got loss scaling on the device for a step that is not recorded"):
            core.step(1.0, True, queue, loss_scale=words.data_ptr(), found_inf=words.data_ptr() + 4)
    core, queue = second.engine.core, second.engine.queue()

    def without_infinities() -> None:
        with pytest.raises(ValueError, match="got a loss scale without found_inf"):
            core.step(1.0, True, queue, loss_scale=words.data_ptr())
        second.step()

    Graph(cuda, without_infinities).close()


def test_a_learning_rate_on_the_device(cuda: EmulatedCuda, seed: int, figure: Figure) -> None:
    twins, first, second = pair(cuda, ROOMY)
    second.param_groups[0]["lr"] = rate = cuda.tensor(torch.tensor([0.01]))
    first.param_groups[0]["lr"] = float(rate)
    twins.step()
    cuda.capturing = True
    with pytest.raises(ValueError, match="group 0: got lr as a tensor on cuda:0 while a graph"):
        second.step()
    cuda.capturing = False
    second.param_groups[0]["lr"] = rate.to("cpu", copy=True)
    graph = Graph(cuda, second.step)
    twins.gradients()
    first.step()
    second.prepare_replay()
    graph.replay()
    twins.compare_state()
    graph.close()
    twins.compare_weights()
    figure(f"read by steps ({twins.compared} bytes alike), refused in a capture, where one on the CPU does")


def test_streams(cuda: EmulatedCuda, seed: int, figure: Figure) -> None:
    cuda.legacy = True
    twins, first, second = pair(cuda, ROOMY)
    twins.step()
    twins.compare_state()
    cuda.legacy = False
    twins.step()
    before = twins.weights()
    twins.gradients()
    cuda.queues.reverse()
    with pytest.raises(ValueError, match="device"):
        second.step()
    cuda.queues.reverse()
    cuda.synchronize()
    assert twins.weights() == before
    figure(f"{twins.compared} bytes alike on the legacy default stream and another; one of another device is refused")


def test_parameters_that_move(cuda: EmulatedCuda, seed: int, figure: Figure) -> None:
    twins, first, second = pair(cuda, STREAMING)
    twins.step()
    for param in twins.there:
        param.data = cuda.tensor(param)
    twins.step()
    twins.compare_state()
    before = bits(twins.there[0])
    twins.there[0].data = twins.there[0].detach().clone()  # to the host, as torch sees it
    with pytest.raises(ValueError, match="parameter 0|param"):
        second.step()
    cuda.synchronize()
    assert bits(twins.there[0]) == before
    figure(f"{twins.compared} bytes alike; one that went to the host is refused")


def test_fast_arithmetic(cuda: EmulatedCuda, seed: int, figure: Figure) -> None:
    twins, first, _ = pair(cuda, None)
    second = lowtide.AdamW(twins.there, memory=ROOMY, arithmetic="fast")
    worst = 0.0
    for _ in range(3):
        twins.gradients()
        first.step()
        second.step()
        cuda.synchronize()
        for one, other in zip(twins.here, twins.there, strict=True):
            worst = max(worst, float((one.detach() - other.detach()).abs().max()))
    assert worst < 1e-4  # a tenth of lr: what one code of the state more or less can change
    figure(f"differs from the exact step by {worst:.2g} at most")


def test_distributed_checkpoints(cuda: EmulatedCuda, seed: int, tmp_path: Path, figure: Figure) -> None:
    import torch.distributed.checkpoint as dcp

    twins, first, second = pair(cuda, STREAMING)
    twins.step()
    dcp.save({"optimizer": second.state_dict()}, checkpoint_id=tmp_path, no_dist=True)
    fresh = lowtide.AdamW(twins.there, memory=ROOMY)
    fresh._init_group({})  # as torch's get_state_dict has it give its state
    held = {"optimizer": fresh.state_dict()}
    dcp.load(held, checkpoint_id=tmp_path, no_dist=True)
    fresh.load_state_dict(held["optimizer"])
    twins.compare_states(second, fresh)
    twins.second = fresh
    twins.step()
    figure(f"saved while streaming, loaded onto the device: {twins.compared} bytes alike")
