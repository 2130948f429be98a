"""Weights on disk: every bit is that of a run in memory, and the disk moves what the plan says."""

from __future__ import annotations

import copy
import errno
import gc
import itertools
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from stream_support import LAYERS, Net, train, values
from torch import nn

import lowtide
from lowtide.planning import units as planning
from lowtide.streaming import stream as streaming
from lowtide.planning.layers import layers_of, units_of
from lowtide.planning.schedule import Schedule

@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes of these nets."""
    monkeypatch.setattr(planning, "STREAMED_STATE", 256 << 10)
    monkeypatch.setattr(streaming, "GRADIENT_BUCKET", 4096)


def host_for(net: nn.Module, room: int, in_backward: bool | int) -> int:
    """The least budget with room for so many layers, or, for 0, for as many as it takes."""
    layout = units_of(net, layers_of(net, None))
    always = layout.gradients(streaming.bucket_of(in_backward), layout.tied) + layout.kept.bytes + planning.STREAMED_STATE
    return always + (room * layout.units[0].bytes if room else Schedule.least(layout.sizes))


@pytest.mark.parametrize("reentrant", [None, False, True])
@pytest.mark.parametrize(("kind", "options"), [(torch.float32, {}), (torch.bfloat16, {"master": "residual16"})])
@pytest.mark.parametrize(("room", "bucket"), [(3, 0), (5, 0), (3, True), (3, False), (5, False)])
def test_a_disk_changes_no_bit(
    room: int, bucket: int | bool, kind: torch.dtype, options: dict[str, Any], reentrant: bool | None, small: None, tmp_path: Path,
    figure: Callable[[str], None],
) -> None:  # fmt: skip
    wanted = Net(kind, reentrant)
    steps = train(wanted, lowtide.AdamW(wanted.parameters(), lr=1e-2, **options), 5)
    net = Net(kind, reentrant)
    same, opt = lowtide.stream(net, lowtide.Memory(host=host_for(net, room, bucket), disk=tmp_path), lr=1e-2, step_in_backward=bucket, **options)
    assert same is net
    found = train(net, opt, 4)
    before = lowtide.streaming_report(net)
    found += train(net, opt, 1, first=4)
    after = lowtide.streaming_report(net)
    assert _resident(net) <= after["memory_bytes"] + (1 << 17), "what has stepped has left, but for pages beside a fault"
    assert found == steps and values(net) == values(wanted)
    assert all(param.grad is None for param in net.parameters())
    moved = [after[name] - before[name] for name in ("read_bytes", "written_bytes")]  # type: ignore[literal-required]
    layer = units_of(net, layers_of(net, None)).sizes[0]
    assert moved == [after["planned_read_bytes"], after["planned_written_bytes"]]
    passes = 2 * (LAYERS - room)
    least, most = (passes, passes) if bucket is not False else (passes + LAYERS - room, passes + LAYERS)
    assert least * layer <= moved[0] <= most * layer, "each pass reads what has no room"
    lowtide.unstream(net)
    assert opt.by_parts is None, "steps are plain again"
    more, wanted_more = train(net, opt, 1, first=5), train(copy.deepcopy(wanted), lowtide.SGD([nn.Parameter(torch.zeros(1))]), 1, first=5)
    assert more == wanted_more, "the same weights, in memory"
    figure(f"room for {room} of {LAYERS} layers: 5 steps, 0 of {sum(map(len, values(net)))} bytes differ; a step reads {moved[0]}, writes {moved[1]}")


def _resident(net: nn.Module) -> int:
    """Bytes of the file in memory, as the system has mapped them for this process."""
    (address, *_) = (param.data_ptr() for param in net.layers.parameters())
    inside, found = False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            first, last = (int(part, 16) for part in line.split()[0].split("-"))
            inside = first <= address < last
        elif inside and line.startswith("Rss:"):
            found = int(line.split()[1]) * 1024
    assert found
    return found


@pytest.mark.parametrize("optimizer", [lowtide.AdamW, lowtide.Muon])
def test_steps_after_backward_accumulate_and_clip(
    optimizer: type[lowtide.Optimizer], small: None, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    wanted, net = Net(), Net()
    options: dict[str, Any] = {"lr": 1e-2, "max_grad_norm": 0.1, "step_in_backward": False}
    losses = train(wanted, optimizer(wanted.parameters(), **options), 3, passes=2)
    net, opt = lowtide.stream(net, f"host={host_for(net, 3, False)},disk={tmp_path}", optimizer, **options)
    assert train(net, opt, 3, passes=2) == losses and values(net) == values(wanted) and opt.report()["steps"] == 3
    for param in net.parameters():
        param.grad = torch.full_like(param, torch.nan if param is net.head.bias else 1.0)
    with pytest.warns(RuntimeWarning, match="NaN or infinite"):
        opt.step()
    assert values(net) == values(wanted) and (opt.report()["steps"], opt.skipped_steps) == (3, 1)
    figure(f"3 steps of 2 passes, clipped: 0 of {sum(map(len, values(net)))} bytes differ")


def test_hooks_that_step_parameters_keep_the_budget(small: None, tmp_path: Path, figure: Callable[[str], None]) -> None:
    """Hooks of trainers step parameters in backward, though the optimizer does not: what they have changed is written, too."""
    wanted = Net()
    net, opt = lowtide.stream(Net(), f"host={host_for(wanted, 3, False)},disk={tmp_path}", step_in_backward=False)
    for model, steps in ((wanted, lowtide.AdamW(wanted.parameters())), (net, opt)):

        def step(param: torch.Tensor, steps: lowtide.Optimizer = steps) -> None:
            steps.step_param(param)
            param.grad = None

        for param in model.parameters():
            param.register_post_accumulate_grad_hook(step)
    nothing, written = lowtide.SGD([nn.Parameter(torch.zeros(1))]), []
    for number in range(3):
        assert train(net, nothing, 1, first=number) == train(wanted, nothing, 1, first=number)
        report = lowtide.streaming_report(net)
        written.append(report["written_bytes"])
        assert _resident(net) <= report["memory_bytes"] + (1 << 17)
    assert values(net) == values(wanted) and written[0] < written[1] < written[2]
    figure(f"{_resident(net)} bytes in memory after 3 passes, {written} written, 0 of {sum(map(len, values(net)))} bytes differ")


def test_a_rule_that_needs_all_gradients_steps_after_backward(small: None, tmp_path: Path, figure: Callable[[str], None]) -> None:
    wanted = Net()
    losses = train(wanted, lowtide.Prodigy(wanted.parameters()), 3)
    net, opt = lowtide.stream(Net(), f"host={host_for(wanted, 3, False)},disk={tmp_path}", lowtide.Prodigy, step_in_backward=False)
    assert train(net, opt, 3) == losses and values(net) == values(wanted)
    figure(f"3 steps of Prodigy: 0 of {sum(map(len, values(net)))} bytes differ")


def test_frozen_weights_are_read_alone(small: None, tmp_path: Path, figure: Callable[[str], None]) -> None:
    """As with LoRA, only trained weights are written."""
    nets = [Net(), Net()]
    for net in nets:
        for name, param in net.named_parameters():
            param.requires_grad_(name.endswith("bias"))
    losses = train(nets[0], lowtide.AdamW([p for p in nets[0].parameters() if p.requires_grad], lr=1e-2), 3)
    net, opt = lowtide.stream(nets[1], lowtide.Memory(host=host_for(nets[1], 3, True), disk=tmp_path), lr=1e-2)
    assert train(net, opt, 2) == losses[:2]
    before = lowtide.streaming_report(net)
    assert train(net, opt, 1, first=2) == losses[2:] and values(net) == values(nets[0])
    written = lowtide.streaming_report(net)["written_bytes"] - before["written_bytes"]
    biases = sum(param.nbytes for param in net.layers.parameters() if param.requires_grad)
    assert 0 < written <= LAYERS * 2 * 4096, "a page or two for the biases of each layer"
    figure(f"{written} bytes written a step for {biases} bytes of trained weights, of {before['weight_bytes']}")


def test_meta_weights_get_memory(small: None, tmp_path: Path, figure: Callable[[str], None]) -> None:
    wanted, counted = Net(), 0
    for host in (host_for(wanted, 3, True), 1 << 30):  # on disk, and all in memory
        net, opt = lowtide.stream(Net(device="meta"), lowtide.Memory(host=host, disk=tmp_path), lr=1e-2)
        assert all(not param.is_meta and not param.any() for param in net.parameters())
        net.load_state_dict(wanted.state_dict())
        losses = train(net, opt, 2)
        trained = Net()
        assert losses == train(trained, lowtide.AdamW(trained.parameters(), lr=1e-2), 2) and values(net) == values(trained)
        counted += len(losses)
    figure(f"{counted} losses alike")


def test_saves_resume(small: None, tmp_path: Path, figure: Callable[[str], None]) -> None:
    wanted = Net()
    losses = train(wanted, lowtide.AdamW(wanted.parameters(), lr=1e-2), 4)
    net, opt = lowtide.stream(Net(), lowtide.Memory(host=host_for(wanted, 3, True), disk=tmp_path), lr=1e-2)
    assert train(net, opt, 2) == losses[:2]
    torch.save(net.state_dict(), tmp_path / "weights")
    opt.save(tmp_path / "state")
    assert sum(map(len, values(net))) < (tmp_path / "weights").stat().st_size < sum(map(len, values(net))) + 50_000
    other, opt = lowtide.stream(Net(device="meta"), lowtide.Memory(host=host_for(wanted, 4, True), disk=tmp_path), lr=1e-2)
    other.load_state_dict(torch.load(tmp_path / "weights", mmap=True))
    opt.load(tmp_path / "state")
    assert train(other, opt, 2, first=2) == losses[2:] and values(other) == values(wanted)
    figure("4 steps, 2 of them after a save: 0 bits differ")


def test_what_the_disk_refuses_is_named(small: None, tmp_path: Path, figure: Callable[[str], None]) -> None:
    net, opt = lowtide.stream(Net(), lowtide.Memory(host=host_for(Net(), 3, True), disk=tmp_path), lr=1e-2)
    train(net, opt, 1)
    (file,) = [name for name in os.listdir("/proc/self/fd") if _is_weights(name, tmp_path, lowtide.streaming_report(net)["weight_bytes"])]
    os.truncate(f"/proc/self/fd/{file}", 3 * units_of(net, layers_of(net, None)).sizes[0])
    with pytest.raises(OSError, match=r"reading the weights of layers\.[3-6]: could not read .* made shorter by another"):
        train(net, opt, 1, first=1)
    with pytest.raises(OSError, match="the weights of layers"):  # for ever after
        lowtide.streaming_report(net)
    figure("a file made shorter is named by its layer")


def test_memory_that_runs_out_in_forward_changes_nothing(small: None, tmp_path: Path, figure: Callable[[str], None]) -> None:
    wanted, net = Net(), Net()
    losses = train(wanted, lowtide.AdamW(wanted.parameters(), lr=1e-2), 3)
    _, opt = lowtide.stream(net, lowtide.Memory(host=host_for(net, 3, True), disk=tmp_path), lr=1e-2)
    found = train(net, opt, 1)
    for layer in (0, 3, LAYERS - 1):
        before = values(net)
        hook = net.layers[layer].up.register_forward_hook(lambda *of: torch.empty(1 << 60, dtype=torch.uint8))
        with pytest.raises(RuntimeError, match="memory"):
            train(net, opt, 1, first=1)
        hook.remove()
        assert values(net) == before
    assert found + train(net, opt, 2, first=1) == losses and values(net) == values(wanted)
    figure("3 passes without memory: 0 bytes differ after them")


def test_a_model_that_fits_needs_no_other_code(tmp_path: Path) -> None:
    """A script for small machines runs on large ones as well."""
    net = Net()
    before = values(net)
    same, opt = lowtide.stream(net, {"host": "1GiB", "disk": tmp_path}, lr=1e-2)
    assert same is net and not any(lowtide.streaming_report(net).values())
    train(net, opt, 1)
    lowtide.unstream(net)
    assert values(net) != before
    with pytest.raises(ValueError, match="does not stream"):
        lowtide.unstream(net)


def _is_weights(descriptor: str, folder: Path, size: int) -> bool:
    try:
        return str(folder) in os.readlink(f"/proc/self/fd/{descriptor}") and os.stat(f"/proc/self/fd/{descriptor}").st_size >= size
    except OSError:
        return False


def test_refusals(small: None, tmp_path: Path, figure: Callable[[str], None]) -> None:
    net, refused = Net(), 0
    least = host_for(net, 3, True)
    before = values(net)
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"memory": None}, ValueError, "wanted host=BYTES"),
        ({"memory": {"disk": tmp_path}}, ValueError, "wanted host=BYTES"),
        ({"memory": {"host": least - 4096, "disk": tmp_path}}, ValueError, "three layers, their gradients, and buffers"),
        ({"memory": {"host": 1 << 20}}, ValueError, "or disk=DIRECTORY"),
        ({"memory": {"host": least, "disk": tmp_path / "none"}}, ValueError, "wanted an existing directory"),
        ({"memory": {"host": least, "disk": tmp_path}, "lr": -1.0}, ValueError, "lr"),
        ({"memory": {"host": least, "disk": tmp_path}, "layers": []}, ValueError, "layers: got none"),
        ({"memory": {"host": least, "disk": tmp_path}, "layers": [nn.Linear(2, 2)]}, ValueError, "of another model"),
        ({"memory": {"host": least, "disk": tmp_path}, "layers": [net.layers[0], net.layers[0].up]}, ValueError, "inside another"),
        ({"memory": {"host": least, "disk": tmp_path}, "layers": [net.layers]}, ValueError, "never called"),
        ({"memory": {"host": least, "disk": tmp_path}, "optimizer": torch.optim.AdamW}, TypeError, "wanted a class such as lowtide.AdamW"),
        ({"memory": {"host": least, "disk": tmp_path}, "optimizer": lowtide.Prodigy}, ValueError, "got Prodigy, .* wanted step_in_backward=False"),
        ({"memory": {"host": least, "disk": tmp_path}, "max_grad_norm": 1.0}, ValueError, "got max_grad_norm=1.0, wanted step_in_backward=False"),
    ]
    for arguments, kind, words in cases:
        with pytest.raises(kind, match=words):
            lowtide.stream(net, **arguments)
        assert values(net) == before and not any(module._forward_pre_hooks for module in net.modules())
        refused += 1
    with pytest.raises(ValueError, match="wanted layers="):
        lowtide.stream(nn.Linear(3, 3), {"host": least, "disk": tmp_path})
    with pytest.raises(ValueError, match="does not stream"):
        lowtide.unstream(net)
    empty = Net(device="meta")
    for host in (least, 1 << 30):
        with pytest.raises(ValueError, match="chunk"):
            lowtide.stream(empty, {"host": host, "disk": tmp_path, "chunk": 5})
        assert all(param.is_meta for param in empty.parameters())
    tied = Net()
    tied.layers[1].up.weight.data = tied.layers[0].up.weight.data
    with pytest.raises(ValueError, match=r"layers.1.up.weight: got a parameter in the memory of layers.0.up.weight"):
        lowtide.stream(tied, {"host": least, "disk": tmp_path})
    moved, _ = lowtide.stream(Net(), {"host": least, "disk": tmp_path})
    moved.bfloat16()
    with pytest.raises(ValueError, match="have left the file"):
        train(moved, lowtide.SGD([nn.Parameter(torch.zeros(1))]), 1)
    lowtide.stream(net, {"host": least, "disk": tmp_path})
    with pytest.raises(ValueError, match="unstream"):
        lowtide.stream(net, {"host": least, "disk": tmp_path})
    with pytest.raises(OSError, match="could not allocate") as full:
        lowtide.stream(Net(), {"host": least, "disk": "/dev/shm/none" if not Path("/dev/shm").is_dir() else _full()})
    assert full.value.errno in (errno.ENOSPC, errno.EFBIG)
    figure(f"{refused + 8} refusals, without a change")


def _full() -> str:
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    return "/dev/shm"


@pytest.fixture(autouse=True)
def files_of_any_size() -> Any:
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_schedule_reads_least(figure: Callable[[str], None]) -> None:
    """For few equal units, no other way to let units go reads less in repeated forward and backward passes, and a step behind them reads
    at most the three that are in memory together more."""

    def fewest(count: int, room: int, behind: int = 0) -> int:
        """Tries all choices of units that stay; counts the reads so far for each set that may be in memory."""
        reads, totals = {frozenset[int](): 0}, []
        for _ in range(4):
            for unit in (*range(count), *[*reversed(range(count))] * (1 + behind)):
                after: dict[frozenset[int], int] = {}
                for here, cost in reads.items():
                    for others in itertools.combinations(here - {unit}, min(room - 1, len(here - {unit}))):
                        kept = frozenset({unit, *others})
                        after[kept] = min(after.get(kept, 1 << 30), cost + (unit not in here))
                reads = after
            totals.append(min(reads.values()))
        return totals[-1] - totals[-2]

    compared, more = 0, 0
    for count in range(3, 8):
        for room in range(3, count + 1):
            assert 2 * (count - room) == fewest(count, room)
            read, written, *_ = Schedule([1] * count, room).step([1] * count, bucket=0)
            assert read == 2 * (count - room), "forward and backward each read what has no room"
            assert written <= count
            read, written, *_ = Schedule([1] * count, room).step([1] * count)
            more, compared = max(more, read - fewest(count, room, 1)), compared + 1
            assert written <= count
    assert more <= 3
    figure(f"{compared} schedules of equal units read 2 (n - k), and with a step behind backward {more} units more than the fewest at most")


def test_nothing_stays(small: None, tmp_path: Path, figure: Callable[[str], None]) -> None:
    """No file, mapping or thread outlives a model or `unstream`, even if the model is itself a unit."""

    class Positions(Net):
        def __init__(self) -> None:
            super().__init__()
            self.positions = nn.Parameter(torch.zeros(1 << 19))

    def count() -> tuple[int, int, int]:
        gc.collect()
        threads = sum(thread.name.startswith("lowtide-weights") for thread in threading.enumerate())
        return len(os.listdir("/proc/self/fd")), Path("/proc/self/maps").read_text().count(str(tmp_path)), threads

    def count_until(wanted: Callable[[tuple[int, int, int]], bool]) -> tuple[int, int, int]:
        for _ in range(100):  # a thread ends by itself
            if wanted(found := count()):
                break
            threading.Event().wait(0.05)
        return found

    before = count_until(lambda found: found[2] == 0)  # collects what earlier tests left
    for kind in (Net, Positions):
        for in_backward in (True, False):
            net = kind()
            budget = {"host": host_for(net, 0, in_backward), "disk": tmp_path}
            net, opt = lowtide.stream(net, budget, layers=net.layers, step_in_backward=in_backward)
            train(net, opt, 1)
            assert count()[2] > 0
            lowtide.unstream(net)
            train(net, opt, 1)
            opt.offload()
            net, _ = lowtide.stream(kind(), budget)
            train(net, lowtide.SGD([nn.Parameter(torch.zeros(1))]), 1)
            del net, opt, _
            assert count_until(lambda found: found == before) == before, kind
    figure("4 models, each streamed twice: no descriptor, mapping or thread is left")


def test_a_plan_fits_where_a_stream_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figure: Callable[[str], None]) -> None:
    """Over a grid of budgets: both take the same, put weights in the same place, and know the same bytes of the disk."""
    transformers = pytest.importorskip("transformers")
    monkeypatch.setattr(planning, "STREAMED_STATE", 1 << 20)
    sizes = {"vocab_size": 9000, "hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 8, "num_attention_heads": 4}
    found = {"both": 0, "neither": 0, "on the disk": 0}
    for tied, kind, frozen, in_backward in itertools.product((False, True), (torch.float32, torch.bfloat16), (False, True), (False, True)):
        with torch.device("meta"):
            model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, tie_word_embeddings=tied)).to(kind)
        for name, param in model.named_parameters():
            param.requires_grad_(not frozen or "q_proj" in name)
        weights = sum(param.nbytes for param in model.parameters())
        for share, disk in itertools.product((0.3, 0.6, 0.9, 1.2, 1.6, 2.1, 3.0), (False, True)):
            host = int(share * weights) + (1 << 20)
            given: dict[str, Any] = {"seq": 8, "step_in_backward": in_backward, "stream": disk, "disk": "1TB" if disk else None}
            beside = lowtide.plan(model, ram="1TB", **given).lines
            ram = host + sum(beside[name].host for name in ("process", "activations", "never at once") if name in beside)
            plan = lowtide.plan(model, ram=ram, **given)
            memory = {"host": host, "disk": tmp_path} if disk else {"host": host}
            assert not plan.fits or plan.total.host <= ram
            try:
                net = copy.deepcopy(model)
                for module in net.modules():
                    for name, buffer in module._buffers.items():
                        module._buffers[name] = torch.zeros(buffer.shape)
                net, _ = lowtide.stream(net, memory, step_in_backward=in_backward)
            except ValueError:
                assert not plan.fits, (tied, kind, frozen, in_backward, share, disk)
                found["neither"] += 1
                continue
            report = lowtide.streaming_report(net)
            assert plan.fits, (plan.problem, tied, kind, frozen, in_backward, share, disk)
            assert plan.lines["weights"].disk == report["weight_bytes"]
            assert plan.moved_weights == report["planned_read_bytes"] + report["planned_written_bytes"]
            found["both"] += 1
            found["on the disk"] += report["weight_bytes"] > 0
            lowtide.unstream(net)
    assert min(found.values()) > 10
    figure(f"plan and stream alike: {found}")


def test_a_step_moves_what_the_plan_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figure: Callable[[str], None]) -> None:
    """Weights and state on the disk, within the plan's own `memory`. Weights to the byte; of state, the plan does not know the order in
    which gradients arrive within a layer, and so not every chunk that two steps in backward share."""
    transformers = pytest.importorskip("transformers")
    monkeypatch.setattr(planning, "STREAMED_STATE", 1 << 20)
    sizes = {"vocab_size": 2500, "hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 32, "num_attention_heads": 4}
    ratios = []
    for room in (12, 16, 20):  # MB for weights, gradients and state; weights are 28 MB
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_key_value_heads=4, tie_word_embeddings=False))
        given: dict[str, Any] = {"weights": "fp32", "master": None, "seq": 8, "step_in_backward": 1 << 20, "stream": True, "disk": "1TB"}
        beside = lowtide.plan(model, ram="1TB", **given).lines
        ram = room * 10**6 + sum(beside[name].host for name in ("process", "activations", "never at once") if name in beside)
        plan = lowtide.plan(model, ram=ram, **given)
        assert plan.fits and plan.optimizer["memory"] == f"host={room * 10**6},disk=DIR"
        model, opt = lowtide.stream(model, lowtide.Memory(host=room * 10**6, disk=tmp_path), lr=1e-3, step_in_backward=1 << 20)
        moved = []
        for step in range(3):
            tokens = torch.randint(2500, (1, 8), generator=torch.Generator().manual_seed(step))
            model(input_ids=tokens, labels=tokens).loss.backward()
            opt.step()
            reports = lowtide.streaming_report(model), opt.report()
            moved.append([each["read_bytes"] + each["written_bytes"] for each in reports])
        weights, state = (now - before for now, before in zip(moved[2], moved[1], strict=True))
        ratios.append((weights / plan.moved_weights, state / (plan.moved.disk - plan.moved_weights)))
        lowtide.unstream(model)
    figure(f"bytes of the disk in a step, over the plan: weights and state {ratios}")
    assert all(weights == 1 and 0.97 < state < 1.06 for weights, state in ratios)
