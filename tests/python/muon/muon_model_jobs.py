"""The ranks' jobs in the tests of Muon over real models (fully_shard, tensor parallelism), and of what goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lowtide
import muon_jobs as jobs
import pytest
import torch
import torch.distributed as dist
from distributed_jobs import load, save, snapshot
from distributed_models import sharded
from lowtide.optimizers import matrix_step
from support import bits
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor


class Experts(torch.nn.Module):
    """A layer in which every token goes through every expert, between two matrices."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = torch.nn.Linear(36, 22)
        self.experts = torch.nn.Parameter(torch.randn(6, 22, 24) / 5)
        self.last = torch.nn.Linear(24, 5, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.einsum("nd,edo->no", torch.relu(self.first(x)), self.experts))


def fsdp2(shard_columns: bool, state: str, before: int = 0) -> tuple[list[bytes], list[bytes], int]:
    """Weights after training under fully_shard and alone, all ranks with the same data: a mean of two or four equal
    gradients is that gradient. And bytes that a step sends from here. before: steps that are taken before the model is
    sharded, by the same optimizer."""
    results = []
    sent = 0
    for cut in (True, False):
        net = Experts()
        opt = lowtide.Muon(net.parameters(), lr=0.05, state=state, use_muon="experts", min_quantized_numel=100)
        for step in range(before):
            _learn(net, opt, step)
        if cut:
            mesh = init_device_mesh("cpu", (dist.get_world_size(),))
            options: dict[str, Any] = {}
            if shard_columns:
                options["shard_placement_fn"] = lambda param: Shard(1 if param.ndim == 2 else 0)
            fully_shard(net, mesh=mesh, **options)
            opt.param_groups[0]["params"] = list(net.parameters())
        for step in range(before, 4):
            _learn(net, opt, step)
        results.append([bits(p.full_tensor() if isinstance(p, DTensor) else p) for p in net.parameters()])
        sent += opt.communication().sent_bytes
    return results[0], results[1], sent


def _learn(net: torch.nn.Module, opt: lowtide.Muon, step: int) -> None:
    x = torch.randn(8, 36, generator=torch.Generator().manual_seed(step))
    net(x).square().mean().backward()
    opt.step()
    opt.zero_grad()


def tensor_parallel() -> tuple[list[bytes], list[bytes], list[str], bool]:
    """Weights of a model under fully_shard over tensor parallelism, and of one process that has the same gradients, which
    torch puts together; how matrices lie; and whether bytes sent are those stated."""
    net = sharded("tensor")
    params = [p for p in net.parameters() if p.requires_grad]
    alone = [torch.nn.Parameter(p.detach().full_tensor()) for p in params]
    options: dict[str, Any] = {"lr": 0.02, "state": "fp32"}
    opt, plain = lowtide.Muon(params, **options), lowtide.Muon(alone, **options)
    equal = True
    for step in range(3):
        tokens = torch.randint(0, 101, (3, 11), generator=torch.Generator().manual_seed(step))
        net(tokens).float().square().mean().backward()
        for p, q in zip(params, alone, strict=True):
            q.grad = p.grad.full_tensor()
        with jobs.counting() as counts:
            opt.step()
        equal = equal and opt.communication()[:3] == (counts["sent"], counts["received"], counts["exchanges"])
        plain.step()
        opt.zero_grad()
    lie = [str(p.placements) for p in params if p.ndim == 2]
    return [bits(p.full_tensor()) for p in params], [bits(q) for q in alone], lie, equal


