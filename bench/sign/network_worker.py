"""One worker of network.py. Times the contenders in turn and prints the results as one line of JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))

from cluster.network import bytes_sent  # noqa: E402

import lowtide  # noqa: E402
from lowtide.distributed import Collective, DistributedLion  # noqa: E402
from lowtide.distributed.buffers import SignBuffers  # noqa: E402
from lowtide.distributed.layout import aligned  # noqa: E402


class Sign:
    """Packs, votes and applies, as a hook or an optimizer does."""

    def __init__(self, gradient: torch.Tensor, **options: object) -> None:
        self.gradient = gradient
        self.collective = Collective(**options)
        self.buffers = SignBuffers(aligned(gradient.numel()), "hash")
        self.parameter = torch.nn.Parameter(torch.zeros_like(gradient))
        self.optimizer = lowtide.Lion([self.parameter], lr=1e-4, state="dynamic8")  # moves by signs
        self.votes = 0
        self.phases: dict[str, list[float]] = {"pack": [], "apply": []}

    def __call__(self) -> None:
        begin = time.perf_counter()
        items = [(self.gradient.data_ptr(), self.gradient.numel(), 0)]
        self.buffers.clear_mark(0)
        self.buffers.pack(items, str(self.gradient.dtype), True, torch.get_num_threads(), 0)
        bad = self.buffers.fetch(0)
        packed = time.perf_counter()
        outcome = self.collective.vote(self.buffers, None, step=self.votes, nonfinite=bad)
        voted = time.perf_counter()
        self.optimizer._core.apply_signs(self.buffers.there.bits, self.buffers.there.presence, 0, 0)
        self.phases["apply"].append(time.perf_counter() - voted)
        self.phases["pack"].append(packed - begin)
        for phase, seconds in outcome.seconds.items():
            self.phases.setdefault(phase, []).append(seconds)
        self.votes += 1


def main() -> None:
    elements, rounds = int(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    gradient = torch.randn(elements)
    whole = gradient.clone()
    halves, bytes_ = gradient.bfloat16(), gradient.sign().to(torch.int8)
    sign = Sign(gradient)
    parameter = torch.nn.Parameter(torch.zeros(elements))
    parameter.grad = gradient.clone()
    lion = DistributedLion([parameter], lr=1e-4, state="dynamic8")
    contenders: dict[str, Callable[[], object]] = {
        "fp32": lambda: dist.all_reduce(whole),
        "bf16": lambda: dist.all_reduce(halves),
        "int8": lambda: dist.all_reduce(bytes_),
        "sign": sign,
        "lion": lion.step,
    }
    found: dict[str, dict[str, object]] = {name: {"seconds": [], "sent": []} for name in contenders}
    for turn in range(rounds + 1):  # the first round warms up
        for name, contender in contenders.items():
            dist.barrier()
            before, start = bytes_sent() or 0, time.perf_counter()
            contender()
            seconds = time.perf_counter() - start
            dist.barrier()  # all messages have arrived
            if turn:
                found[name]["seconds"].append(seconds)
                found[name]["sent"].append((bytes_sent() or 0) - before)
    found["sign"]["phases"] = sign.phases
    print(json.dumps(found), flush=True)
    os._exit(0)  # does not wait for gloo's threads


if __name__ == "__main__":
    main()
