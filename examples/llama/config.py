"""Settings of the training job: one frozen dataclass, its checks, and what a checkpoint must agree with."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .errors import ExampleError

# Settings that change the numbers of a run. A checkpoint stores them, and resuming with others is refused:
# the result would be neither the old run nor the new one.
IDENTITY = (
    "steps", "seed", "lr", "warmup", "final_lr", "weight_decay", "beta1", "beta2", "eps", "clip", "batch", "context",
    "width", "layers", "heads", "ffn", "vocab", "dtype",
)  # fmt: skip


@dataclass(frozen=True)
class Config:
    """Everything the job depends on. The defaults take about a minute and a half on two CPU cores."""

    out: str = "out/train"
    optimizers: tuple[str, ...] = ("torch", "lowtide")
    state: str = "dynamic8"
    # None of these changes a bit of the result, so a checkpoint may be continued with others.
    ram_budget: str | None = None  # of Lowtide's state; a size such as 4MiB
    disk: str | None = None
    chunk: str | None = None

    data: str | None = None
    hf_dataset: str | None = None
    hf_config: str | None = None
    hf_split: str = "train"
    text_column: str = "text"
    max_data_bytes: int = 4 << 20

    steps: int = 100
    seed: int = 0
    lr: float = 2e-3
    warmup: int = 10
    final_lr: float = 0.05
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    clip: float = 1.0
    batch: int = 4
    context: int = 64

    # Large enough for the state of torch's AdamW to show in the memory of the process.
    width: int = 512
    layers: int = 4
    heads: int = 8
    ffn: int = 0  # 0: 8/3 of the width, rounded up to a multiple of 32
    vocab: int = 8192
    dtype: str = "fp32"

    threads: int = 0  # 0: as many as torch chooses
    eval_every: int = 0  # 0: ten times over the run
    eval_windows: int = 32
    checkpoint_every: int = 100
    resume: bool = False
    stop_after: int = 0  # 0: run to the end
    quiet: bool = False
    isolate: bool = True

    def __post_init__(self) -> None:
        """Check what can be checked without touching data or importing torch."""
        # JSON and command lines bring lists; a tuple keeps the dataclass hashable and comparable.
        object.__setattr__(self, "optimizers", tuple(self.optimizers))
        positive = ("steps", "batch", "context", "width", "layers", "heads", "eval_windows", "max_data_bytes")
        for name in positive:
            if getattr(self, name) < 1:
                raise ExampleError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(self, name)}")
        for name in ("warmup", "ffn", "threads", "eval_every", "checkpoint_every", "stop_after"):
            if getattr(self, name) < 0:
                raise ExampleError(f"--{name.replace('_', '-')} must not be negative, got {getattr(self, name)}")
        if not (math.isfinite(self.lr) and self.lr >= 0):
            raise ExampleError(f"--lr must be a finite number of at least 0, got {self.lr}")
        if self.width % self.heads or (self.width // self.heads) % 2:
            raise ExampleError(
                f"--width must be a multiple of 2 x --heads (rotary embeddings turn pairs), got width {self.width} "
                f"and {self.heads} heads"
            )
        if not 300 <= self.vocab <= 65536:
            raise ExampleError(f"--vocab must lie in 300..65536 (256 bytes, a few merges, 16-bit ids), got {self.vocab}")
        if self.dtype not in ("fp32", "bf16"):
            raise ExampleError(f"--dtype must be fp32 or bf16, got {self.dtype!r}")
        if self.data is not None and self.hf_dataset is not None:
            raise ExampleError("--data and --hf-dataset exclude each other: give one source of text")
        for name in ("disk", "chunk"):
            if getattr(self, name) is not None and self.ram_budget is None:
                raise ExampleError(f"--{name} has no effect without --ram-budget: say how much RAM the state may take, for "
                                   "example --ram-budget 4MiB")  # fmt: skip
        if not self.optimizers:
            raise ExampleError("--optimizers is empty: give torch, lowtide or both, separated by a comma")
        if len(set(self.optimizers)) != len(self.optimizers):
            raise ExampleError(f"--optimizers names one optimizer twice: {','.join(self.optimizers)}")

    @property
    def ffn_width(self) -> int:
        """Width of the feed-forward layer."""
        return self.ffn or -(-self.width * 8 // 3 // 32) * 32

    @property
    def eval_interval(self) -> int:
        """Steps between two validations."""
        return self.eval_every or max(1, self.steps // 10)

    def run_dir(self, label: str) -> Path:
        """Folder of one optimizer's run; a label such as ``lowtide:bf16`` becomes ``lowtide-bf16``."""
        return Path(self.out) / label.replace(":", "-")

    def identity(self) -> dict[str, Any]:
        """The settings a checkpoint must agree with."""
        return {name: getattr(self, name) for name in IDENTITY}

    def to_json(self) -> dict[str, Any]:
        """A form that ``json`` can write and ``Config(**...)`` can read."""
        return {**asdict(self), "optimizers": list(self.optimizers)}
