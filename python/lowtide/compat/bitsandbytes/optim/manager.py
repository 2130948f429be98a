"""Options of single parameters, with bitsandbytes' names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import torch

from lowtide.checks.values import expect
from lowtide.compat.bitsandbytes.optim.base import NO_LIMIT, STATES
from lowtide.options.overrides import Override, override

_SAME = ("lr", "betas", "eps", "weight_decay", "alpha", "t_alpha", "t_beta3", "max_unorm")


class GlobalOptimManager:
    """`lowtide.override` for code written for bitsandbytes. `get_instance()` returns the one instance of the process.

    Overrides belong to parameters, not to positions in an optimizer, so the order of registration does not matter. Overrides of
    state take effect when an optimizer is built.
    """

    _instance: ClassVar[GlobalOptimManager | None] = None
    _made: list[Override]  # by this manager, and not withdrawn

    def __init__(self) -> None:
        raise RuntimeError("GlobalOptimManager: got a call of the class, wanted GlobalOptimManager.get_instance()")

    @classmethod
    def get_instance(cls) -> GlobalOptimManager:
        if cls._instance is None:
            cls._instance = cls.__new__(cls)
            cls._instance._made = []
        return cls._instance

    def initialize(self) -> None:
        """Withdraws every override made through this manager. Existing optimizers notice at their next step."""
        while self._made:
            self._made.pop().remove()

    def register_parameters(self, params: Iterable[Any]) -> None:
        """Has no effect: overrides find their parameters without it."""

    def override_config(
        self,
        parameters: torch.Tensor | Iterable[torch.Tensor],
        key: str | None = None,
        value: Any = None,
        key_value_dict: dict[str, Any] | None = None,
    ) -> None:
        """Overrides options of parameters, whatever their group says: `key` with `value`, or all of `key_value_dict`. Keys:
        optim_bits, min_8bit_size, lr, betas, eps, weight_decay, alpha, t_alpha, t_beta3, max_unorm. Raises ValueError for other
        keys."""
        given = {key: value} if key is not None and value is not None else {}
        expect(not (given and key_value_dict), "override_config", "key and key_value_dict", "one of them")
        options = _translated(given or key_value_dict or {})
        if options:
            tensors = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
            self._made.append(override(tensors, **options))

    def register_module_override(self, module: torch.nn.Module, param_name: str, config: dict[str, Any]) -> None:
        """Like `override_config`, for the parameter that has this name in `module` when an optimizer looks for it."""
        self._made.append(override(module, param_name, **_translated(config)))


def _translated(config: dict[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for key, value in config.items():
        if key == "optim_bits":
            expect(value in STATES, "optim_bits", repr(value), "8 or 32")
            options["state"] = STATES[value]
        elif key == "min_8bit_size":
            options["min_quantized_numel"] = value
        elif key == "skip_zeros":
            expect(not value, key, value, "False: elements without gradient decay, too")
        else:
            expect(key in _SAME, "override_config", repr(key), f"optim_bits, min_8bit_size or one of {_SAME}")
            options[key] = NO_LIMIT if key == "max_unorm" and value == 0 else value
    return options
