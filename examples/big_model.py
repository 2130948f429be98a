#!/usr/bin/env python3
"""Full fine-tuning of a LLaMA whose optimizer state is on a disk, within a given amount of RAM.

    python examples/big_model.py --params 7e9 --ram 20GiB --disk /scratch       # 7.4 GB of disk; some 20 s a step on two cores
    python examples/big_model.py --params 1.3e9 --ram 4GiB --disk /scratch
    python examples/big_model.py --params 1.3e9 --ram none                      # the same bits, with all state in RAM

Weights are bfloat16, rounded stochastically (or exact to 32 bits with --master residual16, whose rest is on the disk, too). State is
8-bit. Backward steps each parameter as soon as its gradient is there and frees it (`step_in_backward`), and computes activations once
more instead of keeping them. The program divides --ram: weights, the largest gradient, what torch takes, and the rest for state.
It does not keep itself within --ram: run it in a control group that does (docs/benchmarks/big-model-2core-2026-11-24.md has the lines),
and it prints the peak that the group has seen.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from llama.common import ExampleError, require_packages, write_json
from llama.memory import cpu_name, peak_bytes

PACKAGES = ("torch", "numpy", "transformers")
BESIDE = 5 << 28  # bytes that Python, torch and their buffers take
BUCKET = 16 << 20  # bytes of gradients that are stepped together


@dataclass(frozen=True)
class Shape:
    """A LLaMA. Elements: two tables of the vocabulary, four square and three oblong matrices in each layer, norms."""

    width: int
    layers: int
    heads: int
    ffn: int
    vocab: int = 32000

    @property
    def elements(self) -> int:
        layer = 4 * self.width**2 + 3 * self.width * self.ffn + 2 * self.width
        return 2 * self.vocab * self.width + self.layers * layer + self.width


SHAPES = {
    "1e6": Shape(96, 3, 4, 256, 3200),
    "125e6": Shape(768, 10, 12, 2048),
    "1.3e9": Shape(2048, 24, 16, 5504),
    "7e9": Shape(4096, 32, 32, 11008),
}


@dataclass
class Run:
    """One run: bytes and seconds; a step's phases are those of the steps after the first, which also makes the state."""

    params: int = 0
    ram: int = 0  # 0: no limit
    state_budget: int = 0
    losses: list[float] = field(default_factory=list)
    seconds: list[dict[str, float]] = field(default_factory=list)  # by phase, of each step
    peak_process: int = 0
    peak_group: int = 0  # of the control group; 0: not known
    group_limit: int = 0
    read_bytes: list[int] = field(default_factory=list)  # of each step
    written_bytes: list[int] = field(default_factory=list)
    disk_bytes: int = 0
    largest_gradients: int = 0  # bytes that were alive at once
    weights: str = ""  # a hash of all weights
    machine: str = ""


def budget_of(shape: Shape, ram: int) -> int:
    """Bytes that state may take in RAM. Raises ExampleError if the rest alone is too much."""
    largest = 2 * max(shape.vocab, shape.ffn) * shape.width
    needed = {"weights": 2 * shape.elements, "gradients": largest + BUCKET, "Python, torch and activations": BESIDE, "state": 64 << 20}
    if ram < sum(needed.values()):
        parts = " + ".join(f"{size / 2**30:.2f} GiB of {name}" for name, size in needed.items())
        raise ExampleError(f"--ram: got {ram / 2**30:.2f} GiB, wanted {sum(needed.values()) / 2**30:.2f} or more: {parts}")
    return ram - sum(needed.values()) + needed["state"]


def build(shape: Shape, seed: int) -> Any:
    """The model in bfloat16, without a copy in float32 on the way. The rotary table stays float32."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    before = torch.get_default_dtype(), torch.nn.Linear.reset_parameters, torch.nn.Embedding.reset_parameters
    torch.set_default_dtype(torch.bfloat16)
    # transformers draws all weights itself.
    torch.nn.Linear.reset_parameters = torch.nn.Embedding.reset_parameters = lambda module: None  # type: ignore[method-assign]
    try:
        config = LlamaConfig(
            vocab_size=shape.vocab, hidden_size=shape.width, intermediate_size=shape.ffn, num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads, num_key_value_heads=shape.heads, max_position_embeddings=2048,
            tie_word_embeddings=False, use_cache=False, bos_token_id=None, eos_token_id=0, pad_token_id=None,
        )  # fmt: skip
        model = LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(before[0])
        torch.nn.Linear.reset_parameters, torch.nn.Embedding.reset_parameters = before[1:]  # type: ignore[method-assign]
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable  # the older name
    enable({"use_reentrant": False})
    return model.train()


class Watch:
    """Seconds of the optimizer's own hook of each parameter, between two others, and bytes of gradients that are alive."""

    def __init__(self) -> None:
        self.seconds, self.alive, self.most = 0.0, 0, 0
        self._began = 0.0

    def before(self, param: Any) -> None:
        self.alive += param.grad.nbytes
        self.most = max(self.most, self.alive)
        self._began = time.perf_counter()

    def after(self, params: list[Any]) -> None:
        self.seconds += time.perf_counter() - self._began
        self.alive = sum(param.grad.nbytes for param in params if param.grad is not None) if self.alive > BUCKET else self.alive


