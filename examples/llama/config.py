"""Settings of a training run: the model, the text and the optimizer's numbers."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .common import ExampleError

# Settings that change no bit of the result, so they may differ when a checkpoint is continued.
FREE = ("out", "optimizers", "state", "host", "disk", "data", "eval_every", "eval_windows", "checkpoint_every", "resume", "stop_after")


@dataclass(frozen=True)
class Config:
    """All settings of a training run. The defaults take about two minutes on two CPU cores."""

    out: str = "out/train"
    optimizers: str = "torch,again,lowtide"
    state: str = "dynamic8"
    host: str | None = None  # bytes of RAM for Lowtide's state, such as 4MiB
    disk: str | None = None

    data: str | None = None
    max_data_bytes: int = 4 << 20

    steps: int = 100
    seed: int = 0
    lr: float = 2e-3
    warmup: int = 10
    final_lr: float = 0.05
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    clip: float = 1.0
    batch: int = 4
    context: int = 128

    # Large enough to see the state of torch's AdamW in the memory of the process.
    width: int = 256
    layers: int = 4
    heads: int = 4
    ffn: int = 0  # 0: 8/3 of the width, rounded up to a multiple of 32
    vocab: int = 4096
    dtype: str = "fp32"

    threads: int = 0  # 0: as many as torch chooses
    eval_every: int = 0  # 0: ten times over the run
    eval_windows: int = 32
    checkpoint_every: int = 100
    resume: bool = False
    stop_after: int = 0  # 0: run to the end

    def __post_init__(self) -> None:
        """Checks what it can without reading data or importing torch."""

        def check(right: bool, name: str, wanted: str) -> None:
            if not right:
                raise ExampleError(f"--{name.replace('_', '-')}: got {getattr(self, name)}, wanted {wanted}")

        for name in ("steps", "batch", "context", "width", "layers", "heads", "eval_windows", "max_data_bytes"):
            check(getattr(self, name) >= 1, name, "1 or more")
        for name in ("warmup", "ffn", "threads", "eval_every", "checkpoint_every", "stop_after"):
            check(getattr(self, name) >= 0, name, "0 or more")
        check(math.isfinite(self.lr) and self.lr >= 0, "lr", "a finite number of at least 0")
        check(self.width % (2 * self.heads) == 0, "width", f"a multiple of {2 * self.heads}: {self.heads} heads of an even width")
        check(300 <= self.vocab <= 65536, "vocab", "300 to 65536: 256 bytes, a few merges, ids of 16 bits")
        check(self.dtype in ("fp32", "bf16"), "dtype", "fp32 or bf16")

    @property
    def ffn_width(self) -> int:
        return self.ffn or -(-self.width * 8 // 3 // 32) * 32

    @property
    def eval_interval(self) -> int:
        """Steps between two validations."""
        return self.eval_every or max(1, self.steps // 10)

    def folder(self, label: str) -> Path:
        """The folder of one optimizer's run."""
        return Path(self.out) / label.replace(":", "-")

    def identity(self) -> dict[str, Any]:
        """The settings that a checkpoint must agree with."""
        return {name: value for name, value in asdict(self).items() if name not in FREE}