def against_torch() -> tuple[int, float]:
    """Matrices on all ranks beside torch.optim.Muon's on each: how many are bit-equal after a step, and the largest
    difference after five, as a part of the move."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = [torch.randn(size, generator=torch.Generator().manual_seed(size[0])) for size in ((37, 60), (64, 20), (3, 8))]
    theirs = [torch.nn.Parameter(value.clone()) for value in whole]
    ours = [torch.nn.Parameter(distribute_tensor(value, mesh, [Shard(0)], src_data_rank=None)) for value in whole]
    opt, other = lowtide.Muon(ours, lr=0.02, state="fp32"), torch.optim.Muon(theirs, lr=0.02)
    equal = 0
    for step in range(5):
        _gradients(theirs, step)
        for p, q in zip(ours, theirs, strict=True):
            jobs.give(p, q.grad)
        opt.step()
        other.step()
        if step == 0:
            equal = sum(bits(p.full_tensor()) == bits(q) for p, q in zip(ours, theirs, strict=True))
    triples = [(p.detach().full_tensor(), q.detach(), start) for p, q, start in zip(ours, theirs, whole, strict=True)]
    return equal, max(float((p - q).norm() / (q - start).norm()) for p, q, start in triples)


def uninterrupted(layout: jobs.Layout, state: str, path: str) -> dict[str, bytes]:
    """Four steps, with a checkpoint after two."""
    net, opt = jobs.build(layout, layout, state)
    jobs.train(net, opt, range(2))
    save(net, opt, path)
    jobs.train(net, opt, range(2, 4))
    return snapshot(net, opt)


def resumed(layout: jobs.Layout, state: str, path: str) -> dict[str, bytes]:
    """The last two of the four steps."""
    net, opt = jobs.build(layout, layout, state)
    with torch.no_grad():
        for param in net.parameters():
            param.mul_(0.5)
    load(net, opt, path)
    jobs.train(net, opt, range(2, 4))
    return snapshot(net, opt)


def _matrices(**options: Any) -> tuple[list[torch.nn.Parameter], lowtide.Muon]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    params = [
        torch.nn.Parameter(distribute_tensor(torch.randn(shape), mesh, [placement], src_data_rank=None))
        for shape, placement in (((40, 24), Shard(0)), ((24, 9), Shard(1)), ((7,), Shard(0)))
    ]
    return params, lowtide.Muon([(str(i), param) for i, param in enumerate(params)], lr=0.1, **options)


def _gradients(params: list[torch.nn.Parameter], step: int) -> None:
    for i, param in enumerate(params):
        jobs.give(param, torch.randn(param.shape, generator=torch.Generator().manual_seed(10 * step + i)))


def _nan(params: list[torch.nn.Parameter]) -> None:
    params[0].grad.to_local()[0, 0] = float("nan")


def _none(params: list[torch.nn.Parameter]) -> None:
    params[0].grad = None


def _partial(params: list[torch.nn.Parameter]) -> None:
    params[1].grad = DTensor.from_local(torch.ones(24, 9), params[1].device_mesh, [Partial()])


SPOILERS: dict[str, Callable[[list[torch.nn.Parameter]], None]] = {"nan": _nan, "none": _none, "partial": _partial}


def spoilt_on_rank_1(kind: str, nonfinite: str) -> tuple[str, int, bool, bool]:
    """A good step, one that is spoilt on rank 1, a good one: the error ("" for none), steps skipped, whether the spoilt step
    changed nothing, whether the end is that of the two good steps alone."""
    ends, error, unchanged = [], "", True
    for spoil in (True, False):
        params, opt = _matrices(nonfinite=nonfinite)
        for step in range(3) if spoil else (0, 2):
            _gradients(params, step)
            before = _all(params, opt) if step == 1 else {}
            if step == 1 and dist.get_rank() == 1:
                SPOILERS[kind](params)
            try:
                opt.step()
            except ValueError as caught:
                error = str(caught)
            if step == 1:
                unchanged = before == _all(params, opt)
        if spoil:
            skipped = opt.skipped_steps
        ends.append([bits(p.full_tensor()) for p in params])
    return error, skipped, unchanged, ends[0] == ends[1]


def _all(params: list[torch.nn.Parameter], opt: lowtide.Muon) -> dict[str, bytes]:
    return snapshot(torch.nn.ParameterList(params), opt)


class _BrokenDisk:
    """A core whose second step of a batch fails, as it does when a disk cannot be read."""

    def __init__(self, core: Any) -> None:
        self._core, self._steps = core, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def step(self, *args: Any) -> Any:
        self._steps += 1
        if self._steps == 2:
            raise OSError("the disk cannot be read")
        return self._core.step(*args)


def failing_disk() -> str:
    """The error of a step in which the core of rank 1 fails between batches; no rank waits for another in vain."""
    params, opt = _matrices()
    if dist.get_rank() == 1:
        opt.engine.core = _BrokenDisk(opt.engine.core)  # type: ignore[assignment]
    _gradients(params, 0)
    try:
        opt.step()
    except OSError as error:
        return str(error)
    return ""


def failing_products() -> tuple[str, list[bytes], list[bytes]]:
    """The error of a step in which rank 1 has no memory for its matrices, and the weights after it and after another one."""
    params, opt = _matrices()
    _gradients(params, 0)
    error = ""
    with pytest.MonkeyPatch.context() as patch:
        if dist.get_rank() == 1:
            patch.setattr(matrix_step, "orthogonal", _no_memory)
        try:
            opt.step()
        except MemoryError as found:
            error = str(found)
    after = [bits(param.detach().full_tensor()) for param in params]
    _gradients(params, 1)
    opt.step()
    return error, after, [bits(param.detach().full_tensor()) for param in params]


def _no_memory(*_: Any) -> Any:
    raise MemoryError("no memory for products")


def refusals() -> dict[str, str]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    partial = torch.nn.Parameter(DTensor.from_local(torch.ones(8, 8), mesh, [Partial()]))
    whole = torch.nn.Parameter(distribute_tensor(torch.ones(8, 8), mesh, [Shard(0)]).bfloat16())
    params, _ = _matrices()
    attempts: dict[str, Callable[[], Any]] = {
        "partial": lambda: lowtide.Muon([*params, partial]),
        "master": lambda: lowtide.Muon([whole], master="residual16"),
        "use_muon": lambda: lowtide.Muon(params, use_muon="all"),  # type: ignore[arg-type]
    }
    found = {}
    for name, attempt in attempts.items():
        try:
            attempt()
        except (ValueError, TypeError, NotImplementedError) as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def several_meshes() -> tuple[list[bytes], list[bytes]]:
    """Weights of one optimizer whose matrices are on three meshes of four ranks, or plain, in turn; and alone."""
    whole = init_device_mesh("cpu", (4,))
    both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    lies: list[tuple[Any, list[Any]]] = [
        (whole, [Shard(0)]), (both["b"], [Shard(1)]), (None, []), (both, [Replicate(), Shard(0)]), (whole, [Shard(1)]),
        (both["a"], [Shard(0)]),
    ]  # fmt: skip
    results = []
    for cut in (True, False):
        params = []
        for i, (mesh, placements) in enumerate(lies * 2):
            value = torch.randn(20 + i, 17, generator=torch.Generator().manual_seed(i))
            if cut and mesh is not None:
                value = distribute_tensor(value, mesh, placements, src_data_rank=None)
            params.append(torch.nn.Parameter(value))
        opt = lowtide.Muon(params, lr=0.1, state="fp32")
        for step in range(2):
            _gradients(params, step)
            opt.step()
        results.append([bits(p.full_tensor() if isinstance(p, DTensor) else p) for p in params])
    return results[0], results[1]


def planned_and_stale() -> tuple[int, int, bool]:
    """State bytes of a plan of this rank's part, and of the optimizer; whether autograd refuses a stale graph."""
    params, opt = _matrices(state="dynamic8", min_quantized_numel=64)
    planned = lowtide.plan(params, "muon", min_quantized_numel=64).state_bytes
    loss = (params[0] * params[0]).sum()
    loss.backward(retain_graph=True)
    for param in params[1:]:
        param.grad = torch.zeros_like(param)
    opt.step()
    try:
        loss.backward()
        refused = False
    except RuntimeError as error:
        refused = "modified by an inplace operation" in str(error)
    return planned, opt.report()["state_bytes"], refused
