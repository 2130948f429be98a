"""A GPU for rehearsals: the CUDA runtime that the tests emulate on the CPU. Lowtide does all that it does on CUDA, with budgets
of device memory, transfer modes, late streams, and kernels from their own sources. torch computes on the CPU.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from bench.cuda import stand_in
from bench.cuda.device import Gpu, bytes_of

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "python"))

if TYPE_CHECKING:
    from emulated_cuda import EmulatedCuda

FEWER = 5  # the CPU itself steps so many times as many elements in that time
SMALLER = 512  # real budgets are so many times larger
LEAST = 96 << 10  # the least bytes of a budget


class EmulatedGpu(Gpu):
    def __init__(self, cuda: EmulatedCuda) -> None:
        super().__init__(rehearse=True)
        self.emulated, self.on_device = cuda, True
        self.cuda = SimpleNamespace(**{**vars(stand_in), "synchronize": cuda.synchronize,
                                       "memory_allocated": self._held, "max_memory_allocated": self._held})  # fmt: skip

    def _held(self) -> int:
        """Bytes that Lowtide has from torch's allocator. Its state does not shrink from step to step."""
        return sum(size for size, _ in self.emulated.cached.values())

    def elements(self, wanted: int, rehearsal: int, device_each: float, host_each: float = 0.0) -> int:
        return rehearsal // FEWER

    def budget(self, size: str) -> str:
        """Shares and "auto" are unchanged; sizes are scaled to the state of a rehearsal."""
        return size if size == "auto" or size.endswith("%") else str(max(LEAST, bytes_of(size) // SMALLER))

    def tensor(self, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return self.emulated.tensor(value.to(dtype))

    def parameters(self, shapes: list[tuple[int, ...]], dtype: torch.dtype) -> list[torch.nn.Parameter]:
        made = super().parameters(shapes, dtype)
        return [self._moved(param) for param in made]

    def _moved(self, param: torch.nn.Parameter) -> torch.nn.Parameter:
        there = torch.nn.Parameter(self.emulated.tensor(param))
        assert param.grad is not None
        there.grad = self.emulated.tensor(param.grad)
        return there

    def adopt(self, model: torch.nn.Module) -> None:
        """autograd makes gradients in the CPU's memory, so each is moved as it arrives."""
        for param in model.parameters():
            param.data = self.emulated.tensor(param)
            room = self.emulated.tensor(param)

            def move(param: torch.Tensor, room: torch.Tensor = room) -> None:
                assert param.grad is not None
                param.grad = room.copy_(param.grad)

            param.register_post_accumulate_grad_hook(move)

    def follow(self, optimizer: Any) -> None:
        """Waits after each step, because torch's work on the CPU is not ordered after it."""
        optimizer.register_step_post_hook(lambda *_: self.emulated.synchronize())


def opened() -> Gpu:
    """Opens an emulated GPU for this process, or only the CPU if that is not built."""
    try:
        import emulated_cuda
        import pytest

        patches = pytest.MonkeyPatch()
        if not emulated_cuda.prepare(patches):
            return EmulatedGpu(emulated_cuda.EmulatedCuda(patches))
        patches.undo()
    except ImportError:
        pass
    return Gpu(rehearse=True)
