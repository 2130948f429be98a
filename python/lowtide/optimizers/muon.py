"""Muon: matrices move by their orthogonalized momentum. The core keeps the momentum; torch computes the products."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from torch import Tensor
from torch.optim.optimizer import ParamsT
from typing_extensions import Unpack

from lowtide import _core
from lowtide.checks.values import expect, number
from lowtide.devices.pieces import route_of
from lowtide.engine.family import Family
from lowtide.engine.groups import CoreGroup
from lowtide.optimizers.batches import Batch, Matrix, batches_of
from lowtide.optimizers.clipping import LossScaling
from lowtide.optimizers.matrix_step import MatrixStep
from lowtide.optimizers.optimizer import Optimizer
from lowtide.optimizers.orthogonal import ADJUSTMENTS, POLAR_EXPRESS, WORKING, Coefficients, schedule
from lowtide.optimizers.registry import steps
from lowtide.options.hyper import hyper_values
from lowtide.options.options import Options

_BUCKET = 64 << 20  # elements of directions at a time, 256 MiB
EXPERTS = "experts"
_MOMENTUM = "sgd"  # the core's rule that keeps b


class MuonFamily(Family):
    """Two rules of the core: one with momentum for matrices, and AdamW for everything else."""

    CORE_RULE = "adamw"
    MOMENTS = "row_beta2"
    FIXED = ("use_muon",)  # it determines a parameter's rule

    def rule_for(self, param: Tensor, options: Mapping[str, Any]) -> str:
        use = options["use_muon"]
        if not isinstance(use, bool) and use != EXPERTS:
            raise TypeError(f"use_muon: got {use!r} ({type(use).__name__}), wanted a bool or {EXPERTS!r}")
        if not (use and param.ndim == 2) and not (use == EXPERTS and param.ndim == 3):
            return ""
        return _MOMENTUM

    def hyper_of(self, rule: str, options: Mapping[str, Any]) -> dict[str, float]:
        if rule != _MOMENTUM:
            lr = options["lr"] if options["adamw_lr"] is None else options["adamw_lr"]
            return super().hyper_of(rule, {**options, "lr": lr, "eps": options["adamw_eps"], "nesterov": False})
        keys = ("lr", "weight_decay", "momentum", "nesterov", "maximize")
        hyper = dict(zip(keys, hyper_values(keys, options), strict=True))
        expect(0 <= hyper["momentum"] < 1, "momentum", options["momentum"], "0 or more, and less than 1")
        steps, eps = options["ns_steps"], number("eps", options["eps"])
        expect(isinstance(steps, int) and 0 <= steps < 100, "ns_steps", steps, "an integer from 0 to 99")
        coefficients = options["ns_coefficients"]
        wanted = f"3 finite numbers, 3 for each iteration, or {POLAR_EXPRESS!r}"
        expect(schedule(coefficients, steps) is not None, "ns_coefficients", coefficients, wanted)
        expect(0 < eps < math.inf, "eps", eps, "a number above 0")
        expect(options["adjust_lr_fn"] in ADJUSTMENTS, "adjust_lr_fn", options["adjust_lr_fn"], f"one of {ADJUSTMENTS}")
        if options.get("row_beta2") is not None:  # pickles of earlier versions lack it
            expect(0 <= number("row_beta2", options["row_beta2"]) < 1, "row_beta2", options["row_beta2"], "None, or 0 or more and less than 1")
        hyper["nesterov"] = bool(hyper["nesterov"]) and hyper["momentum"] > 0  # without momentum both are g
        return hyper

    def has_moments(self, rule: str, options: Mapping[str, Any]) -> bool:
        return rule == _MOMENTUM and options.get("row_beta2") is not None

    def overridable(self) -> list[str]:
        return self.given


class Communication(NamedTuple):
    """One rank's traffic in a step of `Muon`, except the agreement of ranks on the step."""

    sent_bytes: int
    received_bytes: int
    collectives: int  # collectives in which this rank takes part
    matrices: int  # sharded matrices that this rank orthogonalizes


class _Plan(NamedTuple):
    """The plan of the last step, reused while its parameters and the core's groups stay the same."""

    numbers: list[int]
    of: list[CoreGroup]  # another list after parameters were rebound
    groups: int  # grows with the list
    matrices: dict[int, CoreGroup]  # matrices moved by directions, by number
    moments: set[int]  # matrices that have row moments
    batches: list[Batch]