def train(shape: Shape, args: argparse.Namespace, run: Run) -> None:
    import torch
    from llama.model import next_token_loss, weights_sha256

    import lowtide

    begin = time.perf_counter()
    model = build(shape, args.seed)
    params = list(model.parameters())
    run.params = sum(param.numel() for param in params)
    print(f"{run.params:,} parameters made in {time.perf_counter() - begin:.0f} s", flush=True)
    memory = lowtide.Memory(host=run.state_budget, disk=args.disk) if run.ram else None
    watch = Watch()
    for param in params:
        param.register_post_accumulate_grad_hook(watch.before)
    optimizer = lowtide.AdamW(
        [{"params": [p for p in params if p.ndim > 1], "weight_decay": 0.1}, {"params": [p for p in params if p.ndim < 2]}],
        lr=1e-5, weight_decay=0.0, master=args.master, memory=memory, step_in_backward=BUCKET,
    )  # fmt: skip
    for param in params:
        param.register_post_accumulate_grad_hook(lambda _: watch.after(params))
    random = torch.Generator().manual_seed(args.seed)
    before = (0, 0)
    for number in range(args.steps):
        tokens = torch.randint(shape.vocab, (args.batch, args.sequence + 1), generator=random)
        watch.seconds, times = 0.0, [time.perf_counter()]
        loss = next_token_loss(model, tokens)
        times.append(time.perf_counter())
        loss.backward()
        times.append(time.perf_counter())
        optimizer.step()
        times.append(time.perf_counter())
        watch.alive = 0
        forward, backward, rest = (b - a for a, b in zip(times, times[1:], strict=False))
        run.seconds.append({"forward": forward, "backward": backward - watch.seconds, "step": watch.seconds + rest})
        run.losses.append(float(loss.detach()))
        report = optimizer.report()
        run.read_bytes.append(report["read_bytes"] - before[0])
        run.written_bytes.append(report["written_bytes"] - before[1])
        before = report["read_bytes"], report["written_bytes"]
        shown = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in run.seconds[-1].items())
        print(f"step {number + 1}: loss {run.losses[-1]:.4f}; {shown}", flush=True)
    run.disk_bytes = optimizer.report()["disk_bytes"]
    run.largest_gradients = watch.most
    run.peak_process = peak_bytes()
    run.group_limit, run.peak_group = group_memory()
    run.weights = weights_sha256(model)


def group_memory() -> tuple[int, int]:
    """The limit of this process's control group (version 2) and the most that it has held, in bytes; 0 for what is not known."""
    groups = Path("/proc/self/cgroup")
    name = next((line[3:] for line in groups.read_text().splitlines() if line.startswith("0::")), "") if groups.exists() else ""
    files = [Path("/sys/fs/cgroup") / name.lstrip("/") / file for file in ("memory.max", "memory.peak")]
    limit, most = (file.read_text().strip() if file.is_file() else "0" for file in files)
    return int(limit) if limit.isdigit() else 0, int(most)


def show(run: Run) -> None:
    gib = 2.0**30
    limit = f"{run.group_limit / gib:.2f} GiB" if run.group_limit else "none"
    print(f"peak memory: {run.peak_process / gib:.2f} GiB of this process; its control group {run.peak_group / gib:.2f}, limit {limit}")
    print(f"state on disk: {run.disk_bytes / 1e9:.2f} GB; the last step reads {run.read_bytes[-1] / 1e9:.2f} GB and writes "
          f"{run.written_bytes[-1] / 1e9:.2f} GB")  # fmt: skip
    print(f"gradients alive at once: {run.largest_gradients / 1e6:.0f} MB at most, of {2 * run.params / 1e6:.0f} MB in all")
    print(f"torch's AdamW with float32 weights and state would take {16 * run.params / gib:.1f} GiB (16 bytes a parameter, computed)")
    print(f"weights: sha256 {run.weights[:16]}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--params", default="125e6", help=f"size: {', '.join(SHAPES)}")
    parser.add_argument("--ram", default="4GiB", help='what all may take, as "20GiB"; "none": no limit, and no disk')
    parser.add_argument("--state", help="of that for state; default: what is left")
    parser.add_argument("--disk", default="/tmp", help="directory for state, best on a local SSD")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--batch", type=int, default=1, help="sequences")
    parser.add_argument("--sequence", type=int, default=128, help="tokens")
    parser.add_argument("--master", default="stochastic", choices=["stochastic", "residual16"], help="how weights are exact")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="file for the figures")
    args = parser.parse_args(arguments)
    try:
        if args.params not in SHAPES:
            raise ExampleError(f"--params: got {args.params}, wanted one of {', '.join(SHAPES)}")
        if args.steps < 1 or args.batch < 1 or args.sequence < 1:
            raise ExampleError("--steps, --batch and --sequence: wanted 1 or more")
        shape, run = SHAPES[args.params], Run(machine=cpu_name())
        require_packages(PACKAGES)
        if args.ram != "none":
            from lowtide.memory.budgets import size_of

            run.ram = size_of("--ram", args.ram)
            run.state_budget = budget_of(shape, run.ram)
            if args.state:
                run.state_budget = min(size_of("--state", args.state), run.state_budget)
            print(f"{run.ram / 2**30:.2f} GiB: {run.state_budget / 2**30:.2f} for state")
        train(shape, args, run)
    except (ExampleError, ValueError, OSError, MemoryError) as error:
        print(f"big_model: {error}", file=sys.stderr)
        return 2
    show(run)
    if args.json:
        write_json(args.json, asdict(run))
    return 0


if __name__ == "__main__":
    sys.exit(main())
