"""Parameters on a device, some or all stepped by the CPU: `Memory(step=)`, and disks behind devices. They are in shared memory
of a stand-in for a device (stand_in.py), which torch copies like CPU memory; skipped without it."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lowtide
import pytest
import torch
from lowtide.engine import host_steps, mirrors
from lowtide.engine.host_steps import Load, Speeds, share_of_host
from stand_in import StandIn
from support import CODECS, DTYPES, RULES, bits, disk_that_refuses, parameter, random_gradients
from twins import Count, Twins

Figure = Callable[[str], None]
SHAPES = ((32, 300), (7, 100), (3, 5, 257), (9,), (), (64, 256))  # emulated kernels are slow


@pytest.fixture(autouse=True)
def speeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates of a machine on which both sides step."""
    monkeypatch.setattr(host_steps, "speeds_of", lambda *of: Speeds(1e9, 4e9, 1e8) if of[-1] else Speeds(1e9, 4e9))


def memories(folder: Path) -> dict[str, lowtide.Memory]:
    return {
        "host": lowtide.Memory(step="host"),
        "device=0": lowtide.Memory(device=0, host="1MiB"),
        "disk": lowtide.Memory(device="24KiB", host="40KiB", disk=folder, chunk=4096),
        "host, disk": lowtide.Memory(device=0, host="12KiB", disk=folder, chunk=4096),
        "auto": lowtide.Memory(device="24KiB", step="auto", chunk=4096),
        "device, disk": lowtide.Memory(device="24KiB", host="24KiB", disk=folder, chunk=4096, step="device"),
    }


@pytest.mark.parametrize("way", memories(Path()))
def test_bits_of_cpu_parameters(
    device: StandIn, way: str, in_share: Callable[[int, int, int], bool], tmp_path: Path, seed: int, figure: Figure
) -> None:
    cases = compared = by_host = by_device = on_disk = 0
    for row, rule in enumerate(RULES):  # as in test_device_steps.py
        for column, codec in enumerate(CODECS):
            if not in_share(row, column, len(CODECS)):
                continue
            twins = Twins(device, SHAPES, rule, cut=2, dtypes=DTYPES, state=codec, memory=memories(tmp_path)[way])
            twins.step()
            twins.compare_state()
            compared += twins.compared
            mirrored = [param.place.mirrored for param in twins.second.engine.params]
            by_host, by_device = by_host + mirrored.count(True), by_device + mirrored.count(False)
            on_disk += twins.second.report()["disk_bytes"] > 0
            cases += 1
    figure(f"{cases} rules x formats: {compared} bytes alike; stepped by the CPU {by_host}, the device {by_device}; on disk {on_disk}")


def test_gradients_are_clipped_as_on_the_cpu(device: StandIn, tmp_path: Path, seed: int, figure: Figure) -> None:
    for memory in memories(tmp_path).values():
        twins = Twins(device, SHAPES, memory=memory, lr=0.01)
        assert all(twins.clip(0.5) > 0.5 for _ in range(3))
    figure(f"{len(memories(tmp_path))} budgets: the same norms and weights")


