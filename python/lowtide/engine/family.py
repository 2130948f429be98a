"""How a class of optimizers uses the core's rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, ClassVar

import torch

from lowtide import _core
from lowtide.checks.values import with_context
from lowtide.devices.places import Place
from lowtide.engine.params import Param
from lowtide.options.hyper import group_key, hyper_keys, hyper_values
from lowtide.options.options import AUTO, GROUP_OPTIONS, IGNORED, WHOLE_OPTIMIZER, Options, check_options

_GROUP_VALUES = itemgetter(*GROUP_OPTIONS)

# Whether these are 0 determines which states exist, or what they mean. States of SGD and LARS depend on their momentum.
_OF_STATES = ("amsgrad", "centered", "nesterov", "momentum")


class Family:
    """The rule of a class, and the translation of its group options to the core's hyper-parameters. Subclasses are for classes
    that use several rules, or fewer options."""

    CORE_RULE: ClassVar[str] = ""  # the core's name of the rule, if it differs
    MAY_WAIT: ClassVar[bool] = True  # trained parameters may be on meta until a step
    SEVERAL: ClassVar[bool] = True  # they may be on several devices
    MOMENTS: ClassVar[str] = ""  # the option that gives parameters row moments
    FIXED: ClassVar[tuple[str, ...]] = ()  # options that are fixed when a group is added, in addition to every class's

    def __init__(self, name: str, rule: str, given: Iterable[str]) -> None:
        """name: the name of the class, for errors. given: the options of a group, including hyper-parameters."""
        self.name, self.rule = name, rule
        self.core_rule = self.CORE_RULE or rule
        self.sums = self.core_rule in _core.rules_with_sums()
        self.given = [key for key in given if key not in Options.__annotations__ and not key.startswith("lowtide_")]
        self.keys = hyper_keys(self.core_rule, [*self.given, "maximize"])

    def rule_for(self, param: torch.Tensor, options: Mapping[str, Any]) -> str:
        """The core's rule for a parameter with these options; "" means `core_rule`."""
        return ""

    def has_moments(self, rule: str, options: Mapping[str, Any]) -> bool:
        """True if parameters of that rule with these options have row moments."""
        return False

    def core_options(self, rule: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options, except hyper-parameters and budgets, that the core takes for parameters of that rule."""
        taken = dict(zip(GROUP_OPTIONS, _GROUP_VALUES(options), strict=True))
        if taken["master"] == AUTO:  # learns like float32 weights and takes no bytes (docs/evidence.md)
            taken["master"] = "stochastic"
        return taken

    def hyper_of(self, rule: str, options: Mapping[str, Any]) -> dict[str, float]:
        """The core's hyper-parameters for parameters of that rule with these options. Raises ValueError or TypeError."""
        return dict(zip(self.keys, hyper_values(self.keys, options), strict=True))

    def changed_states(self, before: Mapping[str, float], now: Mapping[str, float]) -> list[str]:
        """The options that determine which states exist and that differ between `before` and `now`."""
        return [key for key in _OF_STATES if key in before and bool(before[key]) != bool(now.get(key))]

    def overridable(self) -> list[str]:
        """Names of hyper-parameters that can be overridden."""
        return list(dict.fromkeys(map(group_key, self.keys)))

    def option_names(self) -> list[str]:
        """Names of all hyper-parameters in a parameter group."""
        return list(dict.fromkeys([*map(group_key, self.keys), *self.overridable()]))

    def check_groups(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """Raises ValueError if parameter groups differ in an option that they share."""

    def check_members(self, place: Place, params: Sequence[Param]) -> None:
        """Raises NotImplementedError for parameters that this class cannot step."""

    def momentum_began(self, core_of: Callable[[int], Any], params: Sequence[int]) -> None:
        """Called after these parameters, which had no momentum, get one in the core."""

    def core_nonfinite(self, nonfinite: str) -> str:
        """The core's treatment of non-finite gradients if users choose `nonfinite`."""
        return nonfinite

    def check_override(self, override: Mapping[str, Any]) -> None:
        """Raises TypeError or ValueError if an override sets an option that groups of this class lack."""
        of_whole = (*WHOLE_OPTIMIZER, *IGNORED)
        for name in of_whole:
            if name in override:
                raise ValueError(f"got {name!r}, wanted an option that a parameter group can have")
        check_options(override, self.name, self.overridable(), of_whole)

    def error(self, where: str, rule: str, error: Exception) -> Exception:
        """The same kind of error, beginning with `where`. The name of the class replaces `rule` (""; none), a name that users
        did not choose."""
        named = type(error)(str(error).replace(f" for {rule} ", f" for {self.name} ")) if rule else error
        return with_context(where, named)
