"""Real models under fully_shard, DistributedDataParallel and tensor parallelism, trained by several ranks, and failures on only
one rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lowtide
import torch
import torch.distributed as dist
from lowtide.optimizers.classes import CLASSES
from support import make
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel


class Tied(torch.nn.Module):
    """A language model whose head and tail share one matrix, with widths that no number of ranks divides."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(101, 70)
        self.up = torch.nn.Linear(70, 290)
        self.down = torch.nn.Linear(290, 70, bias=False)
        self.frozen = torch.nn.Linear(70, 70)
        self.frozen.requires_grad_(False)
        self.head = torch.nn.Linear(70, 101, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        return self.head(self.frozen(x + self.down(torch.relu(self.up(x)))))


def sharded(kind: str) -> torch.nn.Module:
    """kind: how to use fully_shard, or "ddp", or "tensor": rows over one dimension, tensors over the other."""
    net = Tied()
    world = dist.get_world_size()
    if kind == "ddp":
        return DistributedDataParallel(net)
    options: dict[str, Any] = {}
    if kind == "hsdp":
        options["mesh"] = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicas", "rows"))
    elif kind == "tensor":
        both = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("rows", "tensor"))
        parallelize_module(net, both["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        options["mesh"] = both["rows"]
    else:
        options["mesh"] = init_device_mesh("cpu", (world,))
    if kind == "bf16":
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    if kind == "offload":
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=False)
    for layer in (net.up, net.down, net.frozen):
        fully_shard(layer, **options)
    return fully_shard(net, **options)


def train(net: torch.nn.Module, opt: torch.optim.Optimizer, steps: range, clips: bool = True) -> None:
    for step in steps:
        # Every rank has its own data, except ranks that share the work of one.
        meshes = [p.device_mesh for p in net.parameters() if isinstance(p, DTensor)]
        shared = any("tensor" in (mesh.mesh_dim_names or ()) for mesh in meshes)
        generator = torch.Generator().manual_seed(1000 * step + dist.get_rank() // (2 if shared else 1))
        tokens = torch.randint(0, 101, (3, 11), generator=generator)
        logits = net(tokens[:, :-1])
        torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten()).backward()
        trained = [p for p in net.parameters() if p.requires_grad]
        if clips and len({getattr(p, "device_mesh", None) for p in trained}) == 1:  # torch has no norm over several meshes
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
        opt.step()
        opt.zero_grad()


def optimizer(net: torch.nn.Module, rule: str) -> lowtide.Optimizer:
    return make(rule, list(net.named_parameters()), lr=1e-2)


def parts(nonfinite: str = "skip", rule: str = "adamw") -> tuple[list[torch.nn.Parameter], Any]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    params = [
        torch.nn.Parameter(distribute_tensor(torch.randn(shape), mesh, [placement]))
        for shape, placement in (((40, 256), Shard(0)), ((1, 5000), Shard(0)), ((64, 64), Replicate()))
    ]
    return params, CLASSES[rule](params, lr=1e-2, nonfinite=nonfinite)


def give(params: list[torch.nn.Parameter], step: int) -> None:
    for i, param in enumerate(params):
        whole = torch.randn(param.shape, generator=torch.Generator().manual_seed(100 * step + i))
        param.grad = distribute_tensor(whole, param.device_mesh, param.placements, src_data_rank=None)


def spoil_nan(params: list[torch.nn.Parameter]) -> None:
    if dist.get_rank() == 1:
        params[0].grad.to_local()[0, 0] = float("nan")


def spoil_none(params: list[torch.nn.Parameter]) -> None:
    if dist.get_rank() == 1:
        params[1].grad = None


def spoil_layout(params: list[torch.nn.Parameter]) -> None:
    if dist.get_rank() == 1:
        params[0].grad._spec = params[2].grad._spec


def spoil_partial(params: list[torch.nn.Parameter]) -> None:
    grad = params[2].grad
    params[2].grad = DTensor.from_local(grad.to_local() / 2, grad.device_mesh, [Partial()])


def spoil_placement(params: list[torch.nn.Parameter]) -> None:
    params[0].grad = params[0].grad.redistribute(params[0].device_mesh, [Replicate()])


SPOILERS: dict[str, Callable[[list[torch.nn.Parameter]], None]] = {
    "nan": spoil_nan,
    "none": spoil_none,
    "other layout on one rank": spoil_layout,
    "partial": spoil_partial,
    "placement": spoil_placement,
}
