"""A LLaMA by its sizes, its device, and the budget of paged state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .config import Config
from .common import ExampleError

if TYPE_CHECKING:  # imported only to train, because it takes seconds
    import torch

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
SIZES = ("hidden_size", "num_layers", "intermediate_size", "num_heads", "vocab_size", "seq_len", "batch_size")
BACKENDS = {"cpu": "cpu", "xpu": "sycl", "cuda": "cuda"}

@dataclass(frozen=True)
class Job:
    """The sizes of a training run, with the names of bitsandbytes' benchmark of paged memory."""

    hidden_size: int = 1024
    num_layers: int = 12
    intermediate_size: int = 2752
    num_heads: int = 16
    vocab_size: int = 32000
    seq_len: int = 128
    batch_size: int = 2
    dtype: str = "bf16"
    device: str = "cpu"
    budget: str = "4MiB"  # of fast memory, for paged state


def check_sizes(job: Job, options: Mapping[str, str]) -> None:
    """Raises ExampleError for impossible sizes. options: the option that sets a field, if it has another name."""

    def said(name: str) -> str:
        return f"{options.get(name, f'--{name}')}: got {getattr(job, name)}"

    for name in SIZES:
        if getattr(job, name) < 1:
            raise ExampleError(f"{said(name)}, wanted 1 or more")
    if job.hidden_size % (2 * job.num_heads):
        raise ExampleError(f"{said('hidden_size')}, wanted a multiple of {2 * job.num_heads}: {job.num_heads} heads of an even width")


def check_device(device: str) -> None:
    """Raises ExampleError if torch or Lowtide lacks the device here."""
    import torch

    import lowtide

    if device != "cpu" and not (hasattr(torch, device) and getattr(torch, device).is_available()):
        raise ExampleError(f"--device {device}: torch {torch.__version__} finds no {device} device")
    found = lowtide.backends()[BACKENDS[device]]
    if not found["available"]:
        raise ExampleError(f"--device {device}: {found['detail']}")


def best_device() -> str:
    """The first of xpu, cuda and cpu that torch finds."""
    import torch

    return next((kind for kind in ("xpu", "cuda") if hasattr(torch, kind) and getattr(torch, kind).is_available()), "cpu")


def budget(job: Job, disk: str) -> Any:
    """The budget of paged state. State beyond it goes to `disk` or, for a device, to host memory."""
    import lowtide

    return lowtide.Memory(host=job.budget, disk=disk) if job.device == "cpu" else lowtide.Memory(device=job.budget)


def build(job: Job) -> torch.nn.Module:
    """The model with random weights, in the job's type, on its device."""
    import torch

    from .model import build_model

    config = Config(width=job.hidden_size, layers=job.num_layers, ffn=job.intermediate_size, heads=job.num_heads,
                    context=2 * job.seq_len)  # fmt: skip
    model = build_model(config, job.vocab_size)
    for parameter in model.parameters():  # not buffers: the table of rotary frequencies stays
        parameter.data = parameter.data.to(getattr(torch, DTYPES[job.dtype]))
    return model.to(job.device)
