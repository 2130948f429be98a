"""Hugging Face's gradient clipping, done inside the step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from lowtide.checks.values import expect
from lowtide.devices.flattened import first_flattened
from lowtide.optimizers.optimizer import Optimizer


def clip_in_step(trainer: Any) -> None:
    """Makes a `transformers.Trainer`, or an `accelerate.Accelerator`, clip with `Optimizer.clip_grad_norm_` for its lifetime.
    Call it once, before training; `max_grad_norm`, the norms in logs and code that calls `accelerator.clip_grad_norm_` stay as
    they are:

        trainer = Trainer(model, args, optimizer_cls_and_kwargs=lowtide.hf.optimizer("adamw_8bit", args), ...)
        lowtide.hf.clip_in_step(trainer)

    Gradients are read once for the norm, and the step multiplies them: `.grad` is not clipped. Calls for parameters other than
    exactly those with gradients in one Lowtide optimizer work as before, as do calls under DeepSpeed and FSDP1, which clip
    themselves. Raises ValueError for anything but a Trainer or an Accelerator."""
    accelerator = getattr(trainer, "accelerator", trainer)
    known = hasattr(accelerator, "clip_grad_norm_") and hasattr(accelerator, "unscale_gradients")
    expect(known, "clip_in_step", type(trainer).__name__, "a transformers.Trainer or an accelerate.Accelerator")
    if getattr(accelerator.clip_grad_norm_, "in_step", False):
        return
    before = accelerator.clip_grad_norm_

    def clip_grad_norm_(parameters: Iterable[torch.Tensor], max_norm: float, norm_type: float = 2) -> Any:
        params = list(parameters)
        optimizer = _optimizer_of(accelerator, params)
        if optimizer is None:
            return before(params, max_norm, norm_type)
        accelerator.unscale_gradients()
        return optimizer.clip_grad_norm_(max_norm, norm_type)

    clip_grad_norm_.in_step = True  # type: ignore[attr-defined]
    accelerator.clip_grad_norm_ = clip_grad_norm_


def _optimizer_of(accelerator: Any, params: list[torch.Tensor]) -> Optimizer | None:
    """The prepared optimizer that steps exactly the parameters with gradients."""
    wanted = {id(param) for param in params if param.grad is not None}
    for prepared in accelerator._optimizers:
        optimizer = prepared
        while isinstance(optimizer, torch.optim.Optimizer) and not isinstance(optimizer, Optimizer):
            optimizer = getattr(optimizer, "optimizer", None)
        if isinstance(optimizer, Optimizer):
            own = [param for group in optimizer.param_groups for param in group["params"]]
            if wanted == {id(param) for param in own if param.grad is not None} and first_flattened(own) is None:
                return optimizer
    return None
