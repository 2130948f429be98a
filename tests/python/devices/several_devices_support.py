"""Parameters on the CPU, two emulated CUDA devices and the CPU's OpenCL device, whose memory torch sees as CPU tensors
(stand_in.py): torch's own part in a real transfer between devices is not run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import emulated_cuda
import lowtide
import torch
import stand_in
from support import DTYPES, make, parameter, random_gradients
from twins import Count

SHAPES = ((32, 300), (7, 100), (3, 5, 257), (16, 256), (), (20, 33))  # emulated kernels are slow
NAMES = ("cpu", "cuda:0", "cuda:1", "xpu:0", "cuda:0", "cpu")  # their places


class Machine:
    """The CPU, "cuda:0", "cuda:1" and "xpu:0"."""

    names = ("cpu", "cuda:0", "cuda:1", "xpu:0")

    def __init__(self, cuda: emulated_cuda.EmulatedCuda, xpu: stand_in.Usm) -> None:
        self.cuda, self.xpu = cuda, xpu

    def tensor(self, like: torch.Tensor, name: str) -> torch.Tensor:
        if name == "cpu":
            return like.detach().clone()
        return self.xpu.tensor(like) if name == "xpu:0" else self.cuda.tensor(like, int(name[-1]))

    def parameters(self, like: Sequence[torch.Tensor], names: Sequence[str]) -> list[torch.nn.Parameter]:
        return [torch.nn.Parameter(self.tensor(each, name)) for each, name in zip(like, names, strict=True)]

    def give_gradients(self, params: Sequence[torch.Tensor], names: Sequence[str], like: Sequence[torch.Tensor]) -> None:
        for param, name, other in zip(params, names, like, strict=True):
            param.grad = None if other.grad is None else self.tensor(other.grad, name)

    def synchronize(self) -> None:
        self.cuda.synchronize()
        self.xpu.synchronize()


class Twins(Count):
    """Parameters on the CPU, and copies of them spread over devices, in two groups."""

    def __init__(self, machine: Machine, names: Sequence[str] = NAMES) -> None:
        self.machine, self.names = machine, names
        self.here = [parameter(*shape, dtype=DTYPES[i % 3]) for i, shape in enumerate(SHAPES)]
        self.there = machine.parameters(self.here, names)

    def optimizers(self, rule: str, **options: Any) -> tuple[lowtide.Optimizer, lowtide.Optimizer]:
        first, second = (make(rule, self.groups(params), **options) for params in (self.here, self.there))
        return first, second

    @staticmethod
    def groups(params: Sequence[torch.Tensor]) -> list[dict[str, Any]]:
        return [{"params": params[:4]}, {"params": params[4:], "lr": 0.01}]

    def gradients(self) -> None:
        random_gradients(self.here)
        self.machine.give_gradients(self.there, self.names, self.here)

    def step(self, first: lowtide.Optimizer, second: lowtide.Optimizer, steps: int = 3) -> None:
        for _ in range(steps):
            self.gradients()
            first.step()
            second.step()
            self.compare_all()

    def compare_all(self) -> None:
        self.machine.synchronize()
        self.compare(self.here, self.there)
