"""Finds a machine's GPU, compilers and torch. Says what is missing, and what to do."""

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

BUILD, RUN = "build", "run"
_QUERY = "name,memory.total,driver_version,compute_cap,pcie.link.gen.max,pcie.link.width.max"
# Run by the Python that has torch: this program may run under another.
_TORCH = """
import json, os, sys, sysconfig
header = os.path.join(sysconfig.get_path("include"), "Python.h")
soabi = sysconfig.get_config_var("SOABI")
out = {"python": sys.version.split()[0], "soabi": soabi, "headers": os.path.isfile(header)}
try:
    import torch
    out.update(torch=torch.__version__, cuda=torch.version.cuda, available=torch.cuda.is_available())
except Exception as error:
    out["error"] = f"{type(error).__name__}: {error}"
print(json.dumps(out))
"""


@dataclass
class Found:
    python: str
    gpu: dict[str, str] = field(default_factory=dict)
    nvcc: str = ""
    nvcc_version: str = ""
    torch: dict[str, Any] = field(default_factory=dict)
    tools: dict[str, str] = field(default_factory=dict)  # paths; "" for what is not there
    missing: list[tuple[str, str]] = field(default_factory=list)  # what needs it (BUILD or RUN), and a message

    @property
    def architecture(self) -> str:
        """As nvcc names it: "90" for compute capability 9.0."""
        return self.gpu.get("compute_cap", "").replace(".", "")


def output(
    command: Sequence[object], limit_s: float = 60, env: dict[str, str] | None = None, cwd: Path | None = None
) -> str:
    """The output of a command; "" if it fails, hangs or does not exist. One that waits inside a driver is left."""
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "output"
        done = run(command, limit_s, log, env, cwd, errors=subprocess.DEVNULL)
        return log.read_text(errors="replace") if done.ok else ""


def gpu(limit_s: float = 60) -> dict[str, str]:
    text = output(["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader"], limit_s)
    if not text.strip():
        return {}
    values = [value.strip() for value in text.strip().splitlines()[0].split(",")]
    return dict(zip(_QUERY.split(","), values, strict=False))


def tool(name: str, folders: list[Path]) -> str:
    return shutil.which(name) or next((str(f / name) for f in folders if os.access(f / name, os.X_OK)), "")


def look(python: str, extra: list[Path], env: dict[str, str], deadline: Deadline) -> Found:
    """`extra`: folders of programs besides PATH's; `env`: of the Python that has torch."""
    cuda = [Path(os.environ[key]) / "bin" for key in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(key)]
    cuda += [Path("/usr/local/cuda/bin"), *sorted(Path("/usr/local").glob("cuda-*/bin"), reverse=True)]
    found = Found(python)
    found.gpu = gpu(deadline.within(60))
    found.nvcc = tool("nvcc", cuda)
    if found.nvcc and (text := output([found.nvcc, "--version"], deadline.within(60))):
        found.nvcc_version = next((line.strip() for line in text.splitlines() if "release" in line), "")
    for name in ("g++", "cmake", "ninja", "make"):
        found.tools[name] = tool(name, extra)
    found.tools["compute-sanitizer"] = tool("compute-sanitizer", cuda)
    found.torch = _torch(python, env, deadline.within(120))
    _complain(found)
    return found


def _torch(python: str, env: dict[str, str], limit_s: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        done = run([python, "-c", _TORCH], limit_s, Path(scratch) / "output", env)
    try:
        found: dict[str, Any] = json.loads(done.tail.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return {"error": f"{python}: {done.status}, exit status {done.code}: {done.tail.strip()[-300:]}"}
    return found


def _complain(found: Found) -> None:
    def say(part: str, text: str) -> None:
        found.missing.append((part, text))

    if not found.gpu:
        say(
            RUN,
            "no GPU: nvidia-smi is not there or names none. Run this on a machine with an NVIDIA GPU and its driver",
        )
    if "error" in found.torch:
        say(RUN, f"no torch: {found.torch['error']}. Name the Python that has it: --python PATH")
    elif not found.torch["available"]:
        say(
            RUN,
            f"torch {found.torch['torch']} (CUDA {found.torch['cuda']}) sees no GPU: wanted one that its driver runs",
        )
    if not found.nvcc:
        say(BUILD, "no nvcc on PATH, in CUDA_HOME/bin or /usr/local/cuda/bin: install the CUDA toolkit, 12.8 or newer")
    if not found.torch.get("headers", True):
        say(
            BUILD,
            "no Python.h: install the headers of that Python (python3-dev), or name their folder: --python-include DIR",
        )
    for name, why in (("g++", "it compiles"), ("cmake", "it builds; gpu_bundle.py --with cmake has it as a wheel")):
        if not found.tools[name]:
            say(BUILD, f"no {name} on PATH: {why}")
    if not (found.tools["ninja"] or found.tools["make"]):
        say(BUILD, "neither ninja nor make on PATH: one of them is needed")
