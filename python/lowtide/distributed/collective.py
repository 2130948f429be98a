"""A vote among all workers: the core's collective over a process group."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import torch
from typing_extensions import TypedDict

from lowtide import _core
from lowtide.checks.hints import hint
from lowtide.checks.values import expect
from lowtide.devices.places import Place
from lowtide.distributed.buffers import SignBuffers, SignPart
from lowtide.distributed.device_vote import DeviceVote
from lowtide.distributed.groups import Transport, new_group
from lowtide.distributed.layout import address, digest
from lowtide.distributed.residuals import DeviceShardResidual, ShardResidual
from lowtide.sign import Ties

if TYPE_CHECKING:
    import torch.distributed as dist


class VoteOptions(TypedDict, total=False):
    """Keyword options of all classes that vote."""

    group: dist.ProcessGroup | None  # the workers; None: all
    # How ties are decided: "hash" (a fair bit from seed, step and element), "plus", "minus", "zero" (the element stays), or
    # "previous" (the last result; minus at first, after a resume and for new parameters)
    ties: str
    seed: int  # for "hash"; the same on all workers
    weight: int  # votes of this worker (for example, its batch size); 0: it does not vote
    algorithm: str  # how bits travel: "auto" (by size), "two_phase", "one_phase"; does not change results
    timeout: float | None  # seconds; None: the group's
    commit: bool  # False saves the last round of a vote: docs/project/votes.md
    # Workers compare the values of all parameters, which reads them once, in votes whose number is a multiple of this. With 0
    # (default), optimizers compare only in the first vote, and hooks never.
    check_every: int


COMPARED = 24  # the most values in one comparison


TIES: tuple[str, ...] = get_args(Ties)
ALGORITHMS = ("auto", "one_phase", "two_phase")


class Outcome(NamedTuple):
    """The outcome of a vote. Only the times differ between workers."""

    applied: bool  # False: a worker had a non-finite value, and nothing may be applied
    nonfinite_ranks: list[int]
    failed_ranks: list[int]
    rejected: dict[int, str]  # workers whose ballots did not count, and the reasons
    algorithm: str  # "one_phase", "two_phase", or "none" for a single worker
    sent_bytes: int  # by this worker, except messages of the transport itself
    seconds: dict[str, float]  # for each phase, on this worker

    def joined(self, other: Outcome) -> Outcome:
        """Joins the outcomes of two parts of a vote."""
        seconds = {phase: taken + other.seconds[phase] for phase, taken in self.seconds.items()}
        return Outcome(
            self.applied and other.applied, sorted({*self.nonfinite_ranks, *other.nonfinite_ranks}),
            sorted({*self.failed_ranks, *other.failed_ranks}), {**self.rejected, **other.rejected}, other.algorithm,
            self.sent_bytes + other.sent_bytes, seconds,
        )  # fmt: skip


class Collective:
    """Votes over `group`, one after another. Every worker of the group must make the same calls in the same order.

    Arguments as in `VoteOptions`. own_group: creates a new group of the same workers, so that one thread can vote while others
    use `group`; a timeout also does. beside_computing: for large votes while the worker computes, when "auto" would measure the
    computation instead of the link. Then "auto" means two_phase, which sends fewer bytes, for more than two workers, and
    one_phase otherwise. Cannot be copied or pickled."""

    def __init__(
        self,
        *,
        group: dist.ProcessGroup | None = None,
        ties: str = "hash",
        seed: int = 0,
        weight: int = 1,
        algorithm: str = "auto",
        timeout: float | None = None,
        commit: bool = True,
        check_every: int = 0,
        own_group: bool = False,
        beside_computing: bool = False,
    ) -> None:
        _one_of("ties", ties, TIES)
        _one_of("algorithm", algorithm, ALGORITHMS)
        _integer("weight", weight, 31)
        _integer("seed", seed, 64)
        _integer("check_every", check_every, 31)
        limited = timeout is None or (isinstance(timeout, (int, float)) and 0 < timeout < float("inf"))
        expect(limited, "timeout", f"{timeout!r} ({type(timeout).__name__})", "seconds above 0, or None")
        if own_group or timeout is not None:
            group = new_group(group, timeout)
        self.ties, self.seed, self.weight, self.check_every = ties, seed, weight, check_every
        self.completed: int | None = None  # the last vote that was applied
        self._lost_in = ""  # the error that broke the group
        self.transport = Transport(group)
        if algorithm == "auto" and beside_computing:
            algorithm = "two_phase" if self.transport.size > 2 else "one_phase"
        if self.transport.moves_some:
            algorithm = "two_phase"  # devices vote so; a worker that fails before it has a device must join in
        self._core = _core.SignCollective(
            self.transport.rank, self.transport.size, self.transport.all_to_all, self.transport.all_gather,
            ties=ties, seed=seed, weight=weight, algorithm=algorithm, threads=torch.get_num_threads(), commit=commit,
        )  # fmt: skip

    def buffers(self, count: int, place: Place, scales: bool = False) -> SignBuffers:
        """Makes buffers for the signs of votes. scales: for error feedback."""
        return SignBuffers(count, None if scales else self.ties, place, self.transport.moves(place))

    def vote(
        self,
        buffers: SignBuffers | SignPart,
        fill: Callable[[], object] | None,
        *,
        step: int,
        residual: ShardResidual | DeviceShardResidual | None = None,
        part: int = 0,
        more: bool = False,
        alike: Mapping[str, int | float] | None = None,
        nonfinite: bool = False,
        failure: BaseException | None = None,
    ) -> Outcome:
        """Workers first announce what they are about to do. If all can, `fill` writes this worker's ballot into `buffers` (or a
        part of them, in a vote in parts: see `complete`), and the majority replaces it there. With `residual`, this worker's
        shard of residuals, and with scales in the buffers, the mean of sign times scale replaces it instead.

        part, more: for a vote in parts, which takes its last rounds once, and without `fill`: the number of parts before this
        one (0 begins the vote), and whether others follow. Results of parts are void until the last part is applied: a part
        that is not applied, or an error in any part, ends the vote on all workers. alike: values, by name, that must agree on
        all workers; errors show floats. failure: an error of this worker; the others are told, and it is raised here.

        Raises ValueError if workers differ in step, size, rules or `alike` (named), RuntimeError if another worker failed,
        ConnectionError if a worker cannot be reached or the result did not arrive whole everywhere.
        """

        def ballot() -> bool:
            """Holds an error back until the others know of it."""
            nonlocal failure
            try:
                if fill:
                    fill()
            except BaseException as error:  # even KeyboardInterrupt: the others are in the middle of a call
                failure = error
            return failure is None

        assert not (more and fill), "an error of fill would reach the other workers with the next part"
        if self._lost_in:
            raise ConnectionError(f"vote {step}: workers were lost in {self._lost_in}; {self._standing()}")
        there: DeviceVote | None = None
        if buffers.of.stay and not failure:
            assert not isinstance(residual, ShardResidual)
            try:
                there = DeviceVote(self.transport, buffers, (self.ties, self.seed, step), residual)
            except Exception as error:  # whatever it is, the others are waiting
                failure = error
        arguments = (
            buffers.count, step, digest(alike) if alike else 0, nonfinite, failure is not None, ballot if fill else None,
            address(buffers.bits), address(buffers.presence), address(buffers.scales), address(buffers.zeros),
            address(buffers.previous),
        )  # fmt: skip
        try:
            if there:
                codec = residual.codec if isinstance(residual, DeviceShardResidual) else ""
                found = self._core.vote_there(*arguments, codec, buffers.first, part, more, there.run, there.deliver)
            else:
                core = residual.core if isinstance(residual, ShardResidual) else None
                found = self._core.vote(*arguments, core, buffers.first, part, more)
        except Exception as error:
            if failure:
                raise failure from None
            cause = getattr(error, "cause", None)
            if alike and cause == "digest":
                self.require_same(alike)  # every worker gets this error and makes this call
            if cause == "rank failed":
                raise RuntimeError(f"vote {step}: {error}") from None
            if isinstance(error, (ValueError, ConnectionError, MemoryError)):
                raise
            raise self.lost(f"vote {step}", error) from None
        if failure:
            raise failure
        outcome = Outcome(**found)
        if there and outcome.applied:
            outcome = outcome._replace(sent_bytes=outcome.sent_bytes + there.sent_bytes)
        if outcome.failed_ranks:
            raise RuntimeError(f"vote {step}: ranks {outcome.failed_ranks} failed (their errors say why); nothing was applied")
        if outcome.applied and isinstance(buffers, SignBuffers):
            self.complete(step, buffers)
        return outcome

    def complete(self, step: int, buffers: SignBuffers) -> None:
        """Marks a vote, with all its parts, as applied."""
        self.completed = step
        if buffers.previous is not None:
            buffers.previous.copy_(buffers.bits)

    def lost(self, what: str, error: Exception) -> ConnectionError:
        """Makes the error for a collective that did not complete. It repeats all of `error` and says where this worker
        stands."""
        self._lost_in = what
        first, end, rest = str(error).strip().partition("\n")
        return ConnectionError(
            f"{what} of rank {self.transport.rank}: not all workers took part (one is gone, or did not make the same call): "
            f"{first}; nothing was applied here. This process group can no longer be used; {self._standing()}{end}{rest}"
        )

    def _standing(self) -> str:
        """The end of an error that breaks a group: where this worker stands, and how to continue."""
        last = "no vote is" if self.completed is None else f"vote {self.completed} is the last one that is"
        return (
            f"{last} complete on rank {self.transport.rank}, and others may have one more. In a new process group "
            "SignOptimizer.resync() takes the furthest worker's parameters; or start again from a checkpoint"
        )

    def due(self, step: int) -> bool:
        """True if workers compare the values of their parameters in this vote."""
        return self.check_every > 0 and step % self.check_every == 0

    def require_same(self, values: Mapping[str, int | float]) -> None:
        """Raises ValueError on every worker, with the name of each value that differs. Values are 63-bit integers or floats."""
        if len(values) > COMPARED:
            raise ValueError(f"got {len(values)} values to compare, wanted at most {COMPARED}")
        # The size never depends on the values, because workers that run different code must find that out, too.
        mine = torch.zeros(COMPARED, 2, dtype=torch.int64)
        for place, (what, value) in enumerate(values.items()):
            mine[place] = torch.tensor([1 + digest(what), _integer_of(value)])
        try:
            every = [dict(one) for one in self.transport.gather(mine).tolist()]
        except RuntimeError as error:
            raise self.lost("comparison", error) from None
        if any(one.keys() != every[0].keys() for one in every):
            others = [rank for rank, one in enumerate(every) if one.keys() != every[0].keys()]
            raise ValueError(
                f"got workers that vote on different things: ranks {others} differ from rank 0; wanted the same kind of "
                "optimizer or hook"
            )
        for what, value in values.items():
            found = [one[1 + digest(what)] for one in every]
            if len(set(found)) == 1:
                continue
            ranks = {one: [rank for rank, other in enumerate(found) if other == one] for one in found}
            named = (f"{_float_of(one)} on ranks {those}" for one, those in ranks.items())
            others = [rank for rank, one in enumerate(found) if one != found[0]]
            who = ", ".join(named) if isinstance(value, float) else f"ranks {others} from rank 0"
            raise ValueError(f"got workers that differ in {what}: {who}; wanted the same on all")

    def __reduce_ex__(self, protocol: object) -> Any:
        raise TypeError(
            f"got a {type(self).__name__} to copy or pickle, which holds a process group: make a new one, and load the "
            "state_dict() into the optimizer or hook"
        )


def check_vote_options(vote: object, where: str) -> None:
    """Raises TypeError unless `vote` is a `VoteOptions`."""
    if not isinstance(vote, Mapping):
        raise TypeError(f"{where}: got {vote!r} ({type(vote).__name__}), wanted a dict such as {{'ties': 'hash'}}")
    known = list(VoteOptions.__annotations__)
    for key in vote:
        if key not in known:
            raise TypeError(f"{where}: got unknown option {key!r}{hint(key, known)}, wanted one of {', '.join(known)}")


def _integer_of(value: int | float) -> int:
    return struct.unpack("<q", struct.pack("<d", value))[0] if isinstance(value, float) else int(value)


def _float_of(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])


def _integer(name: str, value: object, bits: int) -> None:
    fits = isinstance(value, int) and 0 <= value < 2**bits
    expect(fits, name, repr(value), f"an integer from 0 to 2^{bits} - 1")


def _one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    expect(value in known, name, repr(value), f"one of {', '.join(map(repr, known))}")
