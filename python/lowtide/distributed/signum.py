"""Signum: votes with the sign of momentum. Micro-batches can be folded into the momentum one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT
from typing_extensions import Unpack

from lowtide.checks.values import expect, number
from lowtide.devices import places
from lowtide.distributed.buffers import BLOCK
from lowtide.distributed.collective import VoteOptions
from lowtide.distributed.layout import aligned
from lowtide.distributed.optimizers import SignOptimizer, VotingFamily
from lowtide.options.options import Options


class SignumFamily(VotingFamily):
    """momentum also sets dampening, so neither can be overridden."""

    def overridable(self) -> list[str]:
        return [name for name in super().overridable() if name not in ("momentum", "dampening", "nesterov")]

    def momentum_began(self, core_of: Callable[[int], Any], params: Sequence[int]) -> None:
        for number in params:
            core = core_of(number)
            if steps := int(core.step_count(number)):  # its momentum starts at 0
                core.allocate_state(number)
                core.set_step_count(number, steps)


class Signum(SignOptimizer):
    """Signum with majority vote (Bernstein et al., arXiv 1810.05291, algorithm 1; signSGD: arXiv 1802.04434):

        m = β m + (1 − β) g        p = p − lr (majority of sign(m) + λ p)

    Each worker has its own m and g; m starts at 0. State is as for `lowtide.SGD`, on every worker. momentum: β in [0, 1); 0
    votes with the signs of gradients (signSGD) and has no state. `vote`: see `VoteOptions`. `SignOptimizer` describes a step.
    """

    FAMILY = SignumFamily

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
        self._micro_batches = 0  # of the next vote
        self._folded = 0  # micro-batches already in the momentum
        self._touched: set[int] = set()  # parameters that had a gradient in any of these
        self._fold_bad = False
        # The factor 1 - β changes no sign but keeps bfloat16 and 8-bit state in range for longer.
        hyper = {"lr": lr, "momentum": momentum, "dampening": momentum, "weight_decay": weight_decay, "nesterov": False}
        super().__init__(params, "sgd", hyper, vote or {}, options)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Like `lowtide.Optimizer.add_param_group`. Call it on every worker."""
        if self._folded:
            raise ValueError("got a parameter group between fold() and step(), wanted step() first")
        if isinstance(param_group, dict):
            momentum = param_group.get("momentum", self.defaults["momentum"])
            _check_momentum(momentum, f"parameter group {len(self.param_groups)}")
            param_group = {**param_group, "dampening": momentum}
        super().add_param_group(param_group)

    def _push_options(self) -> None:
        for place, group in enumerate(self.param_groups):
            _check_momentum(group.get("momentum"), f"parameter group {place}")
            group["dampening"] = group["momentum"]
        super()._push_options()

    @torch.no_grad()
    def fold(self, micro_batches: int) -> None:
        """Adds the gradients of one of `micro_batches` to the momentum, and frees them. Called after every backward pass, it
        makes `step()` vote on m = β m + (1 − β) times the mean of their gradients without keeping a sum. The result equals that
        of summing, except for rounding. (Lion has no such form: its sign needs the gradient beside the momentum.) Missing calls
        count as gradients of zero.

        Raises ValueError, and changes nothing, without momentum, after `micro_batches` calls, or for another number than in the
        previous call. A micro-batch with a non-finite gradient is left out, and the vote then treats all workers as having one.
        """
        counted = isinstance(micro_batches, int) and micro_batches >= 1
        expect(counted, "micro_batches", repr(micro_batches), "an integer of 1 or more")
        same = not self._folded or micro_batches == self._micro_batches
        expect(same, "micro_batches", micro_batches, f"{self._micro_batches}, as in the previous call")
        if self._folded >= micro_batches:
            raise ValueError(
                f"got call {self._folded + 1} for {micro_batches} micro-batches, wanted step() after the last"
            )
        self._push_options()
        for core_group, momentum in zip(self.engine.groups, self._momenta(), strict=True):
            expect(momentum != 0, f"parameter group {core_group.of}: momentum", "0", "more, because gradients go into it")
        scale, bad = self._check_gradients()
        self._fold_bad |= bad
        if not bad:
            self._fold_in(micro_batches, scale)
        self._micro_batches, self._folded = micro_batches, self._folded + 1
        self.zero_grad()

    def _fold_in(self, micro_batches: int, scale: float) -> None:
        now = {number for number, param in enumerate(self.engine.tensors) if param.grad is not None}
        begun = bool(self._touched)
        if begun and (late := now - self._touched):
            self._decay(late)
        # _ballots() overwrites the whole buffer, so keep the ballots of parameters that have no gradient this time.
        buffers, queue, over = self._room(), self.engine.queue(), self._touched - now
        if over:
            buffers.fetch(queue)
        earlier = [(part, part.clone()) for part in self._parts(over)]
        with self._core_momentum(lambda beta: (1.0 if begun else beta, (1 - beta) / micro_batches)):
            self._ballots(scale)
        if over:
            buffers.fetch(queue)
            for part, ballot in earlier:
                part.copy_(ballot)
            buffers.send(queue)
        self._touched |= now

    def _decay(self, numbers: set[int]) -> None:
        """Sets m = β m for these parameters."""
        grads = [param.grad for param in self.engine.tensors]
        try:
            for number, param in enumerate(self.engine.tensors):
                param.grad = places.new_zero(param).expand_as(param) if number in numbers else None
            with self._core_momentum(lambda beta: (beta, 0.0)):
                self._ballots(1.0)
        finally:
            for param, grad in zip(self.engine.tensors, grads, strict=True):
                param.grad = grad

    def _parts(self, numbers: set[int]) -> Iterator[Tensor]:
        """The tensors of the ballot of each of these parameters."""
        buffers, first = self._room(), 0
        for number, param in enumerate(self.engine.stand_ins()):
            count = aligned(param.numel())
            if number in numbers:
                for part, signs in ((buffers.bits, 8), (buffers.presence, 8 * BLOCK)):
                    assert part is not None
                    yield part[first // signs : (first + count) // signs]
            first += count

    def _ballots(self, scale: float) -> None:
        begun = self._begin_states()
        try:
            super()._ballots(scale)
        finally:
            for number in begun:
                self._core.set_step_count(number, self._core.step_count(number) - 1)

    def _begin_states(self) -> list[int]:
        """Counts a step for parameters that get their first gradient, and returns them. In a first step the core would copy the
        gradient instead of applying momentum."""
        begun: list[int] = []
        for core_group, momentum in zip(self.engine.groups, self._momenta(), strict=True):
            for number in core_group.params:
                if momentum and self.engine.tensors[number].grad is not None and not self._core.step_count(number):
                    self._core.allocate_state(number)
                    self._core.set_step_count(number, 1)
                    begun.append(number)
        return begun

    def _momenta(self) -> list[float]:
        """The momentum of each core group."""
        return [core_group.pushed["momentum"] for core_group in self.engine.groups]

    @contextmanager
    def _core_momentum(self, of: Callable[[float], tuple[float, float]]) -> Iterator[None]:
        """Makes the core compute m = keep m + take g, with (keep, take) = of(β)."""
        hypers = [core_group.pushed for core_group in self.engine.groups]
        try:
            for group, hyper in enumerate(hypers):
                keep, take = of(hyper["momentum"])
                self._core.set_hyper(group, {**hyper, "momentum": keep, "dampening": 1 - take})
            yield
        finally:
            for group, hyper in enumerate(hypers):
                self._core.set_hyper(group, hyper)

    def _prepare(self) -> tuple[bool, Callable[[], object]]:
        if not self._folded:
            return super()._prepare()
        self._push_options()
        if any(param.grad is not None for param in self.engine.tensors):
            raise ValueError("got gradients beside the folded ones, wanted fold() for them, too, or no gradients")
        return self._fold_bad, lambda: self._room().fetch(self.engine.queue())  # the last fold made the ballot

    def _voted(self) -> None:
        super()._voted()
        self._folded, self._fold_bad = 0, False
        self._touched.clear()

    def _take_groups(self, groups: list[dict[str, Any]]) -> None:
        super()._take_groups(groups)
        self._folded, self._fold_bad = 0, False
        self._touched.clear()


def _check_momentum(value: Any, where: str) -> None:
    expect(0 <= number("momentum", value) < 1, f"{where}: momentum", repr(value), "0 or more, and less than 1")
