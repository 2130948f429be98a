#!/usr/bin/env python3
"""Fine-tune a small LLaMA on instructions twice, with the optimizer's state in fast memory and paged, and compare.

    python examples/paged_training.py                                       # a minute on two cores
    python examples/paged_training.py --data alpaca.json --steps 300        # data in Alpaca's form
    python examples/paged_training.py --device xpu --budget 8MiB            # Intel GPUs; the rest in host memory

On a CPU fast memory is RAM and the rest goes to --disk; on a device it is the device's memory and the rest goes to
pinned host memory. Both runs start from the same weights and see the same batches; their losses must be the same bits.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llama.config import Config
from llama.errors import ExampleError, require_packages
from llama.files import write_json
from llama.paged import BACKENDS, check_device

DEFAULT_DATA = Path(__file__).resolve().parent / "data" / "instructions.json"
PACKAGES = ("torch", "numpy", "transformers", "tokenizers")


@dataclass(frozen=True)
class Run:
    """One training run. Bytes are of the optimizer's state."""

    losses: list[float]
    weights: str  # a hash of them at the end
    fast_bytes: int
    other_bytes: int
    moved_per_step: int


def train(config: Config, tokens: Any, device: str, state: str, memory: Any) -> Run:
    """Trains from scratch; `memory`: the budget, or None."""
    import torch
    from llama.model import build_model, next_token_loss, parameter_groups, weights_sha256
    from llama.tokens import Batches

    import lowtide

    model = build_model(config, tokens.vocab).to(device)
    optimizer = lowtide.AdamW(parameter_groups(model, config.weight_decay), lr=config.lr, state=state, memory=memory)
    batches = Batches(tokens.train, config.batch, config.context, config.seed)
    losses = []
    for step in range(config.steps):
        loss = next_token_loss(model, batches[step].to(device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    report: dict[str, Any] = dict(optimizer.report())
    on_cpu = device == "cpu"
    fast, other = ("allocated_bytes", "disk_bytes") if on_cpu else ("device_bytes", "allocated_bytes")
    return Run(losses, weights_sha256(model), report[fast], report[other], report["moved_per_step"])


def compare(config: Config, device: str, states: list[str], budget: str, disk: str | None) -> list[dict[str, Any]]:
    """Trains with every state format, unpaged and paged; a row for each."""
    import lowtide
    from llama.data import load_corpus
    from llama.tokens import prepare

    check_device(device)
    tokens = prepare(config, load_corpus(config))
    rows = []
    for state in states:
        with tempfile.TemporaryDirectory(dir=disk) as scratch:
            paged = lowtide.Memory(host=budget, disk=scratch) if device == "cpu" else lowtide.Memory(device=budget)
            runs = {"unpaged": train(config, tokens, device, state, None),
                    "paged": train(config, tokens, device, state, paged)}  # fmt: skip
        a, b = runs["unpaged"], runs["paged"]
        rows.append({
            "state": state, "first_loss": a.losses[0], "last_loss": a.losses[-1],
            "largest_difference": max(abs(x - y) for x, y in zip(a.losses, b.losses, strict=True)),
            "same_weights": a.weights == b.weights,
            **{f"{name}_{key}": getattr(run, key) for name, run in runs.items()
               for key in ("fast_bytes", "other_bytes", "moved_per_step", "losses")},
        })  # fmt: skip
    return rows


def show(rows: list[dict[str, Any]], device: str) -> None:
    """A table on the terminal."""
    fast, other = ("RAM", "disk") if device == "cpu" else ("device", "host")
    print(f"{'state':9s} {'loss':>15s} {'difference':>11s} {'weights':>8s} {fast + ', MB':>17s} {'saved':>6s} "
          f"{other + ', MB':>9s} {'moved a step, MB':>17s}")  # fmt: skip
    for row in rows:
        before, after = row["unpaged_fast_bytes"], row["paged_fast_bytes"]
        print(f"{row['state']:9s} {row['first_loss']:6.3f} → {row['last_loss']:6.3f} {row['largest_difference']:11.1e} "
              f"{'same' if row['same_weights'] else 'DIFFER':>8s} {before / 1e6:7.2f} → {after / 1e6:7.2f} "
              f"{f'{100 * (1 - after / before):.1f}%' if row['paged_moved_per_step'] else 'fits':>6s} {row['paged_other_bytes'] / 1e6:9.2f} "
              f"{row['paged_moved_per_step'] / 1e6:17.2f}")  # fmt: skip


def main() -> int:
    """Returns the exit status: 1 if paging changed anything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=[*BACKENDS], help="where the model is")
    parser.add_argument("--data", default=str(DEFAULT_DATA), help="instructions in Alpaca's form (.json, .jsonl), or text")
    parser.add_argument("--states", default="fp32,dynamic8", help="state formats")
    parser.add_argument("--budget", default="1MiB", help="fast memory for the paged state")
    parser.add_argument("--disk", default=None, help="where scratch files go (default: the system's temporary folder)")
    parser.add_argument("--steps", type=int, default=60, help="of training, for each run")
    parser.add_argument("--width", type=int, default=128, help="of the model")
    parser.add_argument("--layers", type=int, default=3, help="of the model")
    parser.add_argument("--out", default="out/paged", help="folder for report.json and the tokens")
    args = parser.parse_args()
    try:
        require_packages(PACKAGES)
        config = Config(out=args.out, data=args.data, steps=args.steps, width=args.width, layers=args.layers, heads=4,
                        context=48, batch=8, vocab=512, lr=1e-3)  # fmt: skip
        rows = compare(config, args.device, args.states.split(","), args.budget, args.disk)
    except (ExampleError, ValueError, OSError) as error:
        print(f"paged_training: {error}", file=sys.stderr)
        return 2
    show(rows, args.device)
    write_json(Path(args.out) / "report.json", {"device": args.device, "steps": args.steps, "rows": rows})
    print(f"written: {args.out}/report.json")
    return 0 if all(row["largest_difference"] == 0 and row["same_weights"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
