"""Parameters on several devices: work inside backward on each device separately, and budgets, whose `host` all share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lowtide
import pytest
import torch
from lowtide.optimizers import backward
from several_devices_support import NAMES, SHAPES, Machine, spread
from support import refused

Figure = Callable[[str], None]
STEPS = 4
TIGHT = lowtide.Memory(device="20KiB", chunk=4096)
STREAMING = ("cuda:0", "cpu", "cuda:1", "xpu:0", "cuda:0", "cuda:1")  # places with state beyond it, but for the CPU


RANDOM: dict[str, Any] = {"seed": 5, "rounding": "stochastic"}


def give_zeros(machine: Machine, params: Sequence[torch.Tensor], names: Sequence[str]) -> None:
    """Autograd adds to existing gradients, which are where a device can read them."""
    for param, name in zip(params, names, strict=True):
        param.grad = machine.tensor(torch.zeros_like(param), name)


def loss_of(params: Sequence[torch.Tensor], weight: float) -> torch.Tensor:
    total: torch.Tensor = sum(((param * weight) ** 2).sum().float() for param in params)  # type: ignore[assignment]
    return total


def backward_on_threads(params: Sequence[torch.Tensor], names: Sequence[str], weight: float) -> None:
    """Gives the gradients of each device's parameters on a thread named after it. Raises what a thread raises."""
    errors: list[BaseException] = []
    begin = threading.Barrier(len(set(names)))

    def run(name: str) -> None:
        try:
            torch.set_num_threads(1)
            loss = loss_of([param for param, at in zip(params, names, strict=True) if at == name], weight)
            begin.wait()
            loss.backward()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(name,), name=name) for name in dict.fromkeys(names)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        raise error


@pytest.mark.parametrize("bucket", [0, "64KiB"])
@pytest.mark.parametrize("memory", [None, TIGHT], ids=["roomy", "streaming"])
def test_steps_on_each_devices_thread(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, memory: lowtide.Memory | None, bucket: Any, seed: int, figure: Figure
) -> None:
    """A thread only uses its own device's queue. With the larger bucket, everything is stepped when backward ends."""
    torch.set_num_threads(1)
    asked: set[tuple[str, str]] = set()
    current = machine.cuda.current_stream

    def note(device: torch.device) -> Any:
        asked.add((threading.current_thread().name, str(device)))
        return current(device)

    monkeypatch.setattr(torch.cuda, "current_stream", note)
    twins = spread(machine, "adamw", NAMES if memory is None else STREAMING, **RANDOM)
    twins.second = lowtide.AdamW(twins.groups(twins.there, 4), **RANDOM, memory=memory, step_in_backward=bucket)
    first, second = twins.first, twins.second
    for i in range(STEPS):
        for params, names in ((twins.here, ["cpu"] * len(NAMES)), (twins.there, twins.device.names)):
            give_zeros(machine, params, names)
            if i < STEPS - 1:
                backward_on_threads(params, names, 1.0 + i)
            else:  # as on a thread for all devices
                loss_of(params, 1.0 + i).backward()
        left = [param.grad for param in twins.there if param.grad is not None]
        assert len(left) == (i == 0), "gone when backward ends, but for the one that tells of clipping"
        if i < STEPS - 1:
            of_threads = {(thread, device) for thread, device in asked if thread in machine.names}
            assert of_threads <= {(name, name) for name in machine.names} and {thread for thread, _ in of_threads} >= {"cuda:1"}
        for opt in (first, second):
            opt.step()
            opt.param_groups[0]["lr"] = 0.01 / (i + 1)
        twins.compare_weights()
    twins.compare_state()
    assert second.report()["steps"] == first.report()["steps"] == STEPS
    figure(f"bucket {bucket}: {STEPS} backward passes on {len(machine.names)} threads, {twins.compared} bytes alike, 0 differ")


