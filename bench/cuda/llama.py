"""Device memory for training a LLaMA with 217 million parameters in bf16, by optimizer: Lowtide's own, four of bitsandbytes'
classes from both packages, and torch's. On NVIDIA GPUs and Intel GPUs (`--kind xpu`).

A peak is the most that torch's allocator held, plus Lowtide's state on Intel GPUs. The driver's count beside it includes
managed memory of bitsandbytes' paged state, and memory that torch's allocator kept free.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch

from bench.common import contenders as rivals
from bench.common import llama
from bench.cuda import contenders
from bench.cuda.device import Gpu
from bench.cuda.rows import Rows

STEPS = 5
BATCH = 2
CONTEXT = 128
PAGED, RESIDENT = "16MiB", "80%"  # of the device, for streaming buffers or for all state
CLASSES = ("AdamW", "AdamW8bit", "PagedAdamW", "PagedAdamW8bit")
MANAGED_EACH = 8  # bytes of fp32 state per parameter, the most of a paged optimizer

Make = Callable[[Any], Any]


def own(gpu: Gpu, device: str, **options: Any) -> Make:
    return lambda params: contenders.lowtide_optimizer(
        gpu, params, memory=contenders.budget(gpu, device=device), **options
    )


def compatible(gpu: Gpu, name: str) -> Make:
    def make(params: Any) -> Any:
        from lowtide.compat.bitsandbytes import optim

        memory = contenders.budget(gpu, device=PAGED if name.startswith("Paged") else RESIDENT)
        made = getattr(optim, name)(params, lr=contenders.LR, memory=memory)
        gpu.follow(made)
        return made

    return make


def theirs(gpu: Gpu, name: str) -> Make:
    def make(params: Any) -> Any:
        if name.startswith("Paged"):
            gpu.allow_managed(MANAGED_EACH * sum(param.numel() for param in params))
        return rivals.bitsandbytes(params, name, lr=contenders.LR)

    return make


def used(gpu: Gpu) -> int:
    free, total = gpu.cuda.mem_get_info()
    return int(total - free)


def train(gpu: Gpu, size: llama.Decoder, make: Make) -> dict[str, Any]:
    """Returns peaks over some steps, and the last loss."""
    gc.collect()
    gpu.cuda.empty_cache()
    gpu.cuda.synchronize()
    before, base = used(gpu), int(gpu.cuda.memory_allocated())
    gpu.cuda.reset_peak_memory_stats()
    torch.manual_seed(0)
    with torch.device(gpu.device):
        model = llama.build(size, 8 * CONTEXT)
        model = model.to(torch.bfloat16)
        gpu.adopt(model)
        batches = torch.randint(size.vocabulary, (2, BATCH, gpu.size(CONTEXT, 16)))
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
    beside = int(report.get("device_bytes", 0)) if gpu.kind != "cuda" else 0  # on CUDA, torch's memory includes it
    return {"parameters": sum(param.numel() for param in model.parameters()), "peak_bytes": peak + beside,
            "torch_bytes": peak, "driver_bytes": peak_used, "loss": loss.item(), "report": report}  # fmt: skip


def makes(gpu: Gpu) -> dict[str, Make]:
    """Functions by label. Labels name fp32 or bf16 state if the class does not."""
    from_bnb = "lowtide.compat.bitsandbytes."
    return {
        "lowtide.AdamW": own(gpu, RESIDENT),
        "lowtide.AdamW, state on the host": own(gpu, PAGED),
        "lowtide.AdamW, state='bf16'": own(gpu, RESIDENT, state="bf16"),
        "lowtide.AdamW, master='residual16'": own(gpu, RESIDENT, master="residual16"),
        f"{from_bnb}AdamW (fp32 state)": compatible(gpu, "AdamW"),
        f"{from_bnb}PagedAdamW (fp32 state)": compatible(gpu, "PagedAdamW"),
        f"{from_bnb}AdamW8bit": compatible(gpu, "AdamW8bit"),
        f"{from_bnb}PagedAdamW8bit": compatible(gpu, "PagedAdamW8bit"),
        "torch.optim.AdamW (bf16 state)": lambda params: torch.optim.AdamW(params, lr=contenders.LR),
        "torch.optim.AdamW over fp32 masters": lambda params: rivals.Fp32Masters(params, lr=contenders.LR),
        "bitsandbytes AdamW (fp32 state)": theirs(gpu, "AdamW"),
        "bitsandbytes PagedAdamW (fp32 state)": theirs(gpu, "PagedAdamW"),
        "bitsandbytes AdamW8bit": theirs(gpu, "AdamW8bit"),
        "bitsandbytes PagedAdamW8bit": theirs(gpu, "PagedAdamW8bit"),
    }


def peaks(gpu: Gpu, rows: Rows) -> None:
    size = llama.LLAMA_TINY if gpu.rehearsed else llama.LLAMA_217M
    made = makes(gpu)
    found: dict[str, dict[str, Any]] = {}
    # The first training loads the libraries of matrix products, whose memory must not count as the optimizer's.
    rows.attempt("warming up", lambda: found.update(warm=train(gpu, size, made["torch.optim.AdamW (bf16 state)"])))
    for label, make in made.items():

        def measure(label: str = label, make: Make = make) -> None:
            data = found[label] = train(gpu, size, make)
            rows.add(f"LLaMA of {data['parameters'] / 1e6:.0f} M, bf16, {label}: peak of device memory",
                     data["peak_bytes"] / 1e6, "MB", **data)  # fmt: skip

        rows.attempt(f"LLaMA, {label}", measure)
    for label, paged in found.items():
        if "Paged" not in label or not (unpaged := found.get(label.replace("Paged", ""))):
            continue
        own_fp32 = label == "lowtide.compat.bitsandbytes.PagedAdamW (fp32 state)"
        if unpaged["driver_bytes"]:
            saved = 1 - paged["driver_bytes"] / unpaged["driver_bytes"]
            rows.add(f"{label}: saved against the class that is not paged, by the driver's count", saved, "",
                     "llama_saved" if own_fp32 else None, by_torch=1 - paged["peak_bytes"] / unpaged["peak_bytes"])  # fmt: skip
        if label.startswith("lowtide"):  # not 0, because torch's backward adds in varying order
            rows.add(f"{label}: difference of the loss from the class that is not paged",
                     abs(paged["loss"] - unpaged["loss"]), "", "llama_loss")  # fmt: skip


CASES = {"llama.peaks": peaks}
