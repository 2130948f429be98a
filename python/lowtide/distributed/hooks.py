"""Communication hooks of DistributedDataParallel that replace the mean of gradients by the majority of signs."""

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

# The fewest elements in each part of a pass's vote, except the last: buckets wait until they have as many. A part takes two or
# three rounds of messages, each a millisecond or more while workers compute; 4 M signs take 6 ms at 1 Gb/s.
LEAST = 4_000_000

BucketFuture = torch.futures.Future[torch.Tensor]


class Arrived(NamedTuple):
    """A bucket that has arrived and waits for others."""

    buffer: torch.Tensor
    items: list[tuple[int, int, int]]  # for each gradient: address, elements, index of its first sign
    numbers: list[int]  # the parameters' numbers
    future: BucketFuture
    queue: int  # the queue that computed the gradients
    same_stream: Callable[[], AbstractContextManager[object]]  # enters torch's stream of that queue in another thread

    @property
    def dtype(self) -> str:
        return str(self.buffer.dtype)


def votes_of(state_dict: dict[str, Any]) -> int:
    """The number of votes in a state_dict. Raises ValueError if it is missing."""
    votes: Any = state_dict.get("votes")
    expect(isinstance(votes, int) and votes >= 0, "state_dict['votes']", votes, "0 or more")
    return int(votes)


class SignHook:
    """Base class; use `SignVote` or `ErrorFeedbackSign`. Register it with `ddp.register_comm_hook(None, hook)` or `register`.

    Work runs in the hook's own thread and process group. Gradients are replaced after the last bucket of a backward pass has
    arrived. Positions of signs depend only on the order of the model's parameters, because torch may rebuild its buckets. Under
    `no_sync()` torch calls no hook: gradients add up, and the next pass votes on the sum.

    If a gradient on any worker is not finite, the gradients become NaN on all workers, so that `GradScaler`, or any other
    check, skips the step everywhere. `backward()` raises an error of `Collective.vote` as RuntimeError with its text;
    `last_error` keeps the original.

    model: the DDP model or the model inside it, on the CPU or one device, where work runs on the stream on which torch calls
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
        self._threads = torch.get_num_threads()  # backward()'s thread has another number
        self._arrived: list[Arrived] = []
        self.votes = 0
        self.last_outcome: Outcome | None = None
        self.last_error: BaseException | None = None

    def _beside_computing(self) -> bool:
        """True if large votes run while backward continues."""
        return False

    def __reduce_ex__(self, protocol: object) -> Any:
        return self._collective.__reduce_ex__(protocol)  # raises

    def register(self, ddp: torch.nn.parallel.DistributedDataParallel) -> None:
        """Makes this the hook of `ddp`. Call it before the first backward pass."""
        ddp.register_comm_hook(None, self)

    def __call__(self, state: object, bucket: dist.GradBucket) -> BucketFuture:
        """The hook. `state` is ignored."""
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
        """Does what is possible before the other buckets of the pass arrive. Raises nothing."""

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
            # A future accepts only an Exception; for anything else, backward() would wait forever.
            told = error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
            for bucket in arrived:
                bucket.future.set_exception(told)  # type: ignore[arg-type]  # torch annotates another type
            return
        for bucket in arrived:
            with bucket.same_stream():  # whoever waits for it runs after the work queued there
                bucket.future.set_result(bucket.buffer)

    def _values(self) -> dict[str, int]:
        """A checksum of the parameters' values, if workers compare them in this vote."""
        due = self._collective.due(self.votes)
        return {"the parameters' values": checksum_of(self._params)} if due else {}

    def _exchange(self, arrived: list[Arrived]) -> Outcome:
        """Exchanges gradients, and replaces them if the vote was applied."""
        raise NotImplementedError


def _place_of(named: Sequence[tuple[str, torch.nn.Parameter]]) -> Place:
    """The one place of all parameters."""
    found = {check_gradients_of(param, name): name for name, param in reversed(named)}
    if len(found) > 1:
        got = " and ".join(f"{name} on {place.device}" for place, name in found.items())
        raise NotImplementedError(f"model: got {got}, wanted all parameters on one device")
    return next(iter(found))


class SignVote(SignHook):
    """signSGD with majority vote (Bernstein et al., arXiv 1810.05291): every gradient element becomes the majority sign of the
    workers, +1 or -1. Sends 1/32 of the bytes of float32 gradients. For optimizers that use signs, because magnitudes are lost
    (`torch.optim.SGD` with a learning rate for signs is signSGD).

    overlap: votes on buckets as soon as 4 M elements have arrived, while backward continues. False: votes once after the last
    bucket, in fewer messages, for networks that do not delay the step. The result is the same, gradients are replaced after the
    last bucket either way, and all workers must use the same value. Blocks of 64 elements that are zero on every worker give 0;
    other exact zeros alternate between + and - from vote to vote.
    `vote`: see `VoteOptions`; give weight if batches differ in size between workers.
    """

    def __init__(self, model: torch.nn.Module, *, overlap: bool = True, **vote: Unpack[VoteOptions]) -> None:
        expect(isinstance(overlap, bool), "overlap", repr(overlap), "True or False")
        self._overlap = overlap
        super().__init__(model, vote)
        self._buffers = self._collective.buffers(self._layout.count, self._place)
        self._outcome: Outcome | None = None  # of this pass, so far
        self._failure: BaseException | None = None
        self._parts = 0  # of this pass's vote, so far
        self._waiting: list[Arrived] = []  # buckets that wait for others
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
                    return  # all workers know and stop voting in this pass
                self._vote(arrived, self._buffers.part(*run), more=not last or number + 1 < len(runs))
        except BaseException as error:
            self._failure = error

    def _vote(self, arrived: Sequence[Arrived], part: SignBuffers | SignPart, more: bool = False) -> None:
        """Votes on the part's gradients of these buckets. The result stays in the buffers; gradients change only when the pass
        is complete. more: other parts of the pass follow."""
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
        except BaseException as error:  # whatever it is, the others are waiting
            failure = error
        with last.same_stream():  # the stream on which a device votes
            outcome = self._collective.vote(
                part, None, step=self.votes, part=self._parts, more=more, alike=values, nonfinite=nonfinite,
                failure=failure,
            )  # fmt: skip
        self._parts += 1
        self._outcome = self._outcome.joined(outcome) if self._outcome else outcome

    def _exchange(self, arrived: list[Arrived]) -> Outcome:
        """Joins the votes on buckets and replaces the gradients by the result."""
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
        """{"votes": the number of votes}, which determines ties and zeros."""
        return {"votes": self.votes}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state saved with any number of workers. Call it on every worker."""
        self.votes = votes_of(state_dict)
