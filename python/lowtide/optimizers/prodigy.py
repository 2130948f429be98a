"""Prodigy: AdamW that finds its learning rate."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT
from typing_extensions import Unpack

from lowtide import _core
from lowtide.checks.values import expect
from lowtide.devices.flattened import first_flattened
from lowtide.devices.sharding import local_of
from lowtide.engine.engine import Engine
from lowtide.engine.family import Family
from lowtide.optimizers.clipping import LossScaling, Over, Sums, all_reduced, summed
from lowtide.optimizers.optimizer import Optimizer
from lowtide.optimizers.registry import steps
from lowtide.options.hyper import group_key
from lowtide.options.options import Options
from lowtide.state.carried import estimate_of
from lowtide.state.foreign.prodigyopt import FIXED, check_fixed
from lowtide.state.format import ESTIMATE

_MAY_DIFFER = ("lr", "eps", "weight_decay", "maximize")  # options that groups and parameters may have of their own


class ProdigyFamily(Family):
    """Prodigy's options and the core's names for them."""

    def hyper_of(self, rule: str, options: Mapping[str, Any]) -> dict[str, float]:
        hyper = super().hyper_of(rule, options)
        fits = options["beta3"] is None or 0 < hyper["d_beta"] < 1  # the core knows it by another name, and 0 as the root
        expect(fits, "beta3", options["beta3"], "above 0 and below 1, or None for the root of β2")
        return hyper

    def overridable(self) -> list[str]:
        return [*_MAY_DIFFER]  # the others belong to d

    @cached_property
    def _of_d(self) -> list[str]:
        return sorted({*map(group_key, self.keys)} - {*_MAY_DIFFER})

    def check_groups(self, groups: Sequence[Mapping[str, Any]]) -> None:
        for number, group in enumerate(groups[1:], 1):
            for name in self._of_d:
                got, wanted = (each.get(name, groups[0].get(name)) for each in (group, groups[0]))
                got, wanted = (tuple(map(float, each)) if isinstance(each, (tuple, list)) else each for each in (got, wanted))
                expect(got == wanted, f"parameter group {number}: {name}", got, f"{wanted} as in group 0: one d serves all groups")


def _sums_of_all(engine: Engine, options: Mapping[str, Any], scale: float) -> tuple[list[int], bool] | None:
    """The sums over all parameters, of all devices and ranks, for a step of gradients times `scale`, and whether they are finite; None:
    the core's own step finds them. With DTensors every rank calls it. options: of any group."""
    if (flattened := first_flattened(engine.tensors)) is not None:
        wanted = "FSDP2 (fully_shard), or whole parameters: their sums over ranks are unknown here"
        raise ValueError(f"step: got parameter {flattened} of FSDP1 for {engine.family.name}, wanted {wanted}")
    if not engine.meshes and len(engine.cores) == 1:
        return None
    shared = estimate_of(engine, options)  # cores that were made since the last step lack it
    for i in {param.place: i for i, param in enumerate(engine.params)}.values():  # one of each core shares it with the others
        engine.core_of(i).set_carried(i, shared)
    device = local_of(engine.tensors[0]).device if engine.tensors else torch.device("cpu")

    def terms(core: _core.Optimizer, numbers: list[int] | None, queue: int) -> Sums:
        limbs, finite = core.term_sums(scale, numbers, queue)
        return Sums(limbs, int(not finite))

    def over_ranks(over: Over, found: Sums, failed: bool) -> tuple[Sums, bool]:
        *limbs, bad, any_failed = all_reduced(over, [*found.limbs, found.worst, int(failed)], torch.distributed.ReduceOp.SUM, device)
        return Sums(limbs, min(bad, 1)), bool(any_failed)

    found = summed(engine, None, "this step", Sums([0] * _core.TERM_SUM_LIMBS, 0), terms, over_ranks)
    return found.limbs, not found.worst


