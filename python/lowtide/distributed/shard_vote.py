"""Votes on single tensors."""

from __future__ import annotations

import hashlib

import torch
from typing_extensions import Unpack

from lowtide.checks.values import expect
from lowtide.devices.places import HOST, Place
from lowtide.devices.sharding import local_of
from lowtide.distributed.buffers import SignBuffers
from lowtide.distributed.collective import Collective, Outcome, VoteOptions, check_vote_options
from lowtide.distributed.groups import require_initialized
from lowtide.distributed.layout import aligned, check_gradients_of, checksum_of


class ShardVote:
    """Votes on a tensor in place, and serves as the hook of FSDP2 between nodes:

        for layer in model.layers:
            fully_shard(layer, mesh=inside)
        fully_shard(model, mesh=inside)
        ShardVote(group=workers_with_the_same_shard).register(model)

    FSDP averages inside the mesh; then every shard becomes the majority sign of `group`. Use one instance per model, because
    its votes are numbered; every worker of the group must make the same calls. ties="previous" is refused, because torch does
    not say which tensor is which. vote: `VoteOptions`; `group` has no default."""

    def __init__(self, **vote: Unpack[VoteOptions]) -> None:
        check_vote_options(vote, "ShardVote")
        require_initialized()
        if vote.get("group") is None:
            raise TypeError("group: got None, wanted the process group of the workers that hold the same shard")
        expect(not vote.get("check_every"), "check_every", vote.get("check_every"), "0: it has a tensor, and no parameters")
        if vote.get("ties") == "previous":
            raise ValueError("ties: got 'previous', wanted another rule: tensors of one size cannot be told apart")
        self._collective = Collective(**vote)
        self._buffers: dict[tuple[int, Place], SignBuffers] = {}
        self._nothing = SignBuffers(0, self._collective.ties)  # for votes that this worker cannot take part in
        self.votes = 0
        self.last_outcome: Outcome | None = None

    def _room(self, count: int, place: Place) -> SignBuffers:
        if (count, place) not in self._buffers:
            self._buffers[count, place] = self._collective.buffers(count, place)
        return self._buffers[count, place]

    def register(self, model: torch.nn.Module) -> None:
        """Makes this the hook of every FSDP2 module within `model`. Call it on every worker of the group. Raises ValueError if
        there is no such module or, on all workers, if their shards do not start equal."""
        sharded = [module for module in model.modules() if hasattr(module, "set_all_reduce_hook")]
        values = checksum_of(local_of(param.detach()) for param in model.parameters())
        self._collective.require_same(
            {"FSDP2 modules": len(sharded), "the values of this shard (seed alike, or broadcast before sharding)": values}
        )
        expect(bool(sharded), "model", f"a {type(model).__name__} without FSDP2 modules", "fully_shard() first")
        for module in sharded:
            module.set_all_reduce_hook(self)  # type: ignore[operator]

    @torch.no_grad()
    def __call__(self, tensor: torch.Tensor) -> None:
        """Votes on a contiguous tensor of float32, bfloat16 or float16, on the CPU or a device (on torch's current stream).
        Elements become +1 or -1; blocks of 64 elements that are zero on every worker, and ties, may become 0. If any worker has
        a non-finite value, the tensor becomes NaN on all. Any other exact zero counts as + or -, by a fair bit of the vote's
        number. Raises like `Collective.vote`."""
        failure, place = _refusal(tensor)
        numel = 0 if failure else tensor.numel()
        queue, threads, dtype = place.queue(), torch.get_num_threads(), str(tensor.dtype)
        buffers, items = self._nothing, [(0 if failure else tensor.data_ptr(), numel, 0)]
        nonfinite = False
        try:
            if not failure:
                buffers = self._room(aligned(numel), place)
                buffers.clear_mark(queue)
                buffers.pack(items, dtype, _fair_bit(self.votes), threads, queue)
                nonfinite = buffers.fetch(queue)
        except Exception as error:  # whatever it is, the others are waiting
            failure = error
        outcome = self._collective.vote(
            buffers, None, step=self.votes, alike={"numel": numel}, nonfinite=nonfinite, failure=failure
        )
        self.last_outcome = outcome
        self.votes += 1
        if outcome.applied:
            buffers.send(queue)
            buffers.unpack(items, dtype, threads, queue)
        else:
            tensor.fill_(float("nan"))


def _refusal(tensor: torch.Tensor) -> tuple[Exception | None, Place]:
    """The reason why a tensor has no signs to vote on, if any, and the place of the tensor."""
    try:
        place = check_gradients_of(tensor, "tensor")
        expect(tensor.is_contiguous(), "tensor", f"strides {tensor.stride()}", "a contiguous one")
    except (ValueError, NotImplementedError) as error:
        return error, HOST
    return None, place


def _fair_bit(number: int) -> bool:
    """A fair bit. With number % 2, each tensor of a model with an even number of tensors would always get the same bit."""
    return bool(hashlib.sha256(number.to_bytes(8, "little")).digest()[0] & 1)
