"""The same parameters on all workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
import torch.distributed as dist

from lowtide.devices.sharding import is_dtensor
from lowtide.distributed.groups import check_group, require_initialized


@torch.no_grad()
def broadcast_parameters(
    of: torch.nn.Module | Iterable[torch.Tensor], group: dist.ProcessGroup | None = None, source: int = 0
) -> None:
    """Gives all workers of `group` the parameters and buffers of a module (or the tensors) of its rank `source`. Every
    worker must call it. DistributedDataParallel does this itself."""
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
            raise ValueError("got a tensor on meta, wanted memory: to_empty() first")
    for tensor in tensors:
        if tensor.numel():
            whole = tensor.detach().contiguous()
            dist.broadcast(whole.reshape(-1).view(torch.uint8), root, group=group)  # of any type
            if not tensor.is_contiguous():
                tensor.detach().copy_(whole)
