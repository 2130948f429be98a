"""Telling the compiled core what has changed since the last step, and showing what the step has allocated."""

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import chain
from operator import is_
from typing import Any, TypeVar

from lowtide.checks.values import expect
from lowtide.engine.groups import CoreGroup, Format, are_fixed, are_same, fixed_options
from lowtide.optimizers.grouped import GroupedOptimizer
from lowtide.options import overrides
from lowtide.options.options import check_kinds
from lowtide.report.log import logger
from lowtide.state.restore import States

Found = TypeVar("Found")


class PushingOptimizer(GroupedOptimizer):
    """Base class of `SteppingOptimizer`, which adds steps."""

    def _push_options(self) -> None:
        """Tells the core what has changed since the last step."""
        self._follow_groups()
        self._follow_state()
        groups, engine = self.param_groups, self.engine
        with suppress(TypeError, ValueError, NotImplementedError):
            if engine.follow_dtypes(groups):
                self._show_state()
        if self._overrides_seen != overrides.changes():
            self._follow_overrides()
        if engine.foreign and (numbers := engine.foreign_gradients()):
            engine.take_in(groups, numbers)
            self._show_state()
        for number, group in enumerate(groups):
            options = [*map(group.get, chain(self.defaults, self._beside))]
            seen = self._seen.get(number)
            if seen and len(seen) == len(options) and (all(map(is_, options, seen)) or are_same(options, seen)):
                continue
            self._seen.pop(number, None)
            self._push_group(number, group)
            if are_fixed(options):
                self._seen[number] = options
        engine.follow_threads()

    def _follow(self, takes_state: bool = True) -> None:
        """Before state is read or replaced outside of a step: follows wrappers, overrides, moves and, unless it is all replaced,
        what was put into `state`."""
        self._follow_groups()
        if takes_state:
            self._follow_state()
        elif type(self.state) is not States:
            self.state = States(dict, self.state)
        self._follow_overrides()
        self._follow_moves()

    def _follow_moves(self) -> None:
        """Before state is read or shown, or a step is taken of some parameters: it belongs where all are now, and to their dtypes.
        Those that cannot be stepped at all are for the step to refuse: placeholders have memory by then."""
        with suppress(TypeError, ValueError, NotImplementedError):
            if self.engine.follow_moves(self.param_groups):
                self._show_state()

    def _following(self, call: Callable[[], Found]) -> Found:
        """Makes a call of the core that may find parameters on other devices than before, once more where they are."""
        try:
            return call()
        except ValueError:
            if not self.engine.follow_moves(self.param_groups):
                raise
            self._show_state()
        return call()

    def _push_group(self, of: int, group: Mapping[str, Any]) -> None:
        """Tells the core what has changed in parameter group `of`."""
        engine = self.engine
        fixed = {*Format._fields, "rounding"}
        expect(fixed <= group.keys(), f"param_groups[{of}]", f"no {sorted(fixed - group.keys())}", "them as they were")
        was, now = engine.members[of].fixed, fixed_options(engine.family, group)
        if changed := [key for key in was if now[key] != was[key]]:
            got, wanted = (", ".join(f"{key}={options[key]!r}" for key in changed) for options in (now, was))
            raise ValueError(f"param_groups[{of}]: got {got}, wanted {wanted}: fixed when the group is added")
        for number, core_group in enumerate(engine.groups):
            if core_group.of != of:
                continue
            hyper = None
            try:
                options = core_group.options(self.param_groups)
                if (rounding := options["rounding"]) != core_group.rounding:
                    check_kinds({"rounding": rounding}, f"parameter group {of}")
                hyper = engine.family.hyper_of(core_group.rule, options)
                before = core_group.push(engine.core, number, hyper, rounding)
            except (TypeError, ValueError) as error:
                if changed := engine.family.changed_states(core_group.pushed, hyper or {}):
                    if not any(map(engine.core.step_count, core_group.params)):  # as torch.optim, which has no state yet
                        engine.follow_states(self.param_groups, carry=True)
                        self._show_state()
                        return
                    names = ", ".join(f"{key} = {group.get(key)}" for key in changed)
                    wanted = "it as it was in the first step: it decides which states there are"
                    raise ValueError(f"parameter group {of}: {engine.family.name}: got {names}, wanted {wanted}") from error
                raise engine.family.error(f"parameter group {of}", core_group.rule, error) from error
            if before is not None:
                self._note_momentum(core_group, before)

    def _note_momentum(self, core_group: CoreGroup, old: Mapping[str, float]) -> None:
        """SGD's state comes with its momentum: the step after a change from or to 0 may allocate it."""
        if bool(old.get("momentum")) != bool(core_group.pushed.get("momentum")):
            self.engine.await_states({*self.engine.awaited, *core_group.params})

    def _adopt_new_state(self) -> None:
        """Shows, in `state`, what the core has allocated for parameters that had their first gradient."""
        new = self.engine.new_states()
        for number in new:
            self.state[self.engine.tensors[number]] = self.engine.shown(number)
        self.engine.adopted(new)  # only now: what interrupts this leaves them for the next look
        placed = new and (self.engine.has_budget() or not self.engine.on_host)
        if placed and logger.isEnabledFor(logging.INFO) and not self.engine.capturing:
            self._residency.place(self.engine.core.report())

    def _place_states(self) -> None:
        """Gives state that waits for the first step its place; raises as `state_dict`."""
        if not self.engine.on_host or self.engine.has_budget():
            self.engine.core.place_states()
            self._adopt_new_state()

    def _init_group(self, group: Mapping[str, Any], skip_non_grad_params: bool = True) -> None:
        """Megatron-core's way to ask for state before a checkpoint is read: gives every parameter, also those of other
        groups and without gradients, the state that it has after its first step. Raises as `state_dict`."""
        del group, skip_non_grad_params  # one budget may hold state of all groups, so that it is placed at once
        self._follow()
        self._place_states()
        self.engine.show_unstepped(True)
        self._show_state()
