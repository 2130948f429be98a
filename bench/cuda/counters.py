"""The hardware's counters of one step, by Nsight Compute (ncu): of the default step's kernel, and of the search for
gradients that are not finite. `python3 bench/cuda/counters.py KIND` is the program that is watched.
"""

from __future__ import annotations

import csv
import io
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

if __name__ == "__main__":  # in place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch  # noqa: E402

from bench.cuda import contenders, shapes  # noqa: E402
from bench.cuda.device import Gpu  # noqa: E402
from bench.cuda.rows import Absent, Rows  # noqa: E402

ELEMENTS = 128 << 20
SECTIONS = ("SpeedOfLight", "MemoryWorkloadAnalysis", "ComputeWorkloadAnalysis", "SchedulerStats", "WarpStateStats",
            "InstructionStats", "LaunchStats", "Occupancy")  # fmt: skip
SHOWN = {  # ncu's names for what a row shows; all others are in its details
    "DRAM Throughput": "dram_percent", "Compute (SM) Throughput": "sm_percent", "Duration": "duration",
    "Registers Per Thread": "registers", "Achieved Occupancy": "occupancy_percent", "Issue Slots Busy": "issue_percent",
    "Executed Instructions": "instructions",
}  # fmt: skip
SAMPLE = """"ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"
"0","lt::step(Batch)","GPU Speed Of Light Throughput","DRAM Throughput","%","88.10"
"0","lt::step(Batch)","Launch Statistics","Registers Per Thread","register/thread","80"
"""  # what a rehearsal reads


def program() -> str:
    usual = [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin" / "ncu"]
    usual += sorted(Path("/opt/nvidia/nsight-compute").glob("*/ncu"), reverse=True)
    found = shutil.which("ncu") or next((str(path) for path in usual if path.is_file()), "")
    if not found:
        raise Absent("ncu (Nsight Compute) was not found on PATH, in CUDA_HOME/bin or /opt/nvidia/nsight-compute")
    return found


def metrics(text: str) -> list[dict[str, str]]:
    """By launch: the kernel's name, and ncu's metrics by name, with their unit."""
    lines = text.splitlines()
    first = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    launches: dict[str, dict[str, str]] = {}
    for row in csv.DictReader(io.StringIO("\n".join(lines[first:]))):
        if row.get("Metric Name"):
            launch = launches.setdefault(row["ID"], {"kernel": row["Kernel Name"]})
            launch[row["Metric Name"]] = f"{row['Metric Value']} {row['Metric Unit']}".strip()
    return list(launches.values())


def number(text: str) -> float:
    return float(text.split()[0].replace(",", ""))


def watch(gpu: Gpu, kind: str) -> str:
    if gpu.rehearsed:
        return SAMPLE
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ncu.csv"
        command = [program(), "--profile-from-start", "off", "--clock-control", "none", "--csv", "--page", "details",
                   "--log-file", str(log), *(word for name in SECTIONS for word in ("--section", name)),
                   sys.executable, __file__, kind]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        text = log.read_text() if log.is_file() else ""
    if '"ID"' not in text:
        raise Absent(f"ncu ended with {done.returncode}: {(text + done.stdout + done.stderr)[-300:]}")
    return text


def counters(gpu: Gpu, rows: Rows, kind: str) -> None:
    for launch in metrics(watch(gpu, kind)):
        found = {key: launch[name] for name, key in SHOWN.items() if name in launch}
        if "dram_percent" in found:
            rows.add(f"{kind}: {launch['kernel'][:60]}: DRAM throughput", number(found["dram_percent"]), "%",
                     elements=ELEMENTS, **found, all=launch)  # fmt: skip
    if not rows.rows:
        raise Absent("ncu has measured no kernel's DRAM Throughput")


def watched(kind: str) -> None:
    """Some steps, the last of which is profiled: with the search only where that is the subject."""
    gpu = Gpu(rehearse=False)
    params = gpu.parameters(shapes.one(ELEMENTS), torch.bfloat16)
    memory = contenders.budget(gpu, device="80%")
    optimizer = contenders.lowtide_adamw(
        gpu, params, memory=memory, nonfinite="skip" if kind == "search" else "propagate"
    )
    for _ in range(3):
        optimizer.step()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    optimizer.step()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


CASES = {
    "counters.step": lambda gpu, rows: counters(gpu, rows, "step"),
    "counters.search": lambda gpu, rows: counters(gpu, rows, "search"),
}

if __name__ == "__main__":
    watched(sys.argv[1])
