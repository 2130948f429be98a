"""Adapters over a small frozen model: what the examples of LoRA and QLoRA share."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .config import Config

PACKAGES = ("torch", "numpy", "transformers", "tokenizers", "accelerate", "peft")
_INSTRUCTIONS = Path(__file__).resolve().parents[1] / "data" / "instructions.json"


def add_arguments(parser: argparse.ArgumentParser, steps: int, width: int, layers: int, out: str) -> None:
    parser.add_argument("--data", default=str(_INSTRUCTIONS), help="instructions in Alpaca's form, or text")
    parser.add_argument("--steps", type=int, default=steps, help="of training, for each run")
    parser.add_argument("--width", type=int, default=width, help="of the model")
    parser.add_argument("--layers", type=int, default=layers, help="of the model")
    parser.add_argument("--out", default=out, help="folder for what is written, report.json among it")


def config_of(args: argparse.Namespace, lr: float, warmup: int = 30) -> Config:
    """For short runs on short texts."""
    return Config(out=args.out, data=args.data, steps=args.steps, warmup=warmup, width=args.width, layers=args.layers,
                  heads=4, context=48, batch=4, vocab=512, lr=lr)  # fmt: skip


def with_adapters(base: Any, rank: int, seed: int) -> Any:
    import peft
    import torch

    torch.manual_seed(seed)
    return peft.get_peft_model(base, peft.LoraConfig(r=rank, lora_alpha=rank, target_modules="all-linear"))
