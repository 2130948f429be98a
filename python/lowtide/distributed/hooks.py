"""Communication hooks of DistributedDataParallel: the majority of signs replaces the mean of gradients."""

# No `from __future__ import annotations`: torch reads a hook's annotations and expects types.
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from typing_extensions import Unpack

from lowtide.checks.values import expect
from lowtide.devices import places
from lowtide.devices.places import Place
from lowtide.distributed.buffers import SignBuffers, SignPart
from lowtide.distributed.collective import Collective, Outcome, VoteOptions, check_vote_options
from lowtide.distributed.layout import Layout, check_gradients_of, checksum_of

# Least number of elements in each part of a pass's vote, except the last: buckets wait until they add up to it. A part takes
# two or three rounds of messages, each a millisecond or more while workers compute; 4 M signs take 6 ms at 1 Gb/s.
LEAST = 4_000_000

BucketFuture = torch.futures.Future[torch.Tensor]


class Arrived(NamedTuple):
    """A bucket that waits for others."""

    buffer: torch.Tensor
    items: list[tuple[int, int, int]]  # for each gradient: address, elements, index of its first sign
    numbers: list[int]  # the parameters' numbers
    future: BucketFuture
    queue: int  # the queue on which the gradients were computed
    same_stream: Callable[[], AbstractContextManager[object]]  # enters torch's stream for that queue, in another thread

    @property
    def dtype(self) -> str:
        return str(self.buffer.dtype)


def votes_of(state_dict: dict[str, Any]) -> int:
    """The number of votes. Raises ValueError if it is missing."""
    votes: Any = state_dict.get("votes")
    expect(isinstance(votes, int) and votes >= 0, "state_dict['votes']", votes, "0 or more")
    return int(votes)


class SignHook:
    """Base class; use `SignVote` or `ErrorFeedbackSign`. Register with `ddp.register_comm_hook(None, hook)`, or
    `register`.

    Work runs in the hook's own thread and process group; gradients are replaced when the last bucket of a backward pass has
    arrived. The position of a parameter's signs depends only on the order of the model's parameters: torch may rebuild its
    buckets. Under `no_sync()` torch calls no hook: gradients add up, and the next pass votes on the sum.

    If a gradient on any worker is not finite, the gradients become NaN on all workers, so that `GradScaler`, or any other
    check, skips the step everywhere. Errors come out of `backward()`, as RuntimeError with the text of the error from
    `Collective.vote`, which is kept in `last_error`.

    model: the DDP model or the one inside, on the CPU or one device, where everything runs on the stream on which torch calls
    the hook. Every worker of the group makes its own hook. It cannot be copied or pickled: see `state_dict`.
    """

    def __init__(self, model: torch.nn.Module, vote: VoteOptions) -> None:
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"model: got a {type(model).__name__}, wanted a torch.nn.Module")
        check_vote_options(vote, type(self).__name__)
        self.__name__ = self.__qualname__ = f"lowtide.{type(self).__name__}"  # torch logs these names
        inner = model.module if isinstance(model, torch.nn.parallel.DistributedDataParallel) else model
        named = [(name, param) for name, param in inner.named_parameters() if param.requires_grad]
        expect(bool(named), "model", "no parameter that requires a gradient", "one")
        self._place = _place_of(named)
        self._layout = Layout(named)
        self._params = [param for _, param in named]
        self._numbers = {id(param): number for number, param in enumerate(self._params)}
        self._collective = Collective(**vote, own_group=True, beside_computing=self._beside_computing())
        self._collective.require_same({"the model's parameters": self._layout.digest})
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lowtide-vote")
        self._threads = torch.get_num_threads()  # as in the thread of backward()
        self._arrived: list[Arrived] = []
        self.votes = 0
        self.last_outcome: Outcome | None = None
        self.last_error: BaseException | None = None

    def _beside_computing(self) -> bool:
        """True if large votes run while backward goes on."""
        return False

    def __reduce_ex__(self, protocol: object) -> Any:
        return self._collective.__reduce_ex__(protocol)  # refuses

    def register(self, ddp: torch.nn.parallel.DistributedDataParallel) -> None:
        """Makes this the hook of `ddp`, before its first backward pass."""
        ddp.register_comm_hook(None, self)

    def __call__(self, state: object, bucket: dist.GradBucket) -> BucketFuture:
        """The hook; `state` is not used."""
        if bucket.index() == 0:
            self._arrived = []  # discards the buckets of an aborted pass
            self._threads = torch.get_num_threads()
        buffer = bucket.buffer()
        on_device = buffer.device.type != "cpu"
        future = BucketFuture(devices=[buffer.device]) if on_device else BucketFuture()
        items, numbers = [], []
        for param, grad in zip(bucket.parameters(), bucket.gradients(), strict=True):
            number = self._numbers.get(id(param))
            if number is None:
                raise ValueError("got a bucket with a parameter that the hook's model did not have; make a new hook")
            numbers.append(number)
            items.append((grad.data_ptr(), grad.numel(), self._layout.offsets[number]))
        self._arrived.append(Arrived(buffer, items, numbers, future, self._place.queue(), places.stream_of(buffer)))
        self._thread.submit(self._begin, self._arrived[-1], bucket.index() == 0, bucket.is_last())
        if bucket.is_last():
            arrived, self._arrived = self._arrived, []
            self._thread.submit(self._finish, arrived)
        return future

    def _begin(self, bucket: Arrived, first: bool, last: bool) -> None:
        """Does what is possible before the pass's other buckets arrive. Raises nothing."""

    def _finish(self, arrived: list[Arrived]) -> None:
        try:
            outcome = self._exchange(arrived)
            self.last_outcome = outcome
            if outcome.applied:
                self.votes += 1
            else:
                for bucket in arrived:
                    with bucket.same_stream():
                        bucket.buffer.fill_(float("nan"))
        except BaseException as error:
            self.last_error = error
            # A future accepts no other exceptions, and backward() would wait for it forever.
            told = error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
            for bucket in arrived:
                bucket.future.set_exception(told)  # type: ignore[arg-type]  # says torch, and takes exceptions
            return
        for bucket in arrived:
            with bucket.same_stream():  # whoever waits for it continues behind the work queued there
                bucket.future.set_result(bucket.buffer)

    def _values(self) -> dict[str, int]:
        """The values of the parameters, if workers compare them in this vote."""
        due = self._collective.due(self.votes)
        return {"the parameters' values": checksum_of(self._params)} if due else {}

    def _exchange(self, arrived: list[Arrived]) -> Outcome:
        """Replaces the gradients if the vote was applied."""
        raise NotImplementedError


