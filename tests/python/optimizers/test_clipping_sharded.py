"""Clipping over shards: norm and step have the bits of one process on any mesh, and ranks refuse together."""

from __future__ import annotations

import math
from typing import Any

import fsdp1_jobs
import lowtide
import pytest
import torch
import torch.distributed as dist
from distributed_models import SPOILERS, give, parts
from distributed_support import alike, on_ranks, shared_ranks
from support import bits, raised
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
    """For norms of both orders: the bits of the norm and of all weights after the step, which ranks gather; the norms, and
    torch's of order 2. mixed: some parameters stay plain, and others have their own mesh."""
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


MESHES = [(n, kind) for kind in ("rows", "columns") for n in (1, 2, 3, 4)]
MESHES += [(3, "copies"), (4, "copies of rows"), (4, "rows of rows"), (4, "rows and columns")]


def test_any_mesh_gives_the_bits_of_one_process(figure) -> None:
    """Norms of both orders. torch's, added up in float32 in another order, differs by rounding."""
    alone, (norm, largest), torchs = shared_ranks().run(1, clipped, "plain", False)[0]
    compared, worst = 0, abs(torchs / norm - 1)
    for world, kind in MESHES:
        for mixed in (False, True):
            for found, _, theirs in shared_ranks().run(world, clipped, kind, mixed):
                assert found == alone, (world, kind, mixed)
                worst = worst if mixed else max(worst, abs(theirs / norm - 1))
                compared += 1
    norms = f"norms {norm:.6f} and {largest:.6f}"
    figure(f"{compared} ranks of {len(MESHES)} meshes: {norms}, 0 bits differ; torch's {worst:.1e} away")
    assert worst < 1e-6


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("original", [True, False], ids=["original", "flat"])
@on_ranks()
def test_fsdp1_with_its_process_group(original: bool, world: int) -> str:
    net, opt = fsdp1_jobs.build(fsdp1_jobs.Case(original))
    assert isinstance(net, FSDP)
    net(torch.randn(4, 90, generator=torch.Generator().manual_seed(0))).square().mean().backward()
    kind, text = raised(lambda: opt.clip_grad_norm_(1e-3))
    assert kind == "ValueError" and "got parameter 0 of FSDP1 and no process_group, wanted" in text
    norm = opt.clip_grad_norm_(1e-3, process_group=net.process_group)
    opt.step()
    wanted = float(net.clip_grad_norm_(1e-3))
    assert float(norm) == pytest.approx(wanted, rel=1e-6)
    alike(bits(norm))
    return f"norm {float(norm):.6f}, torch {wanted:.6f}"


@pytest.mark.parametrize("kind", ["other layout on one rank", "partial", "placement"])
@on_ranks(2)
def test_ranks_refuse_together(kind: str) -> str:
    """Because gradients of rank 1 cannot be measured, or have changed since."""
    params, opt = parts()
    before = [bits(param.detach().to_local()) for param in params]
    give(params, 0)
    SPOILERS[kind](params)
    error, early = raised(lambda: opt.clip_grad_norm_(0.5))
    assert error == "ValueError"
    if kind == "other layout on one rank" and dist.get_rank() == 0:
        assert "another rank refused these gradients" in early
    give(params, 0)
    opt.clip_grad_norm_(0.5)
    if dist.get_rank() == 1:
        params[0].grad.to_local().mul_(2)
    late = raised(opt.step)[1]
    assert ("wanted the gradients that it measured" if dist.get_rank() == 1 else "another rank refused this step") in late, late
    assert before == [bits(param.detach().to_local()) for param in params]
    return f"2 ranks, both say why: {early}"


@pytest.mark.parametrize("bad", [False, True])
@pytest.mark.parametrize("world", [2, 3])
@on_ranks()
def test_the_option_on_all_ranks(world: int, bad: bool) -> str:
    params, _ = parts()
    opt = lowtide.AdamW(params, lr=1e-2, max_grad_norm=0.5)
    give(params, 0)
    if bad:
        SPOILERS["nan"](params)
    opt.step()
    assert opt.last_grad_norm is not None and bool(opt.last_grad_norm.isnan()) == bad and opt.skipped_steps == bad
    return "a NaN on one rank skips the step on all" if bad else ""
