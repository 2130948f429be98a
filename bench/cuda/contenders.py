"""The compared optimizers. Each function returns one over `params`, or raises Absent with the reason."""

from __future__ import annotations

from typing import Any

import torch

from bench.cuda.device import Gpu
from bench.cuda.rows import Absent

LR = 1e-4
SETTLING = 60  # steps: more than promotion waits for
NEW_OPTIONS = ("arithmetic", "prefetch_in_backward", "step_in_backward")


def budget(gpu: Gpu, device: str | None = None, host: str | None = None, transfer: str | None = None) -> Any:
    """lowtide.Memory for parameters on the GPU. A rehearsal's parameters are on the CPU, whose overflow goes to disk."""
    import lowtide

    if not gpu.on_device:
        fits = device in (None, "auto")
        return lowtide.Memory(host="1GiB") if fits else lowtide.Memory(host="1MiB", disk=gpu.scratch())
    given = {"device": device and gpu.budget(device), "host": host, "transfer": transfer}
    return lowtide.Memory(**{key: value for key, value in given.items() if value is not None})


def lowtide_optimizer(gpu: Gpu, params: Any, rule: str = "AdamW", nonfinite: str = "propagate", **options: Any) -> Any:
    """Leaves out the check for non-finite gradients, which the others lack, unless `nonfinite` says otherwise."""
    try:
        import lowtide
    except ImportError as error:
        raise Absent(f"lowtide cannot be imported: {error}") from error
    options = {key: value for key, value in options.items() if value is not None}
    base = {"lr": LR, "nonfinite": nonfinite}
    make = getattr(lowtide, rule)
    if not gpu.on_device:  # some options mean something on a device only
        gpu.dropped |= {key for key in NEW_OPTIONS if key in options}
        options = {key: value for key, value in options.items() if key not in NEW_OPTIONS}
    optimizer = make(params, **base, **options)
    gpu.follow(optimizer)
    return optimizer


def lowtide_adamw(gpu: Gpu, params: Any, state: str = "dynamic8", **options: Any) -> Any:
    return lowtide_optimizer(gpu, params, state=state, **options)


def settle(gpu: Gpu, optimizer: Any) -> Any:
    """Steps until all state is on the device: by default it starts on the host and follows when steps have shown what
    else the device has to hold. Raises Absent if it stays where it is."""
    for _ in range(SETTLING):
        optimizer.step()
        if not gpu.on_device or optimizer.report().get("moved_per_step", 0) == 0:
            return optimizer
    raise Absent(f"after {SETTLING} steps, state still streams from the host: {dict(optimizer.report())}")


def still_resident(gpu: Gpu, optimizer: Any) -> None:
    if gpu.on_device and (moved := optimizer.report().get("moved_per_step", 0)):
        raise Absent(f"during the measurement, state was moved to the host: {moved} bytes move in each step")


def torch_fused(gpu: Gpu, params: Any) -> Any:
    return torch.optim.AdamW(params, lr=LR, fused=True)


def bitsandbytes(gpu: Gpu, params: Any, name: str) -> Any:
    try:
        import bitsandbytes as bnb
    except Exception as error:  # a failed import of its binary comes in many types
        raise Absent(f"bitsandbytes cannot be imported: {error}") from error
    return getattr(bnb.optim, name)(params, lr=LR)


def flashoptim(gpu: Gpu, params: Any) -> Any:
    """Without the error that it keeps beside bfloat16 weights by default: the others keep none."""
    try:
        from flashoptim import FlashAdamW
    except Exception as error:
        raise Absent(f"flashoptim cannot be imported: {error}") from error
    return FlashAdamW(params, lr=LR, master_weight_bits=None)


def torchao(gpu: Gpu, params: Any) -> Any:
    try:
        from torchao.optim import AdamW8bit
    except Exception as error:
        raise Absent(f"torchao cannot be imported: {error}") from error
    return AdamW8bit(params, lr=LR)


def torchao_offload(gpu: Gpu, params: Any) -> Any:
    try:
        from torchao.optim import CPUOffloadOptimizer
    except Exception as error:
        raise Absent(f"torchao cannot be imported: {error}") from error
    return CPUOffloadOptimizer(params, torch.optim.AdamW, lr=LR, fused=True)