class LateCopies:
    """A stream whose copies happen when somebody waits for them, or never."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, dropped: int) -> None:
        """dropped: the number of the wait that does not happen."""
        self.queued: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.waits, self._dropped = 0, dropped
        self.step: list[int] = []  # the first wait of each step
        self.mattered = False  # whether the wait that was dropped was for copies
        monkeypatch.setattr(mirrors, "_copy", lambda to, source: self.queued.append((to, source)))
        monkeypatch.setattr(mirrors, "_mark_of", self.mark)

    def mark(self, _: torch.device) -> SimpleNamespace:
        return SimpleNamespace(synchronize=partial(self.wait, len(self.queued)))

    def wait(self, last: int) -> None:
        self.waits += 1
        if self.waits - 1 == self._dropped:
            self.mattered = any(self.queued[:last])
            return
        self.finish(last)

    def finish(self, last: int) -> None:
        for i, copy in enumerate(self.queued[:last]):
            if copy:
                copy[0].copy_(copy[1])
                self.queued[i] = ()  # type: ignore[call-overload]


@pytest.mark.parametrize("ways", ["host", "auto"])
def test_every_wait_matters(cuda: StandIn, ways: str, monkeypatch: pytest.MonkeyPatch, seed: int, figure: Figure) -> None:
    """With copies as late as possible, bits are those of the CPU, and a NaN in the second step skips it. Each wait of a step,
    by its place in the step, is dropped in each later step, and is missed in at least one."""
    memory = lowtide.Memory(step="host") if ways == "host" else lowtide.Memory(device="24KiB", step="auto", chunk=4096)
    here = [parameter(*shape) for shape in SHAPES]
    first = lowtide.AdamW(here, lr=0.01, state="fp32")
    began = [param.detach().clone() for param in here]
    gradients = []
    for step in range(4):
        random_gradients(here)
        if step == 1:
            here[-1].grad.view(-1)[0] = torch.nan
        gradients.append([param.grad.clone() for param in here])
        first.step()

    def run(dropped: int) -> tuple[LateCopies, bool]:
        there = cuda.parameters(began)
        late = LateCopies(monkeypatch, dropped)
        second = lowtide.AdamW(there, lr=0.01, state="fp32", memory=memory)
        assert second.engine.params[-1].place.mirrored
        for each in gradients:
            late.finish(len(late.queued))  # what comes after a step on the device's stream finds its weights there
            for param, grad in zip(there, each, strict=True):
                param.grad = cuda.tensor(grad)
            late.step.append(late.waits)
            second.step()
        late.step.append(late.waits)
        second.synchronize()
        cuda.synchronize()
        return late, all(bits(a) == bits(b) for a, b in zip(here, there, strict=True))

    late, same = run(-1)
    assert same
    kinds: dict[int, list[bool]] = {}
    idle = 0
    for begin, end in itertools.pairwise(late.step[1:]):  # the first step has no copies of one before it to wait for
        for dropped in range(begin, end):
            broken, same = run(dropped)
            if broken.mattered:
                kinds.setdefault(dropped - begin, []).append(not same)
            idle += not broken.mattered
    assert kinds and all(map(any, kinds.values())), kinds
    caught = sum(map(sum, kinds.values()))
    figure(f"{ways}: {late.waits} waits of {len(kinds)} kinds with copies; {caught} dropped ones show, {idle} had nothing to wait for")


def three_tiers(folder: Path) -> lowtide.Memory:
    return lowtide.Memory(device="128KiB", host="64KiB", disk=folder, chunk=4096)


def test_a_copy_that_fails_leaves_all_tiers_whole(
    device: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, figure: Figure
) -> None:
    """State is on the device, in host memory and on the disk. Each copy of the second step fails once. Either nothing has
    changed in any tier and the step can be repeated, or it is taken and the weights come back later. The end equals a run
    without failures."""
    here = [parameter(16, 257) for _ in range(12)]
    began = [param.detach().clone() for param in here]
    first = lowtide.AdamW(here, lr=0.01, state="fp32")
    gradients = []
    for _ in range(3):
        random_gradients(here)
        gradients.append([param.grad.clone() for param in here])
        first.step()
    left = -1  # copies that still work

    def copy(to: torch.Tensor, source: torch.Tensor) -> None:
        nonlocal left
        if left == 0:
            raise RuntimeError("the device does not answer")
        left -= 1
        to.copy_(source)

    monkeypatch.setattr(mirrors, "_copy", copy)
    before = after = 0
    for good in itertools.count():
        there = device.parameters(began)
        second = lowtide.AdamW(there, lr=0.01, state="fp32", memory=three_tiers(tmp_path))
        failed = False
        for step, each in enumerate(gradients):
            for param, grad in zip(there, each, strict=True):
                param.grad = device.tensor(grad)
            device.synchronize()
            old, counted = [bits(param) for param in there], second.report()["steps"]
            left = good if step == 1 else -1
            try:
                second.step()
            except RuntimeError as error:
                left, failed = -1, True
                device.synchronize()
                if "nothing was changed" in str(error):
                    assert [bits(param) for param in there] == old and second.report()["steps"] == counted
                    second.step()
                    before += 1
                else:
                    assert "copying weights back" in str(error) and second.report()["steps"] == counted + 1
                    second.synchronize()
                    after += 1
            left = -1
        report = second.report()
        assert report["device_bytes"] > 0 and report["allocated_bytes"] > 0 and report["disk_bytes"] > 0
        second.synchronize()
        device.synchronize()
        same = Count()
        same.compare(here, there)
        same.compare_states(first, second)
        if not failed:
            break
    assert before > after > 0
    figure(f"{before} copies failed before a step and {after} after it: {before + after} of {before + after} whole")


def test_a_disk_that_refuses_leaves_all_tiers_whole(device: StandIn, tmp_path: Path, seed: int, figure: Figure) -> None:
    twins = Twins(device, [(16, 257)] * 12, lr=0.01, state="fp32", memory=three_tiers(tmp_path))
    twins.step(1)
    twins.gradients()
    twins.first.step()
    with disk_that_refuses(), pytest.raises(OSError, match="is complete and nothing is lost"):
        twins.second.step()
    kept = twins.second.report()["kept_bytes"]
    assert kept > 0
    twins.step(2)
    twins.compare_state()
    assert twins.second.report()["kept_bytes"] == 0
    figure(f"{kept} bytes kept in RAM, the step is complete on all tiers, and the next ones are as without")


def test_a_step_that_a_lost_disk_stops_has_gone_as_far_as_on_the_cpu(
    device: StandIn, tmp_path: Path, seed: int, figure: Figure
) -> None:
    """The scratch files of both are emptied: chunks that can still be read are stepped, and the device gets them."""
    twins = Twins(device, [(16, 257)] * 12)
    began = twins.weights()
    made = []
    for name, params, near in (("cpu", twins.here, {}), ("device", twins.there, {"device": 0})):
        (tmp_path / name).mkdir()
        made.append(lowtide.AdamW(params, state="fp32", memory=lowtide.Memory(host="128KiB", disk=tmp_path / name, chunk=4096, **near)))
    twins.first, twins.second = made
    twins.step(1)
    after_one = twins.weights()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if str(link.readlink()).startswith(str(tmp_path)) and "deleted" in str(link.readlink()):
                os.truncate(link, 0)
    twins.gradients()
    for opt in made:
        with pytest.raises(OSError):
            opt.step()
    twins.compare_weights()
    moved = sum(a != b for a, b in zip(twins.weights(), after_one, strict=True))
    assert 0 < moved < len(twins.here) and began != after_one
    figure(f"{moved} of {len(twins.here)} parameters were stepped, at least in part, before the disk failed: the same bits on both")


def test_budgets_that_contradict(device: StandIn, tmp_path: Path, figure: Figure) -> None:
    params = device.parameters([parameter(32, 300)])
    refused: list[tuple[dict[str, Any], str]] = [
        ({"device": 0, "step": "device"}, "device=0 with step='device'"),
        ({"device": "1MiB", "step": "host"}, "device='1MiB' with step='host'"),
        ({"step": "host", "managed": True}, "managed with step='host'"),
        ({"step": "auto", "managed": True}, "managed with step='auto'"),
        ({"host": "1MiB", "disk": tmp_path, "managed": True}, "managed with disk"),
        ({"step": "host", "transfer": "copy"}, "transfer with step='host'"),
        ({"disk": tmp_path, "step": "host"}, "disk without host"),
        ({"device": "auto", "host": "1MiB", "disk": tmp_path, "step": "device"}, "device='auto' with a disk"),
        ({"host": "1MiB", "disk": tmp_path, "step": "device", "transfer": "hybrid"}, "disk with managed=False, transfer='hybrid'"),
        ({"step": "cpu"}, "step: got 'cpu', wanted one of device, host, auto"),
    ]
    for options, words in refused:
        with pytest.raises(ValueError, match=words.replace("(", r"\(")):
            lowtide.AdamW(params, memory=lowtide.Memory(**options))
    with pytest.raises(TypeError, match="step: got 1"):
        lowtide.AdamW(params, memory=lowtide.Memory(step=1))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="wanted an existing directory"):
        opt = lowtide.AdamW(params, memory=lowtide.Memory(device=0, host="4KiB", disk=tmp_path / "none"))
        params[0].grad = device.tensor(torch.ones(32, 300))
        opt.step()
    figure(f"{len(refused) + 2} refused")


def ends(loads: list[Load], here: set[int], device: int, host: int, speeds: Speeds) -> float:
    """The longer of the two ends by the page's formula, written again as a reference for the choice."""
    streams = max(sum(load.state for load in loads if load.number not in here) - device, 0)
    state = sum(load.state for load in loads if load.number in here)
    weights = sum(load.weights for load in loads if load.number in here)
    disk = max(state - max(host - streams, 0), 0)
    cpu = 3 * weights / speeds.link + max(state / speeds.step, 2 * disk / speeds.disk) if here else 0.0
    return max(streams / speeds.link + 2 * weights / speeds.link, cpu)


