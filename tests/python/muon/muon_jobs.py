"""The ranks' jobs in the tests of Muon over meshes: matrices of awkward shapes, stacks of experts, what is sent."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import lowtide
import torch
import torch.distributed as dist
from distributed_jobs import snapshot
from lowtide.devices.sharding import sharding_of
from lowtide.optimizers import muon
from lowtide.optimizers.batches import Matrix, batches_of
from lowtide.optimizers.muon import Communication
from lowtide.optimizers.orthogonal import cost
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

# Rows that no number of ranks divides, wide and tall, fewer rows than ranks, a matrix smaller than the mesh, 16 bits.
MATRICES: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
    "uneven": ((37, 300), torch.float32),
    "tall": ((64, 48), torch.float32),
    "few": ((3, 96), torch.float32),
    "point": ((1, 1), torch.float32),
    "bfloat": ((41, 160), torch.bfloat16),
    "vector": ((60,), torch.float32),
    "frozen": ((8, 256), torch.float32),
}
EXPERTS: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
    "experts": ((6, 40, 72), torch.float32),
    "tall_experts": ((3, 72, 24), torch.bfloat16),
}
LEAST = 512  # elements from which on state is in 8 bits


class Layout(NamedTuple):
    """cuts: by dimension of the mesh, the tensor dimension that it cuts, or None for copies; () for plain tensors."""

    cuts: tuple[int | None, ...]
    mesh: tuple[int, ...] = (1,)

    @property
    def world(self) -> int:
        return int(torch.tensor(self.mesh).prod())

    def placements(self, shape: Sequence[int]) -> list[Any]:
        return [Replicate() if dim is None else Shard(min(dim, len(shape) - 1)) for dim in self.cuts]


class Net(torch.nn.Module):
    def __init__(self, layout: Layout, experts: Layout | None = None) -> None:
        """experts: how stacks of experts lie; None: there are none."""
        super().__init__()
        self.layouts: dict[str, Layout] = dict.fromkeys(MATRICES, layout)
        self.layouts |= dict.fromkeys(EXPERTS, experts) if experts else {}
        meshes = {each: init_device_mesh("cpu", each.mesh) for each in self.layouts.values() if each.cuts}
        for name, of in self.layouts.items():
            shape, dtype = {**MATRICES, **EXPERTS}[name]
            value = _random(name, -1, shape).to(dtype)
            if of.cuts:
                value = distribute_tensor(value, meshes[of], of.placements(shape), src_data_rank=None)
            self.register_parameter(name, torch.nn.Parameter(value, requires_grad=name != "frozen"))

    def set_gradients(self, step: int) -> None:
        """The same whole gradients on every mesh."""
        for name, param in self.named_parameters():
            if param.requires_grad:
                give(param, _random(name, step, tuple(param.shape)))


def give(param: torch.nn.Parameter, whole: torch.Tensor) -> None:
    whole = whole.to(param.dtype)
    if isinstance(param, DTensor):
        whole = distribute_tensor(whole, param.device_mesh, param.placements, src_data_rank=None)
    param.grad = whole


def _random(name: str, step: int, shape: tuple[int, ...]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()) + step)
    return torch.randn(shape, generator=generator)


def build(layout: Layout, experts: Layout | None, state: str, **options: Any) -> tuple[Net, lowtide.Muon]:
    net = Net(layout, experts)
    named = list(net.named_parameters())
    groups = [{"params": named[::2]}, {"params": named[1::2], "lr": 3e-2, "nesterov": False, "momentum": 0.8}]
    options = {"lr": 1e-2, "state": state, "min_quantized_numel": LEAST, "use_muon": "experts", **options}
    return net, lowtide.Muon(groups, **options)


def train(net: Net, opt: lowtide.Muon, steps: range) -> None:
    for step in steps:
        net.set_gradients(step)
        opt.step()
        opt.zero_grad()


@contextmanager
def counting() -> Iterator[dict[str, int]]:
    """Counts the bytes that torch is given to send to others and to get from them, and the calls of all collectives."""
    counts = {"sent": 0, "received": 0, "exchanges": 0}
    names = [name for name in dir(dist) if name.startswith(_COLLECTIVE) and callable(getattr(dist, name))]
    kept = {name: getattr(dist, name) for name in names}

    def exchange(output: torch.Tensor, message: torch.Tensor, came: list[int], sent: list[int], **options: Any) -> Any:
        own = dist.get_rank(options["group"])
        for name, tensor, sizes in (("sent", message, sent), ("received", output, came)):
            assert tensor.numel() == sum(sizes)
            counts[name] += (tensor.numel() - sizes[own]) * tensor.element_size()
        counts["exchanges"] += 1
        return kept["all_to_all_single"](output, message, came, sent, **options)

    def counted(name: str) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            counts[name] = counts.get(name, 0) + 1
            return kept[name](*args, **options)

        return call

    for name in names:
        setattr(dist, name, exchange if name == "all_to_all_single" else counted(name))
    try:
        yield counts
    finally:
        for name, function in kept.items():
            setattr(dist, name, function)


_COLLECTIVE = ("all_", "barrier", "batch_isend", "broadcast", "gather", "irecv", "isend", "recv", "reduce", "scatter", "send")


def trained(
    layout: Layout, experts: Layout | None, state: str, room: int = 64 << 20, disk: str | None = None
) -> tuple[dict[str, bytes], Communication, dict[str, int]]:
    """Weights and state after 3 steps; what a step is said to send; what one sent. room: elements of directions at a time.
    disk: a directory, for a budget that state does not fit into."""
    muon._BUCKET = room
    memory = None
    if disk is not None:
        own = Path(disk) / f"rank{dist.get_rank()}"
        own.mkdir(exist_ok=True)
        memory = lowtide.Memory(host="24KiB", disk=own, chunk="4KiB")
    net, opt = build(layout, experts, state, memory=memory)
    train(net, opt, range(2))
    stated = opt.communication()
    with counting() as counts:
        train(net, opt, range(2, 3))
    assert (disk is not None) == (opt.report()["moved_per_step"] > 0)
    return snapshot(net, opt), stated, counts


def loads(layout: Layout, room: int) -> list[tuple[int, int, list[int]]]:
    """For each batch of a step of eight matrices in turn wide and tall: elements, the most that one has, and the work of
    each rank."""
    mesh = init_device_mesh("cpu", layout.mesh)
    sizes = [(10 * n, 160 - 10 * n) for n in range(1, 16)]
    values = [distribute_tensor(torch.ones(size), mesh, layout.placements(size), src_data_rank=None) for size in sizes]
    params = [torch.nn.Parameter(value) for value in values]
    matrices = [Matrix.of(i, param, sharding_of(param, "")) for i, param in enumerate(params)]
    ranks = list(itertools.product(*map(range, layout.mesh)))
    found = []
    for batch in batches_of([], matrices, room):
        assert batch.exchange is not None
        works = [cost(part.matrices, *part.matrix) for part in batch.exchange.parts]
        owned = [sum(w for w, owner in zip(works, batch.exchange.owners, strict=True) if owner == at) for at in ranks]
        elements = [params[i].numel() for i in batch.params]
        found.append((sum(elements), max(elements), owned))
    return found
