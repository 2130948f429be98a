"""Clipping over shards: the norm and the bits of a step are those of one process, on any mesh; ranks refuse together."""

from __future__ import annotations

import math
from typing import Any

import fsdp1_jobs
import lowtide
import pytest
import torch
import torch.distributed as dist
from distributed_models import SPOILERS, give, parts
from distributed_support import shared_ranks
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


MESHES = [(n, kind) for kind in ("rows", "columns") for n in (1, 2, 3, 4)]
MESHES += [(3, "copies"), (4, "copies of rows"), (4, "rows of rows"), (4, "rows and columns")]


def test_any_mesh_gives_the_bits_of_one_process(figure) -> None:
    """Norms of both orders; torch's, added up in float32 and in another order, is as far away as rounding takes it."""
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


@pytest.mark.parametrize("original", [True, False], ids=["original", "flat"])
def test_fsdp1_with_its_process_group(original: bool, figure) -> None:
    norms = set()
    for world in (1, 3):
        for bits, norm, wanted, error in shared_ranks().run(world, fsdp1, original):
            assert norm == pytest.approx(wanted, rel=1e-6)
            assert "got parameter 0 of FSDP1 and no process_group, wanted" in error
            norms.add((world, bits))
    figure(f"norm {norm:.6f}, torch {wanted:.6f}")
    assert len(norms) == 2, "one norm on all ranks"


@pytest.mark.parametrize("kind", ["other layout on one rank", "partial", "placement"])
def test_ranks_refuse_together(kind: str, figure) -> None:
    answers = shared_ranks().run(2, spoiled, kind)
    for rank, (early, late, unchanged) in enumerate(answers):
        assert unchanged and early
        said = "wanted the gradients that it measured" if rank == 1 else "another rank refused this step"
        assert said in late, (rank, late)
    if kind == "other layout on one rank":
        assert "another rank refused these gradients" in answers[0][0]
    figure(f"{len(answers)} ranks, both say why: {answers[1][0]}")


def test_the_option_on_all_ranks(figure) -> None:
    for world in (2, 3):
        for bad, skipped in ((False, 0), (True, 1)):
            for count, _ in shared_ranks().run(world, option, bad):
                assert count == skipped
    figure("a NaN on one rank skips the step on all")
