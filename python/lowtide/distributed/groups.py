"""The process group under a vote: two collectives on bytes, equal initial parameters for all workers, and errors that say what
did not arrive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from lowtide.checks.values import expect
from lowtide.devices.places import Place
from lowtide.devices.sharding import is_dtensor
from lowtide.distributed.buffers import tensor_at

# Direct messages gather results of up to this many bytes (of all ranks). gloo gathers around a ring, in as many hops as there
# are other ranks; direct messages move the same bytes in one hop. With 4 workers they are 1.2 to 2 times as fast.
STRAIGHT = 4 << 20
# These backends move device memory through the host, or may do so. Lowtide then votes on the host.
_BY_HOST = {"gloo", "mpi", "ucc"}


class Transport:
    """`all_to_all` and `all_gather` of host bytes over a `torch.distributed` process group. They take addresses.

    Any backend that has these two collectives for uint8 tensors works (gloo, MPI, NCCL, XCCL). A backend that moves only device
    memory gets copies of small messages on the group's device. Ballots and results of votes on devices travel directly between
    device tensors (`moves`, `exchange`, `collect`).
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        check_member(group)
        self.group = group if group is not None else dist.group.WORLD
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        assert self.group is not None  # a default group exists
        self.device = _memory_of(self.group)
        self._movers = {kind for kind, backend in backends_of(self.group).items() if backend not in _BY_HOST}
        self._ring = dist.get_backend(self.group) == "gloo"
        # A newer torch names it all_gather_single; both take the same arguments.
        self._gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

    def moves(self, place: Place) -> bool:
        """True if the group moves memory of that device without the host."""
        return not place.on_host and place.device.type in self._movers

    @property
    def moves_some(self) -> bool:
        """True if the group moves memory of any device without the host."""
        return bool(self._movers - {"cpu"})

    def exchange(self, send: torch.Tensor, receive: torch.Tensor) -> None:
        """Sends row r of `send` to rank r, and receives row s of `receive` from rank s. Both are contiguous uint8 [ranks,
        bytes] on a device, ordered on torch's current stream."""
        dist.all_to_all_single(receive, send, group=self.group)

    def collect(self, mine: torch.Tensor, every: torch.Tensor) -> None:
        """Gathers `mine`, uint8 [bytes], of every rank into the rows of `every`; ordered like `exchange`."""
        self._gather(every.view(-1), mine, group=self.group)

    def all_to_all(self, send: int, receive: int, each: int) -> None:
        """Sends block r of `send`, of `each` bytes, to rank r, and receives block s of `receive` from rank s."""
        self._run(dist.all_to_all_single, send, each * self.size, receive, each * self.size)

    def all_gather(self, send: int, receive: int, each: int) -> None:
        """Gathers `each` bytes from every rank, in order of rank."""
        if self._ring and each * self.size <= STRAIGHT:
            copies = tensor_at(send, each).repeat(self.size)
            self.all_to_all(copies.data_ptr(), receive, each)
        else:
            self._run(self._gather, send, each, receive, each * self.size)

    def gather(self, mine: torch.Tensor) -> torch.Tensor:
        """Gathers small tensors of all ranks on the CPU: [ranks, *mine.shape]."""
        every = torch.empty(self.size, *mine.shape, dtype=mine.dtype)
        here = mine.contiguous()
        self.all_gather(here.data_ptr(), every.data_ptr(), here.nbytes)
        return every

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum of `values` over all ranks, on the CPU."""
        total = values.to(self.device, copy=True)
        dist.all_reduce(total, group=self.group)
        return total.cpu()

    def _run(self, collective: Any, send: int, sent: int, receive: int, received: int) -> None:
        here, there = tensor_at(send, sent), tensor_at(receive, received)
        if self.device.type == "cpu":
            collective(there, here, group=self.group)
            return
        staged = torch.empty(received, dtype=torch.uint8, device=self.device)
        collective(staged, here.to(self.device), group=self.group)
        there.copy_(staged)


def backends_of(group: dist.ProcessGroup) -> dict[str, str]:
    """The backend's name for each kind of device."""
    pairs = (one.partition(":") for one in str(dist.get_backend_config(group)).split(",") if ":" in one)
    return {kind: backend for kind, _, backend in pairs}


def _memory_of(group: dist.ProcessGroup) -> torch.device:
    """The device whose tensors the group's collectives take; the CPU if they take CPU tensors."""
    kinds = [device.type for device in group._device_types]
    if "cpu" in kinds or not kinds:
        return torch.device("cpu")
    return torch.device(kinds[0], torch.get_device_module(kinds[0]).current_device())


def new_group(group: dist.ProcessGroup | None, timeout: float | None) -> dist.ProcessGroup:
    """Makes a group of the same ranks for one thread. Every rank of `group` must call this."""
    check_member(group)
    ranks = dist.get_process_group_ranks(group if group is not None else dist.group.WORLD)
    limit = None if timeout is None else timedelta(seconds=timeout)
    alone = dist.get_backend(group) != "mpi"  # in MPI, all processes create a group together
    made = dist.new_group(ranks, timeout=limit, use_local_synchronization=alone)
    assert isinstance(made, dist.ProcessGroup)  # this rank is in it
    return made


def check_member(group: dist.ProcessGroup | None) -> None:
    """Raises ValueError or TypeError if this process cannot take part in calls of the group."""
    require_initialized()
    check_group(group)
    expect(group is None or dist.get_rank(group) >= 0, "group", "a group that this process is not in", "one with it")


def check_group(group: object) -> None:
    """Raises TypeError unless `group` is a process group."""
    if group is None or isinstance(group, dist.ProcessGroup) or group is dist.GroupMember.NON_GROUP_MEMBER:
        return
    hint = ": mesh.get_group()" if hasattr(group, "get_group") else ""
    raise TypeError(f"group: got a {type(group).__name__}, wanted a torch.distributed.ProcessGroup or None{hint}")


def require_initialized() -> None:
    """Raises ValueError without a default process group."""
    if not dist.is_initialized():
        raise ValueError("got no default process group, wanted one: call torch.distributed.init_process_group() first")


@torch.no_grad()
def broadcast_parameters(
    of: torch.nn.Module | Iterable[torch.Tensor], group: dist.ProcessGroup | None = None, source: int = 0
) -> None:
    """Copies tensors, or the parameters and buffers of a module, from rank `source` to all workers of `group`. Every worker
    must call it. DistributedDataParallel does this itself."""
    require_initialized()
    check_group(group)
    if isinstance(of, Mapping):
        raise TypeError(f"got a {type(of).__name__}, wanted a module or tensors: of.values() of a state_dict")
    tensors = [*of.parameters(), *of.buffers()] if isinstance(of, torch.nn.Module) else list(of)
    root = dist.get_global_rank(group, source) if group is not None else source
    for tensor in tensors:
        if is_dtensor(tensor):
            raise TypeError("got a DTensor, wanted plain tensors: broadcast before sharding, or seed all workers alike")
        if tensor.is_meta:
            raise ValueError("got a tensor on meta, wanted one with memory: call to_empty() first")
    for tensor in tensors:
        if tensor.numel():
            whole = tensor.detach().contiguous()
            dist.broadcast(whole.reshape(-1).view(torch.uint8), root, group=group)  # as bytes, for any dtype
            if not tensor.is_contiguous():
                tensor.detach().copy_(whole)
