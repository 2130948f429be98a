"""Optimizers whose workers exchange one bit per parameter. Each worker keeps its own momentum and votes with its sign."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT
from typing_extensions import Unpack

from lowtide.checks.values import expect
from lowtide.devices.places import HOST, Place, require_kernels
from lowtide.distributed.buffers import SignBuffers
from lowtide.distributed.collective import Collective, Outcome, VoteOptions, check_vote_options
from lowtide.distributed.groups import broadcast_parameters
from lowtide.distributed.layout import checksum_of, digest
from lowtide.engine.cores import RESIDUAL
from lowtide.engine.family import Family
from lowtide.engine.params import Param
from lowtide.optimizers.clipping import loss_scaling
from lowtide.optimizers.optimizer import Optimizer
from lowtide.options.options import DEFAULTS, Options, check_options
from lowtide.state import views


NO_NORM = "workers keep gradients of their own and vote with signs, which no positive factor changes"


class VotingFamily(Family):
    """Plain parameters on the CPU or one device. All workers learn of a non-finite gradient before one raises."""

    MAY_WAIT = False  # every parameter needs a position in ballots from the start
    SEVERAL = False

    def core_nonfinite(self, nonfinite: str) -> str:
        return "skip" if nonfinite == "raise" else nonfinite

    def check_members(self, place: Place, params: Sequence[Param]) -> None:
        require_kernels(place, self.name)
        if any(param.sharding for param in params):
            raise NotImplementedError("got a DTensor, wanted plain tensors: see ShardVote for shards")


class SignOptimizer(Optimizer):
    """Base class; use `DistributedLion` or `Signum`.

    In a step, every worker updates its own state with its own gradient and sends the sign of its update; then all move by the
    majority, p = p - lr (sign + weight_decay p). Give it gradients that are *not* averaged: from a plain model, or from
    `DistributedDataParallel` under `no_sync()`. Parameters must start equal on all workers (`broadcast_parameters`): the first
    step checks this, and every step checks that options agree. Every worker must call `step()`; a GradScaler decides by the
    gradients of its own worker, so use amp_scaling=True. Parameters are plain tensors, all on the CPU or on one device, where
    ballots and steps run on torch's current stream and only bits travel to the host.

    A block of 64 elements (of a parameter, in row-major order) that is zero on every worker neither moves nor decays. Elements
    of other blocks whose update is exactly zero on all workers oscillate by lr: + in one step and - in the next.

    State and checkpoints differ between workers: each worker saves its own, for the same number of workers, and every worker
    must call `load`. `average_state()` makes state equal on all, so that any number of workers can continue from one file. The
    optimizer cannot be copied or pickled."""

    FAMILY = VotingFamily
    REFUSES = {
        "max_grad_norm": NO_NORM,
        "max_grad_spike": NO_NORM,
        "prefetch_in_backward": "steps are votes",
        "step_in_backward": "steps are votes",
        "offload_in_backward": "steps are votes",
    }

    def __init__(
        self, params: ParamsT, rule: str, hyper: dict[str, Any], vote: VoteOptions, options: Options
    ) -> None:
        names = [name for name in hyper if name not in ("dampening", "nesterov")]
        for name in options:
            if name in VoteOptions.__annotations__:
                raise TypeError(f"{type(self).__name__}: got argument {name!r}, wanted it in vote={{{name!r}: ...}}")
        check_options(options, type(self).__name__, [*names, "vote"])
        for name, reason in self.REFUSES.items():
            none = DEFAULTS[name]
            got = options.get(name, none)
            expect(got is none, f"{type(self).__name__}: {name}", repr(got), f"{none}: {reason}")
        check_vote_options(vote, f"{type(self).__name__}, vote")
        self._vote: VoteOptions = {**vote}
        self._collective = Collective(**vote)
        self._buffers: SignBuffers | None = None
        self._agreed = False  # workers are known to have the same parameters
        self._shapes = 0  # digest of shapes and types
        self.last_outcome: Outcome | None = None
        super().__init__(params, rule, {**hyper, "votes": 0}, options)  # every group has the number of votes

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Steps all workers together. Returns the loss of the closure, if given.

        Raises, on every reachable worker: ValueError if workers differ in parameters, options or steps, or, with
        nonfinite="raise", if a gradient on any of them is not finite; an error of `Optimizer.step` on its worker, and
        RuntimeError on the others; ConnectionError if a worker is lost, or if its message is damaged beyond what a vote
        tolerates. Parameters are then unchanged. If the vote itself failed, state includes the gradient."""
        loss: float | None = None
        if not self.state and self._gives_state():
            return loss
        votes, alike, bad = self._votes, None, False
        buffers, fill, failure = SignBuffers(0, self._collective.ties), None, None
        try:
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            bad, fill = self._prepare()
            alike, buffers = self._alike(), self._room()
        except Exception as error:  # whatever it is, the others are waiting
            failure = error
        outcome = self._collective.vote(buffers, fill, step=votes, alike=alike, nonfinite=bad, failure=failure)
        self.last_outcome = outcome
        self._voted()
        if outcome.applied:
            queue, there = self.engine.queue(), buffers.there
            buffers.send(queue)
            with buffers.using(queue):
                self._core.apply_signs(there.bits, there.presence, there.zeros, queue)
            for group in self.param_groups:
                group["votes"] = votes + 1
        elif self.engine.settings.nonfinite == "raise" and not self.engine.settings.amp_scaling:
            raise ValueError(
                f"vote {votes}: got gradients that are not finite on ranks {outcome.nonfinite_ranks}, wanted finite ones; no "
                "parameter was changed"
            )
        else:
            self.engine.count(skipped=1)
        if self.engine.awaited:
            self._adopt_new_state()
        self._skips.look(self.engine.skipped_steps(), partial(self._told, -1), self.engine.settings.amp_scaling)
        return loss

    def clip_grad_norm_(self, *args: Any, **kwargs: Any) -> Tensor:
        """Raises ValueError, because workers share no gradient."""
        raise ValueError(f"{type(self).__name__}: got clip_grad_norm_, wanted no clipping: {NO_NORM}")

    def _voted(self) -> None:
        """Called at the end of a vote, when all workers have agreed."""
        self._agreed = True

    def _prepare(self) -> tuple[bool, Callable[[], object]]:
        """Returns whether a gradient is not finite, and the function that makes this worker's ballot. Raises if this worker
        cannot vote."""
        self._push_options()
        scale, bad = self._check_gradients()

        def fill() -> None:
            self._ballots(scale)
            self._room().fetch(self.engine.queue())

        return bad, fill

    def _check_gradients(self) -> tuple[float, bool]:
        """The factor of the gradients, and whether any gradient is not finite."""
        scale, bad, _ = loss_scaling(self.engine, self, capturing=False)
        if bad is None:
            bad = self.engine.settings.nonfinite != "propagate" and self._core.check(scale, self.engine.queue()) >= 0
        return scale, bad

    def _ballots(self, scale: float) -> None:
        """Steps the state and fills the buffers on the parameters' device."""
        buffers, queue = self._room(), self.engine.queue()
        with buffers.using(queue):
            self._core.ballots(buffers.there.bits, buffers.there.presence, self._votes % 2 == 0, scale, True, queue)

    @property
    def _votes(self) -> int:
        return int(self.param_groups[0]["votes"])

    def _room(self) -> SignBuffers:
        count, place = self._core.sign_count(), self.engine.place or HOST
        if self._buffers is None or (self._buffers.count, self._buffers.place) != (count, place):
            self._buffers = self._collective.buffers(count, place)
        return self._buffers

    def _alike(self) -> dict[str, int | float]:
        """Values, by name, that must agree on all workers."""
        found: dict[str, int | float] = {"the optimizer's class": digest(type(self).__name__)}
        found["the parameters' shapes and types"] = self._shapes
        for key in self.engine.family.keys:
            values = [of_group.pushed[key] for of_group in self.engine.groups]
            found[key] = float(values[0]) if len(set(values)) == 1 else digest(values)
        found["nonfinite"] = digest(self.engine.settings.nonfinite)
        found["what came before (add parameters and load state on all of them, or on none)"] = int(self._agreed)
        weights = 0  # not compared
        if not self._agreed or self._collective.due(self._votes):
            weights = checksum_of(self.engine.stand_ins())
        found["the parameters' values (use lowtide.distributed.broadcast_parameters)"] = weights
        return found

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Like `lowtide.Optimizer.add_param_group`. Call it on every worker."""
        super().add_param_group(param_group)
        self.param_groups[-1]["votes"] = self._votes
        self._look_at_params()

    def _rebind(self, kept: list[int], sources: list[int] | None, sizes: bool = True) -> None:
        super()._rebind(kept, sources, sizes)
        self._look_at_params()

    def _look_at_params(self) -> None:
        self._shapes = digest([(tuple(param.shape), str(param.dtype)) for param in self.engine.tensors])
        self._agreed = False

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Like `lowtide.Optimizer.load_state_dict`. Call it on every worker."""
        if isinstance(state_dict, dict) and isinstance(groups := state_dict.get("param_groups"), list):
            for number, group in enumerate(groups):
                votes = group.get("votes", 0) if isinstance(group, dict) else 0  # state of other optimizers has none
                expect(isinstance(votes, int) and votes >= 0, f"param_groups[{number}]['votes']", votes, "0 or more")
        super().load_state_dict(state_dict)

    def _take_groups(self, groups: list[dict[str, Any]]) -> None:
        super()._take_groups(groups)
        votes = self.param_groups[0].get("votes", 0)
        for group in self.param_groups:
            group["votes"] = votes
        self._agreed = False
        self._buffers = None

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError(
            f"got a {type(self).__name__} to copy or pickle, which holds a process group: make a new one and load the "
            "state_dict()"
        )

    @torch.no_grad()
    def average_state(self) -> None:
        """Gives every worker the mean of all workers' state, one parameter at a time (4 bytes per element travel). Every worker
        must call it. Use it before a checkpoint from which a different number of workers continues."""
        self._follow()
        self.engine.copies.read(self.engine)
        transport = self._collective.transport
        counts = [(int(self._core.step_count(i)), self._has_buffers(i)) for i in range(len(self.engine.params))]
        try:
            most = transport.gather(torch.tensor(counts, dtype=torch.int64).reshape(-1, 2)).amax(0).tolist()
            for number, (steps, state) in enumerate(most):
                if state:
                    self._core.allocate_state(number)
                    for k in range(len(self._core.states_of(number))):
                        mean = transport.sum(self._core.export_state(number, k)) / transport.size
                        self._core.import_state(number, k, mean)
                self._core.set_step_count(number, steps)
        except RuntimeError as error:
            raise self._collective.lost("average_state()", error) from None
        self._adopt_new_state()

    @torch.no_grad()
    def resync(self, **vote: Unpack[VoteOptions]) -> int:
        """Continues in another process group, after one was lost or with other workers. All take the parameters, including
        residuals of the master, and the number of votes from the worker that is furthest. Each keeps its own momentum; a new
        worker starts without. Every worker of the group must call it.

        vote: `VoteOptions` that change, such as `group` (None, the default: all workers). Returns the number of votes. Raises
        ValueError if workers differ in class or shapes, and ConnectionError if one is lost again; call it again in another
        group then."""
        self._follow()
        self.engine.copies.read(self.engine)
        options: VoteOptions = {**self._vote, "group": None, **vote}
        collective = Collective(**options)
        collective.require_same({
            "the optimizer's class": digest(type(self).__name__), "the parameters' shapes and types": self._shapes
        })  # fmt: skip
        group = collective.transport.group
        self.synchronize()
        try:
            votes = collective.transport.gather(torch.tensor([self._votes])).flatten().tolist()
            source = votes.index(max(votes))
            for number, param in enumerate(self.engine.tensors):
                broadcast_parameters([param], group, source)
                if RESIDUAL in views.layout(self.engine, number):
                    self._core.allocate_state(number)
                    state = self._core.read_state(number)
                    broadcast_parameters([state[RESIDUAL]], group, source)
                    self._core.write_state(number, {name: one for name, one in state.items() if name != "step"})
        except RuntimeError as error:
            raise collective.lost("resync()", error) from None
        self._vote, self._collective, self._buffers, self._agreed = options, collective, None, False
        for of_group in self.param_groups:
            of_group["votes"] = max(votes)
        self._show_state()
        return int(max(votes))

    def _has_buffers(self, number: int) -> bool:
        """True if steps have filled the state of a parameter."""
        if not self._core.has_state(number) or not int(self._core.step_count(number)):
            return False
        return self._core.is_paged(number) or len(self._core.state(number)) > 1


class DistributedLion(SignOptimizer):
    """Distributed Lion with majority vote (Liu et al., arXiv 2404.00438, algorithm 1; Lion: arXiv 2302.06675):

        c = β1 m + (1 − β1) g        m = β2 m + (1 − β2) g        p = p − lr (majority of sign(c) + λ p)

    Each worker has its own m and g. State and arguments are as for `lowtide.Lion`, on every worker; `vote`: see `VoteOptions`.
    `SignOptimizer` describes a step.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-4,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        vote: VoteOptions | None = None,
        **options: Unpack[Options],
    ) -> None:
        hyper = {"lr": lr, "betas": betas, "weight_decay": weight_decay}
        super().__init__(params, "lion", hyper, vote or {}, options)