def _place_of(named: Sequence[tuple[str, torch.nn.Parameter]]) -> Place:
    """The place of all parameters."""
    found = {check_gradients_of(param, name): name for name, param in reversed(named)}
    if len(found) > 1:
        got = " and ".join(f"{name} on {place.device}" for place, name in found.items())
        raise NotImplementedError(f"model: got {got}, wanted all parameters on one device")
    return next(iter(found))


class SignVote(SignHook):
    """signSGD with majority vote (Bernstein et al., arXiv 1810.05291): every gradient element becomes the sign, +1 or -1, of
    the majority of workers. 1/32 of the bytes of float32 gradients. For optimizers that use signs (`torch.optim.SGD` with a
    learning rate for signs is signSGD); magnitudes are lost.

    overlap: votes on buckets as soon as 4 M elements have arrived, while backward goes on. False: votes once after the last
    bucket, in fewer messages, for networks that do not delay the step. The result is the same; gradients are replaced after the
    last bucket, and all workers must use the same value. The result is 0 for a block of 64 elements that are zero on every
    worker; other exact zeros alternate between + and - from vote to vote.
    `vote`: see `VoteOptions`; weight for workers with batches of different sizes.
    """

    def __init__(self, model: torch.nn.Module, *, overlap: bool = True, **vote: Unpack[VoteOptions]) -> None:
        expect(isinstance(overlap, bool), "overlap", repr(overlap), "True or False")
        self._overlap = overlap
        super().__init__(model, vote)
        self._buffers = self._collective.buffers(self._layout.count, self._place)
        self._outcome: Outcome | None = None  # this pass's outcome so far
        self._failure: BaseException | None = None
        self._parts = 0  # parts of this pass's vote so far
        self._waiting: list[Arrived] = []  # buckets that wait for more
        self._least = LEAST

    def _beside_computing(self) -> bool:
        return self._overlap and self._layout.count >= LEAST

    def _begin(self, bucket: Arrived, first: bool, last: bool) -> None:
        if first:
            self._outcome, self._failure, self._parts, self._waiting = None, None, 0, []
        if not self._overlap:
            return
        self._waiting.append(bucket)
        if not last and sum(one.buffer.numel() for one in self._waiting) < self._least:
            return
        arrived, self._waiting = self._waiting, []
        try:
            runs = self._layout.runs([number for one in arrived for number in one.numbers])
            if last and not runs:
                runs = [(0, 0)]  # an empty run ends the vote
            for number, run in enumerate(runs):
                if self._failure or (self._outcome and not self._outcome.applied):
                    return  # all workers know, and vote no more in this pass
                self._vote(arrived, self._buffers.part(*run), more=not last or number + 1 < len(runs))
        except BaseException as error:
            self._failure = error

    def _vote(self, arrived: Sequence[Arrived], part: SignBuffers | SignPart, more: bool = False) -> None:
        """Votes on the gradients of these buckets that are in the part. The result stays in the buffers: gradients do not
        change until the pass is complete. more: other parts of the pass follow."""
        buffers, last, values = self._buffers, arrived[-1], {}
        nonfinite, failure = False, None
        try:
            if not self._outcome:
                with last.same_stream():
                    values = self._values()
            buffers.clear_mark(last.queue)
            for bucket in arrived:
                items = [item for item in bucket.items if 0 <= item[2] - part.first < part.count]
                buffers.pack(items, bucket.dtype, self.votes % 2 == 0, self._threads, bucket.queue)
            nonfinite = buffers.fetch(last.queue, part if isinstance(part, SignPart) else None)
        except BaseException as error:  # any exception: the others are waiting
            failure = error
        with last.same_stream():  # the stream on which a device votes
            outcome = self._collective.vote(
                part, None, step=self.votes, part=self._parts, more=more, alike=values, nonfinite=nonfinite,
                failure=failure,
            )  # fmt: skip
        self._parts += 1
        self._outcome = self._outcome.joined(outcome) if self._outcome else outcome

    def _exchange(self, arrived: list[Arrived]) -> Outcome:
        """Joins the votes on buckets and replaces the gradients by the joint result."""
        if not self._overlap:
            self._outcome, self._failure, self._parts = None, None, 0
            self._vote(arrived, self._buffers)
        if self._failure:
            raise self._failure
        assert self._outcome is not None
        if self._outcome.applied:
            buffers = self._buffers
            buffers.send(arrived[-1].queue)
            for bucket in arrived:
                buffers.unpack(bucket.items, bucket.dtype, self._threads, bucket.queue)
            with arrived[-1].same_stream():
                self._collective.complete(self.votes, buffers)
        return self._outcome

    def state_dict(self) -> dict[str, Any]:
        """{"votes": their number}, which determines ties and zeros."""
        return {"votes": self.votes}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads the state saved with any number of workers; call it on every worker."""
        self.votes = votes_of(state_dict)
