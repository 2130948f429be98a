#!/usr/bin/env python3
"""Fine-tunes a whole LLaMA in less memory than its weights take: on the CPU or one GPU, with weights and optimizer state in RAM or on a
disk.

    python examples/big_model.py --params 7e9 --ram 8GiB --disk /scratch        # 7 B; 27 GB of disk
    python examples/big_model.py --params 1.3e9 --ram 3GiB --disk /scratch --save runs   # resumes if killed at any time
    python examples/big_model.py --params 1.3e9 --ram none                      # the same bits, with all in RAM
    python examples/big_model.py --params 14e9 --gpu 24GB --ram 64GiB           # layers compute on a GPU; with --disk, less RAM will do

Weights are bfloat16, rounded stochastically (or exact to 32 bits with --master residual16, whose residual is on the disk, too).
State is 8-bit. `lowtide.stream` reads each layer when it computes, steps its parameters in backward, frees their gradients and
writes the layer back; activations are recomputed instead of kept. torch refuses more than --gpu bytes of CUDA memory. The program
does not limit itself to --ram: run it in a control group that does (docs/benchmarks/big-model-2core-2026-11-27.md has the
commands), and it prints the group's peak.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from llama.common import ExampleError, require_packages, write_json
from llama.memory import cpu_name, peak_bytes

PACKAGES = ("torch", "numpy", "transformers", "accelerate")
BESIDE = 5 << 28  # bytes that Python, torch, its buffers and activations take
BUCKET = 16 << 20  # bytes of gradients to step together
CONTEXT = 3 << 28  # bytes of a GPU that its runtime and libraries take


@dataclass(frozen=True)
class Shape:
    """A LLaMA: two tables of the vocabulary, four square and three oblong matrices per layer, and norms."""

    width: int
    layers: int
    heads: int
    ffn: int
    vocab: int = 32000

    @property
    def elements(self) -> int:
        layer = 4 * self.width**2 + 3 * self.width * self.ffn + 2 * self.width
        return 2 * self.vocab * self.width + self.layers * layer + self.width

    def beside(self, tokens: int) -> int:
        """Bytes of a GPU that its runtime, the inputs of layers, one layer and the loss take, besides weights and gradients."""
        one = 2 * (10 * self.width + 3 * self.ffn)
        return CONTEXT + tokens * (2 * self.layers * self.width + one + 3 * 4 * self.vocab)


SHAPES = {
    "1e6": Shape(96, 6, 4, 256, 1000),
    "125e6": Shape(768, 10, 12, 2048),
    "1.3e9": Shape(2048, 24, 16, 5504),
    "7e9": Shape(4096, 32, 32, 11008),
    "14e9": Shape(5120, 46, 40, 13824),
    "32e9": Shape(6656, 60, 52, 17920),
    "70e9": Shape(8192, 86, 64, 22016),
}


@dataclass
class Run:
    """One run, in bytes and seconds. Phases leave out the first step, which also makes the state."""

    params: int = 0
    ram: int = 0  # 0: no limit
    gpu: int = 0  # 0: the CPU computes
    losses: list[float] = field(default_factory=list)
    seconds: list[dict[str, float]] = field(default_factory=list)  # of each step, by phase
    moved: list[dict[str, int]] = field(default_factory=list)  # bytes in each step
    streaming: dict[str, Any] = field(default_factory=dict)  # lowtide.streaming_report; empty: all weights are in memory
    state_on_disk: int = 0  # bytes
    peak_gpu: int = 0  # of torch's memory
    peak_process: int = 0
    peak_group: int = 0  # of the control group; 0: not known
    group_limit: int = 0
    weights: str = ""  # a hash of all weights
    machine: str = ""


def build(shape: Shape, dtype: str) -> Any:
    """Builds the model with weights on meta. The rotary table stays float32."""
    import torch
    from accelerate import init_empty_weights
    from transformers import LlamaConfig, LlamaForCausalLM

    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        config = LlamaConfig(
            vocab_size=shape.vocab, hidden_size=shape.width, intermediate_size=shape.ffn, num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads, num_key_value_heads=shape.heads, max_position_embeddings=2048,
            tie_word_embeddings=False, use_cache=False, bos_token_id=None, eos_token_id=0, pad_token_id=None,
        )  # fmt: skip
        with init_empty_weights():
            model = LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(before)
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable  # the older name
    enable({"use_reentrant": False})
    return model.train()


def draw(model: Any, seed: int) -> None:
    """Draws random weights as transformers does."""
    import torch

    random = torch.Generator().manual_seed(seed)
    for param in model.parameters():
        values = param.detach()
        values = values.to_local() if hasattr(values, "to_local") else values  # a DTensor if layers compute on a GPU
        drawn = torch.ones(values.shape, dtype=values.dtype)
        values.copy_(drawn.normal_(0, 0.02, generator=random) if values.ndim > 1 else drawn)


def train(shape: Shape, args: argparse.Namespace, run: Run, wait: Any) -> None:
    """wait: a `lowtide.cli.waiting.Waiting`, which shows what takes long and prints lines."""
    wait.for_torch()
    import torch
    from llama.model import next_token_loss, weights_sha256

    import lowtide

    wait("making the model")
    begin = time.perf_counter()
    device = torch.accelerator.current_accelerator() if run.gpu else torch.device("cpu")
    memory: dict[str, Any] = {"host": run.ram - BESIDE, "disk": args.disk} if run.ram else {} if run.gpu else {"host": "100%"}
    if run.gpu:
        memory["device"] = run.gpu - shape.beside(args.batch * args.sequence)
        if device and device.type == "cuda":
            torch.cuda.set_per_process_memory_fraction(min(run.gpu / torch.cuda.get_device_properties(device).total_memory, 1.0))
    master = args.master if args.dtype == "bfloat16" else None
    model, optimizer = lowtide.stream(
        build(shape, args.dtype), memory, lr=1e-5, weight_decay=0.1, master=master, step_in_backward=BUCKET
    )
    saved = newest(args.save) if args.save else None
    if saved:
        weights = torch.load(saved / "weights.pt", mmap=True)
        model.load_state_dict(weights)
        optimizer.load(saved / "state")
    else:
        draw(model, args.seed)
    run.params = sum(param.numel() for param in model.parameters())
    wait.say(f"{run.params:,} parameters {f'read from {saved}' if saved else 'made'} in {time.perf_counter() - begin:.0f} s")
    moved = [0, 0, *weight_bytes(model)]
    for number in range(int(saved.name) if saved else 0, args.steps):
        wait(f"step {number + 1} of {args.steps}")
        random = torch.Generator().manual_seed(args.seed + number)
        tokens = torch.randint(shape.vocab, (args.batch, args.sequence + 1), generator=random)
        times = [time.perf_counter()]
        loss = next_token_loss(model, tokens.to(device))
        times.append(time.perf_counter())
        loss.backward()
        optimizer.step()
        times.append(time.perf_counter())
        run.seconds.append({"forward": times[1] - times[0], "backward and step": times[2] - times[1]})
        run.losses.append(float(loss.detach()))
        report = optimizer.report()
        before, moved = moved, [report["read_bytes"], report["written_bytes"], *weight_bytes(model)]
        names = ("state read", "state written", "weights read", "weights written")
        run.moved.append({name: now - then for name, now, then in zip(names, moved, before, strict=True)})
        shown = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in run.seconds[-1].items())
        wait.say(f"step {number + 1}: loss {run.losses[-1]:.4f}; {shown}")
        if args.save and ((number + 1) % args.save_every == 0 or number + 1 == args.steps):
            save(args.save, number + 1, model, optimizer)
            moved[2:] = weight_bytes(model)
    run.state_on_disk = optimizer.report()["disk_bytes"]
    if run.ram or run.gpu:
        run.streaming = {**lowtide.streaming_report(model)}
    if run.gpu:
        run.peak_gpu = torch.accelerator.max_memory_allocated()
    run.peak_process = peak_bytes()
    run.group_limit, run.peak_group = group_memory()
    run.weights = weights_sha256(model)


def weight_bytes(model: Any) -> tuple[int, int]:
    """Bytes of weights read and written so far; 0 if all are in memory."""
    import lowtide

    report = lowtide.streaming_report(model)
    return report["read_bytes"], report["written_bytes"]


def save(folder: Path, number: int, model: Any, optimizer: Any) -> None:
    """Saves weights and state after step `number`. A folder gets its name once it is complete; then the previous one goes."""
    import torch

    before, partial = newest(folder), folder / "partial"
    partial.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), partial / "weights.pt")
    optimizer.save(partial / "state")
    partial.rename(folder / str(number))
    if before:
        shutil.rmtree(before)


def newest(folder: Path) -> Path | None:
    """The last complete save."""
    return max((each for each in folder.glob("[0-9]*")), key=lambda each: int(each.name), default=None)


def group_memory() -> tuple[int, int]:
    """The limit of this process's control group and its peak, in bytes; 0 for unknown."""
    groups = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
    root, files = Path("/sys/fs/cgroup"), ("memory.max", "memory.peak")
    name = groups.get("", "")
    if "memory" in groups:  # version 1
        root, name, files = root / "memory", groups["memory"], ("memory.limit_in_bytes", "memory.max_usage_in_bytes")
    found = [root / name.lstrip("/") / file for file in files]
    limit, most = (file.read_text().strip() if file.is_file() else "0" for file in found)
    return int(limit) if limit.isdigit() and int(limit) < 1 << 60 else 0, int(most)  # version 1 writes almost 2^63 for none


