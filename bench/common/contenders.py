"""Optimizers of other packages in one form for all benchmarks: functions of parameters and hyper-parameters. Their imports fail
if a package is missing. PEERS lists them. Also finds out why one cannot run here."""

from __future__ import annotations

import importlib
import logging
import os
import pathlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import Any

import torch

Options = dict[str, Any]
Params = list[torch.nn.Parameter]


def torch_fused(params: Params, **hyper: Any) -> Any:
    return torch.optim.AdamW(params, fused=True, **hyper)


class Fp32Masters(torch.optim.AdamW):
    """torch's AdamW over fp32 copies of the parameters, which bf16 training needs for the result of masters."""

    def __init__(self, params: Any, **hyper: Any) -> None:
        self.bf16 = list(params)
        super().__init__([param.detach().float() for param in self.bf16], **hyper)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        masters = self.param_groups[0]["params"]
        for param, master in zip(self.bf16, masters, strict=True):
            assert param.grad is not None
            master.grad, param.grad = param.grad.float(), None
        super().step()
        for param, master in zip(self.bf16, masters, strict=True):
            master.grad = None
            param.copy_(master)

    def zero_grad(self, set_to_none: bool = True) -> None:
        for param in self.bf16:
            param.grad = None


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


def deepspeed_compiles() -> bool:
    from torch.utils.cpp_extension import _get_build_directory

    return not pathlib.Path(_get_build_directory("cpu_adam", False), "cpu_adam.so").exists()


def gefen(params: Params, **hyper: Any) -> Any:
    """8-bit first moments and factored second ones. Its kernels are for CUDA; on a CPU its step is torch operations."""
    from gefen import Gefen

    return Gefen(params, **hyper)


def adafactor8bit(params: Params, **hyper: Any) -> Any:
    """Adafactor with an 8-bit first moment, at the rate that is given. On a CPU its step is torch operations."""
    from adafactor8bit import Adafactor8Bit

    return Adafactor8Bit(params, beta1=0.9, relative_step=False, **hyper)


def adv_optm(params: Params, **hyper: Any) -> Any:
    from adv_optm import AdamW_adv

    return AdamW_adv(params, **hyper)


def trainstream(model: torch.nn.Module, **hyper: Any) -> Any:
    """A model and an optimizer: state and gradients in host memory, and as much of the weights as the device cannot hold."""
    import trainstream as ts

    return ts.wrap(model, torch.optim.AdamW(model.parameters(), **hyper), device="cuda", offload=True)


@dataclass(frozen=True)
class Contender:
    """An optimizer of a package. Its state is like a torch.optim.Optimizer's: tensors in `state`, by parameter."""

    package: str  # the distribution
    make: Callable[..., Any]  # takes parameters, then hyper-parameters and options by name
    label: str = ""
    module: str = ""  # to import; "": the package
    compiles: Callable[[], bool] | None = None  # whether its first step would wait minutes for a compiler; None: it has none
    cannot: Callable[[Options], str | None] | None = None  # why these options cannot be measured here
    devices: tuple[str, ...] = ("cpu", "cuda")  # of the parameters
    dtypes: tuple[str, ...] = ("fp32", "bf16")  # of the parameters
    whole: bool = False  # `make` takes a model, and returns a model and an optimizer

    def load(self) -> None:
        """Imports the package. Raises ImportError if it is missing, or if the module of that name belongs to another one."""
        name = self.module or self.package
        found = importlib.import_module(name.partition(".")[0])
        importlib.import_module(name)
        folder = pathlib.Path(found.__file__ or "").resolve().parents[1]
        rivals = {peer.package for peer in PEERS.values() if (peer.module or peer.package) == name} | {self.package}
        owners = [each for each in rivals if _folder(each) == folder]
        if len(rivals) > 1 and owners != [self.package]:
            raise ImportError(f"module {name} is from {' and '.join(sorted(owners)) or folder}, wanted only {self.package}: "
                              f"pip install --no-deps --target DIR/{self.package} {self.package}, and --packages DIR")  # fmt: skip

    def why_not(self, quick: bool) -> str | None:
        """Why it cannot run here, or None. quick: do not wait for a compiler."""
        logging.disable(logging.WARNING)
        try:
            self.load()
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


