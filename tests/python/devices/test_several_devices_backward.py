"""Work inside backward with parameters on several devices: the bits of steps after it, each device by itself.

The devices are those of several_devices_support.py. Torch has a thread for each device in backward; here every device has a
backward of its own, on a thread of its own, which all run at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import lowtide
import pytest
import torch
from lowtide.optimizers import backward
from several_devices_support import NAMES, Machine, Twins
from support import bits
from twins import dict_bits

Figure = Callable[[str], None]
STEPS = 4
TIGHT = lowtide.Memory(device="20KiB", chunk=4096)
STREAMING = ("cuda:0", "cpu", "cuda:1", "xpu:0", "cuda:0", "cuda:1")  # places with state beyond it, but for the CPU


def optimizer(params: list[torch.nn.Parameter], **options: Any) -> lowtide.AdamW:
    groups = [{"params": params[:4]}, {"params": params[4:], "lr": 0.01}]
    return lowtide.AdamW(groups, seed=5, rounding="stochastic", **options)


def give_zeros(machine: Machine, params: Sequence[torch.Tensor], names: Sequence[str]) -> None:
    """Autograd adds to what is there, which is where a device can read it."""
    for param, name in zip(params, names, strict=True):
        param.grad = machine.tensor(torch.zeros_like(param), name)


def loss_of(params: Sequence[torch.Tensor], weight: float) -> torch.Tensor:
    total: torch.Tensor = sum(((param * weight) ** 2).sum().float() for param in params)  # type: ignore[assignment]
    return total


def backward_on_threads(params: Sequence[torch.Tensor], names: Sequence[str], weight: float) -> None:
    """The gradients of each device's parameters, on a thread that has its name. Raises what one of them raises."""
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
    """A thread uses the queue of its own device alone; with the larger bucket all is stepped when backward ends."""
    torch.set_num_threads(1)
    asked: set[tuple[str, str]] = set()
    current = machine.cuda.current_stream

    def note(device: torch.device) -> Any:
        asked.add((threading.current_thread().name, str(device)))
        return current(device)

    monkeypatch.setattr(torch.cuda, "current_stream", note)
    twins = Twins(machine, NAMES if memory is None else STREAMING)
    first, second = optimizer(twins.here), optimizer(twins.there, memory=memory, step_in_backward=bucket)
    for i in range(STEPS):
        for params, names in ((twins.here, ["cpu"] * len(NAMES)), (twins.there, twins.names)):
            give_zeros(machine, params, names)
            if i < STEPS - 1:
                backward_on_threads(params, names, 1.0 + i)
            else:  # as on a thread for all devices
                loss_of(params, 1.0 + i).backward()
        assert all(param.grad is None for param in twins.there), "gone when backward ends"
        if i < STEPS - 1:
            of_threads = {(thread, device) for thread, device in asked if thread in machine.names}
            assert of_threads <= {(name, name) for name in machine.names} and {thread for thread, _ in of_threads} >= {"cuda:1"}
        for opt in (first, second):
            opt.step()
            opt.param_groups[0]["lr"] = 0.01 / (i + 1)
        twins.compare_all()
    twins.compare_state(first, second)
    assert twins.differing == 0
    assert second.report()["steps"] == first.report()["steps"] == STEPS
    figure(f"bucket {bucket}: {STEPS} backward passes on {len(machine.names)} threads, {twins.compared} bytes alike, 0 differ")


def test_a_bad_gradient_leaves_out_its_bucket(machine: Machine, seed: int, figure: Figure) -> None:
    twins = Twins(machine)
    opt = lowtide.AdamW(twins.there, lr=0.1, step_in_backward=0)  # moves values of 16 bits, too
    bad = NAMES.index("cuda:1")
    twins.there[bad].register_hook(lambda grad: grad * float("nan"))
    give_zeros(machine, twins.there, NAMES)
    before = [bits(param) for param in twins.there]
    backward_on_threads(twins.there, NAMES, 1.0)
    opt.step()
    machine.synchronize()
    changed = [bits(param) != old for param, old in zip(twins.there, before, strict=True)]
    assert changed == [i != bad for i in range(len(NAMES))]
    report = opt.report()
    assert (opt.skipped_steps, report["steps"], report["params"]) == (1, 1, len(NAMES))
    figure(f"{sum(changed)} of {len(changed)} parameters stepped, 1 bucket left out")


def test_state_is_read_ahead_on_each_device(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, seed: int, figure: Figure
) -> None:
    """Each device by its own parameters' gradients; on `xpu`, the number of bytes says how much."""
    monkeypatch.setattr(backward, "_ASK_AFTER", 0)
    torch.set_num_threads(1)
    names = ("cuda:0", "cuda:0", "cuda:1", "cuda:0", "cuda:0", "cuda:1")
    twins = Twins(machine, names)
    copied = lowtide.Memory(device="20KiB", chunk=4096, transfer="copy")
    first = optimizer(twins.here, state="fp32")
    second = optimizer(twins.there, state="fp32", memory=copied, prefetch_in_backward="1MiB")
    ahead = [0, 0]

    def held() -> list[int]:
        return [sum(size for size, index in machine.cuda.cached.values() if index == device) for device in range(2)]

    for i in range(STEPS):
        before = held()
        for params, places in ((twins.here, ["cpu"] * len(names)), (twins.there, names)):
            give_zeros(machine, params, places)
            backward_on_threads(params, places, 1.0 + i)
        ahead = [max(most, now - then) for most, now, then in zip(ahead, held(), before, strict=True)]
        first.step()
        second.step()
        twins.compare_all()
    assert twins.differing == 0 and dict_bits(first) == dict_bits(second)
    assert min(ahead) > 0
    figure(f"{STEPS} steps, {twins.compared} bytes alike; read ahead on two devices: {ahead} bytes at most")
