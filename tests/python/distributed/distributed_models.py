"""Real models under fully_shard, DistributedDataParallel and tensor parallelism, trained by several ranks; and what
goes wrong on one rank alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from lowtide.state.elsewhere import as_core
import lowtide
import torch
import torch.distributed as dist
from distributed_jobs import load, save, snapshot
from support import make
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel


class Tied(torch.nn.Module):
    """A language model's head and tail share one matrix; widths that no number of ranks divides."""

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
    """`kind`: how fully_shard is asked for, or "ddp", or "tensor": rows over one dimension, tensors over the other."""
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
        # Every rank has data of its own, but those that share the work of one.
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


def resume(kind: str, rule: str, path: str) -> tuple[dict[str, bytes], dict[str, bytes], str]:
    """Six steps in one go, and from a checkpoint after three in another model and optimizer. And the kinds of state."""
    net = sharded(kind)
    opt = optimizer(net, rule)
    train(net, opt, range(3))
    save(net, opt, path)
    other_net = sharded(kind)
    with torch.no_grad():
        for param in other_net.parameters():
            param.mul_(0.5)
    other = optimizer(other_net, rule)
    load(other_net, other, path)
    for pair in ((net, opt), (other_net, other)):
        train(*pair, range(3, 6))
    kinds = {(type(p).__name__, type(as_core(opt.state[p])["exp_avg"]).__name__) for p in net.parameters() if p.requires_grad}
    assert len(kinds) == 1
    assert all(int(opt.state[p]["step"]) == 6 for p in net.parameters() if p.requires_grad)
    for p in net.parameters():
        if isinstance(p, DTensor) and p.requires_grad:
            assert as_core(opt.state[p])["exp_avg"].placements == p.placements
    return snapshot(net, opt), snapshot(other_net, other), " ".join(kinds.pop())


def in_backward(kind: str, bucket: int | bool) -> tuple[dict[str, bytes], dict[str, bytes], int]:
    """Three steps after backward, and in backward; and the gradients that backward leaves in the second."""
    found, left = [], 0
    for options in ({}, {"step_in_backward": bucket}):
        net = sharded(kind)
        opt = make("adamw", list(net.named_parameters()), lr=1e-2, **options)
        if options:
            opt.register_step_pre_hook(lambda opt, *_: counted.append(sum(p.grad is not None for p in opt.engine.tensors)))
        counted: list[int] = []
        train(net, opt, range(3), clips=False)
        left += sum(counted)
        found.append(snapshot(net, opt))
    return found[0], found[1], left


def parts(nonfinite: str = "skip") -> tuple[list[torch.nn.Parameter], lowtide.AdamW]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    params = [
        torch.nn.Parameter(distribute_tensor(torch.randn(shape), mesh, [placement]))
        for shape, placement in (((40, 256), Shard(0)), ((1, 5000), Shard(0)), ((64, 64), Replicate()))
    ]
    return params, lowtide.AdamW(params, lr=1e-2, nonfinite=nonfinite)


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


def spoiled(kind: str, nonfinite: str = "skip") -> tuple[str, int, bool, bool]:
    """A good step, a spoilt one, a good one: the error ("" for none), steps skipped, whether the spoilt step changed
    nothing, whether the end is that of the two good steps alone."""
    params, opt = parts(nonfinite)
    good_params, good = parts(nonfinite)
    for each, of in ((params, opt), (good_params, good)):
        give(each, 0)
        of.step()
    before = [p.detach().to_local().clone() for p in params]
    steps = [int(opt.state[p]["step"]) for p in params]
    give(params, 1)
    SPOILERS[kind](params)
    error = ""
    try:
        opt.step()
    except ValueError as caught:
        error = str(caught)
    unchanged = all(torch.equal(a, p.detach().to_local()) for a, p in zip(before, params, strict=True))
    unchanged = unchanged and steps == [int(opt.state[p]["step"]) for p in params]
    for each, of in ((params, opt), (good_params, good)):
        give(each, 2)
        of.step()
    pairs = zip(params, good_params, strict=True)
    alike = all(torch.equal(a.detach().to_local(), b.detach().to_local()) for a, b in pairs)
    return error, opt.skipped_steps, unchanged, alike


def refusals() -> dict[str, str]:
    """Tries to register and load unsuitable parameters and state; returns the errors."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    found = {}
    partial = torch.nn.Parameter(DTensor.from_local(torch.ones(8, 8), mesh, [Partial()]))
    plain = torch.nn.Parameter(torch.ones(40, 256))
    params, opt = parts()
    give(params, 0)
    opt.step()
    saved = opt.state_dict()
    moved = {**saved, "state": {**saved["state"], 0: dict(saved["state"][0])}}
    moved["state"][0]["exp_avg_codes"] = saved["state"][0]["exp_avg_codes"].redistribute(mesh, [Replicate()])
    short = {**saved, "state": {**saved["state"], 0: dict(saved["state"][0])}}
    short["state"][0]["exp_avg_codes"] = saved["state"][0]["exp_avg_codes"].to_local()
    attempts: dict[str, Callable[[], Any]] = {
        "partial parameter": lambda: lowtide.AdamW([partial]),
        "moved state": lambda: opt.load_state_dict(moved),
        "a local part as plain state": lambda: opt.load_state_dict(short),
        "sharded state into a plain parameter": lambda: lowtide.AdamW([plain]).load_state_dict(
            {"state": {0: saved["state"][0]}, "param_groups": [{**saved["param_groups"][0], "params": [0]}]}
        ),
    }
    for name, attempt in attempts.items():
        try:
            attempt()
            found[name] = ""
        except ValueError as error:
            found[name] = str(error)
    return found


def scaled_and_copied() -> tuple[list[tuple[int, int]], bool]:
    """(steps, skipped) after a step of GradScaler's and one with an infinity on rank 1; and whether a copy goes on
    alike."""
    params, _ = parts()
    opt = lowtide.AdamW(params, amp_scaling=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    counts = []
    for step in range(2):
        give(params, step)
        if step == 1 and dist.get_rank() == 1:
            params[0].grad.to_local()[0, 0] = float("inf")
        scaler.scale(torch.ones(()))
        scaler.step(opt)
        scaler.update()
        counts.append((int(opt.state[params[0]]["step"]), opt.skipped_steps))
    params, opt = parts()
    give(params, 0)
    opt.step()
    copies, copied = copy.deepcopy((params, opt))
    for each, of in ((params, opt), (copies, copied)):
        give(each, 1)
        of.step()
    pairs = list(zip(params, copies, strict=True))
    alike = all(torch.equal(a.detach().to_local(), b.detach().to_local()) for a, b in pairs)
    assert all(a.to_local().data_ptr() != b.to_local().data_ptr() for a, b in pairs if a.to_local().numel())
    return counts, alike