def test_a_bad_gradient_leaves_out_its_bucket(machine: Machine, seed: int, figure: Figure) -> None:
    twins = spread(machine)
    opt = lowtide.AdamW(twins.there, lr=0.1, step_in_backward=0)  # moves values of 16 bits, too
    bad = NAMES.index("cuda:1")
    twins.there[bad].register_hook(lambda grad: grad * float("nan"))
    give_zeros(machine, twins.there, NAMES)
    before = twins.weights()
    backward_on_threads(twins.there, NAMES, 1.0)
    opt.step()
    changed = [now != old for now, old in zip(twins.weights(), before, strict=True)]
    assert changed == [i != bad for i in range(len(NAMES))]
    report = opt.report()
    assert (opt.skipped_steps, report["steps"], report["params"]) == (1, 1, len(NAMES))
    figure(f"{sum(changed)} of {len(changed)} parameters stepped, 1 bucket left out")


def test_state_is_read_ahead_on_each_device(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, seed: int, figure: Figure
) -> None:
    """Each device according to the gradients of its parameters. On `xpu`, the number of bytes says how much."""
    monkeypatch.setattr(backward, "_ASK_AFTER", 0)
    torch.set_num_threads(1)
    names = ("cuda:0", "cuda:0", "cuda:1", "cuda:0", "cuda:0", "cuda:1")
    copied = lowtide.Memory(device="20KiB", chunk=4096, transfer="copy")
    twins = spread(machine, "adamw", names, state="fp32", **RANDOM)
    twins.second = lowtide.AdamW(
        twins.groups(twins.there, 4), state="fp32", memory=copied, prefetch_in_backward="1MiB", **RANDOM
    )
    ahead = [0, 0]

    def held() -> list[int]:
        return [sum(size for size, index in machine.cuda.cached.values() if index == device) for device in range(2)]

    for i in range(STEPS):
        before = held()
        for params, places in ((twins.here, ["cpu"] * len(names)), (twins.there, names)):
            give_zeros(machine, params, places)
            backward_on_threads(params, places, 1.0 + i)
        ahead = [max(most, now - then) for most, now, then in zip(ahead, held(), before, strict=True)]
        twins.take()
    twins.compare_state()
    assert min(ahead) > 0
    figure(f"{STEPS} steps, {twins.compared} bytes alike; read ahead on two devices: {ahead} bytes at most")


# Twice on each device, with the CPU in between.
SEVERAL = ("cuda:0", "cpu", "cuda:1", "cuda:1", "cuda:0", "cpu")
DEVICE = 20 << 10  # bytes: less than the state of each


FIXED: dict[str, Any] = {"seed": 3, "state": "fp32"}


def host_bytes(opt: lowtide.AdamW) -> dict[str, int]:
    """The bytes of `host` that each device has."""
    return {str(place.device): core.report()["allocated_bytes"] for place, core in opt.engine.cores.items()}


