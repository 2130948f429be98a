"""Schedule-Free AdamW: no learning-rate schedule, and evaluation with the average of all iterates instead of the last one."""

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT
from typing_extensions import Unpack

from lowtide.checks.values import expect
from lowtide.optimizers.optimizer import Optimizer
from lowtide.optimizers.registry import steps
from lowtide.options.options import Options
from lowtide.state.format import MODE


@steps("schedulefree")
class AdamWScheduleFree(Optimizer):
    """AdamW without a schedule (Defazio et al., arXiv 2405.15682), like the package schedulefree:

        v = β2 v + (1 − β2) g²         u = g / (√v / √(1 − β2ᵗ) + eps) + λ y,  g: the gradient at y
        z = z − lrₜ u                  x = (1 − c) x + c z                     y = (1 − β1) z + β1 x
        lrₜ = lr · min(1, t / warmup_steps)        wₜ = tʳ (largest lr so far)^weight_lr_power        c = wₜ / (w₁ + … + wₜ)

    The weights are y while you train and x, the average, while you evaluate. Call `eval()` before you evaluate the model or
    save it for use, and `train()` before the next step. Keep the learning rate constant.

    State per parameter: "z_minus_y" and "exp_avg_sq" (v), in the parameter's shape, with as many bytes as the state of `AdamW`:
    2.03 per parameter with state="dynamic8", where the package takes 8. 4-bit formats are refused.

    Args:
        params, eps, options: as in `AdamW`.
        lr: as in `AdamW`; 1 to 10 times as large as for AdamW with a schedule.
        betas: β1, in [0.01, 1), places y between z and x; β2, in [0, 1), decays the second moment.
        weight_decay: λ, finite and ≥ 0, for the weights y.
        warmup_steps: number of steps in which the learning rate grows, a whole number ≥ 0.
        r: exponent of the step number in a step's weight, finite and ≥ 0.
        weight_lr_power: exponent of the learning rate in a step's weight, finite and ≥ 0.

    Raises: like `AdamW`.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 2.5e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        warmup_steps: int = 0,
        r: float = 0.0,
        weight_lr_power: float = 2.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, "schedulefree", locals(), options)

    @torch.no_grad()
    def eval(self) -> None:
        """Replaces the weights by the average x. Steps are refused until `train()`. A second call does nothing.

        Each direction rounds the weights once, in their type and the residual of `master`. So a run that was evaluated, or
        saved here and resumed, continues with the same bits, but differs by that rounding from a run without evaluation. Takes
        up to 3 MiB where the parameters are and, for streaming state, a float32 copy of the largest parameter on the host.
        Raises OSError or MemoryError if state cannot be read or, for a residual, written; call it again to continue with the
        remaining parameters."""
        self._set_mode(False)

    @torch.no_grad()
    def train(self) -> None:
        """Restores y, the training weights, with the β1 that `eval()` used. New optimizers start in training. Raises like
        `eval`."""
        self._set_mode(True)

    def _set_mode(self, training: bool) -> None:
        engine = self.engine
        with engine.lock:
            self._push_options()
            engine.moving(self.param_groups, lambda: engine.core.set_evaluating(not training, engine.queue()))
            for group in self.param_groups:
                group[MODE] = training

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Like `Optimizer.step`. Raises ValueError between eval() and train(), without running the closure."""
        self._check_training()
        return super().step(closure)

    def _step_gradients(self, only: list[int] | None = None) -> None:
        self._check_training()  # step_in_backward steps without calling `step`
        super()._step_gradients(only)

    def _check_training(self) -> None:
        training = all(group.get(MODE, True) for group in self.param_groups)
        expect(training, "step", "the weights to evaluate", "the weights to train: call train() first")

    def state_dict(self) -> dict[str, Any]:
        """Like `Optimizer.state_dict`. Raises ValueError after `eval()` or `train()` has failed half-way, until one succeeds;
        and if β1 has changed since `eval()`, until `train()`."""
        self._check_modes()
        return super().state_dict()

    def save(self, path: str | os.PathLike[str], *options: Any, **more: Any) -> Any:
        """Like `Optimizer.save`. Raises like `state_dict`."""
        self._check_modes()
        return super().save(path, *options, **more)

    def _check_modes(self) -> None:
        """Raises ValueError for modes that a dict cannot express: weights of two kinds in one group, or weights that eval()
        moved by another β1 than the group's."""
        for each in self.engine.groups:
            options = each.options_of(self.param_groups)
            beta1 = 0.0 if options.get(MODE, True) else self.engine.family.hyper_of(each.rule, options)["beta1"]
            moved = {i: self.engine.core_of(i).evaluating_beta1(i) for i in each.params}
            mixed = [i for i, by in moved.items() if bool(by) != bool(beta1)]
            expect(not mixed, "state_dict", f"parameters {mixed[:8]} that eval() or train() has moved, and others that it has not",
                   "all of them: call it again")  # fmt: skip
            changed = [i for i, by in moved.items() if by != beta1]
            expect(not changed, "state_dict", f"a β1 of {beta1:g} for parameters {changed[:8]}, which eval() moved by another",
                   "the betas of that call, or train() first")  # fmt: skip

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        self.param_groups[-1][MODE] = len(self.param_groups) == 1 or self.param_groups[0].get(MODE, True)
        self._mark_modes(len(self.param_groups) - 1)

    def _take_groups(self, groups: list[dict[str, Any]]) -> None:
        """A dict records which kind of weights the model saved with it has."""
        super()._take_groups(groups)
        self.engine.follow(groups, [*self.defaults])  # the core notes the dict's β1 for the way back
        self._mark_modes()

    def __getstate__(self) -> dict[str, Any]:
        self._check_modes()
        return super().__getstate__()

    def __setstate__(self, state: dict[str, Any]) -> None:
        modes = [group.get(MODE, True) for group in state["param_groups"]]
        super().__setstate__(state)
        for group, mode in zip(self.param_groups, modes, strict=True):
            group[MODE] = mode
        self._mark_modes()

    def _mark_modes(self, first: int = 0) -> None:
        """Tells the core the modes of the parameter groups from `first` on."""
        for each in self.engine.groups:
            for number in each.params if each.of >= first else ():
                self.engine.core_of(number).mark_evaluating(number, not self.param_groups[each.of].get(MODE, True))
