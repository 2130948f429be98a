"""Lowtide under torch.distributed on a GPU, one rank over NCCL: votes, DistributedDataParallel, FSDP2 and its checkpoints.
Needs a GPU (tools/gpu_check.py runs it). LOWTIDE_ON_GPU=cpu runs it without one, over gloo."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import distributed_jobs
import pytest
import torch
import torch.distributed as dist
import vote_device_jobs
from on_gpu import GPU, differing
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from vote_device_jobs import cases_of

import lowtide

STEPS = 4


class Device:
    """The device itself, with the interface of a stand-in (stand_in.py)."""

    def tensor(self, value: torch.Tensor) -> torch.Tensor:
        return value.detach().to(GPU.device, copy=True)

    def parameters(self, params: Sequence[torch.Tensor]) -> list[torch.nn.Parameter]:
        return [torch.nn.Parameter(self.tensor(param)) for param in params]

    def synchronize(self) -> None:
        GPU.cuda.synchronize()


@pytest.fixture(autouse=True, scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    backend = "gloo" if GPU.rehearsed else "cpu:gloo,cuda:nccl"
    store = dist.FileStore(str(tmp_path_factory.mktemp("store") / "store"), 1)
    dist.init_process_group(backend, store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def model() -> torch.nn.Sequential:
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(512, 384), torch.nn.Linear(384, 1000)).to(GPU.device, torch.bfloat16)


def adamw(net: torch.nn.Module) -> Any:
    return lowtide.AdamW(net.parameters(), lr=1e-3, weight_decay=0.1)


def train(net: torch.nn.Module, optimizer: Any, steps: range = range(STEPS)) -> None:
    for step in steps:
        x = torch.randn(64, 512, generator=torch.Generator().manual_seed(step)).to(GPU.device, torch.bfloat16)
        net(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def alone() -> list[torch.Tensor]:
    net = model()
    train(net, adamw(net))
    return [param.detach() for param in net.parameters()]


def test_votes_have_the_bits_of_the_cpu(figure: Callable[[str], None]) -> None:
    found = vote_device_jobs.compared(Device(), cases_of(2026, 12))  # type: ignore[arg-type]
    assert not found.differing
    figure(f"{found.votes} votes, {found.signs} signs: the same bits and results")


def test_data_parallel_training_has_the_bits_of_one_process() -> None:
    net = DistributedDataParallel(model())
    train(net, adamw(net))
    assert differing(list(net.parameters()), alone()) == 0


def test_sharded_training_goes_on_from_a_checkpoint_with_the_same_bits(tmp_path: Path) -> None:
    def sharded() -> tuple[torch.nn.Module, Any]:
        net = model()
        for layer in net:
            fully_shard(layer, mesh=mesh)
        fully_shard(net, mesh=mesh)
        return net, adamw(net)

    mesh = dist.init_device_mesh(GPU.device.type, (1,))
    net, optimizer = sharded()
    train(net, optimizer, range(2))
    distributed_jobs.save(net, optimizer, str(tmp_path))
    again, resumed = sharded()
    distributed_jobs.load(again, resumed, str(tmp_path))
    for one, steps in ((net, optimizer), (again, resumed)):
        train(one, steps, range(2, STEPS))
        assert differing([param.full_tensor() for param in one.parameters()], alone()) == 0  # type: ignore[attr-defined]
