"""Optimizers whose workers exchange one bit per parameter: each keeps its own momentum and votes with its sign."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT
from typing_extensions import Unpack

from lowtide.checks import Options
from lowtide.distributed.collective import Collective, Outcome, VoteOptions
from lowtide.distributed.layout import SignBuffers, address, digest
from lowtide.optimizer import Optimizer

class SignOptimizer(Optimizer):
    """Base class; use `DistributedLion` or `Signum`.

    One step: every worker takes its own gradient into its own state, sends the sign of its update, and all move by the
    majority, p = p - lr (sign + weight_decay p). Give it gradients that are *not* averaged: a plain model, or
    `DistributedDataParallel` under `no_sync()`. Parameters must start alike on all workers (`broadcast_parameters`); the
    first step checks that, and every step that workers have the same options. Every worker must call `step()`.

    A block of 64 elements (of a parameter, in row-major order) that is zero on every worker does not move or decay at
    all; elements of other blocks whose update is exactly zero on all workers swing by lr around where they are, + in one
    step and - in the next.

    State differs between workers, and so does a checkpoint of it: each saves its own, to go on with as many workers.
    `average_state()` first makes it the same on all, so that any number of workers can go on with one file.
    """

    def __init__(
        self, params: ParamsT, rule: str, hyper: dict[str, Any], vote: VoteOptions, options: Options
    ) -> None:
        self._collective = Collective(**vote)
        self._buffers: SignBuffers | None = None
        self._agreed = False  # that workers have the same parameters
        self.last_outcome: Outcome | None = None
        super().__init__(params, rule, {**hyper, "votes": 0}, options)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step of all workers together; returns the closure's loss, if there is a closure.

        Raises, on every worker that is there: ValueError if workers differ in parameters, options or steps, and what
        `Optimizer.step` raises (on one worker that, on the others RuntimeError); ConnectionError if a worker is lost or
        what it sent arrived damaged in a way that a vote cannot bear. Parameters are then as before the step. If the
        vote itself failed, state has taken the gradient in.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._push_options()
        if not self._agreed:
            self._agree_on_start()
        votes, buffers = self._votes, self._room()
        failure, bad, fill = self._prepare(votes, buffers)
        outcome = self._collective.vote(
            buffers, fill, step=votes, digest=digest(self._pushed, self._rule), nonfinite=bad, failure=failure
        )
        self.last_outcome = outcome
        if outcome.applied:
            places = address(buffers.bits), address(buffers.presence), address(buffers.zeros)
            self._core.apply_signs(*places, self._queue())
            for group in self.param_groups:
                group["votes"] = votes + 1
        else:
            self._skipped_before += 1
        if self._awaited:
            self._adopt_new_state()
        return loss

    def _prepare(
        self, votes: int, buffers: SignBuffers
    ) -> tuple[Exception | None, bool, Callable[[], None] | None]:
        """Why this worker cannot vote, if it cannot; whether its gradients are not finite; and what makes its ballot."""
        scale, bad = self._scaling()
        failure: Exception | None = None
        if bad is None and self._nonfinite != "propagate":
            try:
                bad = self._core.check(scale, self._queue()) >= 0
            except Exception as error:  # whatever it is: the others are waiting
                failure = error

        def fill() -> None:
            places = address(buffers.bits), address(buffers.presence)
            self._core.ballots(*places, votes % 2 == 0, scale, True, self._queue())

        return failure, bool(bad), fill

    @property
    def _votes(self) -> int:
        return int(self.param_groups[0]["votes"])

    def _room(self) -> SignBuffers:
        count = self._core.sign_count()
        if self._buffers is None or self._buffers.count != count:
            self._buffers = SignBuffers(count, self._collective.ties)
        return self._buffers

    def _agree_on_start(self) -> None:
        shapes = [(tuple(p.shape), str(p.dtype)) for p in self._params]
        weights = 0
        for param in self._params:
            weights = zlib.crc32(param.detach().contiguous().view(torch.uint8).numpy(), weights)
        self._collective.require_same(
            {
                "the parameters' shapes and types": digest(shapes),
                "the parameters' values (use lowtide.distributed.broadcast_parameters)": weights,
                "the number of votes taken so far": self._votes,
            }
        )
        self._agreed = True

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As `lowtide.Optimizer.add_param_group`; on every worker."""
        super().add_param_group(param_group)
        self.param_groups[-1]["votes"] = self._votes
        self._agreed = False

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As `lowtide.Optimizer.load_state_dict`."""
        super().load_state_dict(state_dict)
        self._agreed = False

    @torch.no_grad()
    def average_state(self) -> None:
        """Gives every worker the mean of all workers' state, one parameter at a time (4 bytes per element travel). Every
        worker must call it. Before a checkpoint that another number of workers is to go on with."""
        import torch.distributed as dist

        names = self._core.state_names()
        group = self._collective.transport.group
        for number in range(len(self._params)):
            self._core.allocate_state(number)
            for k in range(len(names)):
                mean = self._core.export_state(number, k)
                dist.all_reduce(mean, group=group)
                mean /= self._collective.transport.size
                self._core.import_state(number, k, mean)
        self._adopt_new_state()


class DistributedLion(SignOptimizer):
    """Distributed Lion with majority vote (Liu et al., arXiv 2404.00438, algorithm 1; Lion: arXiv 2302.06675):

        c = β1 m + (1 − β1) g        m = β2 m + (1 − β2) g        p = p − lr (majority of sign(c) + λ p)

    m and g are each worker's own. State and arguments are those of `lowtide.Lion`, for every worker; `vote`: see
    `VoteOptions`. See `SignOptimizer` for what a step does.
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


