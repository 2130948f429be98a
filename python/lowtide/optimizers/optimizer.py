"""The base class of all Lowtide optimizers: `torch.optim.Optimizer` semantics over the compiled core.

Parameters are numbered by position over all groups, here, in the core and in `state_dict()`. Python does no optimizer
mathematics: it reads the groups' options, makes one call per step and returns views of the state.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial, wraps
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, cast, overload

import torch
from torch.optim.optimizer import ParamsT

from lowtide import _core
from lowtide._core import QueuedClip
from lowtide.checks.values import expect
from lowtide.devices import sharding
from lowtide.devices.flattened import first_flattened
from lowtide.engine.cores import Cores, KeptErrors
from lowtide.engine.engine import Engine
from lowtide.engine.family import Family
from lowtide.engine.groups import group_defaults
from lowtide.engine.params import name_in, parameter
from lowtide.memory.budgets import of_group, size_of
from lowtide.optimizers import describe, partitions, rebinding
from lowtide.optimizers.backward import InBackward, StepInBackward, in_backward, options_of
from lowtide.optimizers.clipping import LOSS_SCALING, Clipper, LossScaling, Queued, loss_scaling
from lowtide.optimizers.oom_guard import OomGuard
from lowtide.options import overrides
from lowtide.options.hyper import check_on_host, plain_betas
from lowtide.options.options import (
    DEFAULTS, WHOLE_OPTIMIZER, Options, Settings, check_kinds, check_options, show_options, warn_of_misspelt,
)  # fmt: skip
from lowtide.report.fields import CoreReport, Report, ShownReport
from lowtide.report.log import Residency, Skips, is_called_by, logger
from lowtide.state import dicts, files, restore, spread, torch_dict, views
from lowtide.state.carried import as_tensors, own_numbers
from lowtide.state.elsewhere import Shown
from lowtide.state.foreign import bitsandbytes
from lowtide.state.format import NORMS, SEED, SPREAD, stamp
from lowtide.state.pending_save import PendingSave
from lowtide.state.restore import States

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_PARAMS = itemgetter("params")
_NO_HYPER = ("self", "params", "options", "__class__")  # locals() of a constructor that are no hyper-parameters


Method = TypeVar("Method", bound=Callable[..., Any])


def _alone(method: Method) -> Method:
    """Makes the method wait for calls in other threads, and names parameters in its ValueErrors."""

    @wraps(method)
    def call(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        with self.engine.lock:
            try:
                return method(self, *args, **kwargs)
            except ValueError as error:
                name_in(error, self.param_groups)
                raise

    return cast("Method", call)


class Optimizer(torch.optim.Optimizer):
    """Base class; use `AdamW`, `Lion`, `SGD` or another class from docs/rules.md.

    Parameters: dense tensors of float32, bfloat16 or float16, of any shape and any strides without overlapping elements, or
    DTensors of them (docs/distributed.md), on the CPU or on one or several devices with a backend (docs/gpu.md). A frozen
    parameter (`requires_grad=False`) gets its state with its first gradient; a parameter whose `.grad` is None is left alone. A
    frozen `torch.nn.Parameter` that cannot be stepped (another dtype or device, a wrapper such as a quantized weight), or a
    parameter on meta, is registered without state. With its first gradient it is stepped if it can be by then; otherwise that
    step is refused. From a parameter's first step on, `state[p]` holds views of its live state: "step" (int64) and each moment,
    as values (float32, bfloat16), or as uint8 "…_codes" with a float32 "…_scale" per block, which raise RuntimeError when
    written. If state streams or is on a device, `state[p]` holds "step", and tensors with the sizes, types and device of the
    others but no memory: reading copies current values, writing raises RuntimeError. Other tensors put into the groups replace
    the parameters and take over their state (docs/python-api.md). Removing entries from `state`, or assigning {}, starts those
    parameters afresh. The next step or save adopts other assignments: tensors with those names, types and shapes, or
    torch.optim's values, which are encoded; it raises ValueError for others. It refuses another mapping as `state` together
    with other lists in all groups (NotImplementedError): replace tensors or assign state, not both.
    """

    FAMILY: ClassVar[type[Family]] = Family
    ENTRY: ClassVar[Callable[..., Shown] | None] = None  # see `views.shown`
    NOT_CYCLED: ClassVar[tuple[str, ...]] = ()  # group options to hide from torch's schedulers, which read `defaults`
    MASTER: ClassVar[str | None] = DEFAULTS["master"]  # for groups whose user chose none
    WAITS_FOR_CLIPS: ClassVar[bool] = False  # steps cannot take a clip that a device is still computing
    NO_GRAPH: ClassVar[str] = ""  # why no graph can capture steps
    REFUSES: ClassVar[Mapping[str, str]] = {}  # options that the class refuses, and why
    engine: Engine  # internal: the compiled core and its parameters
    _numbers: dict[int, int] | None = None  # numbers of parameters by id, until the groups change
    _steps_single = False  # whether some parameters of a group were stepped alone

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "__init__" in vars(cls):
            show_options(cls.__init__, [*cls.REFUSES])

    def __init__(self, params: ParamsT, rule: str, hyper: Mapping[str, Any], options: Options) -> None:
        """For subclasses. hyper: the rule's hyper-parameters; other locals() of a constructor are ignored."""
        hyper = {key: value for key, value in hyper.items() if key not in _NO_HYPER}
        settings, in_backward = Settings(), {}
        if options:
            check_options(options, type(self).__name__, list(hyper))
            settings, in_backward = Settings.of(options), options_of(options)
        self._chose_master = "master" in options
        if isinstance(params, torch.nn.Module):
            raise _not_parameters(type(self).__name__, params)
        self._begin(rule, hyper, settings, in_backward)
        defaults = group_defaults(hyper, {"master": self.MASTER, **options})
        if not isinstance(defaults.get("betas", ()), (tuple, list)):
            defaults = plain_betas(defaults)
        super().__init__(params, self._cycled({**defaults, **stamp(rule, settings.seed)}))
        if logger.isEnabledFor(logging.INFO):
            describe.introduce(self.engine)

    def _begin(self, rule: str, hyper: Mapping[str, Any], settings: Settings, backward_options: dict[str, Any]) -> None:
        """Starts without groups. The keys of `hyper` include the names of the rule's hyper-parameters."""
        self.engine = Engine(self.FAMILY(type(self).__name__, rule, hyper), settings, self.ENTRY)
        self._residency, self._skips = Residency(), Skips()
        self._partitioned = False  # whether ZeRO shows one partition of a group after another
        self._clipper = Clipper(self.engine, self.WAITS_FOR_CLIPS)
        self._backward_options = backward_options
        self.in_backward: InBackward | None = None  # internal: work in backward
        self.by_parts: Callable[[list[torch.Tensor], list[int], bool], Iterable[list[int]]] | None = None  # internal: `StreamedWeights.parts`
        if backward_options:
            self.in_backward = in_backward(self.engine, backward_options, self._step_gradients)
        if settings.amp_scaling:
            self._step_supports_amp_scaling = True

    def _cycled(self, defaults: dict[str, Any]) -> dict[str, Any]:
        """Removes options from `defaults` that schedulers must not find. Groups still get them."""
        self._beside = {name: defaults.pop(name) for name in self.NOT_CYCLED}
        return defaults

    @property
    def _core(self) -> _core.Optimizer:
        """The core of a class that steps parameters on only one device."""
        core = self.engine.core
        assert isinstance(core, _core.Optimizer)
        return core

    @_alone
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group as torch does. An error leaves the optimizer unchanged.

        Raises ValueError or TypeError for an unusable parameter or option; MemoryError; NotImplementedError for parameters on a
        device that this installation cannot step.
        """
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group: got {type(param_group).__name__}, wanted a dict")
        if self.param_groups:
            self._follow_state()
        where = f"parameter group {len(self.param_groups)}"
        expect("params" in param_group, where, f"keys {sorted(map(str, param_group))}", "'params' among them")
        decoupled = self.engine.family.rule in ("adamw", "schedulefree")
        if decoupled and param_group.get("decoupled_weight_decay"):  # a group of torch.optim.AdamW
            param_group = {key: value for key, value in param_group.items() if key != "decoupled_weight_decay"}
        if not isinstance(param_group.get("betas", ()), (tuple, list)):
            param_group = plain_betas(param_group)
        check_kinds(param_group, where)
        self._chose_master |= "master" in param_group
        warn_of_misspelt(param_group, ("params", "memory", *self.defaults, *self._beside), where)
        for name in WHOLE_OPTIMIZER:
            if name in param_group:
                raise ValueError(f"{where}: got {name!r}, wanted it among the options of the whole optimizer")
        if isinstance(param_group["params"], torch.nn.Module):
            raise _not_parameters(where, param_group["params"])
        if not isinstance(param_group["params"], (torch.Tensor, set)):
            param_group["params"] = list(param_group["params"])
            bare = {id(entry[1] if isinstance(entry, tuple) else entry) for entry in param_group["params"]}
            expect(len(bare) == len(param_group["params"]), where, "the same parameter more than once", "each once")
        memory = None
        if "memory" in param_group:  # only the caller's dict keeps it; a state_dict must not have it
            memory = of_group(param_group, where)
            param_group = {key: value for key, value in param_group.items() if key != "memory"}
        for name, value in self._beside.items():
            param_group.setdefault(name, value)
        super().add_param_group(param_group)
        self._note_groups()
        engine = self.engine
        first = len(engine.params)
        try:
            param_group.update(stamp(engine.family.rule, engine.settings.seed))
            if engine.settings.max_grad_spike is not None and not engine.members:
                param_group.setdefault(NORMS, ())
            else:
                param_group.pop(NORMS, None)  # from another optimizer
            if self.in_backward:
                self.in_backward.check(param_group["params"], where)
            engine.add_group(self.param_groups, memory)
        except BaseException:
            self.param_groups.pop()
            raise
        finally:
            if engine.renewed:
                self._show_state()
        if self.in_backward:
            self.in_backward.watch(engine.tensors[first:], first)
        if not self._chose_master and not describe.HALVES.isdisjoint(map(describe.DTYPE, param_group["params"])):
            self._chose_master = describe.warn_of_master(self.engine, first)

    def _note_groups(self) -> None:
        """Remembers the groups, to notice when they are replaced."""
        groups = self.param_groups
        self._listed, self._groups, self._lists = groups, [*groups], [*map(_PARAMS, groups)]
        self._numbers = None

    def _refuse_lent_state(self) -> None:
        """Raises NotImplementedError inside torch.optim.swap_in_optimizer_params_and_state, which lends other parameters and
        state. A step would change the core's state, not the lent state."""
        if type(self.state) is States or not self.state:
            return
        if not any(group["params"] is known for group, known in zip(self.param_groups, self._lists)):
            raise NotImplementedError(
                "got other lists in param_groups with another mapping as state (swap_in_optimizer_params_and_state?), wanted "
                "the optimizer's own: make an optimizer for those parameters, and load the state_dict into it"
            )

    def _follow_groups(self) -> None:
        """Follows a wrapper that has put other tensors into the groups. Only compares addresses, to be fast."""
        if not self.engine.are_registered(self.param_groups):
            self._follow_params()

    def _follow_params(self) -> None:
        engine, groups = self.engine, self.param_groups
        rebinding.check_tensors(groups)
        if engine.are_registered(groups):
            return
        self._refuse_lent_state()
        if self._partitioned and partitions.are_all(groups):
            for number, param in partitions.unknown(engine, groups):
                engine.append(number, param)
            return
        numbers = partitions.numbers_of(groups, [each.tensors for each in engine.members])
        if numbers is not None:
            partitions.check(engine, groups)
            assigned = partitions.assigned(engine, self.state)
            self._rebind(numbers, None, sizes=False)  # DeepSpeed slices whatever it finds in `state`
            self.state.update(assigned)
            return
        kept = rebinding.kept_groups(engine, groups, self._groups)
        self._follow_state()
        self._rebind(kept, rebinding.heirs(engine, groups, kept))

    def _rebind(self, kept: list[int], sources: list[int] | None, sizes: bool = True) -> None:
        """Adopts the tensors that are in the groups now. See `Engine.replace`."""
        if self.in_backward:
            for number, group in enumerate(self.param_groups):
                self.in_backward.check(group["params"], f"param_groups[{number}]['params']")
        self.engine.replace(self.param_groups, kept, sources, sizes)
        self._note_groups()
        self._partitioned = any(map(partitions.is_partition, self.engine.tensors))
        self._show_state()
        if self.in_backward:
            self.in_backward.watch_anew(self.engine.tensors)

    def _push_options(self) -> None:
        """Tells the core about changes since the last step."""
        if not self.engine.are_registered(self.param_groups):
            self._follow_params()
        self._follow_state()
        if self.engine.copies.waits:
            self.engine.copies.read(self.engine)
        if self.engine.away:
            restore.bring_back(self.engine, self.state)
        try:
            self.engine.follow(self.param_groups, chain(self.defaults, self._beside))
        finally:
            if self.engine.renewed:
                self._show_state()

    def _follow(self, takes_state: bool = True) -> None:
        """Called before state is read or replaced outside a step. Follows wrappers, overrides, moves and, unless all state is
        to be replaced, assignments to `state`."""
        if not self.engine.are_registered(self.param_groups):
            self._follow_params()
        if takes_state:
            self._follow_state()
        elif type(self.state) is not States:
            self.state = States(dict, self.state)
        self.engine.follow_between_steps(self.param_groups)
        if self.engine.renewed:
            self._show_state()

    def _follow_state(self) -> None:
        """Applies assignments in `state` to the core's state."""
        if type(self.state) is not States or self.state.changed or self.engine.assigned:
            self._refuse_lent_state()
            self.state = restore.follow(self.engine, self.param_groups, self.state)

    def _show_state(self) -> None:
        self.state = restore.shown_states(self.engine)

    def _adopt_new_state(self) -> None:
        """Shows, in `state`, the state that the core has allocated for parameters at their first gradient."""
        engine = self.engine
        if engine.renewed:
            self._show_state()
        new = engine.new_states()
        for number in new:
            self.state[engine.tensors[number]] = views.shown(engine, number)
        engine.adopted(new)  # last, so that after an interrupt the next call finds them
        if new and not engine.in_ram and logger.isEnabledFor(logging.INFO) and not engine.capturing:
            self._residency.place(engine.core.report())

    def _place_states(self) -> None:
        """Places state that waits for the first step. Raises like `state_dict`."""
        if not self.engine.in_ram:
            self.engine.place_states()
            self._adopt_new_state()

    @_alone
    def _init_group(self, group: Mapping[str, Any], skip_non_grad_params: bool = True) -> None:
        """Megatron-core calls this to create state before it reads a checkpoint. Gives every parameter, even in other groups
        and without a gradient, the state that a first step would. Raises like `state_dict`."""
        del group, skip_non_grad_params  # a budget may cover all groups, so all state is placed at once
        self._follow()
        self._place_states()
        self.engine.begin_moments(self.param_groups)
        self.engine.show_unstepped(True)
        self._show_state()

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Steps every parameter that has a gradient. Returns the loss of the closure, if given.

        Raises ValueError, and changes nothing, if a hyper-parameter is out of range, a gradient is unusable (sparse, of another
        shape), a parameter was moved (except before the first step), re-typed (with a residual) or resized, or, with
        nonfinite="raise", a gradient is not finite. With DTensor parameters every rank of their meshes must make the call, and
        they agree on whether to step (unless nonfinite is "propagate").
        """
        loss = None
        if not self.state and self._gives_state():
            return None
        if self.in_backward:
            self.in_backward.before_step(closure)
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not self.engine.on_host and logger.isEnabledFor(logging.INFO) and not self.engine.capturing:
            self._residency.look(self.engine.core.report())  # reading moves of state commits the last step, as the next step would
        taken = False
        try:
            if self.param_groups is not self._listed and partitions.are_part(self.engine, self.param_groups, self._groups):
                self._step_part()
            else:
                self._step_gradients()
            taken = True
        finally:
            if self.in_backward:
                self.in_backward.after_step(taken)
        return loss

    def _gives_state(self) -> bool:
        """True if torch.distributed.checkpoint takes a first step, with zero gradients and lr=0, only to create state. Then
        state is created without a step, which training would count."""
        creates = is_called_by("_init_optim_state")
        if creates:
            self._init_group({})
        return creates

    def _step_part(self) -> None:
        """Steps only the parameters that a wrapper has left in `param_groups`."""
        part, self.param_groups = self.param_groups, self._listed
        try:
            if partitions.check_part(part, self.param_groups):
                StepInBackward.refuse_norms(self.engine, "step of some parameters of a group")
                self._steps_single = True
            self._follow_groups()
            self._step_gradients(partitions.shown(self.engine, part))
        finally:
            self.param_groups = part

    @_alone
    def _step_gradients(self, only: list[int] | None = None) -> None:
        """Steps the parameters that have a gradient. only: their numbers, to step just these."""
        engine = self.engine
        capturing = engine.may_capture and engine.capturing
        if capturing:
            self._check_capture()
        self._push_options()
        if engine.aside:
            engine.aside = set()  # the step brings the state back
        if self._partitioned:
            only = partitions.shown(engine, self.param_groups)
        if capturing:
            engine.note_capture()
        scale, bad, words = loss_scaling(engine, self, capturing) if vars(self).keys() & LOSS_SCALING else (1.0, None, None)
        agrees, failure, queued, found = bool(engine.meshes) and self._agrees(), None, None, -1
        norm, spike = None, ""
        if not bad:
            try:
                scale, bad, queued, words, norm = self._clipper.clipped(
                    self.param_groups, scale, bad, only, self._partitioned, words
                )
                spike = "" if norm is None else self._clipper.spike(self.param_groups, norm)
            except Exception as error:  # whatever it is, other ranks may be waiting
                if not agrees:
                    raise
                failure = error
        if spike:
            bad = True
        if agrees:
            bad = self._agree(scale, bad, failure)
        if bad:
            engine.count(skipped=1)
        else:
            step = self._step_parts if self.by_parts else self._step_core
            found = engine.moving(self.param_groups, step, scale, bad is not None, only, queued, words)
            if norm is not None and found == -1:
                self._clipper.keep(self.param_groups, norm)
        self._skips.look(engine.skipped_steps(), partial(self._told, found), engine.settings.amp_scaling, spike)
        if only is None:  # otherwise other groups of the same gradients may follow
            self._clipper.clip = None
        if engine.awaited:
            self._adopt_new_state()

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
        self._steps_single = True

    def step_parameter(self, param: torch.Tensor, group: Mapping[str, Any] | None = None, index: int = 0) -> None:
        """`step_param` under OneTrainer's name, with its arguments. `index`, the parameter's place in its group, is ignored."""
        self.step_param(param, group)

    def _steps(self, report: CoreReport) -> int:
        """The user's steps, where the core, which made this report, counts steps of buckets or of single parameters."""
        if self.in_backward and self.in_backward.steps is not None:
            return self.in_backward.steps
        if self._steps_single:
            return max(self.engine.core_of(i).step_count(i) for i in range(len(self.engine.params)))
        return report["steps"]

    def _told(self, found: int) -> tuple[int, str]:
        """Details for `Skips.look`: the number of steps, and what is not finite. found: as `_step_core` returns it. The number of
        steps is -1 on a device, which may have taken more by the time the host hears of a skip."""
        steps = self._steps(self.engine.report()) if self.engine.on_host else -1
        if found == _core.OVERFLOW:
            return steps, "a sum over all parameters, though all gradients are finite,"
        return steps, f"the gradient of {parameter(self.param_groups, found)}" if found >= 0 else "a gradient"

    def _step_core(
        self, scale: float, known_finite: bool, only: list[int] | None, clip: QueuedClip | None = None,
        words: LossScaling | None = None,
    ) -> int:  # fmt: skip
        """Returns the number of a parameter whose gradient is not finite; -1: none, or not known yet; _core.OVERFLOW: sums over
        all parameters are not finite. Any but -1 skips the step."""
        engine = self.engine
        queue, free = (0, -1) if engine.on_host else (engine.queue(), engine.room())
        if words:
            (core,) = engine.cores.values()
            return core.step(scale, known_finite, queue, free, only, None, clip, *words)
        if clip is None:
            return engine.core.step(scale, known_finite, queue, free, only)
        if len(engine.cores) == 1:
            (core,) = engine.cores.values()
            return core.step(scale, known_finite, queue, free, only, clip=clip)
        known = Queued(clip, scale).wait()  # since the clip was queued, parameters have moved to several devices
        return engine.core.step(known.factor, known_finite or known.finite, queue, free, only)

    def _step_parts(self, scale: float, known_finite: bool, only: list[int] | None, *rest: Any) -> int:
        """Like `_step_core`, part by part, unless that is asked for some parameters, the rule needs all gradients at once, or one of them is
        not finite."""
        engine, found, last = self.engine, -1, 0
        here = [i for i in (range(len(engine.tensors)) if only is None else only) if engine.tensors[i].grad is not None]
        whole = only is not None or engine.family.sums or engine.core.check(scale, engine.queue(), known_finite, -1, here) >= 0
        assert self.by_parts
        for last, part in enumerate(self.by_parts(engine.tensors, here, whole)):
            found = self._step_core(scale, known_finite or not whole, only if whole else part, *rest)
        engine.count(steps=-last)
        return found

    def _check_capture(self) -> None:
        """Raises ValueError for a step that would query the device during the capture of a graph, which breaks the capture."""
        got = f"{type(self).__name__} while a graph is captured"
        expect(not self.NO_GRAPH, "step", got, f"steps without one: {self.NO_GRAPH}")
        cores = self.engine.core
        if isinstance(cores, Cores):
            got, advice = f"parameters on {cores.names()} while a graph is captured", "make an optimizer for each device"
            raise ValueError(f"step: got {got}, wanted one device: {advice}, or step without a graph")
        if any(place.mirrored for place in self.engine.cores):
            raise ValueError("step: got parameters that the CPU steps while a graph is captured, wanted Memory(step='device')")
        times = self.engine.settings.max_grad_spike
        got = f"max_grad_spike={times} while a graph is captured"
        expect(times is None, "step", got, "None: the host decides by each norm")
        if self.engine.meshes and self._agrees():
            raise ValueError(
                "step: got DTensor parameters whose gradients are checked while a graph is captured, wanted none: the host "
                "decides on each of their steps"
            )
        for place in self.engine.cores:
            if not place.kind.records and not place.mirrored:
                got = f"parameters on {place.device} while a graph is captured"
                raise NotImplementedError(f"step: got {got}, wanted a step without one: the {place.kind.backend} backend records none")
        for core_group in self.engine.groups:
            options = core_group.options_of(self.param_groups)
            check_on_host(self.engine.family.keys, options, f"parameter group {core_group.of}")

    @_alone
    def prepare_replay(self) -> None:
        """Call this before each replay of a graph (`torch.cuda.CUDAGraph`) that has captured a step, on the stream of the
        replay. It counts a step, and gives the replay its number and the current options.

        Before the capture, take a step without a graph. From then on, all state must be on the device
        (`report()["moved_per_step"]` is 0) and stay there; parameters and gradients keep their memory
        (zero_grad(set_to_none=False)). Non-finite gradients affect a replay like a step. Raises ValueError if no step has been
        captured or memory has moved, for a second call before a replay, for a replay that was not prepared (it has changed
        nothing), after a clip_grad_norm_ outside the graph, and, with nonfinite="raise", if a gradient of the previous replay
        was not finite. With nonfinite="propagate" it does not wait for the last replay, so a later call may raise its
        errors."""
        wanted = "none: a captured step clips as it was captured"
        expect(self._clipper.clip is None, "prepare_replay", "clip_grad_norm_ outside of the graph", wanted)
        self._push_options()
        self.engine.core.prepare_replay(1.0, self.engine.queue())

    def _agrees(self) -> bool:
        """True if ranks with DTensor parameters agree on a step beforehand."""
        return self.engine.settings.nonfinite != "propagate"

    def _agree(self, scale: float, bad: bool | None, failure: Exception | None = None) -> bool:
        """Returns True if a gradient is not finite on any rank. If one rank cannot step, because of `failure` or otherwise, all
        raise."""
        engine, verdict = self.engine, sharding.OK
        try:
            if failure:
                raise failure
            if engine.moving(self.param_groups, lambda: engine.core.check(scale, engine.queue())) >= 0 if bad is None else bad:
                verdict = sharding.NONFINITE
        except Exception as error:  # whatever it is, the other ranks are waiting
            failure, verdict = error, sharding.FAILED
        try:
            verdict = sharding.agree(engine.meshes, [param.sharding for param in engine.params], engine.tensors, verdict)
        finally:
            if failure:
                raise failure
        if verdict == sharding.FAILED:
            raise ValueError("another rank refused this step (its error says why); nothing was changed")
        return verdict == sharding.NONFINITE

    @property
    def last_grad_norm(self) -> torch.Tensor | None:
        """The norm that `clip_grad_norm_` or, with max_grad_norm or max_grad_spike, the last step found: float32,
        zero-dimensional."""
        return self._clipper.norm

    @torch.no_grad()
    @_alone
    def clip_grad_norm_(
        self,
        max_norm: float,
        norm_type: float | str = 2.0,
        error_if_nonfinite: bool = False,
        *,
        process_group: ProcessGroup | None = None,
    ) -> torch.Tensor:
        """Replaces `torch.nn.utils.clip_grad_norm_` for all parameters. Make it the last call before `step()`:

            norm = opt.clip_grad_norm_(1.0)
            opt.step()

        Reads the gradients once and writes nothing. As the step reads them, it multiplies them by min(1, max_norm / (norm +
        1e-6)), without another check. `.grad` is not clipped. Returns the norm before clipping, as a zero-dimensional float32
        on the device of the first parameter.

        norm_type: 2, or "inf" for the largest magnitude. process_group: the group over which plain parameters are sharded
        (FSDP1), each element on one rank. DTensors know their meshes. Every rank of the group or meshes must make the call.

        The norm is exact before it is rounded to float32, so its bits do not depend on threads, instruction sets, devices or
        shardings. A norm that float32 cannot hold is returned as inf but clips with its true value. On one CUDA device nothing
        waits: the norm is a tensor there, as with torch. Otherwise the call waits for queued work on devices, and the following
        step waits for nothing.

        A step without a preceding call clips nothing; nor does a step for which all gradients have been replaced since
        (`zero_grad()` and another backward). If gradients were changed in place since, or only some were replaced, steps raise
        ValueError until this is called again or `opt.zero_grad()`. They do not notice changes that torch's version counters
        miss: writes through `.grad.data` or NumPy, GradScaler's unscaling, collectives such as all_reduce. If the norm is not
        finite, nothing is clipped, and the step's own check decides what happens (`nonfinite`).

        Raises RuntimeError for a non-finite norm, with error_if_nonfinite; ValueError for gradients that a step would refuse,
        and with step_in_backward. Copies and pickles of the optimizer forget the call: repeat it there."""
        limit, kind = Clipper.checked(max_norm, norm_type)
        in_backward = isinstance(self.in_backward, StepInBackward)
        expect(not in_backward, "clip_grad_norm_", "step_in_backward", StepInBackward.NO_NORM)
        self._clipper.require("clip_grad_norm_", self._partitioned)
        if self.engine.capturing:
            expect(not error_if_nonfinite, "clip_grad_norm_: error_if_nonfinite", True, "False while a graph is captured")
            self._check_capture()
        self._clipper.clip = None
        self._push_options()
        return self._clipper.ask(self.param_groups, limit, kind, error_if_nonfinite, process_group)

    @_alone
    def reset(self, params: Iterable[torch.Tensor] | None = None) -> None:
        """Starts parameters afresh, with moments, step counts and residuals as before a first step. Weights and options stay.
        params: tensors of this optimizer, such as those of a group. None: all; then report()["steps"] is 0, and max_grad_spike
        forgets earlier norms.

        Otherwise it equals removing their entries from `state`. With DTensors every rank must make the call. Raises ValueError
        for a tensor that is in no group, and OSError if the disk fails; then nothing has changed."""
        self._follow()
        chosen = list(self.engine.tensors if params is None else params)
        known = {*map(id, self.engine.tensors)}
        for i, param in enumerate(chosen):
            expect(id(param) in known, f"reset: params[{i}]", f"a {type(param).__name__} of no group", "a parameter of this optimizer")
        for param in chosen:
            self.state.pop(param, None)
        self._follow_state()
        if params is None:
            self.engine.count(steps=-self.engine.report()["steps"])
            if self.in_backward and self.in_backward.steps is not None:
                self.in_backward.steps = 0
            if NORMS in self.param_groups[0]:
                self.param_groups[0][NORMS] = ()

    @_alone
    def offload(self) -> None:
        """Moves all state from RAM to the disk of `memory`, or from a device to pinned host memory, to make room while no steps
        are taken (for generation, or another model). The next step, `onload()` or `save(asynchronous=True)` brings it back.
        `state_dict()`, `save()` and copies also bring back state that was in RAM, but read a device's state where it is. Until
        then, tensors in `state` that were in RAM show zeros and must not be written. Raises ValueError if a budget that holds
        state has no disk, or too little disk or host memory, and like `onload`; OSError, and then the state stays where it
        was."""
        self._follow_state()
        self.engine.put_aside()

    @_alone
    def onload(self) -> None:
        """Brings back the state that `offload` moved. Raises OSError, and then the state is still on the disk. Raises
        ValueError for values that were assigned to `state` while it showed zeros, and drops them."""
        self._follow_state()
        restore.bring_back(self.engine, self.state)

    @_alone
    def demote(self, size: int | str | None = None) -> int:
        """Moves state from device memory to the host until at least `size` bytes are free again (None: as many as possible),
        and waits for the moves. With `Memory(device="auto")` state returns once there has been room for a while; otherwise it
        stays there and streams. Returns the bytes freed: 0 if nothing can be freed, as on the CPU."""
        return self.engine.demote(None if size is None else size_of("size", size))

    def prefetch(self, size: int | str) -> int:
        """Takes up to `size` more bytes of device memory and starts reading the next step's streaming state into it, behind the
        work queued on torch's current stream. The step gives the memory back. Returns the bytes taken: 0 if nothing streams or
        memory is short. `prefetch_in_backward` calls it."""
        return self.engine.prefetch(size_of("size", size))

    @_alone
    def synchronize(self) -> None:
        """Waits until all queued work of steps on devices is done, including state that streams back to the host. Raises the
        errors of that work."""
        self.engine.core.synchronize()

    def oom_guard(self) -> OomGuard:
        """Moves state away when torch runs out of device memory. Wrap the computation of gradients in it:

            guarded = opt.oom_guard()(micro_batch)      # or as a decorator
            loss = guarded(inputs)                      # must not call opt.step()

        On `torch.OutOfMemoryError` it moves all state to the host (`demote`), empties torch's cache, drops gradients that the
        call has begun, and calls again, which draws new random numbers. It raises the error, with a note of what it tried, if the
        second call fails, too, or if the first call added to earlier gradients. `with opt.oom_guard():` does the same but
        re-raises the error instead of calling again."""
        return OomGuard(self.engine, self.in_backward)

    @property
    def skipped_steps(self) -> int:
        """The number of steps that changed nothing because a gradient was not finite or, with max_grad_spike, the norm was too
        large (not counting steps that GradScaler withholds). On a device, waits for the verdict on the last step."""
        return self.engine.report()["skipped_steps"]

    @_alone
    def report(self) -> Report:
        """Memory in bytes, and counts: see `lowtide.report.fields.Report`. `print(opt.report())` shows a table. On a device,
        waits for the verdict on the last step."""
        found = self.engine.report()
        self._residency.look(found)
        found["steps"] = self._steps(found)
        each = found["state_bytes"] / found["elements"] if found["elements"] else 0.0
        return cast("Report", ShownReport({**found, "bytes_per_parameter": each}))

    @_alone
    def state_dict(self) -> dict[str, Any]:
        """Like torch's, with CPU copies of state that streams from a disk or is on a device (`save` avoids them). Before the
        first step it has no entries, like torch's; afterwards every trained parameter has one, with zeros if it was not
        stepped. Codes are named "…_codes", beside "…_scale", so that torch.optim cannot mistake them for values. Raises
        ValueError, MemoryError or OSError if the budget cannot hold state that it places; ValueError for assignments to `state`
        that do not fit.
        """
        self._follow()
        self.engine.bring_to_ram()
        if self.state:
            self._place_states()
        spreads = first_flattened(self.engine.tensors) is not None
        saved = spread.entries_of(self.engine, self.param_groups) if spreads else dicts.saved_entries(self.engine, self.param_groups)
        live = self.state
        self.state = States(dict, saved)
        try:
            found = super().state_dict()
        finally:
            self.state = live
        for group in found["param_groups"] if spreads else ():
            group[SPREAD] = True
        return found

    @_alone
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads what `state_dict()` of the same rule returned, or a state_dict of the torch.optim class of that name, if there
        is one, of bitsandbytes, torchao's low-bit optimizers, FlashOptim, schedulefree or prodigyopt (docs/migrate.md), and
        encodes its moments. Load the model first: dicts of the last two are read together with its weights. Raises
        ValueError, and changes nothing, if anything in the dict does not fit; OSError if a disk fails (if only a write fails,
        everything is loaded nevertheless: see the message)."""
        self._follow(takes_state=False)
        expect(isinstance(state_dict, dict), "state_dict", type(state_dict).__name__, "a dict")
        state_dict = state_dict.copy()
        for pre_hook in self._optimizer_load_state_dict_pre_hooks.values():
            replaced = pre_hook(self, state_dict)
            if replaced is not None:
                state_dict = replaced

        assert isinstance(self.state, States)
        with KeptErrors() as kept:
            self._take_groups(dicts.load(self.engine, self.param_groups, self.state, state_dict, kept))
            for post_hook in self._optimizer_load_state_dict_post_hooks.values():
                post_hook(self)

    def _take_groups(self, groups: list[dict[str, Any]]) -> None:
        """Adopts param_groups that were read, and their seed."""
        self.param_groups = self._listed = groups  # with the previous lists of parameters
        self._groups = [*groups]
        if groups and groups[0][SEED] != self.engine.settings.seed:
            self.defaults[SEED] = groups[0][SEED]
            self.engine.set_seed(groups[0][SEED])

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Like torch's. If other tensors have replaced parameters, releases the memory of the old ones."""
        try:
            self._follow_groups()
        except (TypeError, ValueError, NotImplementedError):  # placeholders until a step
            pass
        super().zero_grad(set_to_none)
        self._clipper.clip = None
        self.engine.drop_gradients()

    @overload
    def save(self, path: str | os.PathLike[str], asynchronous: Literal[False] = False) -> None: ...
    @overload
    def save(
        self, path: str | os.PathLike[str], asynchronous: Literal[True], copies: int | str = "256MiB"
    ) -> PendingSave: ...
    @_alone
    def save(
        self, path: str | os.PathLike[str], asynchronous: bool = False, copies: int | str = "256MiB"
    ) -> PendingSave | None:
        """Writes state and options to one file, durably and all or nothing, directly from where the state lives, without a
        second copy in memory. docs/project/checkpoint-format.md describes the format (no pickle).

        asynchronous: returns at once, and writes the file, with the current state and options, while steps go on. Before a step
        changes state that is not written yet, it copies that state, chunk by chunk: at most `copies` bytes, or one chunk if
        that is more. A step that finds no room waits for the writer. A second save waits for the first; `load` is refused
        during a save; deleting the optimizer, and the end of the process, wait for the file. Do not write to tensors in
        `state[p]` meanwhile. Other options: docs/checkpoints.md.

        Raises OSError (an existing file is untouched) or ValueError. An asynchronous save that fails raises in its `wait()` or,
        if nobody has waited, in the next `save`, which then writes nothing."""
        self._follow()
        expect(isinstance(asynchronous, bool), "asynchronous", repr(asynchronous), "True or False")
        if not asynchronous:
            files.save(self.engine, self.param_groups, path)
            return None
        return files.save_beside(self.engine, self.param_groups, path, copies)

    @_alone
    def load(self, path: str | os.PathLike[str]) -> None:
        """Reads a file that `save` wrote from an optimizer with the same class, parameters and state formats. This optimizer's
        `memory` says where the state goes. The whole file is checked first: if it is damaged or belongs to another model
        (ValueError), or cannot be opened (OSError), nothing has changed."""
        self._follow(takes_state=False)

        with KeptErrors() as kept:
            self._take_groups(files.load(self.engine, self.param_groups, path, kept))
            self._show_state()

    @_alone
    def torch_state_dict(self) -> dict[str, Any]:
        """Returns a dict for the torch.optim class of the same name, with moments decoded to float32 (copies). Raises
        ValueError for rules that torch does not have: Lion, AdEMAMix, a Muon with parameters that are not matrices."""
        self._follow()
        return torch_dict.write(self.engine, self.param_groups)

    @_alone
    def bitsandbytes_state_dict(self, nested: bool = True) -> dict[str, Any]:
        """Returns a dict of CPU copies for the bitsandbytes optimizer of this rule. dynamic8 codes stay as they are, with their
        map; if row lengths are not multiples of 256, values are encoded again, in blocks that cross the ends of rows. All other
        state becomes float32.

        nested: the layout of bitsandbytes since 0.49.2, or the earlier flat one. Raises ValueError for what bitsandbytes lacks:
        a rule, an option in use that it would ignore, DTensor parameters."""
        self._follow()
        return bitsandbytes.write(self.engine, self.param_groups, nested)

    @_alone
    def __getstate__(self) -> dict[str, Any]:
        self._follow()
        engine, report = self.engine, self.report()
        options = {
            "rule": engine.family.rule,
            "settings": replace(engine.settings),
            "budgets": [each.memory for each in engine.members],
            "backward_options": self._backward_options,
            "overrides": [dict(param.override or {}) for param in engine.params],
            "steps": report["steps"],
            "skipped_steps": report["skipped_steps"],
        }
        self.engine.bring_to_ram()
        with_moments = engine.with_moments(self.param_groups)
        entries = [views.live(engine, i, i in with_moments) for i in range(len(engine.params))]
        for i, numbers in own_numbers(engine, self.param_groups).items():
            entries[i] |= as_tensors(numbers)
        defaults = {**self.defaults, **self._beside}
        return {"defaults": defaults, "param_groups": self.param_groups, "state": entries, "options": options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        options = state["options"]
        settings: Settings = replace(options["settings"])  # copied, because copy.copy passes the original's
        self._chose_master = True
        self._begin(options["rule"], state["defaults"], settings, options["backward_options"])
        groups = [
            {**group, "memory": memory} for group, memory in zip(state["param_groups"], options["budgets"], strict=True)
        ]
        params = [param for group in groups for param in group["params"]]
        for param, of_param in zip(params, options["overrides"], strict=True):
            overrides.pin(param, of_param)
        torch.optim.Optimizer.__init__(self, groups, self._cycled(state["defaults"]))
        self.state = restore.copied_in(self.engine, state["state"])
        self.engine.count(options["steps"], options["skipped_steps"])
        self._skips = Skips(options["skipped_steps"])
        if self.in_backward and self.in_backward.steps is not None:
            self.in_backward.steps = options["steps"]

    def __repr__(self) -> str:
        """A line for each group, with the options that differ from defaults and the bytes of its state from the first step
        on."""
        return describe.description(type(self), self.engine, self.param_groups)


def _not_parameters(where: str, module: torch.nn.Module) -> TypeError:
    return TypeError(f"{where}: params: got a module, {type(module).__name__}, wanted its parameters: pass model.parameters()")
