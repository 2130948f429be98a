#!/usr/bin/env python3
"""Writes docs/will-it-fit.md, the memory of common models by `lowtide.plan` and `lowtide.forecast`; the charts of charts.py; and the
tables of docs/evidence.md, which show the newest records.

    .venv/bin/python tools/memory_tables.py           # writes them
    .venv/bin/python tools/memory_tables.py --check   # exits 1 if one is stale

All figures of docs/will-it-fit.md are computed from the shapes of published models. Needs the package, but no weights and no device.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import lowtide
from charts import CHARTS
from evidence import filled
from lowtide.planning.models import DECODERS, elements

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE, EVIDENCE = DOCS / "will-it-fit.md", DOCS / "evidence.md"
BETAS = (0.9, 0.95)  # the longest averages that dynamic4 takes
FORMATS = ("fp32", "bf16", "dynamic8", "dynamic4")
SIZES = (8, 12, 16, 24, 48, 80)  # GB of a device
HOSTS = (32, 64, 128, 256, 512)  # GB of RAM
DISK = "2TB"
MODELS = {  # name on the page: published name
    "7 B": "Llama-2-7B", "8 B": "Llama-3.1-8B", "13 B": "Llama-2-13B", "14 B": "Qwen2.5-14B", "32 B": "Qwen2.5-32B", "70 B": "Llama-3.1-70B",
}  # fmt: skip
SMALLEST = "7 B"  # of MODELS


def gb(count: float) -> str:
    value = count / 1e9
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|---" + "|---:" * (len(head) - 1) + "|"
    yield from ("| " + " | ".join(row) + " |" for row in rows)
    yield ""


def cell(model: str, size: int, ram: int) -> str:
    """How a device of `size` GB and `ram` GB of host memory train the model: what is where, and GB on the disk."""
    found = lowtide.plan(model, gpu=f"{size}GB", ram=f"{ram}GB", disk=DISK, master="stochastic", checkpointing=True, step_in_backward=True)
    fits = found if found.fits else found.changed
    assert fits and fits.fits, (model, size, ram)
    disk = gb(fits.total.disk)
    if fits.lines["weights"].disk:
        return "CPU, " * ("gpu" in found.change) + f"disk\u00a0{disk}"
    there = "CPU" if "gpu" in found.change else "streams" if found.change else "RAM" if fits.lines["state"].host else "device"
    return f"{there} + {disk}" if fits.total.disk else there


def by_ram(model: str) -> Iterator[list[str]]:
    """Rows of `cell` by GB of RAM. Successive rows with equal cells are merged."""
    rows = [(str(ram), [cell(model, size, ram) for size in SIZES]) for ram in HOSTS]
    for _, alike in itertools.groupby(rows, lambda row: row[1]):
        same = list(alike)
        yield [same[0][0] if len(same) == 1 else f"{same[0][0]}\u2013{same[-1][0]}", *same[0][1]]


def card() -> Iterator[list[str]]:
    """Lines of the plan of `SMALLEST` on a 24 GB device."""
    plan = lowtide.plan(MODELS[SMALLEST], gpu="24GB", ram="64GB", checkpointing=True, step_in_backward=True)
    assert plan.fits
    for name, line in {**plan.lines, "total": plan.total}.items():
        yield [name, *(gb(bytes_of) if bytes_of else "" for bytes_of in (line.device, line.host))]


def in_ram(**options: Any) -> list[str]:
    """GB of host memory, besides the process and page locking, for each model whose weights stream to a device."""
    plans = [lowtide.plan(model, gpu="12GB", checkpointing=True, stream=True, **options) for model in MODELS.values()]
    return [gb(sum(at.host for name, at in plan.lines.items() if name not in ("process", "page locking"))) for plan in plans]


def page() -> str:
    shapes = {model: DECODERS[published].shapes() for model, published in MODELS.items()}
    count = {model: elements(shapes[model]) for model in MODELS}
    plans = {model: {form: lowtide.forecast(shapes[model], state=form, betas=BETAS) for form in FORMATS} for model in MODELS}
    lion = {model: lowtide.forecast(shapes[model], "lion").state_bytes for model in MODELS}
    names = [model.replace(" ", "\u00a0") for model in MODELS]

    def state(model: str, form: str) -> float:
        return float(plans[model][form].state_bytes)

    lines = [
        "# Will it fit?",
        "",
        "<!-- Written by tools/memory_tables.py. Change that, not this page. -->",
        "",
        "```sh",
        "lowtide plan Llama-3.1-8B --gpu 24GB --ram 64GB   # or --model config.json, or 7B",
        "```",
        "",
        "Before anything is allocated, this command tells you whether a training run fits and, if it does not, the smallest change that makes it fit",
        "([options](command-line.md#lowtide-plan-will-it-fit)). 1 GB is 10⁹ bytes.",
        "",
        "## Fine-tune 7B on a 24 GB GPU",
        "",
        "**By calculation, yes: all weights can be trained, in bf16 and with 8-bit state.** Use activation checkpointing and `step_in_backward`.",
        "State that does not fit on the card then goes to RAM automatically. The plan predicts these figures for a step with one sequence of 2,048",
        "tokens:",
        "",
        *table(["GB", "device", "host"], card()),
        "```py",
        "model = AutoModelForCausalLM.from_pretrained(name)  # transformers 5 loads bf16 weights",
        "args = TrainingArguments(\"out\", gradient_checkpointing=True, per_device_train_batch_size=1, max_grad_norm=0)",
        "optimizer = lowtide.hf.optimizer(\"adamw_8bit\", args, step_in_backward=True)",
        "trainer = Trainer(model, args, train_dataset=data, optimizer_cls_and_kwargs=optimizer)",
        "trainer.train()",
        "```",
        "",
        "* Each gradient is freed as soon as its parameter is stepped, so gradients can be neither clipped (`max_grad_norm` must be 0) nor",
        "  accumulated ([work inside backward](gpu.md#work-inside-backward)).",
        "* If RAM is short, add a disk: `memory=lowtide.Memory(device=\"8GB\", host=\"4GB\", disk=\"/scratch\")`.",
        "* To clip or accumulate gradients, [stream the weights](offload.md#weights-on-one-gpu) or train",
        "  [adapters](hugging-face.md#lora-and-qlora), which take little memory beside the base model's weights and activations.",
        "",
        "## By GPU and RAM",
        "",
        f"The second table shows where the plan puts weights and state if all weights are trained and the disk has {DISK.replace('TB', ' TB')}; the first table explains",
        "its cells:",
        "",
        "| cell | weights | state |",
        "|---|---|---|",
        "| device | on the device | on the device |",
        "| RAM | on the device | on the device as far as there is room, the rest in RAM |",
        "| streams ([`lowtide.stream`](offload.md#weights-on-one-gpu)) | in RAM, as are their gradients; each layer is copied to the device for its computation, and stepped by the CPU | in RAM |",
        "| … + 42 | as without \"+ 42\" | 42 GB on the disk, the rest as without \"+ 42\" |",
        "| CPU | in RAM; one layer with its gradients and activations exceeds the device, so the CPU does all computation | in RAM |",
        "| disk 42 | as with \"streams\", but on the disk, because RAM has no room for them | on the disk; together with weights, it takes 42 GB there |",
        "",
        *table(["model", "GB of RAM", *(f"{size}\u00a0GB" for size in SIZES)], [
            [name, *row] for name, model in zip(names, MODELS.values(), strict=True) for row in by_ram(model)
        ]),
        "The plan assumes bfloat16 weights ([`master=\"residual16\"`](bf16.md) takes 2 more bytes per parameter), default options except",
        "`step_in_backward`, checkpointed activations, one sequence of 2,048 tokens per step, and 1.5 GB of RAM and 0.6 GB of device memory for the",
        "process. The plan was compared with [runs on a CPU](#how-activations-are-estimated), but not with runs on a GPU.",
        "",
        "## RAM when weights stream to a GPU, GB",
        "",
        *table(["bfloat16 weights, without the process", *names], [
            ["`master=\"residual16\"`", *in_ram(master="residual16")],
            ["`master=\"stochastic\"`", *in_ram(master="stochastic")],
            ["`master=\"stochastic\"`, `step_in_backward=True`", *in_ram(master="stochastic", step_in_backward=True)],
        ]),
        "If state is on a disk and parameters are stepped in backward, RAM holds weights (2 bytes per parameter), one layer's gradients and buffers.",
        "",
        "## Optimizer state, GB",
        "",
        *table(["AdamW", *names], [
            ["`torch.optim.AdamW`, and `state=\"fp32\"`", *(gb(state(model, "fp32")) for model in MODELS)],
            *([f"`state=\"{form}\"`", *(gb(state(model, form)) for model in MODELS)] for form in FORMATS[1:2]),
            ["`lowtide.AdamW`, the default", *(f"**{gb(state(model, 'dynamic8'))}**" for model in MODELS)],
            *([f"`state=\"{form}\"`, experimental", *(gb(state(model, form)) for model in MODELS)] for form in FORMATS[3:]),
            ["`lowtide.Lion`", *(gb(lion[model]) for model in MODELS)],
        ]),
        "## Weights, gradients and state, GB",
        "",
        *table(["weights and gradients", *names], [
            ["float32, or bfloat16 with float32 copies, `torch.optim.AdamW`",
             *(gb(8 * count[model] + state(model, "fp32")) for model in MODELS)],
            ["float32, `lowtide.AdamW`", *(gb(8 * count[model] + state(model, "dynamic8")) for model in MODELS)],
            ["bfloat16, `lowtide.AdamW(master=\"residual16\")`",
             *(f"**{gb(6 * count[model] + state(model, 'dynamic8'))}**" for model in MODELS)],
            ["bfloat16, `lowtide.AdamW(master=\"stochastic\")`",
             *(gb(4 * count[model] + state(model, "dynamic8")) for model in MODELS)],
        ]),
        "## How activations are estimated",
        "",
        "For LLaMA-like Transformers models with flash attention, SwiGLU and no dropout, the plan counts each tensor that a layer keeps for backward,",
        "as [Korthikanti et al.](https://arxiv.org/abs/2205.05198) do (`python/lowtide/planning/activations.py`). With checkpointing, each layer",
        "keeps only its input, and one layer at a time is recomputed. The loss takes three float32 copies of the logits. In backward, gradients",
        "are created while activations are freed, so their joint peak is less than the sum of their peaks; the line \"never at once\" subtracts the",
        "difference. The 16-bit copies of float32 weights that autocast keeps are not counted.",
        "",
        "On a CPU, six small LLaMAs peaked at 0.95 to 1.01 times the planned memory (`tests/python/planning/test_plan.py`).",
        "",
        *table(["", *names], [
            ["shapes of", *MODELS.values()],
            ["parameters", *(f"{count[model]:,}" for model in MODELS)],
        ]),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page or a chart is stale")
    options = parser.parse_args()
    made = {PAGE: page(), EVIDENCE: filled(EVIDENCE.read_text(encoding="utf-8"))}
    made |= {DOCS / name: draw() for name, draw in CHARTS.items()}
    stale = [path.name for path, text in made.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if not options.check:
        for path, text in made.items():
            path.write_text(text, encoding="utf-8")
    elif stale:
        print(f"stale: {', '.join(stale)}: run {Path(__file__).name} without --check")
    return int(options.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