@steps("prodigy")
class Prodigy(Optimizer):
    """AdamW that estimates its learning rate (Mishchenko & Defazio, arXiv 2306.06101, algorithm 4), like the package prodigyopt:

        m = β1 m + (1 − β1) d g      v = β2 v + (1 − β2) d² g²            rate = lr d, times √(1 − β2ᵗ) / (1 − β1ᵗ)
        s = β3 s + rate (d / d0) g   n = β3 n + rate (d / d0) ⟨g, p0 − p⟩         with use_bias_correction
        d' = max(d, d_coef n / ‖s‖₁), at most growth_rate d               p = p − rate (m / (√v + d' eps) + λ p)

    d is one number for all parameters, and the sums of n and ‖s‖₁ go over all of them: over groups, and the shards of DTensors.
    They are exact, so d has the same bits for every number of threads, every mesh, every device and every memory tier, if shards of
    8-bit state have the blocks of the whole. Each step reads gradients and state twice, and waits for devices in between: graphs
    cannot capture it. Groups may differ in lr, eps and weight_decay; lr=0 leaves a group alone, and its terms out of the sums. A
    scheduler sets lr as usual.

    `param_groups[i]` shows "d", "d_max" (the largest estimate), "d_numerator" (n) and "k" (steps that moved something) after each
    step. Writing to them changes nothing; `load_state_dict` takes them from the entries. A step that is skipped leaves them as they are.

    State per parameter: "exp_avg" (m), "exp_avg_sq" (v), "s" and "p_minus_p0", with the parameter's shape: 16 bytes per parameter in
    float32 as with prodigyopt, 4.06 with state="dynamic8". "p_minus_p0" sums the moves of steps, rounded to the state's format. What
    else moves weights (a projection, averages swapped in, another model loaded) does not count, whereas prodigyopt subtracts its p0.
    Formats of 4 bits are refused. `load_state_dict` takes prodigyopt's dicts; load the weights before.

    Args:
        params, eps, options: as in `AdamW`. What would step some parameters before all gradients are there
            (step_in_backward, `step_param`) is refused.
        lr: as in `AdamW`; a factor on d, finite and ≥ 0.
        betas: β1 and β2, each in [0, 1).
        beta3: β3 in (0, 1); None: the root of β2.
        weight_decay: λ, finite and ≥ 0, decoupled.
        use_bias_correction: see above.
        safeguard_warmup: s takes d in place of the rate, so that a warm-up of lr does not raise d'.
        d0: the first d, > 0.
        d_coef: > 0.
        growth_rate: ≥ 1.

    Raises: like `AdamW`; ValueError also for prodigyopt's decouple=False and for a slice_p other than 1.
    """

    FAMILY = ProdigyFamily
    WAITS_FOR_CLIPS = True  # the sums are of clipped gradients
    NO_GRAPH = "d is found by the host"

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1.0,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        beta3: float | None = None,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decouple: bool = True,
        use_bias_correction: bool = False,
        safeguard_warmup: bool = False,
        d0: float = 1e-6,
        d_coef: float = 1.0,
        growth_rate: float = math.inf,
        slice_p: int = 1,
        **options: Unpack[Options],
    ) -> None:
        given = {**locals()}
        check_fixed(given, "")
        super().__init__(params, "prodigy", {name: given[name] for name in given if name not in FIXED}, options)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if isinstance(param_group, dict):
            check_fixed(param_group, f"parameter group {len(self.param_groups)}: ")
            beside = {*FIXED, *ESTIMATE}
            param_group = {key: value for key, value in param_group.items() if key not in beside}
            self.engine.family.check_groups([*self.param_groups, {**self.defaults, **param_group}])
        super().add_param_group(param_group)
        self._show_estimate()

    def _step_core(
        self, scale: float, known_finite: bool, only: list[int] | None, clip: _core.QueuedClip | None = None,
        words: LossScaling | None = None,
    ) -> int:  # fmt: skip
        expect(only is None, "step", "some of the parameters", "all of them in one step: d needs all gradients")
        self.engine.family.check_groups(self.param_groups)
        engine = self.engine
        try:
            sums = _sums_of_all(engine, self.param_groups[0], scale)
            return engine.core.step(scale, known_finite, engine.queue(), engine.room(), sums=sums)
        finally:  # also after a disk error in a step that was taken
            self._show_estimate()

    def _show_estimate(self) -> None:
        """Shows the numbers of the core in the groups."""
        if self.engine.params:
            numbers = estimate_of(self.engine, self.param_groups[0])
            shown = {**{name: numbers[name] for name in ESTIMATE}, "k": int(numbers["k"])}
            for group in self.param_groups:
                group.update(shown)

    def reset(self, params: Iterable[Tensor] | None = None) -> None:
        """Like `Optimizer.reset`. d starts afresh only with all parameters; a single one starts with the others' d."""
        super().reset(params)
        self._show_estimate()

    def state_dict(self) -> dict[str, Any]:
        """Like `Optimizer.state_dict`."""
        self._follow()
        self._show_estimate()
        return super().state_dict()

    def _take_groups(self, groups: list[dict[str, Any]]) -> None:
        super()._take_groups(groups)
        self._show_estimate()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._show_estimate()