@pytest.mark.parametrize("where", ["optimizer", "group"])
def test_shares_add_up_to_host_at_most(machine: Machine, where: str, seed: int, figure: Figure) -> None:
    """From nothing to plenty: either all state has a place, or the first step refuses and changes nothing. It refuses only if
    less is given than what exceeds `device` and streaming buffers take."""
    beyond = fits = 0
    lone = torch.nn.Parameter(torch.zeros(SHAPES[5]))
    lone.grad = torch.zeros_like(lone)
    alone = lowtide.AdamW([lone], state="fp32")
    alone.step()
    unlimited = host_bytes(alone)["cpu"]
    for host in [*range(0, 320 << 10, 32 << 10), 1 << 20, 1 << 30]:
        memory = lowtide.Memory(device=DEVICE, host=host, chunk=4096)
        twins = spread(machine, "adamw", SEVERAL, memory=memory if where == "optimizer" else None, **FIXED)
        if where == "group":
            of = twins.groups(twins.there, 4)
            twins.second = lowtide.AdamW([{**of[0], "memory": memory}, of[1]], **FIXED)
        first, second = twins.first, twins.second
        twins.gradients()
        try:
            second.step()
        except ValueError as error:
            assert "budget" in str(error) and fits == 0, "more is never refused where less was taken"
            given = f"memory{' of parameter group 0' if where == 'group' else ''} has host={host} for "
            assert given in str(error) and "together, of which c" in str(error), "as it was given, and not a device's part alone"
            twins.compare_weights()
            continue
        first.step()
        twins.compare_weights()
        twins.step(1)
        taken = host_bytes(second)
        if where == "group":  # the other group's state on the CPU has no budget
            taken["cpu"] -= unlimited
        assert sum(taken.values()) <= host
        if not fits:
            fits, beyond = host, sum(taken.values())
    assert 0 < fits <= beyond + (32 << 10) + 3 * 4 * 4096, "the next of these sizes, or four buffers for each device"
    figure(f"{where}: from {fits} bytes of host on all state fits, of which 3 devices take {beyond}; less is refused by name")


def test_the_disk_is_for_the_cpu(machine: Machine, seed: int, tmp_path: Path, figure: Figure) -> None:
    names = ("cpu", "cuda:0", "cuda:1", "cuda:1", "cuda:0", "cuda:0")
    taken = []
    for host, disk in ((1 << 30, None), (0, tmp_path)):
        host = host or sum(taken[0][name] for name in names[1:3]) + (8 << 10)
        memory = lowtide.Memory(device=DEVICE, host=host, disk=disk, chunk=4096, step="device")
        twins = spread(machine, "adamw", names, memory=memory, **FIXED)
        second = twins.second
        twins.step()
        taken.append(host_bytes(second))
        assert sum(taken[-1].values()) <= host and (second.report()["disk_bytes"] > 0) == (disk is not None)
        twins.compare_state()
    assert [taken[1][name] for name in names[1:3]] == [taken[0][name] for name in names[1:3]]
    figure(f"host {host}: {taken[1]} bytes, {second.report()['disk_bytes']} on disk (without: {taken[0]}); all bits alike")


def test_managed_and_transfer_are_for_devices(machine: Machine, seed: int) -> None:
    for memory in (lowtide.Memory(managed=True), lowtide.Memory(device="1MiB", transfer="copy")):
        twins = spread(machine, "adamw", SEVERAL, memory=memory, **FIXED)
        twins.step(2)
        assert (twins.second.report()["managed_bytes"] > 0) == memory.managed


def test_groups_on_other_devices_divide_it_anew(machine: Machine, seed: int, figure: Figure) -> None:
    """State moves along. A group is refused if it leaves no room for existing state."""
    twins = spread(machine, "adamw", SEVERAL)
    host = 400 << 10
    memory = lowtide.Memory(device=DEVICE, host=host, chunk=4096)
    pair = [lowtide.AdamW(twins.here[:1], **FIXED), lowtide.AdamW(twins.there[:1], memory=memory, **FIXED)]
    twins.first, twins.second = pair
    for number in range(1, len(SEVERAL)):
        twins.step(2)
        for opt, params in zip(pair, (twins.here, twins.there), strict=True):
            opt.add_param_group({"params": [params[number]], "lr": 0.01 * number})
        assert sum(host_bytes(pair[1]).values()) <= host
    twins.step(2)
    taken = [*host_bytes(pair[1]).values()]
    twins.compare_state()
    assert sum(taken) <= host and pair[1].report()["steps"] == pair[0].report()["steps"]
    large = torch.nn.Parameter(machine.tensor(torch.randn(400, 400), "cuda:1"))
    with refused(pair[1], "host memory budget"):
        pair[1].add_param_group({"params": [large]})
    twins.step(1)
    figure(f"5 groups on 3 devices join: {taken} bytes of {host}, {twins.compared} bytes alike")
