#!/usr/bin/env python3
"""Fine-tune a small LLaMA with QLoRA on a CPU: weights in 4 bits (NF4), adapters, and a paged 8-bit optimizer.

    python examples/qlora.py                                             # two minutes on two cores
    python examples/qlora.py --data alpaca.json --host 8MiB --steps 200

The base has random weights, which bitsandbytes quantizes and PEFT freezes: nothing is downloaded. It is trained twice
from there, with torch's AdamW and with bitsandbytes' PagedAdamW8bit as Lowtide has it, whose state keeps to --host.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llama import memory
from llama.adapters import PACKAGES, add_arguments, config_of, with_adapters
from llama.common import ExampleError, require_packages, write_json
from llama.config import Config

RANK = 64  # of the adapters


@dataclass(frozen=True)
class Run:
    """One training run. Sizes are in bytes."""

    losses: list[float]
    trained: int  # elements of the adapters
    frozen_bytes: int  # of weights, packed
    state_bytes: int  # of the optimizer, in RAM
    disk_bytes: int  # of the optimizer, in a file
    peak_bytes: int  # most resident memory while it trained, above what there was with the model alone


def quantized_model(config: Config, vocab: int) -> Any:
    """Adapters over a LLaMA whose matrices are in NF4, as bitsandbytes' Linear4bit."""
    import peft
    import torch
    from llama.model import build_model
    from transformers import BitsAndBytesConfig, LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:  # the way of pretrained weights: saved, and read into 4 bits
        build_model(config, vocab).save_pretrained(folder)
        base = LlamaForCausalLM.from_pretrained(
            folder, device_map="cpu",
            quantization_config=BitsAndBytesConfig(
                load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32
            ),
        )  # fmt: skip
    base = peft.prepare_model_for_kbit_training(base, use_gradient_checkpointing=False)
    return with_adapters(base, RANK, config.seed)


def train(config: Config, budget: str | None, disk: str) -> Run:
    """Trains in this process; `budget`: for Lowtide's optimizer, None: torch's."""
    import torch
    from llama.model import next_token_loss
    from llama.text import Batches, load_corpus, prepare

    import lowtide
    from lowtide.compat.bitsandbytes.optim import PagedAdamW8bit  # was: from bitsandbytes.optim import PagedAdamW8bit

    def optimizer_of(params: Iterable[torch.Tensor]) -> Any:
        if budget:
            return PagedAdamW8bit(params, lr=config.lr, memory=lowtide.Memory(host=budget, disk=disk))
        return torch.optim.AdamW(params, lr=config.lr)

    tokens = prepare(config, load_corpus(config))
    model = quantized_model(config, tokens.vocab)
    batches = Batches(tokens.train, config.batch, config.context, config.seed)
    # A pass and a step of one weight: what the first of their kind allocate for good is in neither peak.
    next_token_loss(model, batches[0]).backward()
    model.zero_grad()
    one = torch.nn.Parameter(torch.ones(1))
    one.grad = torch.ones(1)
    optimizer_of([one]).step()
    memory.require_reset_peak()
    before = memory.resident_bytes()
    optimizer = optimizer_of(model.parameters())
    losses = []
    for step in range(config.steps):
        loss = next_token_loss(model, batches[step])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    peak = memory.peak_bytes() - before
    if budget:
        report = optimizer.report()
        state, on_disk = report["allocated_bytes"], report["disk_bytes"]
    else:
        state = sum(value.nbytes for entry in optimizer.state.values() for value in entry.values())
        on_disk = 0
    params = list(model.parameters())
    trained = sum(p.numel() for p in params if p.requires_grad)
    return Run(losses, trained, sum(p.nbytes for p in params if not p.requires_grad), state, on_disk, peak)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 1 if a loss did not fall."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, steps=30, width=256, layers=4, out="out/qlora")
    parser.add_argument("--host", default="1MiB", help="RAM for the optimizer's state")
    parser.add_argument("--disk", default=None, help="folder for the rest (default: the system's temporary folder)")
    args = parser.parse_args(arguments)
    try:
        require_packages((*PACKAGES, "bitsandbytes"))
        import lowtide
        from lowtide.cli.waiting import Waiting

        if args.steps < 2:
            raise ExampleError(f"--steps: got {args.steps}, wanted 2 or more")
        config = config_of(args, lr=2e-3)
        with tempfile.TemporaryDirectory(dir=args.disk) as disk, Waiting("qlora") as wait:
            wait.for_torch()
            lowtide.Memory(host=args.host, disk=disk)  # refuses what cannot be used, before anything runs
            budgets = {"torch's AdamW": None, "PagedAdamW8bit": args.host}
            runs = {}
            for name, budget in budgets.items():
                wait(f"training with {name}")
                runs[name] = memory.alone(train, config, budget, disk)
    except (ExampleError, ValueError, OSError) as error:
        print(f"qlora: {error}", file=sys.stderr)
        return 2
    first = next(iter(runs.values()))
    print(f"{first.frozen_bytes / 1e6:.2f} MB of frozen weights, {first.trained / 1e6:.2f} M weights of adapters in float32")
    print(f"{'':15s} {'loss':>15s} {'state, MB':>10s} {'in a file':>10s} {'peak, MB':>9s}")
    for name, run in runs.items():
        print(f"{name:15s} {run.losses[0]:6.3f} → {run.losses[-1]:6.3f} {run.state_bytes / 1e6:10.2f} "
              f"{run.disk_bytes / 1e6:10.2f} {run.peak_bytes / 1e6:9.2f}")  # fmt: skip
    write_json(Path(args.out) / "report.json", {"budget": args.host, **{name: vars(run) for name, run in runs.items()}})
    print(f"written: {args.out}/report.json")
    return 0 if all(run.losses[-1] < run.losses[0] for run in runs.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
