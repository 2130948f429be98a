"""Device memory of training a LLaMA of 220 million parameters in bf16, by optimizer: four classes of bitsandbytes, from
Lowtide and from bitsandbytes itself, and torch's. On NVIDIA's GPUs, and Intel's (`--kind xpu`).

A peak is what torch's allocator held at most plus what else the driver had given: Lowtide's state on Intel's GPUs and
the managed memory of bitsandbytes' paged state come from the driver. The driver's own figures are in the JSON.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch

from bench.common import llama
from bench.cuda import contenders
from bench.cuda.device import Gpu
from bench.cuda.rows import Rows

STEPS = 5
BATCH = 2
CONTEXT = 512
PAGED = "64MiB"  # of the device, for the buffers of streaming
CLASSES = ("AdamW", "AdamW8bit", "PagedAdamW", "PagedAdamW8bit")
MANAGED_EACH = 8  # bytes of fp32 state a parameter, the most that a paged optimizer has

Make = Callable[[Any], Any]


def own(gpu: Gpu, name: str) -> Make:
    def make(params: Any) -> Any:
        from lowtide.compat.bitsandbytes import optim

        memory = contenders.budget(gpu, device=PAGED if name.startswith("Paged") else "80%")
        made = getattr(optim, name)(params, lr=contenders.LR, memory=memory)
        gpu.follow(made)
        return made

    return make


def theirs(gpu: Gpu, name: str) -> Make:
    def make(params: Any) -> Any:
        if name.startswith("Paged"):
            gpu.allow_managed(MANAGED_EACH * sum(param.numel() for param in params))
        return contenders.bitsandbytes(gpu, params, name)

    return make


def used(gpu: Gpu) -> int:
    free, total = gpu.cuda.mem_get_info()
    return int(total - free)


def train(gpu: Gpu, size: llama.Size, make: Make) -> dict[str, Any]:
    """Peaks over some steps, and the last loss."""
    gc.collect()
    gpu.cuda.empty_cache()
    gpu.cuda.synchronize()
    before, base = used(gpu), int(gpu.cuda.memory_allocated())
    gpu.cuda.reset_peak_memory_stats()
    torch.manual_seed(0)
    with torch.device(gpu.device):
        model = llama.build(size)
        model = model.to(torch.bfloat16)
        gpu.adopt(model)
        batches = torch.randint(size.vocab, (2, BATCH, min(CONTEXT, size.context)))
    optimizer = make(list(model.parameters()))
    peak_used, loss = 0, torch.zeros(())
    for step in range(gpu.size(STEPS, 2)):
        loss = llama.loss_of(model, batches[step % 2])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        gpu.cuda.synchronize()
        peak_used = max(peak_used, used(gpu) - before)
    peak = int(gpu.cuda.max_memory_allocated()) - base
    report = dict(optimizer.report()) if hasattr(optimizer, "report") else {}
    beside = int(report.get("device_bytes", 0)) if gpu.kind != "cuda" else 0  # on CUDA it is torch's memory
    return {"parameters": sum(param.numel() for param in model.parameters()), "peak_bytes": peak + beside,
            "torch_bytes": peak, "driver_bytes": peak_used, "loss": loss.item(), "report": report}  # fmt: skip


def peaks(gpu: Gpu, rows: Rows) -> None:
    size = llama.LLAMA_TINY if gpu.rehearsed else llama.LLAMA_220M
    made: dict[str, Make] = {f"Lowtide {name}": own(gpu, name) for name in CLASSES}
    made["torch AdamW"] = lambda params: torch.optim.AdamW(params, lr=contenders.LR)
    made |= {f"bitsandbytes {name}": theirs(gpu, name) for name in CLASSES}
    found: dict[str, dict[str, Any]] = {}
    # The first training loads the libraries of matrix products, whose memory would be counted as the optimizer's.
    rows.attempt("warming up", lambda: found.update(warm=train(gpu, size, made["torch AdamW"])))
    for label, make in made.items():

        def measure(label: str = label, make: Make = make) -> None:
            data = found[label] = train(gpu, size, make)
            unpaged = found.get(label.replace("Paged", ""), data)
            saved = 1 - data["peak_bytes"] / unpaged["peak_bytes"] if unpaged["peak_bytes"] else 0.0
            rows.add(f"LLaMA of {data['parameters'] / 1e6:.0f} M, bf16, {label}: peak of device memory",
                     data["peak_bytes"] / 1e6, "MB", saved_by_paging=saved,
                     loss_difference=data["loss"] - unpaged["loss"], **data)  # fmt: skip

        rows.attempt(f"LLaMA, {label}", measure)
    for name in ("AdamW", "AdamW8bit"):  # not 0: torch's own backward adds up in an order that changes
        if (paged := found.get(f"Lowtide Paged{name}")) and (unpaged := found.get(f"Lowtide {name}")):
            rows.add(f"LLaMA, Lowtide Paged{name} against {name}: difference of the loss",
                     abs(paged["loss"] - unpaged["loss"]), "", "llama_loss")  # fmt: skip


CASES = {"llama.peaks": peaks}
