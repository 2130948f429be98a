"""Steps of single parameters, for trainers that step in their own hooks of backward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from lowtide.checks.values import expect
from lowtide.optimizers.backward import StepInBackward

if TYPE_CHECKING:
    from lowtide.engine.engine import Engine
    from lowtide.optimizers.backward import InBackward
    from lowtide.report.fields import CoreReport


class SingleSteps:
    """A base of `Optimizer`, with the methods that such trainers call."""

    engine: Engine
    in_backward: InBackward | None
    _backward_options: dict[str, Any]
    _follow_groups: Callable[[], None]
    _step_gradients: Callable[[list[int]], None]
    _numbers: dict[int, int] | None = None  # numbers of parameters by id, until the groups change
    steps_single = False  # whether step_param was called

    def step_param(self, param: torch.Tensor, group: Mapping[str, Any] | None = None) -> None:
        """Steps one parameter by its gradient, which stays. For trainers that step in their own hooks of backward, with the
        arguments of kohya-ss's fused backward pass. Options come from the parameter's group in `param_groups`; `group` is
        ignored. Free the gradient afterwards, because `step()` steps every parameter that still has one. Clip it before, by value
        or by the norm of the last step's gradients; if gradients accumulate, call this in the last backward only. Call it from
        one thread at a time.

        Raises like `step`; also ValueError for a tensor that is in no group, with step_in_backward, and with max_grad_norm or
        max_grad_spike, because the norm of all gradients is not known yet."""
        expect(self.in_backward is None, "step_param", f"{self._backward_options}", "no option that works in backward")
        StepInBackward.refuse_norms(self.engine, "step_param")
        self._follow_groups()
        if self._numbers is None:
            self._numbers = {id(each): number for number, each in enumerate(self.engine.tensors)}
        number = self._numbers.get(id(param))
        if number is None:
            raise ValueError(f"step_param: got a {type(param).__name__} of no group, wanted a parameter of this optimizer")
        with torch.no_grad():
            self._step_gradients([number])
        self.steps_single = True

    def step_parameter(self, param: torch.Tensor, group: Mapping[str, Any] | None = None, index: int = 0) -> None:
        """`step_param` under OneTrainer's name, with its arguments. `index`, the parameter's place in its group, is ignored."""
        self.step_param(param, group)

    def _steps(self, report: CoreReport) -> int:
        """The user's steps, where the core, which made this report, counts steps of buckets or of single parameters."""
        if self.in_backward and self.in_backward.steps is not None:
            return self.in_backward.steps
        if self.steps_single:
            return max(self.engine.core_of(i).step_count(i) for i in range(len(self.engine.params)))
        return report["steps"]
