"""Little memory: state is promoted and demoted, and saved from running out. Ballast is plain device memory."""

from __future__ import annotations

from typing import Any

import torch

from bench.cuda import contenders, shapes
from bench.cuda.device import Gpu
from bench.cuda.rows import Rows

QUIET_STEPS = 45  # twice as long as promotion waits after the last pressure
PRESSED_STEPS = 5


def prepared(gpu: Gpu) -> tuple[list[torch.nn.Parameter], Any, int]:
    """Parameters, an optimizer whose state goes wherever there is room, and the bytes of that state."""
    params = gpu.parameters(shapes.equal(gpu.elements(1_000_000_000, 200_000, 20, 6), 16), torch.bfloat16)
    optimizer = contenders.lowtide_adamw(gpu, params, memory=contenders.budget(gpu, device="auto"))
    return params, optimizer, round(sum(param.numel() for param in params) * 2 * (1 + 4 / 256))


def steps(gpu: Gpu, optimizer: Any, count: int) -> dict[str, Any]:
    for _ in range(gpu.size(count, 2)):
        optimizer.step()
    gpu.cuda.synchronize()
    return report(gpu, optimizer)


def report(gpu: Gpu, optimizer: Any) -> dict[str, Any]:
    found = dict(optimizer.report())
    return {**found, "device_bytes": found["allocated_bytes"]} if not gpu.on_device else found


def promote_demote(gpu: Gpu, rows: Rows) -> None:
    params, optimizer, state = prepared(gpu)
    start = steps(gpu, optimizer, 1)
    roomy = steps(gpu, optimizer, QUIET_STEPS)
    rows.add("room enough: share of the state on the device", roomy["device_bytes"] / state, "x",
             after_first_step=start["device_bytes"] / state, promotions=roomy.get("promotions"))  # fmt: skip
    gpu.ballast(leave=gpu.size(1 << 30, 1 << 20))
    try:
        pressed = steps(gpu, optimizer, PRESSED_STEPS)
    finally:
        gpu.drop_ballast()
    rows.add("1 GiB left: share of the state on the device", pressed["device_bytes"] / state, "x",
             demotions=pressed.get("demotions"))  # fmt: skip
    relieved = steps(gpu, optimizer, QUIET_STEPS)
    rows.add("room again: share of the state on the device", relieved["device_bytes"] / state, "x",
             promotions=relieved.get("promotions"), demotions=relieved.get("demotions"))  # fmt: skip
    finite = all(bool(torch.isfinite(param).all()) for param in params)
    rows.add("parameters finite after all steps", float(finite), "")


def oom_guard(gpu: Gpu, rows: Rows) -> None:
    """A micro-batch that does not fit beside the resident state: the guard demotes all state and tries again."""
    _, optimizer, state = prepared(gpu)
    steps(gpu, optimizer, QUIET_STEPS)
    gpu.ballast(leave=gpu.size(state // 2, 1 << 20))
    tries: list[int] = []

    @optimizer.oom_guard()
    def micro_batch() -> int:
        tries.append(1)
        if gpu.rehearsed:
            return 1
        return int(torch.ones(state, dtype=torch.uint8, device=gpu.device)[-1])

    try:
        passed = micro_batch() == 1
    finally:
        gpu.drop_ballast()
    rows.add("oom_guard: the micro-batch passed", float(passed), "", tries=len(tries),
             demotions=optimizer.report().get("demotions"))  # fmt: skip


def demote(gpu: Gpu, rows: Rows) -> None:
    """Calls demote() directly. It gives the memory back, and the next steps are right."""
    _, optimizer, state = prepared(gpu)
    before = steps(gpu, optimizer, QUIET_STEPS)["device_bytes"]
    optimizer.demote()
    after = report(gpu, optimizer)["device_bytes"]
    rows.add("demote(): share of the state on the device", after / state, "x", before=before / state)
    steps(gpu, optimizer, 2)


CASES = {"pressure.promote_demote": promote_demote, "pressure.oom_guard": oom_guard, "pressure.demote": demote}
