"""Reads registers, stack and spills of all kernels from their cubins, and checks the steps against their budgets of
instructions per element (tools/cubin_report.py).
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from bench.cuda.device import Absent, Gpu
from bench.cuda.rows import Rows

_ARCH = re.compile(r"^arch = (sm_\w+)")
_FUNCTION = re.compile(r"^\s*Function (\S+):")
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
SAMPLE = """arch = sm_90
 Function _Z4stepv:
  REG:80 STACK:0 SHARED:8192 LOCAL:0 CONSTANT[0]:560
"""  # what a rehearsal reads


def plugin() -> Path:
    found = importlib.util.find_spec("lowtide")
    folders = [Path(path) for path in (found.submodule_search_locations if found else None) or ()]
    for folder in folders:
        if plugins := sorted(folder.glob("liblowtide_cuda*.so")):
            return plugins[-1]
    raise Absent(f"no liblowtide_cuda*.so in {', '.join(map(str, folders)) or 'the lowtide package'}")


def cuobjdump() -> str:
    beside = [
        Path(path) / "nvidia" / kind / "bin" / "cuobjdump" for path in sys.path for kind in ("cu13", "cuda_cuobjdump")
    ]
    usual = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin" / "cuobjdump"
    for path in (shutil.which("cuobjdump"), usual, *beside):
        if path and Path(path).is_file():
            return str(path)
    raise Absent("cuobjdump was not found (it comes with the CUDA toolkit, and as the wheel nvidia-cuda-cuobjdump)")


def usage(text: str) -> dict[str, list[tuple[str, int, int]]]:
    """By architecture: kernel, registers, and bytes of stack and local memory."""
    found: dict[str, list[tuple[str, int, int]]] = {}
    arch = name = ""
    for line in text.splitlines():
        if match := _ARCH.match(line):
            arch = match[1]
        elif match := _FUNCTION.match(line):
            name = match[1]
        elif match := _USAGE.search(line):
            registers, stack, _, local = map(int, match.groups())
            found.setdefault(arch, []).append((name, registers, stack + local))
    return found


def cubins(gpu: Gpu, rows: Rows) -> None:
    if gpu.rehearsed:
        text = SAMPLE
    else:
        text = subprocess.run([cuobjdump(), "-res-usage", str(plugin())], capture_output=True, text=True, check=True,
                              timeout=60).stdout  # fmt: skip
    found = usage(text)
    if not found:
        raise Absent("cuobjdump -res-usage named no kernel")
    for arch, kernels in found.items():
        worst = max(kernels, key=lambda kernel: kernel[1])
        rows.add(f"{arch}: kernels", len(kernels), "", most_registers=worst[1], of=worst[0])
    rows.add("stack and local memory of all kernels", sum(k[2] for kernels in found.values() for k in kernels), "bytes",
             "spills", kernels=[k for kernels in found.values() for k in kernels if k[2]])  # fmt: skip


def budgets(gpu: Gpu, rows: Rows) -> None:
    """Reads the objects that nvcc made in the build folder, LOWTIDE_CUDA_OBJECTS."""
    figure, label = "instructions", "budgets of instructions per element that are exceeded"
    tool = Path(__file__).resolve().parents[2] / "tools" / "cubin_report.py"
    objects = sorted(Path(os.environ.get("LOWTIDE_CUDA_OBJECTS", "/nonexistent")).glob("step*.o"))
    if gpu.rehearsed or not tool.is_file() or not objects:
        rows.absent(label, f"no {tool.name}, or no step*.o in LOWTIDE_CUDA_OBJECTS: got {len(objects)}", figure)
        return
    done = subprocess.run(
        [sys.executable, str(tool), *map(str, objects)], capture_output=True, text=True, check=False, timeout=80
    )
    if "sm_" not in done.stdout:
        raise Absent(f"{tool.name} read no kernel: {(done.stdout + done.stderr)[-200:]}")
    rows.add(label, float(done.returncode != 0), "", figure, report=done.stdout[-6000:], status=done.returncode)


CASES = {"instructions.cubins": cubins, "instructions.budgets": budgets}
