"""Communication hooks: the majority of signs in place of the mean of gradients."""

# No `from __future__ import annotations`: torch looks at a hook's annotations, and wants types.
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from typing_extensions import Unpack

from lowtide import _core
from lowtide.checks import PARAMETER_DTYPES
from lowtide.distributed.collective import Collective, Outcome, VoteOptions
from lowtide.distributed.layout import Layout, SignBuffers, address, aligned
from lowtide.distributed.residuals import Residual, ShardResidual

BucketFuture = torch.futures.Future[torch.Tensor]


class Arrived(NamedTuple):
    """A bucket that waits for the others."""

    buffer: torch.Tensor
    items: list[tuple[int, int, int]]  # of each gradient: address, elements, number of its first sign
    numbers: list[int]  # of the parameters
    future: BucketFuture


class SignHook:
    """Base class; use `SignVote` or `ErrorFeedbackSign`. Register with `ddp.register_comm_hook(None, hook)`, or `register`.

    The buckets of a backward pass wait for each other and travel together when the last one is there, in a thread and a
    process group of their own. Where a parameter's signs lie depends on the order of the model's parameters alone: torch may
    lay its buckets anew. Under `no_sync()` torch calls no hook: gradients add up, and the next pass votes on the sum.

    If a gradient on any worker is not finite, the gradients are NaN on all of them, so that `GradScaler`, or whoever checks,
    skips the step everywhere. Errors come out of `backward()`, as RuntimeError with the text of `Collective.vote`'s.

    model: the DDP model or the one inside, on the CPU. Every worker of the default group makes its hook.
    """

    def __init__(self, model: torch.nn.Module, vote: VoteOptions) -> None:
        self.__name__ = self.__qualname__ = f"lowtide.{type(self).__name__}"  # torch logs them
        inner = model.module if isinstance(model, torch.nn.parallel.DistributedDataParallel) else model
        named = [(name, param) for name, param in inner.named_parameters() if param.requires_grad]
        if not named:
            raise ValueError("model: got no parameter that requires a gradient, wanted one")
        for name, param in named:
            check_gradients_of(param, name)
        self._layout = Layout(named)
        self._params = [param for _, param in named]
        self._numbers = {id(param): number for number, param in enumerate(self._params)}
        self._collective = Collective(**vote, own_group=True)
        self._collective.require_same({"the model's parameters": self._layout.digest})
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lowtide-vote")
        self._arrived: list[Arrived] = []
        self.votes = 0
        self.last_outcome: Outcome | None = None

    def register(self, ddp: torch.nn.parallel.DistributedDataParallel) -> None:
        """Makes this the hook of `ddp`, whose first backward pass is still to come."""
        ddp.register_comm_hook(None, self)

    def __call__(self, state: object, bucket: dist.GradBucket) -> BucketFuture:
        """The hook; `state` is not used."""
        buffer, future = bucket.buffer(), BucketFuture()
        items, numbers = [], []
        for param, grad in zip(bucket.parameters(), bucket.gradients(), strict=True):
            number = self._numbers.get(id(param))
            if number is None:
                raise ValueError("got a bucket with a parameter that the hook's model did not have; make the hook anew")
            numbers.append(number)
            items.append((grad.data_ptr(), grad.numel(), self._layout.offsets[number]))
        self._arrived.append(Arrived(buffer, items, numbers, future))
        if bucket.is_last():
            arrived, self._arrived = self._arrived, []
            self._thread.submit(self._finish, arrived)
        return future

    def _finish(self, arrived: list[Arrived]) -> None:
        try:
            outcome = self._exchange(arrived)
            self.last_outcome = outcome
            if outcome.applied:
                self.votes += 1
            else:
                for bucket in arrived:
                    bucket.buffer.fill_(float("nan"))
        except BaseException as error:
            for bucket in arrived:
                bucket.future.set_exception(error)
            return
        for bucket in arrived:
            bucket.future.set_result(bucket.buffer)

    def _exchange(self, arrived: list[Arrived]) -> Outcome:
        """Replaces the gradients if the vote was applied."""
        raise NotImplementedError


