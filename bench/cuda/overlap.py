"""Steps hidden behind backward: the time that a step adds to an iteration by number of tokens, beside the formula.

With b bytes of state per parameter each way, a link of B bytes/s, and F flop/s in backward, which takes 4 T flop per parameter
for T tokens, transfers are hidden from T = F * max(b / B_in, b / B_out) / 4 on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bench.common.llama import LLAMA_TINY, Decoder, Llama
from bench.cuda import contenders
from bench.cuda.device import Gpu
from bench.cuda.link import Link
from bench.cuda.paged import DEVICE, STATE_EACH, moved_each_way
from bench.cuda.rows import Rows
from bench.cuda.timing import Step, in_turns

# About 1.3 billion parameters, with torch's own attention: a realistic training load.
LARGE = Decoder(24, 2048, 5632, 16, 16, 32000)
CONTEXT = 1024
STATE = "dynamic8"
TOKENS = (1024, 4096, 16384)
FIGURES = {1024: "overlap_short", 16384: "overlap_long"}
ROUNDS = 3
CHAIN = 4  # iterations without a wait; moves back may hide behind the next forward
ACTIVATIONS = 3 << 20  # bytes of device memory per token of LARGE, more than is ever used
MODES: dict[str, dict[str, Any]] = {
    "no overlap": {},
    "prefetch in backward": {"prefetch_in_backward": True},
    "step in backward": {"step_in_backward": True},
}


class Curve:
    """One way to step one model: seconds per iteration, within a chain, and peak device memory, by number of tokens up to the
    number that fits."""

    def __init__(self, gpu: Gpu, model: Llama) -> None:
        self.gpu, self.model = gpu, model
        self.seconds: dict[int, float] = {}
        self.peak: dict[int, int] = {}

    def measure(self, batches: dict[int, torch.Tensor], after: Callable[[], object]) -> None:
        """after: follows each backward."""

        def iteration(batch: torch.Tensor) -> None:
            self.model(batch).backward()
            after()
            self.model.zero_grad(set_to_none=True)

        for tokens, batch in batches.items():
            self.gpu.free()
            self.gpu.cuda.reset_peak_memory_stats()

            def chained(count: int, batch: torch.Tensor = batch) -> Step:
                return Step(lambda: [iteration(batch) for _ in range(count)])

            try:
                steps = {"one": chained(1), "chain": chained(CHAIN)}
                found = in_turns(self.gpu, steps, seconds=8, rounds=ROUNDS, warm_up=1, idle=True)
            except self.gpu.cuda.OutOfMemoryError:
                self.model.zero_grad(set_to_none=True)
                break
            self.seconds[tokens] = (found["chain"].median("wall") - found["one"].median("wall")) / (CHAIN - 1)
            self.peak[tokens] = int(self.gpu.cuda.max_memory_allocated())


def backward_seconds(gpu: Gpu, model: Llama, batches: dict[int, torch.Tensor]) -> dict[int, float]:
    out = {}
    for tokens, batch in batches.items():
        held: list[torch.Tensor] = []

        def forward(batch: torch.Tensor = batch, held: list[torch.Tensor] = held) -> None:
            model.zero_grad(set_to_none=True)
            held[:] = [model(batch)]

        step = Step(lambda held=held: held.pop().backward(), before=forward)
        out[tokens] = in_turns(gpu, {"": step}, seconds=4, rounds=ROUNDS, warm_up=1)[""].median()
    model.zero_grad(set_to_none=True)
    return out


def fresh(gpu: Gpu, size: Decoder) -> Llama:
    """Makes a separate model for each mode, because hooks that step in backward stay with the parameters."""
    torch.manual_seed(7)
    with torch.device(gpu.device):
        model = Llama(size).to(torch.bfloat16)
    gpu.adopt(model)
    return model


def curves(gpu: Gpu, rows: Rows) -> None:
    size, context = (LLAMA_TINY, 16) if gpu.rehearsed else (LARGE, CONTEXT)
    model = fresh(gpu, size)
    count = sum(param.numel() for param in model.parameters())
    most = gpu.elements(TOKENS[-1], 64, ACTIVATIONS)
    sequences = [tokens // context for tokens in TOKENS if tokens <= most] if not gpu.rehearsed else [1]
    batches = {n * context: torch.randint(size.vocabulary, (n, context), device=gpu.device) for n in sequences}
    link = Link(gpu, gpu.size(512 << 20, 1 << 18))
    both = in_turns(gpu, {"": link.steps()["both"]}, seconds=3, idle=True)[""].median("wall")
    rate = link.count / both
    base = Curve(gpu, model)
    base.measure(batches, lambda: None)
    batches = {tokens: batches[tokens] for tokens in base.seconds}
    backward = backward_seconds(gpu, model, batches)
    del model
    hidden: dict[int, float] = {}  # for the better of both modes
    for mode, options in MODES.items():

        def measure(mode: str = mode, options: dict[str, Any] = options) -> None:
            model = fresh(gpu, size)
            memory = contenders.budget(gpu, device=DEVICE)
            optimizer = contenders.lowtide_adamw(gpu, model.parameters(), STATE, memory=memory, **options)
            curve = Curve(gpu, model)
            curve.measure(batches, optimizer.step)
            link_seconds = moved_each_way(gpu, optimizer, count * STATE_EACH[STATE]) / rate
            for tokens in curve.seconds:
                added = curve.seconds[tokens] - base.seconds[tokens]
                if options:
                    hidden[tokens] = min(hidden.get(tokens, float("inf")), added / link_seconds)
                flops = 4 * count * tokens / backward[tokens]
                rows.add(f"AdamW {STATE}, {mode}, {tokens} tokens: time added / link's time", added / link_seconds, "x",
                         mode=mode, state=STATE, tokens=tokens, parameters=count,
                         added_s=added, link_s=link_seconds, link_gb_per_s_each_way=rate * 1e-9,
                         iteration_s=curve.seconds[tokens], without_optimizer_s=base.seconds[tokens],
                         backward_s=backward[tokens], flops=flops,
                         hidden_from_tokens=flops * STATE_EACH[STATE] / rate / 4,
                         formula=max(0.0, 1 - backward[tokens] / link_seconds),
                         peak_bytes=curve.peak[tokens], peak_without_optimizer=base.peak[tokens])  # fmt: skip

        rows.attempt(f"AdamW {STATE}, {mode}", measure)
        gpu.free()
    for tokens, share in hidden.items():
        rows.add(f"AdamW {STATE}, the better of both, {tokens} tokens: time added / link's time", share, "x",
                 FIGURES.get(tokens))  # fmt: skip


CASES = {"overlap.dynamic8": curves}
