"""The class that all Lowtide optimizers share: `torch.optim.Optimizer` semantics over the compiled core.

Parameters are numbered by their place over all groups, here, in the core and in `state_dict()`. Python decides nothing
about the mathematics: it reads the groups' options, makes one call per step and hands out views of the state.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from operator import is_
from typing import TYPE_CHECKING, Any, overload

import torch
from torch.optim.optimizer import ParamsT

from lowtide import _core
from lowtide.devices import places, sharding
from lowtide.devices.parameters import check_parameter
from lowtide.devices.places import Place
from lowtide.devices.sharding import Sharding
from lowtide.memory.budgets import Memory, budget_at
from lowtide.optimizers import backward
from lowtide.optimizers.controls import Controls
from lowtide.optimizers.core_groups import CoreGroup, Format, follow_overrides, format_of, group_error, register
from lowtide.options import overrides
from lowtide.options.hyper import check_on_host, group_key, hyper_keys, hyper_values
from lowtide.options.options import WHOLE_OPTIMIZER, Options, check_kinds, check_options
from lowtide.options.overrides import Overridden
from lowtide.report.log import Residency
from lowtide.state import files
from lowtide.state import state_dict as formats
from lowtide.state.states import States, live_entry, shown_entry

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class Optimizer(Controls, torch.optim.Optimizer):
    """Base class; use `AdamW`, `Lion`, `SGD` or another of docs/rules.md.

    Parameters: tensors of float32, bfloat16 or float16, dense, of any shape and stride in which no two elements share
    an address; or DTensors of them (docs/distributed.md). All are on one device: the CPU, or one with a backend
    (docs/devices.md). A frozen parameter (`requires_grad=False`) gets its state with its first gradient; one whose
    `.grad` is None is left alone. `state[p]` holds views of the live state: "step" (int64) and each moment (float32,
    bfloat16, or uint8 codes with a float32 "…_scale" per block); of state that streams or is on a device "step" alone.
    Removing entries from `state`, or putting {} there, starts those parameters afresh; assigning others has no effect.
    """

    _CORE_RULE = ""  # that of the core, where it is called otherwise

    def __init__(self, params: ParamsT, rule: str, hyper: dict[str, Any], options: Options) -> None:
        check_options(options, type(self).__name__, list(hyper))
        self._amp_scaling = options.get("amp_scaling", False)
        self._nonfinite = options.get("nonfinite", "skip")
        self._seed = int(options.get("seed", 0))
        self._cpu_target = options.get("cpu_target", "")
        self._memory = options.get("memory")
        self._arithmetic = options.get("arithmetic", places.EXACT)
        self._backward_options = backward.options_of(options)
        hyper = {**hyper, "maximize": options.get("maximize", False)}
        self._open_core(rule, hyper)
        defaults = {
            **hyper,
            "state": options.get("state", "dynamic8"),
            "min_quantized_numel": options.get("min_quantized_numel", 4096),
            "rounding": options.get("rounding", "auto"),
            "master": options.get("master"),
            **formats.stamp(rule, self._seed),
        }
        super().__init__(params, defaults)

    def _open_core(self, rule: str, hyper: Mapping[str, Any]) -> None:
        """Starts without groups. `hyper`: has the names of the rule's hyper-parameters among its keys."""
        self._rule = rule
        self._core_rule = self._CORE_RULE or rule
        self._threads = torch.get_num_threads()
        self._core: _core.Optimizer  # made with the first group, when it is known where parameters are
        self._place: Place | None = None  # of the core
        self._hyper_keys = hyper_keys(self._core_rule, hyper)
        self._core_groups: list[CoreGroup] = []  # by number in the core
        self._formats: list[Format] = []  # per group: what is fixed when it was added
        self._budgets: list[Memory | None] = []  # per group: its own
        self._members: list[list[torch.Tensor]] = []  # per group: the parameters that the core has
        self._params: list[torch.Tensor] = []  # all of them, by number
        self._overridden: list[Overridden] = []  # what they have met, by number
        self._overrides_seen = overrides.changes()
        self._captured = False  # whether a step was captured in a graph
        self._shardings: list[Sharding | None] = []  # of those that are DTensors, by number
        self._meshes: list[DeviceMesh] = []  # of these
        self._awaited: list[int] = []  # numbers of parameters whose state is not there yet: a step may bring it
        self._with_state = 0  # parameters with state, as the core last counted them
        self._steps_before = self._skipped_before = 0
        self._automatic = False
        self._residency = Residency()
        self._in_backward = backward.in_backward(self, self._backward_options)
        if self._amp_scaling:
            self._step_supports_amp_scaling = True

    def _new_core(self, threads: int, place: Place) -> _core.Optimizer:
        """Under the same budget, so that the state of what is added to it waits there, too, for the first step."""
        target = place.target(self._arithmetic)
        place.require_backend()
        return _core.Optimizer(
            self._core_rule,
            self._nonfinite,
            threads,
            self._cpu_target,
            budget_at(self._memory, place),
            place.kind.backend,
            place.queue(),
            place.reads,
            target,
            place.allocator(),
            self._seed,
        )

    def _core_at(self, place: Place) -> _core.Optimizer:
        """The core; before there are parameters, one for that place, with the groups that there are."""
        if self._place and (self._params or place == self._place):
            return self._core
        core = self._new_core(self._threads, place)
        for number, memory in enumerate(self._budgets):
            self._register(core, place, number, [], [], [], self.param_groups[number], memory, 0)
        return core

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group as torch does. On an error the optimizer is as it was.

        Raises ValueError or TypeError for a parameter or an option that cannot be used; MemoryError;
        NotImplementedError for parameters on a device that this installation cannot step.
        """
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group: got {type(param_group).__name__}, wanted a dict")
        number = len(self.param_groups)
        where = f"parameter group {number}"
        if "params" not in param_group:
            raise ValueError(f"{where}: got keys {sorted(map(str, param_group))}, wanted 'params' among them")
        check_kinds(param_group, where)
        for name in WHOLE_OPTIMIZER:
            if name in param_group:
                raise ValueError(f"{where}: got {name!r}, wanted it among the options of the whole optimizer")
        if not isinstance(param_group["params"], (torch.Tensor, set)):
            param_group["params"] = list(param_group["params"])
            bare = {id(entry[1] if isinstance(entry, tuple) else entry) for entry in param_group["params"]}
            if len(bare) != len(param_group["params"]):
                raise ValueError(f"{where}: got the same parameter more than once, wanted each once")
        memory: Memory | None = param_group.get("memory")
        if "memory" in param_group:  # not a value that a state_dict should carry; the caller's dict keeps it
            param_group = {key: value for key, value in param_group.items() if key != "memory"}
        super().add_param_group(param_group)
        try:
            param_group.update(formats.stamp(self._rule, self._seed))
            params: list[torch.Tensor] = param_group["params"]
            shardings: list[Sharding | None] = []
            place = self._place if self._params else None
            for i, param in enumerate(params):
                text = f"{where}, parameter {i}"
                local = sharding.local_of(param)
                check_parameter(local, text)
                shardings.append(sharding.sharding_of(param, text))
                here = places.place_of(local, text)
                if here != (place := place or here):
                    raise ValueError(
                        f"{text}: got a tensor on {here.device}, wanted {place.device} as the parameters before it: an "
                        "optimizer steps one device, so make one for each"
                    )
            if self._in_backward:
                self._in_backward.check(params, where)
            place = place or self._place or places.HOST
            overridden = [Overridden() for _ in params]
            for one, entries in zip(overridden, overrides.look(params), strict=True):
                one.meet(entries)
            whole = (params, shardings, [one.options() for one in overridden], param_group, memory, len(self._params))
            if self._core_groups:  # A core cannot forget a group: one added during training is tried out on another.
                self._register(self._new_core(1, place), place, number, *whole)
            core = self._core_at(place)
            core_groups = self._register(core, place, number, *whole)
        except BaseException:
            self.param_groups.pop()
            raise
        self._core, self._place = core, place
        own = [memory, *(core_group.overrides.get("memory") for core_group in core_groups)]
        budgets = (budget_at(self._memory, place), *(each.budget(place) for each in own if each))
        self._automatic |= any(budget.automatic for budget in budgets if budget)
        self._core_groups += core_groups
        self._overridden += overridden
        self._formats.append(format_of(param_group))
        self._budgets.append(memory)
        self._members.append(list(params))
        if type(self.state) is not States:
            self.state = States(dict, self.state)
        self._shardings += shardings
        self._meshes = sharding.meshes_of(self._shardings)
        for param in params:
            index = len(self._params)
            self._params.append(param)
            has_state = self._core.has_state(index)
            self.state[param] = shown_entry(self, index) if has_state or param.requires_grad else {}
            if not has_state:
                self._awaited.append(index)
        if self._in_backward:
            self._in_backward.watch(params, len(self._params) - len(params))

    def _register(
        self,
        core: _core.Optimizer,
        place: Place,
        number: int,
        params: Sequence[torch.Tensor],
        shardings: Sequence[Sharding | None],
        overrides: Sequence[Mapping[str, Any]],
        group: Mapping[str, Any],
        memory: Memory | None,
        first: int,
    ) -> list[CoreGroup]:
        """See `core_groups.register`."""
        return register(self, core, place, number, params, shardings, overrides, group, memory, first)

    def _rule_for(self, param: torch.Tensor, options: Mapping[str, Any]) -> str:
        """The core's rule for a parameter with these options; "": that of the optimizer."""
        return ""

    def _hyper_of(self, rule: str, options: Mapping[str, Any]) -> dict[str, float]:
        """The core's hyper-parameters for parameters of that rule with these options. ValueError or TypeError."""
        return dict(zip(self._hyper_keys, hyper_values(self._hyper_keys, options), strict=True))

    def _overridable(self) -> list[str]:
        """Names of hyper-parameters that can be overridden."""
        return list(dict.fromkeys(map(group_key, self._hyper_keys)))

    def _follow_overrides(self) -> None:
        """Makes the core do what overrides say that were made or taken back since the last look."""
        if self._overrides_seen != (now := overrides.changes()):
            follow_overrides(self)
            self._overrides_seen = now

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
        self._tell()
        taken = False
        try:
            self._step_gradients()
            taken = True
        finally:
            if self._in_backward:
                self._in_backward.after_step(taken)
        return loss

    def _step_gradients(self, only: list[int] | None = None) -> None:
        """Steps the parameters that have a gradient; `only`: those of them that have these numbers."""
        capturing = self._place is not None and self._place.capturing()
        if capturing:
            self._check_capture()
        self._push_options()
        self._captured |= capturing
        scale, bad = self._scaling()
        if self._meshes and self._nonfinite != "propagate":
            bad = self._agree(scale, bad)
        if bad:
            self._skipped_before += 1
        else:
            self._step_core(scale, bad is not None, only)
        if self._awaited:
            self._adopt_new_state()

    def _step_core(self, scale: float, known_finite: bool, only: list[int] | None) -> None:
        """The step itself."""
        self._core.step(scale, known_finite, self._queue(), self._free(), only)

    def _check_capture(self) -> None:
        """ValueError for a step that would ask the device something while a graph is captured, which spoils the
        capture."""
        if self._amp_scaling or (self._meshes and self._nonfinite != "propagate"):
            raise ValueError(
                "step: got amp_scaling, or DTensor parameters whose gradients are checked, while a graph is captured; "
                "wanted neither: they have the host decide on every step"
            )
        for core_group in self._core_groups:
            options = core_group.options(self.param_groups)
            check_on_host(self._hyper_keys, options, f"parameter group {core_group.of}")

    def prepare_replay(self) -> None:
        """To be called before each replay of a graph (`torch.cuda.CUDAGraph`) that a step was captured in, on the
        stream of the replay: counts a step, and gives the replay its number and the options as they are now.

        Before the capture take a step without it. All state must be on the device then
        (`report()["moved_per_step"]` is 0) and stay there; parameters and gradients keep their memory
        (zero_grad(set_to_none=False)). Gradients that are not finite do to a replay what they do to a step. Raises
        ValueError if no step has been captured or memory has moved, for a second call without a replay between, for a
        replay that was not prepared (it has changed nothing) and, with nonfinite="raise", for the replay before if a
        gradient of it was not finite."""
        self._push_options()
        self._core.prepare_replay(1.0, self._queue())

    def _scaling(self) -> tuple[float, bool | None]:
        """What gradients are multiplied by, and whether one is known not to be finite (None: it is not known)."""
        if not self._amp_scaling or (found := getattr(self, "found_inf", None)) is None:
            return 1.0, None
        bad = float(found) > 0
        if bad or (loss_scale := getattr(self, "grad_scale", None)) is None:
            return 1.0, bad
        return 1.0 / float(loss_scale), bad

    def _agree(self, scale: float, bad: bool | None) -> bool:
        """Whether a gradient is not finite on any rank. If one rank cannot step, all of them raise."""
        failure = None
        verdict = sharding.OK
        try:
            if self._core.check(scale, self._queue()) >= 0 if bad is None else bad:
                verdict = sharding.NONFINITE
        except Exception as error:  # whatever it is: the other ranks are waiting
            failure, verdict = error, sharding.FAILED
        try:
            verdict = sharding.agree(self._meshes, self._shardings, self._params, verdict)
        finally:
            if failure:
                raise failure
        if verdict == sharding.FAILED:
            raise ValueError("another rank refused this step, and says why; nothing was changed")
        return verdict == sharding.NONFINITE

    def _push_options(self) -> None:
        """Tells the core what has changed since the last step. No work per parameter but a comparison of addresses."""
        groups = self.param_groups
        if len(groups) != len(self._members):
            raise ValueError(f"param_groups: got {len(groups)} groups, wanted {len(self._members)}: use add_param_group")
        for number, group in enumerate(groups):
            members, params = self._members[number], group["params"]
            if len(params) != len(members) or not all(map(is_, params, members)):
                raise ValueError(
                    f"param_groups[{number}]['params']: got other tensors than those registered: use add_param_group, "
                    "or build a new optimizer and load the state_dict"
                )
            if format_of(group) != self._formats[number]:
                raise ValueError(
                    f"param_groups[{number}]: got {', '.join(formats.FIXED)} = {format_of(group)}, wanted "
                    f"{self._formats[number]}: fixed when the group is added"
                )
        self._follow_overrides()
        for number, core_group in enumerate(self._core_groups):
            try:
                options = core_group.options(groups)
                if (rounding := options["rounding"]) != core_group.rounding:
                    check_kinds({"rounding": rounding}, f"parameter group {core_group.of}")
                    self._core.set_rounding(number, rounding)
                    core_group.rounding = rounding
                hyper = self._hyper_of(core_group.rule, options)
                if hyper == core_group.pushed:
                    continue
                self._core.set_hyper(number, hyper)
            except (TypeError, ValueError) as error:
                raise group_error(self, f"parameter group {core_group.of}", core_group.rule, error) from error
            before, core_group.pushed = core_group.pushed, hyper
            self._note_momentum(core_group, before)
        threads = torch.get_num_threads()
        if threads != self._threads:
            self._core.set_threads(threads)
            self._threads = threads
        if type(self.state) is not States or self.state.removed:
            formats.restart_removed(self)

    def _note_momentum(self, core_group: CoreGroup, old: Mapping[str, float]) -> None:
        """SGD's state comes with its momentum: the step after a change from or to 0 may allocate it."""
        if bool(old.get("momentum")) != bool(core_group.pushed.get("momentum")):
            self._awaited = sorted({*self._awaited, *core_group.params})
            self._with_state = -1

    def _adopt_new_state(self) -> None:
        """Shows, in `state`, what the core has allocated for parameters that had their first gradient."""
        if (count := self._core.state_count()) == self._with_state:
            return
        self._with_state = count
        for index in self._awaited:
            if self._core.has_state(index):
                self.state[self._params[index]] = shown_entry(self, index)
        self._awaited = [index for index in self._awaited if not self._core.has_state(index)]

    def state_dict(self) -> dict[str, Any]:
        """As torch's; state that streams from a disk or is on a device is copied into CPU tensors for it (`save` does
        not need that).

        State that waits for the first step, under a memory budget or on a device, is placed first, so that the dict is
        complete: tools load checkpoints into it. Raises ValueError, MemoryError or OSError if the budget cannot hold
        it.
        """
        self._follow_overrides()
        self.onload()
        on_host = self._place is None or self._place.on_host
        budgets = (group.overrides.get("memory") for group in self._core_groups)
        if not on_host or any(memory is not None for memory in (self._memory, *self._budgets, *budgets)):
            self._core.place_states()
            self._adopt_new_state()
        saved = formats.saved_entries(self)
        if saved is None:
            return super().state_dict()
        live = self.state
        self.state = States(dict, saved)
        try:
            return super().state_dict()
        finally:
            self.state = live

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads what `state_dict()` of the same rule returned, or a state_dict of the torch.optim class of that name,
        of bitsandbytes, torchao's low-bit optimizers or FlashOptim (docs/compat.md), whose moments are encoded. Raises
        ValueError, and changes nothing, if anything in it does not fit; OSError when a disk fails (if only in writing,
        all is loaded all the same: see the message)."""
        self._follow_overrides()
        formats.load(self, state_dict)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes state and options to one file, durably and all or nothing, straight from wherever the state lives:
        without a second copy in memory. The format is docs/checkpoint-format.md (no pickle).

        Raises OSError (a file that was there before is untouched) or ValueError."""
        self._follow_overrides()
        files.save(self, path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Reads what `save` wrote from an optimizer of the same class, parameters and state formats; the state goes
        where this optimizer's `memory` says. The whole file is checked first: after a ValueError for a file that is
        damaged or of another model, or an OSError from opening it, nothing has changed."""
        self._follow_overrides()
        files.load(self, path)

    def torch_state_dict(self) -> dict[str, Any]:
        """A dict that the torch.optim class of the same name loads: moments decoded to float32 (copies).

        Raises ValueError for what torch does not have: Lion, AdEMAMix, a Muon of other parameters than matrices."""
        return formats.to_torch(self)

    def bitsandbytes_state_dict(self, nested: bool = True) -> dict[str, Any]:
        """A dict that the bitsandbytes optimizer of this rule loads: copies, on the CPU. Codes of dynamic8 stay as they
        are, with their map; where rows are no multiple of 256 long they are made anew, in blocks that run over the ends
        of rows. All other state becomes float32.

        nested: as bitsandbytes has it since 0.49.2; else flat, as before.

        Raises ValueError for what it has not: a rule, an option in use that it would ignore, DTensor parameters."""
        return formats.to_bitsandbytes(self, nested)

    def __getstate__(self) -> dict[str, Any]:
        names = (
            "rule", "nonfinite", "seed", "amp_scaling", "cpu_target", "memory", "budgets", "arithmetic", "backward_options",
        )  # fmt: skip
        self._follow_overrides()
        options = {name: getattr(self, f"_{name}") for name in names}
        options["overrides"] = [overridden.options() for overridden in self._overridden]
        report = self.report()
        options |= {"steps": report["steps"], "skipped_steps": report["skipped_steps"]}
        self.onload()
        entries = [live_entry(self, i) for i in range(len(self._params))]
        return {"defaults": self.defaults, "param_groups": self.param_groups, "state": entries, "options": options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        options = state["options"]
        self._nonfinite, self._amp_scaling = options["nonfinite"], options["amp_scaling"]
        self._cpu_target, self._memory = options["cpu_target"], options["memory"]
        self._seed = options.get("seed", 0)
        self._arithmetic = options.get("arithmetic", places.EXACT)
        self._backward_options = options.get("backward_options", {})
        self._open_core(options["rule"], state["defaults"])
        groups = [  # copies: copy.copy hands over the original's
            {**group, "memory": memory} for group, memory in zip(state["param_groups"], options["budgets"], strict=True)
        ]
        params = [param for group in groups for param in group["params"]]
        for param, of_param in zip(params, options.get("overrides", [{}] * len(params)), strict=True):
            overrides.pin(param, of_param)
        torch.optim.Optimizer.__init__(self, groups, dict(state["defaults"]))
        formats.copy_in(self, state["state"])
        self._steps_before, self._skipped_before = options.get("steps", 0), options.get("skipped_steps", 0)

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} (", f"lowtide {_core.__version__}, {self._core.cpu_target()}"]
        if self._place and not self._place.on_host:
            lines[1] += f", {self._place.kind.backend} for {self._place.device}"
        lines.extend([f"memory: {self._memory}"] if self._memory else [])
        for number, (group, memory) in enumerate(zip(self.param_groups, self._budgets, strict=True)):
            lines.append(f"Parameter Group {number}: {len(group['params'])} tensors")
            lines.extend([f"    memory: {memory}"] if memory else [])
            shown = sorted(key for key in group if key not in formats.HIDDEN_KEYS)
            lines.extend(f"    {key}: {group[key]}" for key in shown)
        return "\n".join(lines) + "\n)"
