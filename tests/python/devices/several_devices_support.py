"""Parameters on the CPU, on two emulated CUDA devices (emulated_cuda.py), whose memory torch sees as CPU tensors, and on
torch's xpu on the CPU's OpenCL device (xpu_device.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import emulated_cuda
import torch
import xpu_device
from support import DTYPES
from twins import Twins

SHAPES = ((32, 300), (7, 100), (3, 5, 257), (16, 256), (), (20, 33))  # emulated kernels are slow
NAMES = ("cpu", "cuda:0", "cuda:1", "xpu:0", "cuda:0", "cpu")  # their places


class Machine:
    """The CPU, "cuda:0", "cuda:1" and "xpu:0"."""

    names = ("cpu", "cuda:0", "cuda:1", "xpu:0")

    def __init__(self, cuda: emulated_cuda.EmulatedCuda, xpu: xpu_device.Xpu) -> None:
        self.cuda, self.xpu = cuda, xpu

    def tensor(self, like: torch.Tensor, name: str) -> torch.Tensor:
        if name == "cpu":
            return like.detach().clone()
        return self.xpu.tensor(like) if name == "xpu:0" else self.cuda.tensor(like, int(name[-1]))

    def parameters(self, like: Sequence[torch.Tensor], names: Sequence[str]) -> list[torch.nn.Parameter]:
        return Spread(self, names).parameters(like)

    def synchronize(self) -> None:
        self.cuda.synchronize()
        self.xpu.synchronize()


class Spread:
    """The machine, for parameters in these places, in order."""

    def __init__(self, machine: Machine, names: Sequence[str]) -> None:
        self.machine, self.names = machine, names
        self.synchronize = machine.synchronize

    def parameters(self, like: Sequence[torch.Tensor]) -> list[torch.nn.Parameter]:
        return [torch.nn.Parameter(self.machine.tensor(each, name)) for each, name in zip(like, self.names, strict=True)]

    def give_gradients(self, params: Sequence[torch.Tensor], like: Sequence[torch.Tensor]) -> None:
        for param, name, other in zip(params, self.names, like, strict=True):
            param.grad = None if other.grad is None else self.machine.tensor(other.grad, name)


def spread(machine: Machine, rule: Any = "adamw", names: Sequence[str] = NAMES, like: Sequence[Any] = SHAPES, **options: Any) -> Twins:
    """Twins whose second parameters are in these places."""
    return Twins(Spread(machine, names), like, rule, **{"cut": 4 if like is SHAPES else None, "dtypes": DTYPES, **options})
