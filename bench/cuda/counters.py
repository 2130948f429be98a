"""Reads the hardware's counters for one step with Nsight Compute (ncu): with the package's
plug-in and the best of variants.py. `counters.py KIND` is the program that ncu watches.
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
from typing import Any

if __name__ == "__main__":  # instead of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch  # noqa: E402

from bench.cuda import contenders, shapes, variants  # noqa: E402
from bench.cuda.device import Gpu  # noqa: E402
from bench.cuda.resident import ALL_FITS  # noqa: E402
from bench.cuda.rows import Absent, Rows  # noqa: E402

ELEMENTS = 128 << 20
KINDS: dict[str, dict[str, Any]] = {
    "step": {},
    "nearest": {"rounding": "nearest"},
    "fp32": {"state": "fp32"},
    "lion": {"rule": "Lion"},
}
STALLS = ("long_scoreboard", "short_scoreboard", "mio_throttle", "lg_throttle", "no_instruction", "math_pipe_throttle", "not_selected")
SHOWN = {  # ncu's names: names in a row; all others are in its details
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "dram_percent",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed": "l2_percent",
    "l1tex__throughput.avg.pct_of_peak_sustained_active": "l1_percent",
    "smsp__issue_active.avg.pct_of_peak_sustained_active": "issue_percent",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy_percent",
    "gpu__time_duration.sum": "duration",
    "smsp__inst_executed.sum": "instructions",
    "launch__registers_per_thread": "registers",
    "dram__bytes_read.sum": "dram_read",
    "dram__bytes_write.sum": "dram_written",
    "lts__t_sectors_op_read.sum": "sectors_read",
    "lts__t_sectors_op_write.sum": "sectors_written",
    "lts__t_sectors_srcunit_tex_lookup_miss.sum": "sectors_missed",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": "bank_conflicts",
}
METRICS = (*SHOWN, *(f"smsp__average_warps_issue_stalled_{why}_per_issue_active.ratio" for why in STALLS))
# An ncu that does not know one of these metrics measures none. Then these sections are its own choice.
SECTIONS = ("SpeedOfLight", "MemoryWorkloadAnalysis_Tables", "SchedulerStats", "WarpStateStats", "LaunchStats")
SAMPLE = """"ID","Kernel Name","dram__throughput.avg.pct_of_peak_sustained_elapsed","dram__bytes_read.sum","launch__registers_per_thread"
"","","%","Mbyte","register/thread"
"0","lt::step(Batch)","88.10","1,234.5","80"
"""  # for a rehearsal


def program() -> str:
    usual = [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin" / "ncu"]
    usual += sorted(Path("/opt/nvidia/nsight-compute").glob("*/ncu"), reverse=True)
    found = shutil.which("ncu") or next((str(path) for path in usual if path.is_file()), "")
    if not found:
        raise Absent("ncu (Nsight Compute) was not found on PATH, in CUDA_HOME/bin or /opt/nvidia/nsight-compute")
    return found


def metrics(text: str) -> list[dict[str, str]]:
    """For each launch, the kernel's name and ncu's metrics by name, with units, as on its page "raw"."""
    lines = text.splitlines()
    first = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    found = list(csv.DictReader(io.StringIO("\n".join(lines[first:]))))
    units, launches = (found[0], found[1:]) if found else ({}, [])
    return [
        {"kernel": launch["Kernel Name"], **{name: f"{value} {units[name]}".strip() for name, value in launch.items()
                                             if name and value and "__" in name}}
        for launch in launches if launch["ID"]
    ]  # fmt: skip


def number(text: str) -> float:
    return float(text.split()[0].replace(",", ""))


def watch(gpu: Gpu, kind: str, plugin: str | None) -> str:
    if gpu.rehearsed:
        return SAMPLE
    env = {**os.environ, **({"LOWTIDE_CUDA_PLUGIN": plugin} if plugin else {})}
    told = ""
    for chosen in (["--metrics", ",".join(METRICS)], [word for name in SECTIONS for word in ("--section", name)]):
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "ncu.csv"
            command = [program(), "--profile-from-start", "off", "--clock-control", "none", "--csv", "--page", "raw",
                       "--log-file", str(log), *chosen, sys.executable, __file__, kind]  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
            text = log.read_text() if log.is_file() else ""
        if '"ID"' in text:
            return text
        told = f"ncu ended with {done.returncode}: {(text + done.stdout + done.stderr)[-300:]}"
    raise Absent(told)


def counters(gpu: Gpu, rows: Rows, kind: str, best: bool = False) -> None:
    plugin = variants.best() if best and not gpu.rehearsed else None
    label = f"{kind}, {Path(plugin).stem}" if plugin else kind
    for launch in metrics(watch(gpu, kind, plugin)):
        found = {key: launch[name] for name, key in SHOWN.items() if name in launch}
        if "dram_percent" in found:
            rows.add(f"{label}: {launch['kernel'][:60]}: DRAM throughput", number(found["dram_percent"]), "%",
                     elements=ELEMENTS, plugin=plugin, **found, all=launch)  # fmt: skip
    if not rows.rows:
        raise Absent("ncu has measured no kernel's DRAM throughput")


def watched(kind: str) -> None:
    """Takes some steps; the last is profiled."""
    gpu = Gpu(rehearse=False)
    params = gpu.parameters(shapes.one(ELEMENTS), torch.bfloat16)
    given = {"state": "dynamic8", **KINDS[kind]}
    optimizer = contenders.lowtide_optimizer(gpu, params, memory=contenders.budget(gpu, device=ALL_FITS), **given)
    for _ in range(3):
        optimizer.step()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    optimizer.step()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


CASES = {
    **{f"counters.{kind}": lambda gpu, rows, kind=kind: counters(gpu, rows, kind) for kind in KINDS},
    "counters.best_step": lambda gpu, rows: counters(gpu, rows, "step", best=True),
    "counters.best_nearest": lambda gpu, rows: counters(gpu, rows, "nearest", best=True),
}

if __name__ == "__main__":
    watched(sys.argv[1])