@steps("muon")
class Muon(Optimizer):
    """Muon (Keller Jordan et al. 2024, kellerjordan.github.io/posts/muon) for matrices, like torch.optim.Muon:

        b = μ b + (1 − μ) g                 d = (1 − μ) g + μ b if nesterov, else b
        p = (1 − lr λ) p − lr ratio O(d)    O: Newton-Schulz, U S' Vᵀ of d = U S Vᵀ with S' about 1, in bfloat16

    and `AdamW` for other parameters: those that are not two-dimensional, and those of a group with use_muon=False (embeddings
    and the output layer belong there). Both share one object, one `state_dict()` and one budget.

    Matrices may be DTensors with any sharding. Each is gathered in bfloat16, to which O rounds d first, on one rank, its owner,
    and the owner sends every rank its part of O(d): the same bits as in one process. Owners have about equal work. Momentum
    stays where the parameter is (docs/distributed.md); `communication()` gives the bytes.

    With row_beta2 (β2) steps are NorMuon's (arXiv 2510.05491, as in dion/normuon.py of microsoft/dion, 0333cc1): each matrix O = O(d)
    is replaced by O' of the same norm, whose rows are scaled:

        v = β2 v + (1 − β2) mean of squares of a row of O       O' = |O| Ô / |Ô|, Ô: each row of O divided by its √v + 1e-8

    State of a matrix: "momentum_buffer" (b / (1 − μ)), with the parameter's shape; 1.02 bytes per parameter with
    state="dynamic8" (1.015625, rows of a multiple of 256 elements), 2 with "bf16", 4 with "fp32". Eight bits are enough for it
    (arXiv 2509.23106) unless 0.1 % of the loss matters (docs/rules.md). With row_beta2 also "row_moment" (v), float32 [rows, 1], of a
    stack [matrices, rows, 1]: always in the memory of the weights, of which a budget for that memory keeps the bytes free. For other
    parameters see `AdamW`. While it runs, a step takes 4 bytes per element of 256 MiB of matrices, or of the largest one, 16 MiB for
    copies of state, and the memory of products (with row_beta2, 8 bytes per element of one matrix, if that is more); for DTensors, 12
    bytes per element of one matrix for each of three batches, if that is more.

    Args:
        params, lr, options: as in `AdamW`.
        weight_decay: λ, finite and ≥ 0; for all parameters.
        momentum: μ, in [0, 1). If it changes between steps, older gradients in b count as if they had come with the new
            value: b / (1 − μ) is stored. (torch.optim.Muon stores b, so moves differ while μ changes.)
        nesterov: see above.
        ns_coefficients: a, b, c of a Newton-Schulz iteration: X = a X + (b A + c A²) X, A = X Xᵀ. Or a list of them, one for each
            iteration (the last for all further ones); or "polar_express", the list of arXiv 2505.16932, whose S' is nearer to 1.
        eps: the least divisor of d, instead of its norm, before the first iteration.
        ns_steps: the number of iterations, 0 to 99.
        adjust_lr_fn: ratio for a matrix of m rows and n columns: None or "original", √max(1, m / n);
            "match_rms_adamw", 0.2 √max(m, n), for learning rates of AdamW; "spectral_unclamped", √(m / n).
        use_muon: False steps matrices like `AdamW`. "experts" also takes three-dimensional parameters, as stacks of
            matrices (experts of a mixture), each orthogonalized by itself. Fixed when a group is added.
        adamw_lr: learning rate for parameters that AdamW steps; None: lr.
        betas, adamw_eps: for AdamW. Schedulers that cycle a momentum (OneCycleLR, CyclicLR) cycle `momentum`, as with
            torch.optim.Muon, and leave betas unchanged, which `defaults` does not contain.
        row_beta2: β2, in [0, 1), or None: rows are not scaled. dion's is 0.95. It can change between steps; v starts at zeros when it
            is first set, and is dropped by a step with None.

    An exception in a step (Ctrl-C, or a failing product) never leaves a matrix between its old and its new momentum and weights.
    If no parameter has moved, none does; otherwise the others move too before it is raised or, if they cannot, a warning says how
    many have not, and `state[p]["step"]` says which.

    Raises: like `AdamW`. A rank that cannot compute an update raises why; the matrix stays as it was, and the ranks that have a part
    of it raise RuntimeError. A step of sharded matrices raises ValueError on all ranks if one has no gradient, even with nonfinite="propagate".
    """

    FAMILY = MuonFamily
    WAITS_FOR_CLIPS = True
    NO_GRAPH = "a step is several calls, and the host decides on them"
    NOT_CYCLED = ("betas",)  # torch's schedulers would cycle them instead of `momentum`
    _planned: _Plan | None = None

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: Coefficients | Sequence[Coefficients] | Literal["polar_express"] = (3.4445, -4.775, 2.0315),
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
        use_muon: bool | Literal["experts"] = True,
        adamw_lr: float | Tensor | None = None,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.95),
        adamw_eps: float = 1e-8,
        row_beta2: float | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, "muon", locals(), options)

    def communication(self) -> Communication:
        """The elements that a step sends for sharded matrices (DTensors) if all parameters that require gradients have one.
        Sends nothing and needs no other rank."""
        engine = self.engine
        trained = [i for i, param in enumerate(engine.tensors) if param.requires_grad]
        exchanges = [batch.exchange for batch in self._plan(trained).batches if batch.exchange]
        stages = [stage for exchange in exchanges for stage in exchange.stages if stage.group is not None]
        return Communication(
            sent_bytes=sum(sum(stage.sent) for stage in stages) * WORKING.itemsize,
            received_bytes=sum(sum(stage.came) for stage in stages) * WORKING.itemsize,
            collectives=len(stages),
            matrices=sum(exchange.parts[n].matrices for exchange in exchanges for n in exchange.owned),
        )

    def _agrees(self) -> bool:
        """True even without checks, because a rank without a gradient would keep others waiting for its part of a matrix."""
        matrices = (i for group in self.engine.groups if group.rule for i in group.params)
        return super()._agrees() or any(route_of(self.engine.params[i].sharding) for i in matrices)

    def _plan(self, numbers: list[int]) -> _Plan:
        """The plan for a step of these parameters."""
        engine, last = self.engine, self._planned
        moments = engine.with_moments(self.param_groups)
        known = last and last.numbers == numbers and last.of is engine.groups and last.groups == len(engine.groups)
        if last and known and last.moments == moments:
            return last
        ours = {i: group for group in engine.groups if group.rule for i in group.params}
        matrices = [Matrix.of(i, engine.tensors[i], engine.params[i].sharding, i in moments) for i in numbers if i in ours]
        batches = batches_of([i for i in numbers if i not in ours], matrices, _BUCKET)
        self._planned = _Plan(numbers, engine.groups, len(engine.groups), ours, moments, batches)
        return self._planned

    def _step_core(
        self, scale: float, known_finite: bool, only: list[int] | None, clip: _core.QueuedClip | None = None,
        words: LossScaling | None = None,
    ) -> int:  # fmt: skip
        engine = self.engine
        here = [i for i, param in enumerate(engine.tensors) if param.grad is not None and (only is None or i in only)]
        checked = known_finite or engine.settings.nonfinite == "propagate"
        if not checked and engine.core.check(scale, engine.queue(), False, -1, here) >= 0:
            engine.count(skipped=1)
            return -1
        plan = self._plan(here)
        dropped = self._await_moments(plan, here)
        try:
            MatrixStep(engine, self.param_groups, plan.matrices, scale).take(plan.batches)
            for i in dropped:  # those without a gradient, too, or v would go on from here if the option came back
                engine.moments.put(i, None)
        except BaseException:
            if engine.awaited:  # some parameters have taken their first step
                self._adopt_new_state()
            raise
        return -1

    def _await_moments(self, plan: _Plan, numbers: list[int]) -> set[int]:
        """Entries in `state` will show which row moments begin and end in this step. Returns those that no option asks for any more."""
        engine = self.engine
        had = {i for i in engine.moments.numbers() if engine.row_moment(i) is not None}
        dropped, begun = had - plan.moments, plan.moments.intersection(numbers) - had
        if dropped or begun:
            engine.await_states({*engine.awaited, *dropped, *begun})
        return dropped
