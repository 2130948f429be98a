"""Lowtide's optimizers over parameters on a GPU. Those of other packages are in bench/common/contenders.py."""

from __future__ import annotations

from typing import Any

from bench.cuda.device import Gpu
from bench.cuda.rows import Absent

LR = 1e-4
SETTLING = 60  # steps: more than promotion waits for
NEW_OPTIONS = ("arithmetic", "prefetch_in_backward", "step_in_backward")


def budget(gpu: Gpu, device: str | None = None, host: str | None = None, transfer: str | None = None) -> Any:
    """lowtide.Memory for parameters on the GPU. A rehearsal's parameters are on the CPU, and overflow to disk."""
    import lowtide

    if not gpu.on_device:
        fits = device in (None, "auto")
        return lowtide.Memory(host="1GiB") if fits else lowtide.Memory(host="1MiB", disk=gpu.scratch())
    given = {"device": device and gpu.budget(device), "host": host, "transfer": transfer}
    return lowtide.Memory(**{key: value for key, value in given.items() if value is not None})


def lowtide_optimizer(gpu: Gpu, params: Any, rule: str = "AdamW", nonfinite: str = "propagate", **options: Any) -> Any:
    """Leaves out the check for non-finite gradients, which other optimizers lack, unless `nonfinite` says otherwise."""
    import lowtide

    options = {key: value for key, value in options.items() if value is not None}
    base = {"lr": LR, "nonfinite": nonfinite}
    make = getattr(lowtide, rule)
    if not gpu.on_device:  # some options only work on a device
        gpu.dropped |= {key for key in NEW_OPTIONS if key in options}
        options = {key: value for key, value in options.items() if key not in NEW_OPTIONS}
    optimizer = make(params, **base, **options)
    gpu.follow(optimizer)
    return optimizer


def lowtide_adamw(gpu: Gpu, params: Any, state: str = "dynamic8", **options: Any) -> Any:
    return lowtide_optimizer(gpu, params, state=state, **options)


def settle(gpu: Gpu, optimizer: Any) -> Any:
    """Steps until all state is on the device. By default it starts on the host and moves once steps have shown what else the
    device must hold. Raises Absent if it stays."""
    for _ in range(SETTLING):
        optimizer.step()
        if not gpu.on_device or optimizer.report().get("moved_per_step", 0) == 0:
            return optimizer
    raise Absent(f"after {SETTLING} steps, state still streams from the host: {dict(optimizer.report())}")


def still_resident(gpu: Gpu, optimizer: Any) -> None:
    if gpu.on_device and (moved := optimizer.report().get("moved_per_step", 0)):
        raise Absent(f"during the measurement, state was moved to the host: {moved} bytes move in each step")
