"""The ranks' jobs in the tests of clipping: equal gradients over meshes of all kinds, FSDP1, and one rank that goes wrong."""

from __future__ import annotations

import math
from typing import Any

import fsdp1_jobs
import lowtide
import torch
import torch.distributed as dist
from distributed_models import SPOILERS, give, parts
from support import bits
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

SHAPES = [(37, 65), (5000,), (3, 4, 50), (1, 1000), (2,)]
PLACEMENTS: dict[str, list[Any]] = {
    "plain": [],
    "rows": [Shard(0)],
    "columns": [Shard(1)],
    "copies": [Replicate()],
    "copies of rows": [Replicate(), Shard(0)],
    "rows of rows": [Shard(0), Shard(0)],
    "rows and columns": [Shard(0), Shard(1)],
}


def clipped(kind: str, mixed: bool) -> tuple[list[tuple[bytes, bytes]], list[float], float]:
    """For norms of both orders: the norm's bits and those of all weights after the step, which ranks gather; the norms, and
    torch's of order 2. mixed: some parameters stay plain, and others are on a mesh of their own."""
    placements, world = PLACEMENTS[kind], dist.get_world_size()
    mesh = init_device_mesh("cpu", (2, world // 2) if len(placements) == 2 else (world,))
    other = init_device_mesh("cpu", (world,))
    found, norms, torchs = [], [], 0.0
    for order in (2.0, math.inf):
        random = torch.Generator().manual_seed(3)
        params = []
        for i, shape in enumerate(SHAPES):
            weight, grad = (torch.randn(shape, generator=random) for _ in range(2))
            on, placed = (other, [Shard(0)]) if mixed and i == 2 else (mesh, placements)
            if placed and not (mixed and i == 1):
                least = [Shard(min(place.dim, len(shape) - 1)) if place.is_shard() else place for place in placed]
                weight, grad = (distribute_tensor(each, on, least, src_data_rank=None) for each in (weight, grad))
            params.append(torch.nn.Parameter(weight))
            params[-1].grad = grad
        opt = lowtide.AdamW(params, lr=1e-2, state="fp32")
        norm = opt.clip_grad_norm_(1.0, order)
        opt.step()
        wholes = (param.full_tensor() if hasattr(param, "full_tensor") else param for param in params)
        found.append((bits(norm), b"".join(bits(whole.detach()) for whole in wholes)))
        norms.append(float(norm))
        if order == 2.0 and not mixed:  # torch has no norm over several meshes
            total = torch.nn.utils.get_total_norm([param.grad for param in params])
            torchs = float(total.full_tensor() if hasattr(total, "full_tensor") else total)
    return found, norms, torchs


def fsdp1(original: bool) -> tuple[bytes, float, float, str]:
    """The norm's bits, the norm and torch's, and the error without a process group."""
    case = fsdp1_jobs.Case(original)
    net, opt = fsdp1_jobs.build(case)
    assert isinstance(net, FSDP)
    net(torch.randn(4, 90, generator=torch.Generator().manual_seed(0))).square().mean().backward()
    error = ""
    try:
        opt.clip_grad_norm_(1e-3)
    except ValueError as caught:
        error = str(caught)
    norm = opt.clip_grad_norm_(1e-3, process_group=net.process_group)
    opt.step()
    return bits(norm), float(norm), float(net.clip_grad_norm_(1e-3)), error


def spoiled(kind: str) -> tuple[str, str, bool]:
    """A rank's words where gradients of rank 1 cannot be measured, and where they changed after that; and whether nothing
    has changed."""
    params, opt = parts()
    before = [bits(param.detach().to_local()) for param in params]
    give(params, 0)
    SPOILERS[kind](params)
    said = []
    for late in (False, True):
        try:
            if late:
                give(params, 0)
                opt.clip_grad_norm_(0.5)
                if dist.get_rank() == 1:
                    params[0].grad.to_local().mul_(2)
            opt.clip_grad_norm_(0.5) if not late else opt.step()
            said.append("")
        except ValueError as error:
            said.append(str(error))
    return said[0], said[1], before == [bits(param.detach().to_local()) for param in params]


def option(bad: bool) -> tuple[int, list[bytes]]:
    """Steps skipped with max_grad_norm, and the weights after it; bad: a NaN on rank 1."""
    params, _ = parts()
    opt = lowtide.AdamW(params, lr=1e-2, max_grad_norm=0.5)
    give(params, 0)
    if bad:
        SPOILERS["nan"](params)
    opt.step()
    norm = opt.last_grad_norm
    assert norm is not None and bool(norm.isnan()) == bad
    return opt.skipped_steps, [bits(param.detach().to_local()) for param in params]
