"""Inspects a machine: its GPU, the Python that has torch, and the package that it imports. Says what is missing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu.plan import Deadline
from gpu.watchdog import run

ROOT = Path(__file__).resolve().parents[2]
_QUERY = "name,memory.total,driver_version,compute_cap,pcie.link.gen.max,pcie.link.width.max"
_PACKAGES = ["torch", "lowtide", "bitsandbytes", "flashoptim", "transformers", "triton"]
# Run by the Python that has torch, which need not run this program.
_PROBE = """
import json, sys
found = {"torch": {}, "lowtide": {}, "machine": {}}
def told(error): return {"error": f"{type(error).__name__}: {error}"}
try:
    import torch
    found["torch"] = {"torch": torch.__version__, "cuda": torch.version.cuda, "available": torch.cuda.is_available()}
    import lowtide
    found["lowtide"] = {"file": lowtide.__file__, "backends": lowtide.backends()}
except Exception as error:
    found["lowtide" if found["torch"] else "torch"] = told(error)
try:
    sys.path.insert(0, sys.argv[1])
    from common import machine
    found["machine"] = machine.describe(sys.argv[2:])
except Exception as error:
    found["machine"] = told(error)
print(json.dumps(found, default=str))
"""


@dataclass
class Found:
    python: str
    gpu: dict[str, str] = field(default_factory=dict)
    torch: dict[str, Any] = field(default_factory=dict)
    lowtide: dict[str, Any] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    sanitizer: str = ""  # path of compute-sanitizer, or ""

    @property
    def architecture(self) -> str:
        """In nvcc's form: "90" for compute capability 9.0."""
        return self.gpu.get("compute_cap", "").replace(".", "")

    def missing(self) -> list[str]:
        out = []
        if not self.gpu:
            out.append("no GPU: nvidia-smi is not there or names none. Run this on a machine with an NVIDIA GPU and its driver")
        if "error" in self.torch:
            out.append(f"no torch: {self.torch['error']}. Name the Python that has it: --python PATH")
        elif not self.torch.get("available"):
            out.append(f"torch {self.torch.get('torch')} (CUDA {self.torch.get('cuda')}) sees no GPU: wanted one that its driver runs")
        return out


def output(command: Sequence[object], limit_s: float = 60, env: dict[str, str] | None = None) -> str:
    """The output of a command; "" if it fails, hangs or does not exist. A command that waits inside a driver is left alone."""
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "output"
        done = run(command, limit_s, log, env, errors=subprocess.DEVNULL)
        return log.read_text(errors="replace") if done.ok else ""


def gpu(limit_s: float = 60) -> dict[str, str]:
    text = output(["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader"], limit_s)
    if not text.strip():
        return {}
    values = [value.strip() for value in text.strip().splitlines()[0].split(",")]
    return dict(zip(_QUERY.split(","), values, strict=False))


def look(python: str, deadline: Deadline) -> Found:
    """Finds out what takes no time. `probe` does the rest."""
    cuda = [Path(os.environ[key]) / "bin" for key in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(key)]
    cuda += [Path("/usr/local/cuda/bin"), *sorted(Path("/usr/local").glob("cuda-*/bin"), reverse=True)]
    paths = [folder / "compute-sanitizer" for folder in cuda]
    return Found(
        python, gpu(deadline.within(60)),
        sanitizer=shutil.which("compute-sanitizer") or next((str(path) for path in paths if os.access(path, os.X_OK)), ""),
    )  # fmt: skip


def probe(found: Found, env: dict[str, str], deadline: Deadline) -> None:
    """Imports torch and the package in an environment, once for all questions about them."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [found.python, "-c", _PROBE, ROOT / "bench", *_PACKAGES]
        done = run(command, deadline.within(120), Path(scratch) / "output", env)
        text = (Path(scratch) / "output").read_text(errors="replace") if done.code != 127 else ""
    try:
        told = json.loads(text.strip().splitlines()[-1])
    except (ValueError, IndexError):
        told = {"torch": {"error": f"{found.python}: {done.status}, exit status {done.code}: {done.tail.strip()[-300:]}"}}
    found.torch, found.lowtide, found.machine = (told.get(name, {}) for name in ("torch", "lowtide", "machine"))
