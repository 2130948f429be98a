"""The machine and the software of a measurement, as written into its report."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata, util
from pathlib import Path
from typing import Any

from common import threads


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return "unknown"


def _field(path: str, name: str) -> str:
    for line in _read(path).splitlines():
        if line.startswith(name):
            return line.partition(":")[2].strip()
    return "unknown"


def _first_line(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return (done.stdout.splitlines() or ["unknown"])[0]


def revision() -> str:
    """The commit of this repository, with "-dirty" if files have changed or are unknown to git."""
    here = str(Path(__file__).parents[2])
    changed = _first_line("git", "-C", here, "status", "--porcelain")  # no line also gives "unknown"
    return _first_line("git", "-C", here, "describe", "--always") + ("-dirty" if changed != "unknown" else "")


def load_average() -> list[float]:
    return [round(value, 2) for value in os.getloadavg()]


def versions(packages: list[str]) -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "of the tree" if util.find_spec(package) else "not installed"
    return found


def origin(described: dict[str, object]) -> dict[str, object]:
    """The commit, processor, instructions and versions that `describe` returned. A result depends on them besides its
    settings."""
    names = ("revision", "cpu", "torch_instruction_set", "gpu", "versions")
    return {name: described[name] for name in names if name in described}


def identity(described: dict[str, Any]) -> dict[str, Any]:
    """The values that two measurements must share for their speeds to be compared."""
    names = ("cpu", "cores", "memory", "torch_instruction_set", "gpu")
    return {**{name: described.get(name) for name in names}, "torch": described["versions"]["torch"]}


def describe(packages: list[str], device: str = "cpu") -> dict[str, object]:
    """Describes the machine. With `device` "cuda" and a GPU present, also the GPU."""
    import torch

    there = device == "cuda" and torch.cuda.is_available()
    gpu = {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda} if there else {}
    return {
        **gpu,
        "cpu": _field("/proc/cpuinfo", "model name"),
        "cores": len(threads.cores()),
        "logical_cpus": len(threads.ALLOWED),
        "cache_l3": _read("/sys/devices/system/cpu/cpu0/cache/index3/size"),
        "memory": _field("/proc/meminfo", "MemTotal"),
        "kernel": platform.release(),
        "huge_pages": _read("/sys/kernel/mm/transparent_hugepage/enabled"),
        "torch_instruction_set": torch.backends.cpu.get_cpu_capability(),
        "compiler": _first_line("g++", "--version"),
        "revision": revision(),
        "environment": {key: os.environ.get(key, "") for key in threads.BOUND},
        "versions": versions(packages),
    }
