"""Optimizers of other packages in one form for all benchmarks: functions of parameters and hyper-parameters. Their imports fail
if a package is missing. Also finds out why one cannot run here."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Options = dict[str, Any]
Params = list[torch.nn.Parameter]


def torch_fused(params: Params, **hyper: Any) -> Any:
    return torch.optim.AdamW(params, fused=True, **hyper)


def torch_foreach(params: Params, **hyper: Any) -> Any:
    return torch.optim.AdamW(params, foreach=True, **hyper)


def bitsandbytes(params: Params, name: str = "AdamW8bit", **hyper: Any) -> Any:
    """On a CPU, its step is a chain of torch operations."""
    import bitsandbytes as bnb

    return getattr(bnb.optim, name)(params, **hyper)


def torchao(params: Params, bits: int = 8, **hyper: Any) -> Any:
    """8-bit or 4-bit state. torch.compile makes its step, which takes a C++ compiler on a CPU."""
    import torchao.optim

    return {8: torchao.optim.AdamW8bit, 4: torchao.optim.AdamW4bit}[bits](params, **hyper)


def torchao_offload(params: Params, **hyper: Any) -> Any:
    from torchao.optim import CPUOffloadOptimizer

    return CPUOffloadOptimizer(params, torch.optim.AdamW, fused=True, **hyper)


def flashoptim(params: Params, **hyper: Any) -> Any:
    """Its 8-bit state, low bits of weights and fused step are Triton kernels for GPUs. Without them (its own options) it runs
    on a CPU, with state as wide as the parameters."""
    from flashoptim import FlashAdamW

    return FlashAdamW(params, **hyper)


def deepspeed(params: Params, **hyper: Any) -> Any:
    """CPUAdam. DeepSpeed compiles it on first use (some minutes)."""
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    return DeepSpeedCPUAdam(params, adamw_mode=True, **hyper)


@dataclass(frozen=True)
class Contender:
    """An optimizer of a package. Its state is like a torch.optim.Optimizer's: tensors in `state`, by parameter."""

    package: str  # the distribution
    make: Callable[..., Any]  # takes parameters, then hyper-parameters and options by name
    module: str = ""  # to import; "": the package
    compiles: Callable[[], bool] | None = None  # whether its first step would wait minutes for a compiler; None: it has none
    cannot: Callable[[Options], str | None] | None = None  # why these options cannot be measured here

    def why_not(self, quick: bool) -> str | None:
        """Why it cannot run here, or None. quick: do not wait for a compiler."""
        logging.disable(logging.WARNING)
        try:
            importlib.import_module(self.module or self.package)
            if self.compiles is None:
                return None
            if quick and self.compiles():
                return "has to be compiled, and --quick does not wait for that"
            param = torch.nn.Parameter(torch.zeros(16, 256))
            param.grad = torch.zeros(16, 256)
            self.make([param], lr=1e-3, weight_decay=0.01).step()
        except Exception as error:  # binaries, compilers and drivers raise many types
            return f"cannot run: {str(error).partition(chr(10))[0] or type(error).__name__}"
        finally:
            logging.disable(logging.NOTSET)
        return None


def state_bytes(optimizer: Any) -> int:
    """Bytes of the state tensors, counting each memory once. Step counts (one-element tensors) are not state."""
    found: dict[int, int] = {}
    for entry in optimizer.state.values():
        for value in entry.values():
            if isinstance(value, torch.Tensor) and value.numel() > 1:
                found[value.data_ptr()] = value.nbytes
    return sum(found.values())