class Signum(SignOptimizer):
    """Signum with majority vote (Bernstein et al., arXiv 1810.05291, algorithm 1; signSGD: arXiv 1802.04434):

        m = β m + (1 − β) g        p = p − lr (majority of sign(m) + λ p)

    m and g are each worker's own. State as that of `lowtide.SGD`, for every worker; momentum: β in [0, 1), 0 votes with
    the signs of gradients (signSGD) and has no state. `vote`: see `VoteOptions`.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-4,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        *,
        vote: VoteOptions | None = None,
        **options: Unpack[Options],
    ) -> None:
        # The sign does not depend on the factor 1 - β, but bfloat16 and 8-bit state last longer within their range.
        hyper = {"lr": lr, "momentum": momentum, "dampening": momentum, "weight_decay": weight_decay, "nesterov": False}
        super().__init__(params, "sgd", hyper, vote or {}, options)
        self._folded = 0  # micro-batches that the momentum has taken in since the last step
        self._fold_bad = False

    @torch.no_grad()
    def fold(self, micro_batches: int) -> None:
        """Takes the gradients of one of `micro_batches` into the momentum, and frees them: with it after every backward pass,
        `step()` then votes on m = β m + (1 − β) mean of their gradients, and no sum of gradients is kept. Equal to adding them
        up but for rounding. (Lion has no such form: its sign needs the gradient beside the momentum.)

        Raises ValueError without momentum or or after `micro_batches` calls. A micro-batch with a gradient that is not finite is left out, and the vote is then skipped on all workers.
        """
        if not isinstance(micro_batches, int) or micro_batches < 1:
            raise ValueError(f"micro_batches: got {micro_batches!r}, wanted an integer of 1 or more")
        if self._folded >= micro_batches:
            raise ValueError(f"got call {self._folded + 1} for {micro_batches} micro-batches, wanted step() after the last")
        self._push_options()
        for number, values in enumerate(self._pushed):
            hyper = dict(zip(self._hyper_keys, values, strict=True))
            if not 0 < hyper["momentum"] < 1:
                raise ValueError(f"momentum: got {hyper['momentum']}, wanted one between 0 and 1 to fold gradients into")
            take = (1 - hyper["momentum"]) / micro_batches
            keep = hyper["momentum"] if self._folded == 0 else 1.0
            self._core.set_hyper(number, {**hyper, "momentum": keep, "dampening": 1 - take})
        try:
            self._begin_states()
            scale, bad = self._scaling()
            if bad is None and self._nonfinite != "propagate":
                bad = self._core.check(scale, self._queue()) >= 0
            if bad:
                self._fold_bad = True
            else:
                buffers = self._room()
                places = address(buffers.bits), address(buffers.presence)
                self._core.ballots(*places, self._votes % 2 == 0, scale, True, self._queue())
        finally:
            for number, values in enumerate(self._pushed):
                self._core.set_hyper(number, dict(zip(self._hyper_keys, values, strict=True)))
        self._folded += 1
        self.zero_grad()

    def _begin_states(self) -> None:
        """Momentum of zero counts as momentum: the core would replace it by the first gradient, whole."""
        for number, param in enumerate(self._params):
            if param.grad is not None and int(self._core.step_count(number)) == 0:
                self._core.allocate_state(number)
                self._core.set_step_count(number, 1)

    def _prepare(
        self, votes: int, buffers: SignBuffers
    ) -> tuple[Exception | None, bool, Callable[[], None] | None]:
        if not self._folded:
            return super()._prepare(votes, buffers)
        bad, self._folded, self._fold_bad = self._fold_bad, 0, False
        return None, bad, None  # the last fold has made the ballot
