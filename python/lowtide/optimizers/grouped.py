"""Parameter groups of an optimizer over the compiled core: adding them, and following wrappers that put other tensors into
them, and overrides."""

import logging
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch.optim.optimizer import ParamsT

from lowtide import _core
from lowtide.checks.values import expect
from lowtide.devices import sharding
from lowtide.engine.engine import Engine, Entry, Settings
from lowtide.engine.family import Family
from lowtide.engine.groups import group_defaults
from lowtide.engine.rebind import check_tensors, heirs, list_params
from lowtide.memory.budgets import Memory
from lowtide.optimizers import partitions
from lowtide.optimizers.backward import InBackward, in_backward, options_of
from lowtide.optimizers.clipping import Request
from lowtide.options import overrides
from lowtide.options.options import WHOLE_OPTIMIZER, Options, check_kinds, check_options, warn_of_misspelt
from lowtide.report.log import Residency, Skips, logger, warn
from lowtide.state import restore
from lowtide.state.format import stamp
from lowtide.state.restore import States

_NO_HYPER = ("self", "params", "options", "__class__")  # among the locals() of a constructor


class GroupedOptimizer(torch.optim.Optimizer):
    """Base class of `PushingOptimizer`, which adds what the core is told before a step."""

    FAMILY: ClassVar[type[Family]] = Family
    ENTRY: ClassVar[Entry | None] = None  # see `Engine`
    NOT_CYCLED: ClassVar[tuple[str, ...]] = ()  # options of groups that torch's schedulers must not find in `defaults`
    engine: Engine  # the compiled core and its parameters: internal

    def __init__(self, params: ParamsT, rule: str, hyper: Mapping[str, Any], options: Options) -> None:
        """hyper: the rule's hyper-parameters, and maybe the rest of the locals() of a constructor."""
        hyper = {key: value for key, value in hyper.items() if key not in _NO_HYPER}
        check_options(options, type(self).__name__, list(hyper))
        settings = Settings.of(options)
        self._chose_master = "master" in options
        self._begin_engine(rule, hyper, settings, options_of(options))
        super().__init__(params, self._cycled({**group_defaults(hyper, options), **stamp(rule, settings.seed)}))
        if logger.isEnabledFor(logging.INFO):
            self._introduce()

    def _introduce(self) -> None:
        """Logs what there is to step."""
        engine = self.engine
        dist = torch.distributed
        rank = f", rank {dist.get_rank()}" if dist.is_available() and dist.is_initialized() else ""
        in_ram = engine.on_host and not engine.has_budget()
        memory = f", under {engine.settings.memory}" if engine.settings.memory else " in RAM" if in_ram else ""
        logger.info(
            "%s on %s%s: %d parameters, %d elements, %d bytes of state%s", engine.family.name,
            ", ".join(str(place.device) for place in engine.cores) or "no device yet", rank, len(engine.params),
            sum(sharding.local_of(tensor).numel() for tensor in engine.tensors), engine.wanted_bytes(), memory,
        )  # fmt: skip

    def _begin_engine(
        self, rule: str, hyper: Mapping[str, Any], settings: Settings, backward_options: dict[str, Any]
    ) -> None:
        """Starts without groups. `hyper`: has the names of the rule's hyper-parameters among its keys."""
        self.engine = Engine(self.FAMILY(type(self).__name__, rule, hyper), settings, self.ENTRY)
        self._overrides_seen = overrides.changes()
        self._seen: dict[int, list[Any]] = {}  # options of parameter groups, by number, that the core was told
        self._residency, self._skips = Residency(), Skips()
        self._partitioned = False  # whether ZeRO shows one partition of a group after another
        self._clip_request: Request | None = None  # of clip_grad_norm_, for the next step
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
        if self.param_groups:
            self._follow_state()
        where = f"parameter group {len(self.param_groups)}"
        expect("params" in param_group, where, f"keys {sorted(map(str, param_group))}", "'params' among them")
        check_kinds(param_group, where)
        self._chose_master |= "master" in param_group
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
            if engine.add_group(self.param_groups, memory):
                self._show_state()
        except BaseException:
            self.param_groups.pop()
            if engine.cores:
                self._show_state()
            raise
        if self._in_backward:
            self._in_backward.watch(engine.tensors[first:], first)
        if not self._chose_master:
            self._advise_master(param_group["params"])

    def _advise_master(self, params: list[torch.Tensor]) -> None:
        kinds = {param.dtype for param in params if param.requires_grad} & {torch.bfloat16, torch.float16}
        if kinds:
            kind = "bfloat16" if torch.bfloat16 in kinds else "float16"
            self._chose_master = True  # once is enough
            warn(
                f"{type(self).__name__}: got {kind} weights without master=: they round to nearest, so that updates below half of their "
                'last bit are lost, most of them at the learning rates of fine-tuning. Pass master="residual16" (2 bytes a '
                'parameter; float32 precision), master="stochastic" (no bytes), or master=None to keep this'
            )

    def _follow_groups(self) -> None:
        """Follows a wrapper that has put other tensors into the groups. No work per parameter but a comparison of
        addresses."""
        groups = self.param_groups
        if not all(type(group.get("params")) is list for group in groups):
            list_params(groups)
        if not self.engine.are_registered(groups):
            self._follow_params()

    def _follow_params(self) -> None:
        engine, groups = self.engine, self.param_groups
        check_tensors(groups)
        if self._partitioned and partitions.are_all(groups):
            for number, param in partitions.unknown(engine, groups):
                engine.append(number, param)
            return
        numbers = partitions.numbers_of(groups, [each.tensors for each in engine.members])
        if numbers is not None:
            partitions.check(engine, groups)
            assigned = partitions.assigned(engine, self.state)
            self._rebind(numbers, None, sizes=False)  # DeepSpeed takes parts of whatever it finds in `state`
            self.state.update(assigned)
            return
        kept = self._kept_groups()
        self._follow_state()
        try:
            sources = heirs(engine, groups, kept)
        except ValueError:
            if engine.has_stepped():
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
        gone = [number for number, each in enumerate(members) if each.tensors and number not in kept]
        whole = not gone and -1 not in kept and len({*kept}) == len(kept)
        expect(whole, "param_groups", f"{len(groups)} groups", f"{len(members)}: use add_param_group")
        return kept

    def _rebind(self, kept: list[int], sources: list[int] | None, sizes: bool = True) -> None:
        """Goes on with the tensors that are in the groups; see `Engine.replace`."""
        if self._in_backward:
            for number, group in enumerate(self.param_groups):
                self._in_backward.check(group["params"], f"param_groups[{number}]['params']")
        self.engine.replace(self.param_groups, kept, sources, sizes)
        self._listed, self._groups = self.param_groups, [*self.param_groups]
        self._seen.clear()
        self._partitioned = any(map(partitions.is_partition, self.engine.tensors))
        self._show_state()
        if self._in_backward:
            self._in_backward.watch_anew(self.engine.tensors)

    def _follow_overrides(self) -> None:
        """Makes the core do what overrides say that were made or taken back since the last look."""
        if self._overrides_seen != (now := overrides.changes()):
            if self.engine.follow_overrides(self.param_groups):
                self._show_state()
            self._overrides_seen = now

    def _follow_state(self) -> None:
        """Does with state what was done to `state`."""
        if type(self.state) is not States or self.state.changed or self.engine.assigned:
            self.state = restore.follow(self.engine, self.param_groups, self.state)

    def _show_state(self) -> None:
        self.state = restore.shown_states(self.engine)

    @abstractmethod
    def _step_gradients(self, only: list[int] | None = None) -> None:
        """Steps the parameters that have a gradient; `only`: those of them that have these numbers."""
