"""Trains a LLaMA with paged and unpaged state, and measures each kind of memory meanwhile."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from . import memory
from .config import Config
from .common import ExampleError

if TYPE_CHECKING:  # imported only to train, because it takes seconds
    import torch

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
SIZES = ("hidden_size", "num_layers", "intermediate_size", "num_heads", "vocab_size", "seq_len", "batch_size", "train_steps")
BACKENDS = {"cpu": "cpu", "xpu": "sycl", "cuda": "cuda"}

Make = Callable[[list[Any], Any], Any]  # makes an optimizer of parameters, with the budget if paged


@dataclass(frozen=True)
class Job:
    """A training run. Names and defaults are the options of bitsandbytes' benchmark_paged_memory.py."""

    hidden_size: int = 1024
    num_layers: int = 12
    intermediate_size: int = 2752
    num_heads: int = 16
    vocab_size: int = 32000
    seq_len: int = 128
    batch_size: int = 2
    train_steps: int = 5
    dtype: str = "bf16"
    device: str = "cpu"
    lr: float = 2e-4
    budget: str = "4MiB"  # of fast memory, for paged state


@dataclass(frozen=True)
class Run:
    """A finished run, in bytes. "fast" is where the model is: RAM, or the memory of its device."""

    parameters: int
    losses: list[float]
    weights: str  # a hash of them at the end
    weight_bytes: int
    gradient_bytes: int
    fast_state_bytes: int
    other_state_bytes: int  # on disk for a model in RAM, in host memory for one on a device
    state_bytes: int  # bytes that the format needs
    passes_peak_bytes: int  # of fast memory, above the level before the model, in forward and backward
    step_peak_bytes: int  # likewise, in a step
    moved_per_step: int
    passes_seconds: float  # median
    step_seconds: float

    @property
    def peak_bytes(self) -> int:
        return max(self.passes_peak_bytes, self.step_peak_bytes)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """An option for each field of Job, and --disk."""
    for field in fields(Job):
        choices = {"device": [*BACKENDS], "dtype": [*DTYPES]}.get(field.name)
        default = None if field.name == "device" else field.default
        shown = "%(default)s" if default else "the first that torch finds of xpu, cuda, cpu"
        parser.add_argument(f"--{field.name}", type=type(field.default), default=default, choices=choices, help=f"default: {shown}")
    parser.add_argument("--disk", default=None, help="folder for scratch files (default: the system's temporary one)")


def job_of(args: argparse.Namespace) -> Job:
    """The job of these options. Raises ExampleError for impossible ones."""
    job = Job(**{**{field.name: getattr(args, field.name) for field in fields(Job)}, "device": args.device or best_device()})
    check_device(job.device)
    check_sizes(job)
    return job


def check_sizes(job: Job, options: Mapping[str, str] | None = None) -> None:
    """Raises ExampleError for impossible sizes. options: the option that sets a field, if it has another name."""

    def said(name: str) -> str:
        return f"{(options or {}).get(name, f'--{name}')}: got {getattr(job, name)}"

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


class Ram:
    """Fast memory of a model on the CPU: the resident memory of the process."""

    reset = staticmethod(memory.require_reset_peak)
    peak = staticmethod(memory.peak_bytes)
    now = staticmethod(memory.resident_bytes)

    def beside(self, report: dict[str, Any]) -> int:
        """State that these figures do not include."""
        del report
        return 0


class OfDevice:
    """Fast memory of a model on a device: the memory that torch's allocator has given."""

    def __init__(self, kind: str) -> None:
        import torch

        module = getattr(torch, kind)
        self.kind, self.reset = kind, module.reset_peak_memory_stats
        self.peak, self.now = module.max_memory_allocated, module.memory_allocated

    def beside(self, report: dict[str, Any]) -> int:
        return 0 if self.kind == "cuda" else int(report["device_bytes"])  # on CUDA it is torch's memory


def train(job: Job, make: Make, batches: Sequence[torch.Tensor], disk: str | None) -> Run:
    """Trains on the batches, in turn. disk: the folder for scratch files (default: the system's temporary one). Call it in a
    separate process, which has no memory of earlier runs."""
    from .model import weights_sha256

    # First a pass and a step with one layer, so that one-time loads and allocations are in no peak.
    small = replace(job, num_layers=1, vocab_size=320)
    fast = Ram() if job.device == "cpu" else OfDevice(job.device)
    with tempfile.TemporaryDirectory(dir=disk) as scratch:
        model = build(small)
        tokens = [batch.to(job.device) for batch in batches]
        _step(model, make(list(model.parameters()), budget(job, scratch)), tokens[0] % small.vocab_size, fast)
        del model
        before = fast.now()
        model = build(job)
        optimizer = make(list(model.parameters()), budget(job, scratch))
        steps = [_step(model, optimizer, tokens[i % len(tokens)], fast) for i in range(job.train_steps)]
        report = dict(optimizer.report())
        on_cpu = job.device == "cpu"
        in_fast, elsewhere = ("allocated_bytes", "disk_bytes") if on_cpu else ("device_bytes", "allocated_bytes")
        beside = fast.beside(report) - before
        parameters = list(model.parameters())
        weight_bytes = sum(parameter.nbytes for parameter in parameters)
        return Run(
            parameters=sum(parameter.numel() for parameter in parameters),
            losses=[step.loss for step in steps], weights=weights_sha256(model),
            weight_bytes=weight_bytes, gradient_bytes=weight_bytes,
            fast_state_bytes=report[in_fast], other_state_bytes=report[elsewhere], state_bytes=report["state_bytes"],
            passes_peak_bytes=max(step.passes_peak for step in steps) + beside,
            step_peak_bytes=max(step.step_peak for step in steps) + beside,
            moved_per_step=report["moved_per_step"],
            passes_seconds=statistics.median(step.passes_seconds for step in steps[1:] or steps),
            step_seconds=statistics.median(step.step_seconds for step in steps[1:] or steps),  # the first step makes the state
        )  # fmt: skip


@dataclass(frozen=True)
class _Step:
    loss: float
    passes_peak: int
    step_peak: int
    passes_seconds: float
    step_seconds: float


def _step(model: torch.nn.Module, optimizer: Any, tokens: torch.Tensor, fast: Ram | OfDevice) -> _Step:
    from .model import next_token_loss

    fast.reset()
    start = time.perf_counter()
    loss = next_token_loss(model, tokens)
    loss.backward()
    value = loss.item()  # waits for the device
    middle, passes = time.perf_counter(), fast.peak()
    del loss
    fast.reset()
    optimizer.step()
    optimizer.synchronize()
    end, step = time.perf_counter(), fast.peak()
    optimizer.zero_grad()
    return _Step(value, passes, step, middle - start, end - middle)