class SignVote(SignHook):
    """signSGD with majority vote (Bernstein et al., arXiv 1810.05291): every gradient element becomes the sign, +1 or -1, that
    most workers' have. 1/32 of the bytes of float32 gradients. For optimizers that use signs (`torch.optim.SGD` with a
    learning rate for signs is signSGD); magnitudes are gone.

    0 where every worker has a block of 64 zeros; other exact zeros count as + in one vote and - in the next.
    `vote`: see `VoteOptions`; weight for workers with batches of different sizes.
    """

    def __init__(self, model: torch.nn.Module, **vote: Unpack[VoteOptions]) -> None:
        super().__init__(model, vote)
        self._buffers = SignBuffers(self._layout.count, self._collective.ties)

    def _exchange(self, arrived: list[Arrived]) -> Outcome:
        buffers, threads = self._buffers, torch.get_num_threads()
        places = address(buffers.bits), address(buffers.presence)
        nonfinite = False
        for bucket in arrived:
            dtype = str(bucket.buffer.dtype)
            nonfinite |= _core.pack_gradients(bucket.items, dtype, *places, self.votes % 2 == 0, threads)
        outcome = self._collective.vote(buffers, None, step=self.votes, nonfinite=nonfinite)
        if outcome.applied:
            for bucket in arrived:
                dtype = str(bucket.buffer.dtype)
                _core.unpack_gradients(bucket.items, dtype, *places, address(buffers.zeros), 0, threads)
        return outcome

    def state_dict(self) -> dict[str, Any]:
        """{"votes": how many there were}: what ties and zeros depend on."""
        return {"votes": self.votes}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Of any number of workers."""
        self.votes = int(state_dict["votes"])


class ErrorFeedbackSign(SignHook):
    """The mean of gradients through one bit per element, in both directions, with what is left out kept and added to the next
    (error feedback: EF-signSGD, Karimireddy et al., arXiv 1901.09847, with one scale for 1024 elements and a second residual
    on the worker that averages a shard, Zheng et al., arXiv 1905.10936). For any optimizer that takes gradients.

    residual: how what is left out is kept: "fp32" (4 bytes an element), "bf16" (2), "dynamic8" (1.02); and 1 / workers of
    that again. loss_scale: of the gradients, such as `scaler.get_scale`: residuals are kept without it. A pass with a
    gradient that is not finite changes no residual. If the exchange itself fails, what this pass would have sent is lost.
    `vote`: see `VoteOptions`; "ties" and "algorithm" do not matter.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        residual: str = "bf16",
        loss_scale: Callable[[], float] | None = None,
        **vote: Unpack[VoteOptions],
    ) -> None:
        super().__init__(model, vote)
        if residual not in _core.codec_names():
            raise ValueError(f"residual: got {residual!r}, wanted one of {', '.join(_core.codec_names())}")
        self._codec, self._loss_scale = residual, loss_scale
        self._buffers = SignBuffers(self._layout.count, None)
        self._residuals = [Residual(numel, residual) for numel in self._layout.numels]
        transport = self._collective.transport
        self._shard = ShardResidual(self._layout.count, transport.rank, transport.size, residual)

    def _exchange(self, arrived: list[Arrived]) -> Outcome:
        buffers, threads = self._buffers, torch.get_num_threads()
        scale = float(self._loss_scale()) if self._loss_scale else 1.0
        nonfinite = any(not bool(torch.isfinite(bucket.buffer).all()) for bucket in arrived)

        def fill() -> None:
            for bucket in arrived:
                kept = [self._residuals[number] for number in bucket.numbers]
                residuals = [(address(one.codes), address(one.scales)) for one in kept]
                _core.feed_back(
                    bucket.items, str(bucket.buffer.dtype), 1.0 / scale, self._codec, residuals,
                    address(buffers.bits), address(buffers.scales), threads,
                )  # fmt: skip

        outcome = self._collective.mean(buffers, fill, self._shard.core, step=self.votes, nonfinite=nonfinite)
        if outcome.applied:
            for bucket in arrived:
                dtype = str(bucket.buffer.dtype)
                _core.unpack_gradients(
                    bucket.items, dtype, address(buffers.bits), 0, 0, address(buffers.scales), threads
                )
                if scale != 1.0:
                    bucket.buffer.mul_(scale)
        return outcome

    def residual_bytes(self) -> int:
        """That this worker keeps."""
        own = sum(part.nbytes for residual in self._residuals for part in residual.tensors().values())
        return own + self._shard.core.allocated_bytes()

    @torch.no_grad()
    def average_state(self) -> None:
        """Gives every worker the same residual, with the same mean as now, and empties the second ones (4 bytes an element
        travel). Every worker must call it. Before a checkpoint that another number of workers is to go on with."""
        transport = self._collective.transport
        first, values = self._shard.first, self._shard.values()
        for number, numel in enumerate(self._layout.numels):
            begin = self._layout.offsets[number]
            mean = self._residuals[number].values() / transport.size
            low, high = max(begin, first), min(begin + numel, first + values.numel())
            if low < high:
                mean[low - begin : high - begin] += values[low - first : high - first]
            dist.all_reduce(mean, group=transport.group)
            self._residuals[number].put(mean)
        self._shard.clear()

    def state_dict(self) -> dict[str, Any]:
        """votes, and this worker's residuals by parameter name, "shard" being the second one; tensors are copies. For the same
        rank of as many workers; after `average_state()`, for any (every rank then loads the same dict)."""
        transport = self._collective.transport
        return {
            "votes": self.votes,
            "codec": self._codec,
            "workers": [transport.rank, transport.size],
            "residual": {
                name: {key: part.clone() for key, part in residual.tensors().items()}
                for name, residual in zip(self._layout.names, self._residuals, strict=True)
            },
            "shard": self._shard.read(),
            "shard_empty": not bool(self._shard.values().any()),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """ValueError, and nothing has changed, for one of other parameters, of another residual format, or of another rank or
        number of workers without `average_state()` before it was saved."""
        transport = self._collective.transport
        workers = [transport.rank, transport.size]
        if state_dict["codec"] != self._codec:
            raise ValueError(f"residual: got {state_dict['codec']!r}, wanted {self._codec!r}")
        same = list(state_dict["workers"]) == workers
        if not same and not state_dict["shard_empty"]:
            rank, size = state_dict["workers"]
            raise ValueError(
                f"got residuals of rank {rank} of {size}, wanted rank {workers[0]} of {workers[1]}: call average_state() before "
                "saving to go on with other workers"
            )
        saved = state_dict["residual"]
        if set(saved) != set(self._layout.names):
            differing = sorted(set(saved) ^ set(self._layout.names))
            raise ValueError(f"got residuals of other parameters: {', '.join(differing[:5])}; wanted those of the model")
        pairs = []
        for name, residual in zip(self._layout.names, self._residuals, strict=True):
            for key, mine in residual.tensors().items():
                given = saved[name].get(key)
                if given is None or given.shape != mine.shape or given.dtype != mine.dtype:
                    got = "nothing" if given is None else f"{given.dtype} {tuple(given.shape)}"
                    raise ValueError(f"{name}, {key}: got {got}, wanted {mine.dtype} {tuple(mine.shape)}")
                pairs.append((mine, given))
        for mine, given in pairs:
            mine.copy_(given)
        if same:
            self._shard.replace(state_dict["shard"])
        else:
            self._shard.clear()
        self.votes = int(state_dict["votes"])


class ShardVote:
    """A vote on one tensor, in place, and the hook of FSDP2 between nodes:

        model = fully_shard(model, mesh=mesh_inside_the_node)
        model.set_all_reduce_hook(ShardVote(group=workers_with_the_same_shard))

    FSDP averages inside the mesh; then every shard becomes the sign that most of `group` have. One for a model: its votes are
    numbered, and every worker of the group must make the same calls.
    """

    def __init__(self, **vote: Unpack[VoteOptions]) -> None:
        self._collective = Collective(**vote)
        self._buffers: dict[int, SignBuffers] = {}
        self.votes = 0
        self.last_outcome: Outcome | None = None

    @torch.no_grad()
    def __call__(self, tensor: torch.Tensor) -> None:
        """Contiguous CPU tensor of float32, bfloat16 or float16: becomes +1, -1 and, where every worker has a block of 64
        zeros (or ties are), 0; NaN on all workers if any has a value that is not finite. Raises as `Collective.vote`."""
        check_gradients_of(tensor, "tensor")
        if not tensor.is_contiguous():
            raise ValueError(f"tensor: got strides {tensor.stride()}, wanted a contiguous one")
        count = aligned(tensor.numel())
        if count not in self._buffers:
            self._buffers[count] = SignBuffers(count, self._collective.ties)
        buffers, threads, dtype = self._buffers[count], torch.get_num_threads(), str(tensor.dtype)
        items = [(tensor.data_ptr(), tensor.numel(), 0)]
        places = address(buffers.bits), address(buffers.presence)
        nonfinite = _core.pack_gradients(items, dtype, *places, self.votes % 2 == 0, threads)
        self.last_outcome = self._collective.vote(
            buffers, None, step=self.votes, digest=tensor.numel(), nonfinite=nonfinite
        )
        self.votes += 1
        if self.last_outcome.applied:
            _core.unpack_gradients(items, dtype, *places, address(buffers.zeros), 0, threads)
        else:
            tensor.fill_(float("nan"))


def check_gradients_of(tensor: torch.Tensor, where: str) -> None:
    """Raises for a tensor whose gradients have no signs that can be packed."""
    if tensor.dtype not in PARAMETER_DTYPES:
        raise ValueError(f"{where}: got {tensor.dtype}, wanted one of {', '.join(map(str, PARAMETER_DTYPES))}")
    if tensor.device.type != "cpu":
        raise NotImplementedError(f"{where}: got a tensor on {tensor.device}, wanted one on the CPU: votes are not built for devices")