def test_both_ends_come_at_the_same_time(figure: Figure) -> None:
    """200 equal layers of 32-bit state and 16-bit weights. No other number of layers ends earlier; on a link so slow that the
    CPU takes part, both sides end within a layer of each other."""
    loads = [Load(i, 8 << 20, 2 << 20) for i in range(200)]
    taken = []
    for link, step in ((1e9, 1e9), (8e9, 8e9), (25e9, 20e9), (25e9, 2e9), (50e9, 1e8)):
        for device in (0, 400 << 20, 1200 << 20, 2000 << 20):
            speeds = Speeds(link, step)
            here = share_of_host(loads, device, 2**62, speeds)
            best = min(ends(loads, set(range(200 - n, 200)), device, 2**62, speeds) for n in range(201))
            assert ends(loads, here, device, 2**62, speeds) <= best * (1 + 1e-9), (link, step, device)
            assert here == set(range(200 - len(here), 200)) and (len(here) == 0 or device < 1600 << 20)
            taken.append(len(here))
    assert min(taken) == 0 < max(taken)
    assert share_of_host(loads, 400 << 20, 600 << 20, Speeds(25e9, 1e9, 1e9)) >= set(range(200 - (1600 - 400 - 300) // 8, 200))
    figure(f"layers of 200 stepped by the CPU: {taken}; no other number is faster")
