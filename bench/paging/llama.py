"""Row "llama": the memory of training a LLaMA of 220 million parameters, its loss and speed, with AdamW of torch and of
Lowtide in fp32 and dynamic8, each of Lowtide's with all state in RAM and under a budget with the rest on disk.

Each contender trains in a process of its own, from the same weights on the same random tokens. Training memory is the
peak of resident memory above the level before the model was built: weights, gradients, activations and state.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

# bitsandbytes' published figures for its paged AdamW on XPU (pull request 1898): a LLaMA of about this size, device
# memory without the paged state, and the largest difference of losses.
PUBLISHED = {"what": "bitsandbytes paged, XPU (published)", "unpaged_mb": 2524, "paged_mb": 861,
             "loss_difference": 0.01}  # fmt: skip

REFERENCE = "torch fused fp32"
CONTENDERS: dict[str, tuple[str, bool]] = {  # state format ("": torch's), under the budget
    REFERENCE: ("", False),
    "lowtide fp32": ("fp32", False),
    "lowtide fp32, paged": ("fp32", True),
    "lowtide dynamic8": ("dynamic8", False),
    "lowtide dynamic8, paged": ("dynamic8", True),
}


@dataclass(frozen=True)
class Job:
    """One training run; the tokens repeat after two batches, so that there is something to learn."""

    width: int
    ffn: int
    layers: int
    heads: int
    vocab: int
    batch: int
    context: int
    steps: int
    budget: int  # bytes of RAM for paged state
    lr: float = 3e-4


LARGE = Job(width=1024, ffn=2816, layers=12, heads=16, vocab=32000, batch=2, context=64, steps=6, budget=64 << 20)
TINY = Job(width=128, ffn=352, layers=2, heads=4, vocab=1024, batch=2, context=32, steps=4, budget=256 << 10)


def measure(job: Job, disk: str) -> dict[str, Any]:
    """Every contender in turn; compares each with torch, and the paged with its unpaged twin."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    # A fixed threshold: glibc would raise it and keep freed buffers, more in one run than in the next.
    environment.setdefault("MALLOC_MMAP_THRESHOLD_", str(1 << 20))
    runs: dict[str, dict[str, Any]] = {}
    for name in CONTENDERS:
        request = json.dumps({"job": asdict(job), "contender": name, "disk": disk})
        command = [sys.executable, str(Path(__file__).resolve()), request]
        done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
        runs[name] = json.loads(done.stdout.splitlines()[-1])
    base = runs[REFERENCE]
    for name, run in runs.items():
        run["loss_to_torch"] = run["loss"] - base["loss"]
        run["training_saved_percent"] = 100 * (1 - run["training_bytes"] / base["training_bytes"])
        run["state_saved_percent"] = 100 * (1 - run["state_ram_bytes"] / base["state_ram_bytes"])
        if name.endswith(", paged"):
            twin = runs[name.removesuffix(", paged")]
            run["loss_to_unpaged"] = run["loss"] - twin["loss"]
            run["same_bits_as_unpaged"] = run["losses"] == twin["losses"] and run["weights"] == twin["weights"]
    return {"job": asdict(job), "contenders": runs, "published": PUBLISHED}


