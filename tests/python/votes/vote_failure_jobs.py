"""Training loops, in processes of their own, whose workers die."""

from __future__ import annotations

import os
import time
import zlib
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from lowtide.distributed import DistributedLion, SignVote, Signum
from vote_hook_jobs import by_bucket


def train(rank: int, world: int, store: str, kind: str, timeout: float, pipe: Connection) -> None:
    """Sends "ready", for each step its number and a hash of the parameters after it, and at the end the error."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(30, 40), torch.nn.ReLU(), torch.nn.Linear(40, 30))
    forward: Any = model
    opt: torch.optim.Optimizer
    if kind == "hook":
        forward = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.002)
        by_bucket(SignVote(forward, timeout=timeout)).register(forward)
        opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    else:
        opt = {"lion": DistributedLion, "signum": Signum}[kind](model.parameters(), lr=1e-3, vote={"timeout": timeout})
    pipe.send(("ready",))
    number = 0
    try:
        while True:
            opt.zero_grad()
            forward(torch.randn(4, 30)).square().mean().backward()
            opt.step()
            number += 1
            found = b"".join(param.detach().numpy().tobytes() for param in model.parameters())
            pipe.send(("step", number, zlib.crc32(found)))
    except Exception as error:
        pipe.send(("error", type(error).__name__, str(error), time.monotonic()))
    os._exit(0)  # a dead group's destructor would wait