def _folder(package: str) -> pathlib.Path | None:
    """The folder that a distribution is installed in, None if it is not."""
    try:
        return pathlib.Path(str(metadata.distribution(package).locate_file(""))).resolve()
    except metadata.PackageNotFoundError:
        return None


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The plain tensors that a tensor, a container or an object consists of."""
    if isinstance(value, torch.Tensor):
        parts = value.__tensor_flatten__()[0] if hasattr(value, "__tensor_flatten__") else []  # type: ignore[operator]
        yield from (each for part in parts for each in _tensors(getattr(value, part))) if parts else (value,)
    elif isinstance(value, dict):
        yield from (each for part in value.values() for each in _tensors(part))
    elif hasattr(value, "__dict__"):
        yield from _tensors(vars(value))


def state_bytes(optimizer: Any) -> int:
    """Bytes of the state tensors, counting each memory once. Step counts (one-element tensors) are not state."""
    found: dict[int, int] = {}
    for entry in optimizer.state.values():
        for value in _tensors(entry):
            if value.numel() > 1:
                found[value.data_ptr()] = value.nbytes
    return sum(found.values())


_FLASHOPTIM_PLAIN = {"quantize": False, "master_weight_bits": None, "fused": False}  # without kernels for GPUs
os.environ.setdefault("DS_ACCELERATOR", "cpu")  # DeepSpeed reads it when it is imported
PEERS = {
    "torch": Contender("torch", torch_fused, "torch AdamW(fused)"),
    "torch-masters": Contender("torch", Fp32Masters, "torch AdamW, fp32 masters", dtypes=("bf16",)),
    "bitsandbytes": Contender("bitsandbytes", bitsandbytes, "bitsandbytes AdamW8bit"),
    **{
        name: Contender("bitsandbytes", partial(bitsandbytes, name=of), f"bitsandbytes {of}", devices=("cuda",))
        for name, of in (
            ("bitsandbytes-paged", "PagedAdamW8bit"), ("bitsandbytes-fp32", "AdamW"), ("bitsandbytes-fp32-paged", "PagedAdamW"),
        )
    },
    "bitsandbytes-cpu-fork": Contender(
        "bitsandbytes-cpu-fork", bitsandbytes, "bitsandbytes-cpu-fork AdamW8bit", module="bitsandbytes", devices=("cpu",)
    ),
    "torchao": Contender("torchao", torchao, "torchao AdamW8bit", module="torchao.optim", compiles=lambda: True),
    "torchao-offload": Contender(
        "torchao", torchao_offload, "torchao CPUOffloadOptimizer", module="torchao.optim", devices=("cuda",)
    ),
    "flashoptim": Contender("flashoptim", flashoptim, "FlashAdamW", devices=("cuda",)),
    "flashoptim-plain": Contender(
        "flashoptim", partial(flashoptim, **_FLASHOPTIM_PLAIN), "FlashAdamW, unquantized and unfused", devices=("cpu",)
    ),
    "deepspeed": Contender(
        "deepspeed", deepspeed, "DeepSpeedCPUAdam", module="deepspeed.ops.adam", compiles=deepspeed_compiles, devices=("cpu",)
    ),
    "gefen-x": Contender("gefen-x", gefen, "Gefen-X", module="gefen"),
    "adafactor8bit": Contender("adafactor8bit", adafactor8bit, "Adafactor8Bit, 8-bit first moment"),
    "adv_optm": Contender("adv_optm", adv_optm, "adv_optm AdamW_adv"),
    "trainstream": Contender("trainstream", trainstream, "TrainStream", devices=("cuda",), whole=True),
}
