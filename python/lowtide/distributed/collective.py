"""One vote of all workers: the core's collective over a process group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from typing_extensions import TypedDict

from lowtide import _core
from lowtide.distributed.groups import Transport, new_group
from lowtide.distributed.layout import SignBuffers, address

if TYPE_CHECKING:
    import torch.distributed as dist

class VoteOptions(TypedDict, total=False):
    """Keyword options of everything that votes."""

    group: dist.ProcessGroup | None  # of the workers; None: all
    ties: str  # "hash" (a fair bit of seed, step and element), "plus", "minus", "zero" (the element stays), "previous"
    seed: int  # of "hash"; the same on all workers
    weight: int  # votes of this worker (the size of its batch, say); 0: it does not vote
    algorithm: str  # "auto" (by size), "two_phase", "one_phase": how bits travel, never what comes out
    timeout: float | None  # seconds; None: the group's


TIES = ("hash", "plus", "minus", "zero", "previous")
ALGORITHMS = ("auto", "one_phase", "two_phase")


class Outcome(NamedTuple):
    """What came out of a vote; the same on every worker but for the times."""

    applied: bool  # False: a worker had a value that is not finite, and nothing may be done
    nonfinite_ranks: list[int]
    failed_ranks: list[int]
    rejected: dict[int, str]  # workers whose ballots did not count, and why
    algorithm: str  # "one_phase", "two_phase", or "none" for one worker
    sent_bytes: int  # by this worker, messages without the transport's own
    seconds: dict[str, float]  # of each phase, on this worker


class Collective:
    """Votes over `group`, one after another; every worker of the group makes the same calls in the same order.

    Arguments as in `VoteOptions`. own_group: take a new group of the same workers, so that a thread may vote while others use `group`.
    Every worker of the default group must then make one, too.
    """

    def __init__(
        self,
        *,
        group: dist.ProcessGroup | None = None,
        ties: str = "hash",
        seed: int = 0,
        weight: int = 1,
        algorithm: str = "auto",
        timeout: float | None = None,
        own_group: bool = False,
    ) -> None:
        _one_of("ties", ties, TIES)
        _one_of("algorithm", algorithm, ALGORITHMS)
        if not isinstance(weight, int) or not 0 <= weight < 2**31:
            raise ValueError(f"weight: got {weight!r}, wanted an integer from 0 to 2^31 - 1")
        if timeout is not None and not timeout > 0:
            raise ValueError(f"timeout: got {timeout!r}, wanted seconds above 0, or None")
        if own_group or timeout is not None:
            group = new_group(group, timeout)
        self.ties = ties
        self.transport = Transport(group)
        self._core = _core.SignCollective(
            self.transport.rank, self.transport.size, self.transport.all_to_all, self.transport.all_gather,
            ties=ties, seed=int(seed), weight=weight, algorithm=algorithm, threads=torch.get_num_threads(),
        )  # fmt: skip

    def vote(
        self,
        buffers: SignBuffers,
        fill: Callable[[], None] | None,
        *,
        step: int,
        digest: int = 0,
        nonfinite: bool = False,
        failure: Exception | None = None,
    ) -> Outcome:
        """Workers tell each other what they are about to do; if all can, `fill` writes this one's ballot into `buffers`, and
        the majority replaces it there. failure: this worker cannot; it says so to the others, and raises it.

        Raises ValueError if workers differ in step, digest, size or rules (named), RuntimeError if another one failed,
        ConnectionError if one cannot be reached or the result did not arrive whole everywhere.
        """
        ready = _Guard(fill, failure)
        outcome = self._run(
            ready, step, self._core.vote, buffers.count, step, digest, nonfinite, ready.failed, ready,
            address(buffers.bits), address(buffers.presence), address(buffers.zeros), address(buffers.previous),
        )  # fmt: skip
        if outcome.applied and buffers.previous is not None:
            buffers.previous.copy_(buffers.bits)
        return outcome

    def mean(
        self,
        buffers: SignBuffers,
        fill: Callable[[], None] | None,
        residual: _core.SignResidual,
        *,
        step: int,
        digest: int = 0,
        nonfinite: bool = False,
    ) -> Outcome:
        """As `vote`, of bits with scales: the mean of sign times scale, with the residual of this worker's shard."""
        ready = _Guard(fill, None)
        return self._run(
            ready, step, self._core.mean, buffers.count, step, digest, nonfinite, ready.failed, ready,
            address(buffers.bits), address(buffers.scales), residual,
        )  # fmt: skip

    def _run(self, ready: _Guard, step: int, call: Any, *args: Any) -> Outcome:
        try:
            outcome = Outcome(**call(*args))
        except Exception as error:
            if ready.failure:
                raise ready.failure from None
            if isinstance(error, (ValueError, ConnectionError, MemoryError)):
                raise
            raise ConnectionError(
                f"vote {step} of rank {self.transport.rank}: the other workers could not be reached: {error}; nothing was "
                "applied, and this process group is of no more use"
            ) from error
        if ready.failure:
            raise ready.failure
        if outcome.failed_ranks:
            raise RuntimeError(f"vote {step}: ranks {outcome.failed_ranks} failed, and say why; nothing was applied")
        return outcome

    def require_same(self, values: Mapping[str, int]) -> None:
        """ValueError, on every worker, naming what is not the same on all."""
        import torch.distributed as dist

        transport = self.transport
        mine = torch.tensor(list(values.values()), dtype=torch.int64, device=transport.device)
        every = [torch.empty_like(mine) for _ in range(transport.size)]
        dist.all_gather(every, mine, group=transport.group)
        for place, what in enumerate(values):
            found = [int(one[place]) for one in every]
            if len(set(found)) > 1:
                others = [rank for rank, value in enumerate(found) if value != found[0]]
                raise ValueError(f"got workers that differ in {what}: ranks {others} from rank 0; wanted the same on all")


def _one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name}: got {value!r}, wanted one of {', '.join(map(repr, known))}")


class _Guard:
    """Fills a ballot; what goes wrong waits until the others know."""

    def __init__(self, fill: Callable[[], None] | None, failure: Exception | None) -> None:
        self._fill, self.failure = fill, failure

    @property
    def failed(self) -> bool:
        return self.failure is not None

    def __call__(self) -> bool:
        try:
            if self._fill:
                self._fill()
        except Exception as error:
            self.failure = error
        return self.failure is None
