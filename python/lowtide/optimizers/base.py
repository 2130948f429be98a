"""The torch.optim.Optimizer over the compiled core: groups and steps.

Parameters are numbered by their place over all groups, here, in the core and in `state_dict()`. Python decides nothing
about the mathematics: it reads the groups' options, makes one call per step and hands out views of the state.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from operator import is_, itemgetter
from typing import Any, ClassVar, overload

import torch
from torch.optim.optimizer import ParamsT

from lowtide import _core
from lowtide.checks.values import expect
from lowtide.devices import sharding
from lowtide.engine.cores import Cores
from lowtide.engine.engine import Engine, Settings
from lowtide.engine.family import Family
from lowtide.engine.groups import CoreGroup, Format, are_fixed, are_same, group_defaults
from lowtide.engine.rebind import heirs, rebind
from lowtide.engine.rebuild import follow_overrides, take_in
from lowtide.memory.budgets import Memory
from lowtide.optimizers import partitions
from lowtide.optimizers.backward import InBackward, in_backward, options_of
from lowtide.options import overrides
from lowtide.options.hyper import check_on_host
from lowtide.options.options import WHOLE_OPTIMIZER, Options, check_kinds, check_options, warn_of_misspelt
from lowtide.report.log import Residency, logger
from lowtide.state import restore
from lowtide.state.format import stamp
from lowtide.state.restore import States

_PARAMS = itemgetter("params")
_NO_HYPER = ("self", "params", "options", "__class__")  # among the locals() of a constructor


class SteppingOptimizer(torch.optim.Optimizer):
    """Base class of `Optimizer`, which adds what is done with state beside stepping."""

    FAMILY: ClassVar[type[Family]] = Family
    NOT_CYCLED: ClassVar[tuple[str, ...]] = ()  # options of groups that torch's schedulers must not find in `defaults`
    engine: Engine  # the compiled core and its parameters: internal
    _take: Callable[[float, bool, int, int, list[int] | None], object] | None = None  # in place of the core's step

    def __init__(self, params: ParamsT, rule: str, hyper: Mapping[str, Any], options: Options) -> None:
        """hyper: the rule's hyper-parameters, and maybe the rest of the locals() of a constructor."""
        hyper = {key: value for key, value in hyper.items() if key not in _NO_HYPER}
        check_options(options, type(self).__name__, list(hyper))
        settings = Settings.of(options)
        self._begin_engine(rule, hyper, settings, options_of(options))
        super().__init__(params, self._cycled({**group_defaults(hyper, options), **stamp(rule, settings.seed)}))

    def _begin_engine(
        self, rule: str, hyper: Mapping[str, Any], settings: Settings, backward_options: dict[str, Any]
    ) -> None:
        """Starts without groups. `hyper`: has the names of the rule's hyper-parameters among its keys."""
        self.engine = Engine(self.FAMILY(type(self).__name__, rule, hyper), settings)
        self._overrides_seen = overrides.changes()
        self._seen: dict[int, list[Any]] = {}  # options of parameter groups, by number, that the core was told
        self._residency = Residency()
        self._partitioned = False  # whether ZeRO shows one partition of a group after another
        self._backward_options = backward_options
        self._in_backward: InBackward | None = in_backward(self.engine, backward_options, self._step_gradients)
        if settings.amp_scaling:
            self._step_supports_amp_scaling = True

    def _cycled(self, defaults: dict[str, Any]) -> dict[str, Any]:
        """`defaults` without those that schedulers must not find; groups get these all the same."""
        self._beside = {name: defaults[name] for name in self.NOT_CYCLED}
        return {name: value for name, value in defaults.items() if name not in self._beside}

    @property
    def _core(self) -> _core.Optimizer:
        """The core of a class that steps parameters on one device alone."""
        core = self.engine.core
        assert isinstance(core, _core.Optimizer)
        return core

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group as torch does. On an error the optimizer is as it was.

        Raises ValueError or TypeError for a parameter or an option that cannot be used; MemoryError;
        NotImplementedError for parameters on a device that this installation cannot step.
        """
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group: got {type(param_group).__name__}, wanted a dict")
        where = f"parameter group {len(self.param_groups)}"
        expect("params" in param_group, where, f"keys {sorted(map(str, param_group))}", "'params' among them")
        check_kinds(param_group, where)
        warn_of_misspelt(param_group, ("params", "memory", *self.defaults, *self._beside), where)
        for name in WHOLE_OPTIMIZER:
            expect(name not in param_group, where, repr(name), "it among the options of the whole optimizer")
        if not isinstance(param_group["params"], (torch.Tensor, set)):
            param_group["params"] = list(param_group["params"])
            bare = {id(entry[1] if isinstance(entry, tuple) else entry) for entry in param_group["params"]}
            expect(len(bare) == len(param_group["params"]), where, "the same parameter more than once", "each once")
        memory: Memory | None = param_group.get("memory")
        if "memory" in param_group:  # not a value that a state_dict should carry; the caller's dict keeps it
            param_group = {key: value for key, value in param_group.items() if key != "memory"}
        for name, value in self._beside.items():
            param_group.setdefault(name, value)
        super().add_param_group(param_group)
        self._listed, self._groups = self.param_groups, [*self.param_groups]
        engine = self.engine
        first = len(engine.params)
        try:
            param_group.update(stamp(engine.family.rule, engine.settings.seed))
            if self._in_backward:
                self._in_backward.check(param_group["params"], where)
            engine.add(self.param_groups, memory)
        except BaseException:
            self.param_groups.pop()
            raise
        if type(self.state) is not States:
            self.state = States(dict, self.state)
        for i, param in enumerate(engine.params[first:], first):
            shown = (param.requires_grad and i not in engine.foreign) or engine.core.has_state(i)
            self.state[param] = engine.shown(i) if shown else {}
        if self._in_backward:
            self._in_backward.watch(engine.params[first:], first)

    def _follow_groups(self) -> None:
        """Follows a wrapper that has put other tensors into the groups. No work per parameter but a comparison of
        addresses."""
        groups, members = self.param_groups, self.engine.members
        if len(groups) != len(members) or not all(map(_core.same_objects, map(_PARAMS, groups), members)):
            self._follow_params()

    def _follow_params(self) -> None:
        engine, groups = self.engine, self.param_groups
        if self._partitioned and partitions.are_all(groups):
            for number, param in partitions.unknown(engine, groups):
                added = engine.append(number, param)
                self.state[param] = self.state.get(param) or engine.shown(added)
                restore.take_assigned(engine, self.state, groups, [added])
            return
        numbers = partitions.numbers_of(groups, engine.members)
        if numbers is not None:
            partitions.check(engine, groups)
            assigned = partitions.assigned(engine, self.state)
            self._rebind(numbers, None)
            self.state.update(assigned)
            restore.take_assigned(engine, self.state, groups, range(len(engine.params)))
            return
        kept = self._kept_groups()
        if type(self.state) is not States or self.state.removed:
            self.state = restore.restart_removed(engine, self.state)
        try:
            sources = heirs(engine, groups, kept)
        except ValueError:
            if any(map(engine.core.step_count, range(len(engine.params)))):
                raise
            sources = None
        self._rebind(kept, sources)

    def _kept_groups(self) -> list[int]:
        """The number that each parameter group had when it was added. ValueError unless there are as many, or only groups
        without parameters are missing."""
        members, groups = self.engine.members, self.param_groups
        numbers = {id(group): number for number, group in enumerate(self._groups)}
        kept = [numbers.get(id(group), -1) for group in groups]
        if len(groups) == len(members) and (-1 in kept or len({*kept}) < len(kept)):
            return [*range(len(groups))]  # copies of groups
        gone = [number for number, params in enumerate(members) if params and number not in kept]
        whole = not gone and -1 not in kept and len({*kept}) == len(kept)
        expect(whole, "param_groups", f"{len(groups)} groups", f"{len(members)}: use add_param_group")
        return kept

    def _rebind(self, kept: list[int], sources: list[int] | None) -> None:
        """Goes on with the tensors that are in the groups; see `rebind`."""
        if self._in_backward:
            for number, group in enumerate(self.param_groups):
                self._in_backward.check(group["params"], f"param_groups[{number}]['params']")
        rebind(self.engine, self.param_groups, kept, sources)
        self._listed, self._groups = self.param_groups, [*self.param_groups]
        self._seen.clear()
        self._partitioned = any(map(partitions.is_partition, self.engine.params))
        self._show_state()
        if self._in_backward:
            self._in_backward.watch_anew(self.engine.params)

    def _follow_overrides(self) -> None:
        """Makes the core do what overrides say that were made or taken back since the last look."""
        if self._overrides_seen != (now := overrides.changes()):
            follow_overrides(self.engine, self.param_groups, self._show_state)
            self._overrides_seen = now

    def _show_state(self) -> None:
        self.state = restore.shown_states(self.engine)

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One step over every parameter that has a gradient; returns the closure's loss, if there is a closure.

        Raises ValueError when a hyper-parameter is out of range, a gradient cannot be used (sparse, of another shape),
        a parameter was moved, re-typed or resized, or, with nonfinite="raise", a gradient is not finite. Nothing has
        changed then. With DTensor parameters every rank of their meshes must make the call: unless nonfinite is
        "propagate", they agree on whether to step.
        """
        loss = None
        if self._in_backward:
            self._in_backward.before_step(closure)
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not self.engine.on_host:
            self._tell()
        taken = False
        try:
            if len(self.param_groups) < len(self._listed) and self._is_part():
                self._step_part()
            else:
                self._step_gradients()
            taken = True
        finally:
            if self._in_backward:
                self._in_backward.after_step(taken)
        return loss

    def _is_part(self) -> bool:
        """Whether groups with parameters are missing."""
        here = {*map(id, self.param_groups)}
        return any(params and id(group) not in here for group, params in zip(self._groups, self.engine.members))

    def _step_part(self) -> None:
        """Steps the groups that a wrapper has left in `param_groups`, and no others."""
        part, self.param_groups = self.param_groups, self._listed
        try:
            partitions.check_part(part, self.param_groups)
            self._follow_groups()
            numbers = partitions.shown(self.engine, part)
            restore.take_assigned(self.engine, self.state, self.param_groups, numbers)
            self._step_gradients(numbers)
        finally:
            self.param_groups = part

    def _step_gradients(self, only: list[int] | None = None) -> None:
        """Steps the parameters that have a gradient; `only`: those of them that have these numbers."""
        capturing = self.engine.capturing
        if capturing:
            self._check_capture()
        self._push_options()
        engine = self.engine
        if self._partitioned:
            only = partitions.shown(engine, self.param_groups)
            restore.take_assigned(engine, self.state, self.param_groups, only)
        engine.captured |= capturing
        scale, bad = self._scaling() if engine.settings.amp_scaling else (1.0, None)
        if engine.meshes and self._agrees():
            bad = self._agree(scale, bad)
        if bad:
            engine.skipped_before += 1
        else:
            queue, free = (0, -1) if engine.on_host else (engine.queue(), engine.room())
            (self._take or engine.core.step)(scale, bad is not None, queue, free, only)
        if engine.awaited:
            self._adopt_new_state()

    def _tell(self) -> None:
        """Logs what has become of the state. The core commits the last step for that, as the next one would."""
        if logger.isEnabledFor(logging.INFO) and not self.engine.capturing:
            self._residency.look(self.engine.core.report())

    def _check_capture(self) -> None:
        """ValueError for a step that would ask the device something while a graph is captured, which spoils the
        capture."""
        settings, cores = self.engine.settings, self.engine.core
        if isinstance(cores, Cores):
            raise ValueError(f"step: got parameters on {cores.names()} while a graph is captured, wanted one device")
        if settings.amp_scaling or (self.engine.meshes and self._agrees()):
            raise ValueError(
                "step: got amp_scaling, or DTensor parameters whose gradients are checked, while a graph is captured; "
                "wanted neither: they have the host decide on every step"
            )
        for core_group in self.engine.groups:
            options = core_group.options(self.param_groups)
            check_on_host(self.engine.family.keys, options, f"parameter group {core_group.of}")

    def prepare_replay(self) -> None:
        """To be called before each replay of a graph (`torch.cuda.CUDAGraph`) that a step was captured in, on the
        stream of the replay: counts a step, and gives the replay its number and the options as they are now.

        Before the capture take a step without it. All state must be on the device then
        (`report()["moved_per_step"]` is 0) and stay there; parameters and gradients keep their memory
        (zero_grad(set_to_none=False)). Gradients that are not finite do to a replay what they do to a step. Raises
        ValueError if no step has been captured or memory has moved, for a second call without a replay between, for a
        replay that was not prepared (it has changed nothing) and, with nonfinite="raise", for the replay before if a
        gradient of it was not finite. With nonfinite="propagate" this does not wait for the last replay; what is wrong
        with it may then be raised by a later call."""
        self._push_options()
        self.engine.core.prepare_replay(1.0, self.engine.queue())

    def _scaling(self) -> tuple[float, bool | None]:
        """The factor of the gradients, and whether one is known not to be finite (None: unknown)."""
        if not self.engine.settings.amp_scaling or (found := getattr(self, "found_inf", None)) is None:
            return 1.0, None
        bad = float(found) > 0
        if bad or (loss_scale := getattr(self, "grad_scale", None)) is None:
            return 1.0, bad
        return 1.0 / float(loss_scale), bad

    def _agrees(self) -> bool:
        """Whether ranks with DTensor parameters agree on a step beforehand."""
        return self.engine.settings.nonfinite != "propagate"

    def _agree(self, scale: float, bad: bool | None) -> bool:
        """Whether a gradient is not finite on any rank. If one rank cannot step, all of them raise."""
        engine, failure, verdict = self.engine, None, sharding.OK
        try:
            if engine.core.check(scale, engine.queue()) >= 0 if bad is None else bad:
                verdict = sharding.NONFINITE
        except Exception as error:  # whatever it is: the other ranks are waiting
            failure, verdict = error, sharding.FAILED
        try:
            verdict = sharding.agree(engine.meshes, engine.shardings, engine.params, verdict)
        finally:
            if failure:
                raise failure
        if verdict == sharding.FAILED:
            raise ValueError("another rank refused this step, and says why; nothing was changed")
        return verdict == sharding.NONFINITE

    def _push_options(self) -> None:
        """Tells the core what has changed since the last step."""
        self._follow_groups()
        groups, engine = self.param_groups, self.engine
        if self._overrides_seen != overrides.changes():
            self._follow_overrides()
        if engine.foreign and (numbers := engine.foreign_gradients()):
            take_in(engine, groups, numbers, self._show_state)
        for number, group in enumerate(groups):
            options = [*map(group.get, chain(self.defaults, self._beside))]
            seen = self._seen.get(number)
            if seen and len(seen) == len(options) and (all(map(is_, options, seen)) or are_same(options, seen)):
                continue
            self._seen.pop(number, None)
            self._push_group(number, group)
            if are_fixed(options):
                self._seen[number] = options
        threads = torch.get_num_threads()
        if threads != engine.threads:
            engine.core.set_threads(threads)
            engine.threads = threads
        if type(self.state) is not States or self.state.removed:
            self.state = restore.restart_removed(engine, self.state)

    def _push_group(self, of: int, group: Mapping[str, Any]) -> None:
        """Tells the core what has changed in parameter group `of`."""
        engine = self.engine
        if (now := Format.of(group)) != engine.formats[of]:
            raise ValueError(
                f"param_groups[{of}]: got {', '.join(Format._fields)} = {tuple(now)}, wanted "
                f"{tuple(engine.formats[of])}: fixed when the group is added"
            )
        for number, core_group in enumerate(engine.groups):
            if core_group.of != of:
                continue
            try:
                options = core_group.options(self.param_groups)
                if (rounding := options["rounding"]) != core_group.rounding:
                    check_kinds({"rounding": rounding}, f"parameter group {of}")
                hyper = engine.family.hyper_of(core_group.rule, options)
                before = core_group.push(engine.core, number, hyper, rounding)
            except (TypeError, ValueError) as error:
                raise engine.family.error(f"parameter group {of}", core_group.rule, error) from error
            if before is not None:
                self._note_momentum(core_group, before)

    def _note_momentum(self, core_group: CoreGroup, old: Mapping[str, float]) -> None:
        """SGD's state comes with its momentum: the step after a change from or to 0 may allocate it."""
        if bool(old.get("momentum")) != bool(core_group.pushed.get("momentum")):
            self.engine.await_states(core_group.params)

    def _adopt_new_state(self) -> None:
        """Shows, in `state`, what the core has allocated for parameters that had their first gradient."""
        for number in self.engine.new_states():
            self.state[self.engine.params[number]] = self.engine.shown(number)