def show(row: dict[str, Any]) -> None:
    job, runs = row["job"], row["contenders"]
    first = runs[REFERENCE]
    print(f"training a LLaMA of {first['parameters'] / 1e6:.1f} M parameters, {job['steps']} steps of {job['batch']} x "
          f"{job['context']} tokens; budget of the paged {job['budget'] / 1e6:.1f} MB of RAM")  # fmt: skip
    head = ("peak RSS, MB", "training, MB", "saved, %", "state, MB", "measured, MB", "saved, %", "disk, MB", "loss",
            "to torch", "to unpaged", "s/step", "in step()", "moved, MB")  # fmt: skip
    print(f"  {'':24s}" + "".join(f"{name:>13s}" for name in head))
    for name, run in runs.items():
        unpaged = "" if "loss_to_unpaged" not in run else f"{run['loss_to_unpaged']:+g}"
        cells = (f"{run['peak_rss'] / 1e6:.0f}", f"{run['training_bytes'] / 1e6:.1f}",
                 f"{run['training_saved_percent']:.1f}", f"{run['state_ram_bytes'] / 1e6:.1f}",
                 f"{run['state_rss_bytes'] / 1e6:.1f}", f"{run['state_saved_percent']:.1f}",
                 f"{run['disk_bytes'] / 1e6:.1f}", f"{run['loss']:.5f}", f"{run['loss_to_torch']:+.1e}", unpaged,
                 f"{run['step_seconds']:.3f}", f"{run['optimizer_seconds']:.3f}",
                 f"{run['moved_per_step'] / 1e6:.1f}")  # fmt: skip
        print(f"  {name:24s}" + "".join(f"{cell:>13s}" for cell in cells))
    told = row["published"]
    saved = 100 * (1 - told["paged_mb"] / told["unpaged_mb"])
    print(f"  {told['what']}: {told['unpaged_mb']} to {told['paged_mb']} MB of device memory, saved {saved:.1f} %, "
          f"losses within {told['loss_difference']}")  # fmt: skip
    for name, run in runs.items():
        if "same_bits_as_unpaged" in run:
            print(f"  {name}: losses and weights {'equal bit for bit' if run['same_bits_as_unpaged'] else 'DIFFER'} "
                  "to those of the unpaged run")  # fmt: skip


def _memory(field: str) -> int:
    """VmRSS or VmHWM of this process, bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def train(job: Job, name: str, disk: str) -> dict[str, Any]:
    """The child's work: one contender."""
    import torch

    sys.path.append(str(Path(__file__).resolve().parents[1]))
    from common import llama

    state, paged = CONTENDERS[name]
    if state:
        import lowtide
    before_model = _memory("VmRSS")
    torch.manual_seed(0)
    size = llama.Size(**{field.name: getattr(job, field.name) for field in fields(llama.Size)})
    model = llama.of_transformers(size)
    batches = torch.randint(job.vocab, (2, job.batch, job.context))
    losses: list[float] = []
    times: list[float] = []
    optimizer_times: list[float] = []
    optimizer: torch.optim.Optimizer | None = None
    state_rss = before_state = 0
    for step in range(job.steps):
        start = time.perf_counter()
        loss = llama.loss_of(model, batches[step % 2])
        loss.backward()
        losses.append(loss.item())
        peak = _memory("VmHWM")
        middle = time.perf_counter()
        if optimizer is None:  # gradients are alive and the allocator is warm: what comes on top is state
            Path("/proc/self/clear_refs").write_text("5")
            before_state = _memory("VmRSS")
            if state:
                memory = lowtide.Memory(host=job.budget, disk=disk) if paged else None
                optimizer = lowtide.AdamW(model.parameters(), lr=job.lr, state=state, memory=memory)
            else:
                optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr, fused=True)
            optimizer.step()
            state_rss = _memory("VmHWM") - before_state
        else:
            optimizer.step()
        end = time.perf_counter()
        times.append(end - start)
        optimizer_times.append(end - middle)
        optimizer.zero_grad()
    peak = max(peak, _memory("VmHWM"))
    assert optimizer is not None
    report: dict[str, Any] = optimizer.report() if state else {}
    tensors = [tensor for entry in optimizer.state.values() for tensor in entry.values()]
    weights = hashlib.sha256()
    for parameter in model.parameters():
        weights.update(parameter.detach().view(torch.uint8).numpy())
    with torch.no_grad():
        final = sum(float(llama.loss_of(model, batch)) for batch in batches) / 2
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "peak_rss": peak, "training_bytes": peak - before_model,
        "state_ram_bytes": report["allocated_bytes"] if state else sum(t.nbytes for t in tensors),
        "state_rss_bytes": state_rss, "disk_bytes": report.get("disk_bytes", 0),
        "moved_per_step": (report.get("read_bytes", 0) + report.get("written_bytes", 0)) / job.steps,
        "waited_seconds_per_step": report.get("waited_seconds", 0) / job.steps,
        "loss": final, "losses": losses, "weights": weights.hexdigest(),
        # The first step builds the optimizer and warms everything up.
        "step_seconds": statistics.median(times[1:]), "optimizer_seconds": statistics.median(optimizer_times[1:]),
    }  # fmt: skip


def main() -> None:
    request = json.loads(sys.argv[1])
    print(json.dumps(train(Job(**request["job"]), request["contender"], request["disk"])))


if __name__ == "__main__":
    main()
