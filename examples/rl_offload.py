#!/usr/bin/env python3
"""Reinforcement learning whose two phases take turns on one memory: a policy makes samples, then it trains on them.

    python examples/rl_offload.py                          # seconds on two cores
    python examples/rl_offload.py --device cuda --width 1024 --layers 12

The optimizer's state leaves fast memory while samples are made (`offload()`) and comes back before the step (`onload()`, which
the step would do by itself). On a CPU it goes from RAM to --disk, on a device to pinned host memory. The reward is the share of even
tokens in a sample; the policy gradient is REINFORCE's, with the batch's mean reward as its baseline (Williams, 1992). A second run
without hand-overs must end with the same weights.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass, field
from typing import Any

from llama.common import ExampleError, require_packages
from llama.config import Config
from llama.paged import BACKENDS, check_device

PACKAGES = ("torch", "numpy", "transformers")
VOCAB = 512
PROMPT = 4  # tokens


@dataclass
class Run:
    """One training run. Of each hand-over: its direction, bytes and seconds; `fast` is RAM, or the memory of the device."""

    rewards: list[float] = field(default_factory=list)
    handed_over: list[tuple[str, int, float]] = field(default_factory=list)
    fast_bytes: dict[str, int] = field(default_factory=dict)  # of state, by phase, most
    weights: str = ""


def sample(model: Any, prompts: Any, length: int, generator: Any) -> Any:
    """Tokens [batch, prompt + length] that the policy draws."""
    import torch

    tokens = prompts
    with torch.no_grad():
        for _ in range(length):
            chances = model(input_ids=tokens, use_cache=False).logits[:, -1].float().softmax(-1)
            tokens = torch.cat([tokens, torch.multinomial(chances.cpu(), 1, generator=generator).to(tokens.device)], 1)
    return tokens


def loss_of(model: Any, tokens: Any, advantages: Any) -> Any:
    """Minus the log-probability of each sample's tokens after the prompt, times its advantage; the mean over samples and tokens."""
    logs = model(input_ids=tokens[:, :-1], use_cache=False).logits.float().log_softmax(-1)
    taken = logs.gather(-1, tokens[:, 1:, None])[:, PROMPT - 1 :, 0]
    return -(advantages[:, None] * taken).mean()


def train(config: Config, device: str, memory: Any, hands_over: bool, wait: Any) -> Run:
    """`config.steps` rounds of both phases. wait: is told of each (`lowtide.cli.waiting.Waiting`)."""
    wait("making the model")
    import torch
    from llama.model import build_model, parameter_groups, weights_sha256

    import lowtide

    model = build_model(config, VOCAB).to(device)
    optimizer = lowtide.AdamW(parameter_groups(model, config.weight_decay), lr=config.lr, memory=memory)
    random = torch.Generator().manual_seed(config.seed)
    fast = "allocated_bytes" if device == "cpu" else "device_bytes"
    run = Run()

    def measure(phase: str) -> None:
        run.fast_bytes[phase] = max(run.fast_bytes.get(phase, 0), optimizer.report()[fast])  # type: ignore[literal-required]

    def hand_over(name: str) -> None:
        before, start = optimizer.report()["offloaded_bytes"], time.perf_counter()
        getattr(optimizer, name)()
        optimizer.synchronize()
        seconds = time.perf_counter() - start
        run.handed_over.append((name, abs(optimizer.report()["offloaded_bytes"] - before), seconds))

    for step in range(config.steps):
        wait(f"round {step + 1} of {config.steps} {'with' if hands_over else 'without'} hand-overs")
        if hands_over and step:  # state begins with the first step
            hand_over("offload")
        prompts = torch.randint(VOCAB, (config.batch, PROMPT), generator=random).to(device)
        tokens = sample(model, prompts, config.context - PROMPT, random)
        measure("samples")
        rewards = (tokens[:, PROMPT:] % 2 == 0).float().mean(1)
        if hands_over and step:
            hand_over("onload")
        loss_of(model, tokens, rewards - rewards.mean()).backward()
        optimizer.clip_grad_norm_(config.clip)
        optimizer.step()
        optimizer.zero_grad()
        measure("training")
        run.rewards.append(float(rewards.mean()))
    run.weights = weights_sha256(model)
    return run


def show(run: Run, device: str) -> None:
    """The hand-overs and what they free, on the terminal."""
    near, far = ("RAM", "the disk") if device == "cpu" else ("the device", "host memory")
    print(f"state in {near}, MB: {run.fast_bytes['training'] / 1e6:.2f} while training, {run.fast_bytes['samples'] / 1e6:.2f} "
          "while samples are made")  # fmt: skip
    for number, (name, size, seconds) in enumerate(run.handed_over):
        way = f"to {far}" if name == "offload" else f"to {near}"
        print(f"round {number // 2 + 2}: {name + '()':9s} {way:14s} {size / 1e6:8.2f} MB {seconds * 1e3:8.2f} ms")
    print(f"mean reward: {run.rewards[0]:.3f} in the first round, {run.rewards[-1]:.3f} in the last")


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status: 1 if the hand-overs changed anything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=[*BACKENDS], help="where the model is")
    parser.add_argument("--rounds", type=int, default=6, help="of samples and training")
    parser.add_argument("--batch", type=int, default=16, help="samples a round")
    parser.add_argument("--length", type=int, default=24, help="tokens of a sample, its prompt of 4 among them")
    parser.add_argument("--width", type=int, default=256, help="of the model")
    parser.add_argument("--layers", type=int, default=2, help="of the model")
    parser.add_argument("--disk", default=None, help="where scratch files go (default: the system's temporary folder)")
    args = parser.parse_args(arguments)
    try:
        require_packages(PACKAGES)
        if args.length <= PROMPT:
            raise ExampleError(f"--length: got {args.length}, wanted more than the {PROMPT} tokens of a prompt")
        config = Config(steps=args.rounds, batch=args.batch, context=args.length, width=args.width, layers=args.layers, heads=4,
                        lr=3e-3)  # fmt: skip
        import lowtide
        from lowtide.cli.waiting import Waiting

        with tempfile.TemporaryDirectory(dir=args.disk) as scratch, Waiting("rl_offload") as wait:
            wait.for_torch()
            check_device(args.device)
            # All state fits: the budget names the disk that offload() moves it to.
            memory = lowtide.Memory(host="100%", disk=scratch) if args.device == "cpu" else None
            run = train(config, args.device, memory, True, wait)
            plain = train(config, args.device, None, False, wait)
    except (ExampleError, ValueError, OSError) as error:
        print(f"rl_offload: {error}", file=sys.stderr)
        return 2
    show(run, args.device)
    same = run.weights == plain.weights and run.rewards == plain.rewards
    print(f"weights and rewards without hand-overs: {'the same' if same else 'OTHERS'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
