#!/usr/bin/env python3
"""Fine-tune a small LLaMA with LoRA through Hugging Face's Trainer, stop half way, resume, and compare.

    .venv/bin/python -m pip install accelerate peft                      # beside what `make train` installs
    python examples/finetune_lora.py                                     # half a minute on two cores
    python examples/finetune_lora.py --optim paged_lion_8bit --data alpaca.json --steps 200
    python examples/finetune_lora.py --host 256KiB --disk /tmp           # most of the state in a file

The base has random weights and is frozen: nothing is downloaded. The resumed run has to end with the weights of the one
that was never stopped, to the bit.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llama.adapters import PACKAGES, add_arguments, config_of, with_adapters
from llama.common import ExampleError, require_packages, write_json
from llama.config import Config


@dataclass(frozen=True)
class Run:
    """One run of the Trainer. Bytes are of the optimizer's state."""

    losses: list[float]
    weights: str  # a hash of them at the end
    state_bytes: int
    moved_per_step: int


def windows(tokens: Any, context: int) -> list[dict[str, Any]]:
    """The training text in pieces, as the Trainer takes them."""
    import torch

    pieces = torch.from_numpy(tokens.train.astype("int64")).split(context)
    return [{"input_ids": piece, "labels": piece} for piece in pieces if len(piece) == context]


def train(config: Config, tokens: Any, name: str, memory: Any, resume: bool) -> Run:
    """Trains adapters; `resume`: from the checkpoint that an earlier run has left half way. `memory`: or None."""
    from llama.model import build_model, weights_sha256
    from transformers import PrinterCallback, Trainer, TrainingArguments

    import lowtide

    half = config.steps // 2
    args = TrainingArguments(
        config.out, optim=name, learning_rate=config.lr, weight_decay=config.weight_decay, max_grad_norm=config.clip,
        max_steps=config.steps, warmup_steps=config.warmup, lr_scheduler_type="cosine", gradient_accumulation_steps=2,
        per_device_train_batch_size=config.batch, seed=config.seed, save_steps=half, logging_steps=1,
        logging_strategy="steps", use_cpu=True, report_to=[], disable_tqdm=True,
    )  # fmt: skip
    model = with_adapters(build_model(config, tokens.vocab), 32, config.seed)
    trainer = Trainer(
        model, args, train_dataset=windows(tokens, config.context),
        optimizer_cls_and_kwargs=lowtide.hf.optimizer(args.optim, args, memory=memory),
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    trainer.train(resume_from_checkpoint=str(Path(config.out) / f"checkpoint-{half}") if resume else None)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    report = trainer.optimizer.optimizer.report()  # the Trainer has it in a wrapper of Accelerate
    return Run(losses, weights_sha256(model), report["state_bytes"], report["moved_per_step"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 1 if resuming changed anything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--optim", default="paged_adamw_8bit", help="a name of lowtide.hf.RECIPES")
    add_arguments(parser, steps=40, width=128, layers=2, out="out/lora")
    parser.add_argument("--host", default=None, help="RAM for the optimizer's state; needs --disk")
    parser.add_argument("--disk", default=None, help="folder for the state that does not fit")
    args = parser.parse_args(arguments)
    try:
        if (args.host is None) != (args.disk is None) or args.steps < 2 or args.steps % 2:
            raise ExampleError("wanted --host and --disk together, and an even number of --steps")
        require_packages(PACKAGES)
        import lowtide
        from llama.text import load_corpus, prepare
        from lowtide.cli.waiting import Waiting

        with Waiting("finetune_lora") as wait:
            wait("importing torch and transformers")
            lowtide.hf.optimizer(args.optim)
            memory = lowtide.Memory(host=args.host, disk=args.disk) if args.host else None
            config = config_of(args, lr=5e-3, warmup=args.steps // 10)
            wait("making tokens")
            tokens = prepare(config, load_corpus(config))
            wait(f"training {args.steps} steps")
            whole = train(config, tokens, args.optim, memory, resume=False)
            wait(f"training again from step {args.steps // 2}")
            resumed = train(config, tokens, args.optim, memory, resume=True)
    except (ExampleError, ValueError, OSError) as error:
        print(f"finetune_lora: {error}", file=sys.stderr)
        return 2
    same = whole.weights == resumed.weights and whole.losses == resumed.losses
    print(f"loss {whole.losses[0]:.3f} → {whole.losses[-1]:.3f}; state {whole.state_bytes / 1e6:.2f} MB, of which "
          f"{whole.moved_per_step / 2e6:.2f} MB in a file; resumed from step {args.steps // 2}: "
          f"{'the same losses and weights' if same else 'OTHER LOSSES OR WEIGHTS'}")  # fmt: skip
    write_json(Path(args.out) / "report.json", {"optim": args.optim, "steps": args.steps, "same": same,
               **{name: vars(run) for name, run in (("whole", whole), ("resumed", resumed))}})  # fmt: skip
    print(f"written: {args.out}/report.json")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