def show(run: Run) -> None:
    gib = 2.0**30
    limit = f"{run.group_limit / gib:.2f} GiB" if run.group_limit else "none"
    print(f"peak memory: {run.peak_process / gib:.2f} GiB of this process; its control group {run.peak_group / gib:.2f}, limit {limit}")
    if run.gpu:
        print(f"peak of torch's memory on the GPU: {run.peak_gpu / gib:.2f} GiB of {run.gpu / gib:.2f}")
    if run.moved:
        print("the last step: " + ", ".join(f"{size / 1e9:.2f} GB of {name}" for name, size in run.moved[-1].items()))
    if run.streaming:
        planned = [run.streaming[f"planned_{name}_bytes"] / 1e9 for name in ("read", "written")]
        print(f"planned: {planned[0]:.2f} GB of weights read, {planned[1]:.2f} GB written")
        copied = [run.streaming[f"to_{name}_bytes"] / 1e9 for name in ("device", "host")]
        if run.gpu:
            print(f"planned: {copied[0]:.2f} GB of weights copied to the GPU, {copied[1]:.2f} GB of gradients back")
    print(f"torch's AdamW with float32 weights and state would take {16 * run.params / gib:.1f} GiB (16 bytes a parameter, computed)")
    print(f"weights: sha256 {run.weights[:16]}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--params", default="125e6", help=f"size: {', '.join(SHAPES)}")
    parser.add_argument("--ram", default="4GiB", help='what all may take, as "20GiB"; "none": no limit, and no disk')
    parser.add_argument("--gpu", help='what torch may take of a GPU, as "24GB"; without it the CPU computes')
    parser.add_argument("--disk", default="/tmp", help="directory for what has no room in RAM, best on a local SSD")
    parser.add_argument("--save", type=Path, help="folder for weights and state, and to go on from")
    parser.add_argument("--save-every", type=int, default=1, help="steps from one save to the next, besides the last; each save takes as much disk as the run")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--batch", type=int, default=1, help="sequences")
    parser.add_argument("--sequence", type=int, default=128, help="tokens")
    parser.add_argument("--master", default="stochastic", choices=["stochastic", "residual16"], help="how weights are exact")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"], help="float32 where a CPU has no products of bfloat16")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="file for the figures")
    args = parser.parse_args(arguments)
    try:
        if args.params not in SHAPES:
            raise ExampleError(f"--params: got {args.params}, wanted one of {', '.join(SHAPES)}")
        if min(args.steps, args.batch, args.sequence, args.save_every) < 1:
            raise ExampleError("--steps, --batch, --sequence and --save-every: wanted 1 or more")
        shape, run = SHAPES[args.params], Run(machine=cpu_name())
        require_packages(PACKAGES)
        from lowtide.memory.budgets import size_of

        if args.ram != "none":
            run.ram = size_of("--ram", args.ram)
            if run.ram <= BESIDE:
                raise ExampleError(f"--ram: got {args.ram}, wanted more than the {BESIDE / 2**30:.2f} GiB of Python and torch")
        if args.gpu:
            run.gpu, beside = size_of("--gpu", args.gpu), shape.beside(args.batch * args.sequence)
            if run.gpu <= beside:
                raise ExampleError(f"--gpu: got {args.gpu}, wanted more than {beside / 2**30:.2f} GiB for activations and the GPU's runtime")
        from lowtide.cli.waiting import Waiting

        with Waiting("big_model") as wait:
            train(shape, args, run, wait)
    except (ExampleError, ValueError, OSError, MemoryError) as error:
        print(f"big_model: {error}", file=sys.stderr)
        return 2
    show(run)
    if args.json:
        write_json(args.json, asdict(run))
    return 0


if __name__ == "__main__":
    sys.exit(main())
