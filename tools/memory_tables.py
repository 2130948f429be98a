#!/usr/bin/env python3
"""Writes docs/memory-tables.md: what common models take, by `lowtide plan` alone.

    .venv/bin/python tools/memory_tables.py           # writes the page
    .venv/bin/python tools/memory_tables.py --check   # exit status 1 if the page is not what would be written

Every figure of state comes from the command `lowtide plan --shapes`, over the shapes of published models. Needs the
package, no weights and no device.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lowtide
import torch
from lowtide.cli.main import main as command
from lowtide.planning.rates import seconds_text

PAGE = Path(__file__).resolve().parent.parent / "docs" / "memory-tables.md"
BETAS = "0.9,0.95"  # dynamic4 takes no longer averages
FORMATS = ("fp32", "bf16", "dynamic8", "dynamic4")
RAM = "16GiB"
SIZES = (8, 16, 24, 48, 80)  # GB, of the table of largest models
HOSTS = (32, 64, 128)  # GB of RAM
RATES = lowtide.Rates(step=4e9, read=3e9, write=3e9, link=25e9)  # of the same table
SCALED = "7 B"  # of MODELS: how many bytes a parameter takes
BUCKET = 64 << 20  # bytes of gradients that step_in_backward steps together
SCRATCH = "DIR"


@dataclass(frozen=True)
class Model:
    """A decoder as LLaMA: its name here, the published model, and the numbers of its config.json."""

    name: str
    published: str
    layers: int
    hidden: int
    inner: int
    vocabulary: int
    heads_share: int = 1  # query heads to a key head
    tied: bool = False  # the output layer is the embedding
    qkv_bias: bool = False

    def shapes(self) -> dict[str, list[int]]:
        """Parameter → shape."""
        h, keys = self.hidden, self.hidden // self.heads_share
        found = {"embed": [self.vocabulary, h], "norm": [h]}
        if not self.tied:
            found["head"] = [self.vocabulary, h]
        layer = {"q": [h, h], "k": [keys, h], "v": [keys, h], "o": [h, h], "gate": [self.inner, h], "up": [self.inner, h],
                 "down": [h, self.inner], "norm1": [h], "norm2": [h]}  # fmt: skip
        if self.qkv_bias:
            layer |= {"q.bias": [h], "k.bias": [keys], "v.bias": [keys]}
        for number in range(self.layers):
            found |= {f"{number}.{name}": shape for name, shape in layer.items()}
        return found


MODELS = (
    Model("1 B", "Llama 3.2 1B", 16, 2048, 8192, 128256, heads_share=4, tied=True),
    Model("3 B", "Llama 3.2 3B", 28, 3072, 8192, 128256, heads_share=3, tied=True),
    Model("7 B", "Llama 2 7B", 32, 4096, 11008, 32000),
    Model("13 B", "Llama 2 13B", 40, 5120, 13824, 32000),
    Model("32 B", "Qwen2.5 32B", 64, 5120, 27648, 152064, heads_share=5, qkv_bias=True),
    Model("70 B", "Llama 3 70B", 80, 8192, 28672, 128256, heads_share=8),
)


def plan(model: Model, *options: str) -> Any:
    """The answer of `lowtide plan --json`; in the options, SCRATCH is a folder."""
    with tempfile.TemporaryDirectory() as folder:
        shapes = Path(folder) / "shapes.json"
        shapes.write_text(json.dumps(model.shapes()))
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
            command(["plan", "--shapes", str(shapes), "--json", *(folder if word == SCRATCH else word for word in options)])
        return json.loads(said.getvalue())


def gb(count: float) -> str:
    value = count / 1e9
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|---" + "|---:" * (len(head) - 1) + "|"
    yield from ("| " + " | ".join(row) + " |" for row in rows)
    yield ""


def largest(size: int, bytes_each: float) -> str:
    """Parameters in billions, rounded down."""
    return f"{int(10 * size / bytes_each) / 10:.1f}"


def spread(model: Model, size: int, ram: int) -> str:
    """Where the state is of a model that a device of `size` GB steps, beside `ram` GB of host memory, and the seconds of a step."""
    shapes = list(model.shapes().values())
    elements = sum(math.prod(shape) for shape in shapes)
    gradients = 2 * max(math.prod(shape) for shape in shapes) + BUCKET
    room = int(size * 1e9 * 7 / 8 - 2 * elements - gradients)
    if room < 0:
        return "-"
    found = None
    for host, disk in ((ram * 3 // 4, None), (ram // 2, tempfile.gettempdir())):
        memory = lowtide.Memory(device=room, host=f"{host} GB", disk=disk)
        found = lowtide.plan([tuple(shape) for shape in shapes], memory=memory, on="cuda", dtype=torch.bfloat16, rates=RATES)
        assert isinstance(found, lowtide.DeviceForecast)
        copies = found.copy_bytes if disk else 0
        if found.fits and found.host_bytes + copies <= ram * 1e9:
            break
    else:
        return "-"
    where = "device" if not found.host_bytes else "RAM" if not found.disk_bytes else f"{gb(found.disk_bytes)}\u00a0GB on disk"
    return where if not found.link_per_step else f"{where}, {seconds_text(found.seconds).replace(' ', chr(160))}"


def by_ram(model: Model) -> Iterator[list[str]]:
    """Rows of where the state is, from so much RAM on; those alike are one."""
    rows = [(f"{ram}\u00a0GB", [spread(model, size, ram) for size in SIZES]) for ram in HOSTS]
    for _, alike in itertools.groupby(rows, lambda row: row[1]):
        same = list(alike)
        yield [same[0][0] if len(same) == 1 else f"{same[0][0]} to {same[-1][0]}", *same[0][1]]


def page() -> str:
    plans = {model: plan(model, "--betas", BETAS)["plans"] for model in MODELS}
    lion = {model: plan(model, "--rule", "lion")["plans"]["dynamic8"] for model in MODELS}
    paged = {model: plan(model, "--host", RAM, "--disk", SCRATCH)["plans"] for model in MODELS}
    count = {model: plans[model]["fp32"]["elements"] for model in MODELS}
    names = [model.name.replace(" ", "\u00a0") for model in MODELS]

    def state(model: Model, form: str) -> float:
        return float(plans[model][form]["state_bytes"])

    scaled = next(model for model in MODELS if model.name == SCALED)
    state8 = state(scaled, "dynamic8") / count[scaled]
    takes = {  # of fast memory: bytes a parameter
        "float32, `torch.optim.AdamW`": 8 + state(scaled, "fp32") / count[scaled],
        "float32, `lowtide.AdamW`": 8 + state8,
        "bfloat16, `lowtide.AdamW(master=\"residual16\")`": 6 + state8,
        "bfloat16, `lowtide.AdamW(master=\"stochastic\")`": 4 + state8,
        "bfloat16, `lowtide.Lion(master=\"stochastic\")`": 4 + lion[scaled]["state_bytes"] / count[scaled],
        "float32, state paged": 8.0,
        "bfloat16, state and residual paged": 4.0,
    }

    lines = [
        "# Memory tables",
        "",
        "<!-- Written by tools/memory_tables.py. Change that, not this page. -->",
        "",
        "GB are 10⁹ bytes. All figures of state are those of `lowtide plan --shapes`, over every tensor of the model. Activations are not",
        "in them: they depend on batch, sequence and checkpointing.",
        "",
        *table(["", *names], [
            ["shapes of", *(model.published for model in MODELS)],
            ["parameters", *(f"{count[model]:,}" for model in MODELS)],
        ]),
        "## Optimizer state, GB",
        "",
        *table(["AdamW", *names], [
            ["`torch.optim.AdamW`, and `state=\"fp32\"`", *(gb(state(model, "fp32")) for model in MODELS)],
            *([f"`state=\"{form}\"`", *(gb(state(model, form)) for model in MODELS)] for form in FORMATS[1:2]),
            ["`lowtide.AdamW`, the default", *(f"**{gb(state(model, 'dynamic8'))}**" for model in MODELS)],
            *([f"`state=\"{form}\"`, experimental", *(gb(state(model, form)) for model in MODELS)] for form in FORMATS[3:]),
            ["`lowtide.Lion`", *(gb(lion[model]["state_bytes"]) for model in MODELS)],
        ]),
        "## Weights, gradients and state, GB",
        "",
        *table(["weights and gradients", *names], [
            ["float32, `torch.optim.AdamW`", *(gb(8 * count[model] + state(model, "fp32")) for model in MODELS)],
            ["float32, `lowtide.AdamW`", *(gb(8 * count[model] + state(model, "dynamic8")) for model in MODELS)],
            ["bfloat16 with float32 copies, `torch.optim.AdamW`",
             *(gb(8 * count[model] + state(model, "fp32")) for model in MODELS)],
            ["bfloat16, `lowtide.AdamW(master=\"residual16\")`",
             *(f"**{gb(6 * count[model] + state(model, 'dynamic8'))}**" for model in MODELS)],
            ["bfloat16, `lowtide.AdamW(master=\"stochastic\")`",
             *(gb(4 * count[model] + state(model, "dynamic8")) for model in MODELS)],
        ]),
        "float32 weights and gradients take 8 bytes per parameter. bfloat16 takes 4, and 4 more for float32 copies of the weights, or 2 for",
        "the residual, which keeps the same bits ([weights of 16 bits](numerics.md#weights-of-16-bits)).",
        "",
        "## The largest model that can be trained",
        "",
        "Billions of parameters, rounded down, of a LLaMA whose weights, gradients and state fit into so much memory, with the bytes of",
        f"{scaled.published}. Activations come on top. *Paged*: state elsewhere, on disk or, of a device, in host memory, less a few MB of buffers.",
        "",
        *table(["weights and gradients, optimizer", "bytes each", *(f"{size}\u00a0GB" for size in SIZES)], [
            [name, f"{each:.2f}", *(largest(size, each) for size in SIZES)] for name, each in takes.items()
        ]),
        "## What a device trains, with the rest in host memory or on a disk",
        "",
        "Where the state is, by the memory of the device and of the host: all on the device, the rest in RAM, or so much on a disk; -: the weights",
        "do not fit, or the CPU's copies of weights and gradients do not. Behind it are the seconds of an optimizer step, at least, by",
        f"`lowtide.plan(on=\"cuda\")` for a link of {RATES.link / 1e9:g} GB/s each way, a CPU that steps {RATES.step_of('dynamic8') / 1e9:g} GB of state a second and a disk of",
        f"{RATES.read / 1e9:g} GB/s: give your own rates, for they decide. Weights are bfloat16 with `master=\"stochastic\"`, state is the default, and gradients are",
        "stepped in backward (`step_in_backward=True`): the largest one and 64 MiB are alive at once. An eighth of the device is left for activations",
        "and torch, and a quarter of the RAM for the rest of the program.",
        "",
        *table(["model", "RAM", *(f"{size}\u00a0GB" for size in SIZES)], [
            [name, *row] for name, model in zip(names, MODELS, strict=True) for row in by_ram(model)
        ]),
        "`Memory(device=, host=)` gives the first two, `Memory(device=, host=, disk=)` the last, whose state the CPU steps",
        "([devices.md](devices.md#steps-by-the-cpu)).",
        "",
        f"## A budget of {RAM.replace('GiB', ' GiB')} of RAM, the rest on disk",
        "",
        *table(["AdamW, GB", *names], [
            [f"{form}: {what}", *(gb(paged[model][form][key]) for model in MODELS)]
            for form in ("dynamic8", "fp32")
            for what, key in (("in RAM", "host_bytes"), ("on disk", "disk_bytes"), ("moved per step", "moved_per_step"))
        ]),
        "A step takes at least as long as the disk needs for what moves: [Disk and paging](memory.md).",
        "",
        "## Your own model",
        "",
        "```sh",
        "lowtide plan --hf-config config.json --host 16GiB --disk /tmp",
        "```",
        "",
        "[The command line](command-line.md) also takes shapes from a file, and measures seconds per step.",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is stale")
    options = parser.parse_args()
    text = page()
    if not options.check:
        PAGE.write_text(text, encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != text:
        print(f"{PAGE.name} is stale: run {Path(__file__).name} without --check")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
