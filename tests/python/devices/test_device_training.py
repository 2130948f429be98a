"""Training on a device: the losses of every memory budget are the same numbers as those on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import lowtide
import pytest
import torch
from stand_in import StandIn

BUDGETS: dict[str, lowtide.Memory | None] = {
    "auto": None,
    "paged": lowtide.Memory(device="16KiB", chunk="4KiB", transfer="copy"),
    "managed": lowtide.Memory(managed=True, chunk="8KiB"),
    "roomy": lowtide.Memory(device="50%"),
}
STEPS = 12


def losses(state: str, memory: lowtide.Memory | None, device: StandIn | None) -> tuple[list[float], int]:
    """Losses of a small classifier, and bytes of state on the device. `device`: where its parameters are."""
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(64, 32, generator=generator)
    labels = torch.randint(10, (64,), generator=generator)
    start = [torch.randn(*shape, generator=generator) * 0.1 for shape in ((300, 32), (300,), (10, 300), (10,))]
    params = [torch.nn.Parameter(tensor) for tensor in start] if device is None else device.parameters(start)
    grads = [torch.zeros_like(tensor) if device is None else device.tensor(torch.zeros_like(tensor)) for tensor in start]
    opt = lowtide.AdamW(params, lr=0.01, state=state, memory=memory, min_quantized_numel=0)
    found = []
    for _ in range(STEPS):
        hidden = torch.relu(torch.nn.functional.linear(inputs, params[0], params[1]))
        loss = torch.nn.functional.cross_entropy(torch.nn.functional.linear(hidden, params[2], params[3]), labels)
        for param, grad, new in zip(params, grads, torch.autograd.grad(loss, params), strict=True):
            param.grad = grad.copy_(new)
        opt.step()
        if device is not None:
            device.synchronize()
        found.append(loss.item())
    return found, opt.report()["device_bytes"]


@pytest.mark.parametrize("state", ["fp32", "dynamic8"])
def test_losses_are_those_of_the_cpu(device: StandIn, state: str, figure: Callable[[str], None]) -> None:
    torch.set_num_threads(1)  # torch's own sums, forwards and backwards
    expected, _ = losses(state, None, None)
    assert expected[-1] < expected[0] / 2, "control: it learns"
    for name, memory in BUDGETS.items():
        found, on_device = losses(state, memory, device)
        assert found == expected, name
        assert name != "paged" or 0 < on_device <= 16 << 10
        figure(f"{state}, {name}: {STEPS} losses alike, {expected[0]:.4f} to {expected[-1]:.4f}; {on_device} bytes on the device")
