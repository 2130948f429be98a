"""Hand-over loops: functions of other projects, unchanged, that take the state off its device and back, like `offload()` and
`onload()`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lowtide
import movers
import pytest
import torch

BUDGETS: dict[str, Callable[[Path], dict[str, Any] | None]] = {
    "none": lambda folder: None,
    "on the device": lambda folder: {"device": "50%"},
    "streams": lambda folder: {"device": "24KiB", "chunk": 4096},
    "on a disk": lambda folder: {"device": "24KiB", "host": "32KiB", "disk": folder, "chunk": 4096, "step": "device"},
    "host steps": lambda folder: {"step": "host"},
}
ON_HOST = {"none": BUDGETS["none"], "paged": lambda folder: {"host": "16KiB", "disk": folder, "chunk": 4096}}


def made(project: str, device: Any) -> movers.Mover:
    if project in movers.BY_CUDA and device.kind not in ("cuda", "cpu"):
        pytest.skip(f"{project} asks whether tensors are on cuda, and leaves others where they are")
    return movers.MOVERS[project]()


@pytest.mark.share
@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("project", movers.MOVERS)
def test_state_leaves_a_device(
    project: str, budget: str, device: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, figure: Callable[[str], None]
) -> None:
    mover = made(project, device)
    with movers.moves_of(device, monkeypatch):
        memory = BUDGETS[budget](tmp_path)
        figure(movers.hand_over(device, mover, memory and lowtide.Memory(**memory), state=movers.state_of(project)))


@pytest.mark.parametrize("budget", ON_HOST)
@pytest.mark.parametrize("project", movers.MOVERS)
def test_state_of_the_cpu_stays(project: str, budget: str, tmp_path: Path, seed: int, figure: Callable[[str], None]) -> None:
    device = movers.Real("cpu")
    mover, memory = made(project, device), ON_HOST[budget](tmp_path)
    if project == "megatron" and not torch.cuda.is_available():  # it brings back what is not on cuda
        mover = movers.Mover(mover.offload, mover.offload)
    figure(movers.hand_over(device, mover, memory and lowtide.Memory(**memory), state=movers.state_of(project)))
