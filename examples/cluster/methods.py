"""The ways in which workers can combine their gradients and move their weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from llama.model import parameter_groups
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

import lowtide
from lowtide.distributed import DistributedLion, ErrorFeedbackSign, SignVote


class Method(NamedTuple):
    """One way. `title` is for tables and plots; `bits` are those of a gradient element on the wire, each way."""

    title: str
    bits: float
    build: Callable[[nn.Module, float, float], tuple[nn.Module, torch.optim.Optimizer]]  # model, lr, weight decay


def _lion(model: nn.Module, lr: float, weight_decay: float) -> torch.optim.Optimizer:
    return lowtide.Lion(parameter_groups(model, weight_decay), lr=lr, betas=(0.9, 0.99), state="fp32")


def _fp32(model: nn.Module, lr: float, weight_decay: float) -> tuple[nn.Module, torch.optim.Optimizer]:
    return DistributedDataParallel(model), _lion(model, lr, weight_decay)


def _bf16(model: nn.Module, lr: float, weight_decay: float) -> tuple[nn.Module, torch.optim.Optimizer]:
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(None, bf16_compress_hook)
    return ddp, _lion(model, lr, weight_decay)


def _sign_vote(model: nn.Module, lr: float, weight_decay: float) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Lion over voted signs. Its momentum averages the votes, and is the same on all workers."""
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(None, SignVote(model))
    return ddp, _lion(model, lr, weight_decay)


def _error_feedback(model: nn.Module, lr: float, weight_decay: float) -> tuple[nn.Module, torch.optim.Optimizer]:
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(None, ErrorFeedbackSign(model, residual="bf16"))
    return ddp, _lion(model, lr, weight_decay)


def _distributed_lion(model: nn.Module, lr: float, weight_decay: float) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Without DistributedDataParallel: every worker has its own gradients and its own momentum, here in 8 bits."""
    return model, DistributedLion(parameter_groups(model, weight_decay), lr=lr, betas=(0.9, 0.99), state="dynamic8")


METHODS = {
    "fp32": Method("all-reduce fp32 + Lion", 32, _fp32),
    "bf16": Method("bf16 hook + Lion", 16, _bf16),
    "sign_vote": Method("SignVote + Lion", 1, _sign_vote),
    "error_feedback": Method("ErrorFeedbackSign + Lion", 1, _error_feedback),
    "lion": Method("DistributedLion, 8-bit state", 1, _distributed_lion),
}
