"""The jobs that test_cuda_incidents.py runs in separate processes: `python cuda_jobs.py JOB FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

import lowtide
import pytest
import torch
from emulated_cuda import EmulatedCuda, prepare
from lowtide.engine import host_steps

sys.path.append(str(Path(__file__).parents[1]))
from support import bits, parameter, random_gradients


def trained(cuda: EmulatedCuda, memory: lowtide.Memory) -> tuple[list[torch.nn.Parameter], lowtide.AdamW, lowtide.AdamW]:
    here = [parameter(64, 300), parameter(70, 100)]
    there = cuda.parameters(here)
    first, second = lowtide.AdamW(here), lowtide.AdamW(there, memory=memory)
    random_gradients(here)
    cuda.give_gradients(there, here)
    first.step()
    second.step()
    cuda.synchronize()
    second.synchronize()
    assert [bits(one) for one in here] == [bits(other) for other in there]
    return there, first, second


def lost(cuda: EmulatedCuda, folder: Path) -> None:
    """A lost device: every call raises a RuntimeError that names it. State on the host can still be saved."""
    there, first, second = trained(cuda, lowtide.Memory(device="12KiB", chunk=4096, transfer="copy"))
    cuda.call("lose_device", 0, 700)  # an illegal address
    for _ in range(2):
        with pytest.raises(lowtide.DeviceLostError) as caught:
            second.step()
        assert isinstance(caught.value, RuntimeError)
    first.save(folder / "cpu")
    second.save(folder / "cuda")
    twin = lowtide.AdamW([torch.nn.Parameter(torch.zeros(param.shape)) for param in there])
    twin.load(folder / "cuda")
    for mine, theirs in zip(twin.state.values(), first.state.values(), strict=True):
        assert all(bits(mine[name]) == bits(theirs[name]) for name in theirs)
    print(f"{type(caught.value).__name__}: {caught.value}")
    print(f"saved {(folder / 'cuda').stat().st_size} bytes that load alike")


def lost_beside_the_cpu(cuda: EmulatedCuda, folder: Path) -> None:
    """The device that steps some of the parameters is lost: the step is refused before the CPU steps the others, and all state
    on the host is saved."""
    monkey = pytest.MonkeyPatch()
    monkey.setattr(host_steps, "speeds_of", lambda *_: host_steps.Speeds(1e9, 4e9, 1e8))
    here = [parameter(16, 257) for _ in range(12)]
    there = cuda.parameters(here)
    first = lowtide.AdamW(here, state="fp32")
    memory = lowtide.Memory(device="128KiB", host="64KiB", disk=folder, chunk=4096)
    second = lowtide.AdamW(there, state="fp32", memory=memory)
    random_gradients(here)
    cuda.give_gradients(there, here)
    first.step()
    second.step()
    cuda.synchronize()
    second.synchronize()
    by_host = [i for i, param in enumerate(second.engine.params) if param.place.mirrored]
    assert 0 < len(by_host) < len(here)
    weights = [bits(there[i]) for i in by_host]
    cuda.call("lose_device", 0, 700)
    for _ in range(2):
        with pytest.raises(lowtide.DeviceLostError) as caught:
            second.step()
    assert [bits(there[i]) for i in by_host] == weights
    by_cpu = next(core for place, core in second.engine.cores.items() if place.mirrored)
    assert [by_cpu.step_count(i) for i in by_host] == [1] * len(by_host)
    for i in by_host:
        mine, wanted = by_cpu.state(i), first.state[here[i]]
        assert all(bits(value) == bits(wanted[name]) for name, value in mine.items()) and mine
    print(f"{type(caught.value).__name__}: {caught.value}")
    print(f"{len(by_host)} of {len(here)} parameters are the CPU's: weights and state as before the step")


def leave(cuda: EmulatedCuda, folder: Path) -> None:
    """The interpreter ends while state is in torch's memory and something keeps the optimizer to the very end."""
    _, _, second = trained(cuda, lowtide.Memory(device="50%"))
    assert cuda.cached
    sys.keep = second, cuda  # type: ignore[attr-defined]
    print("left")


if __name__ == "__main__":
    patches = pytest.MonkeyPatch()
    reason = prepare(patches)
    assert not reason, reason
    torch.manual_seed(1)
    {"lost": lost, "lost_beside_the_cpu": lost_beside_the_cpu, "leave": leave}[sys.argv[1]](EmulatedCuda(patches), Path(sys.argv[2]))
