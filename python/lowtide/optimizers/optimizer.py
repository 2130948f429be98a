"""The class that all Lowtide optimizers share: `torch.optim.Optimizer` semantics over the compiled core."""

import os
from dataclasses import replace
from typing import Any, Literal, overload

import torch

from lowtide import _core
from lowtide.checks.values import expect
from lowtide.engine.engine import Settings
from lowtide.memory.budgets import size_of
from lowtide.optimizers.base import SteppingOptimizer
from lowtide.optimizers.oom_guard import OomGuard
from lowtide.options import overrides
from lowtide.report.fields import Report
from lowtide.report.log import Skips
from lowtide.state import dicts, files, restore, spread, torch_dict
from lowtide.state.carried import as_tensors, own_numbers
from lowtide.state.foreign import bitsandbytes
from lowtide.state.format import HIDDEN_KEYS, SEED, SPREAD
from lowtide.state.pending_save import PendingSave
from lowtide.state.restore import States


class Optimizer(SteppingOptimizer):
    """Base class; use `AdamW`, `Lion`, `SGD` or another of docs/rules.md.

    Parameters: tensors of float32, bfloat16 or float16, dense, of any shape and stride in which no two elements share
    an address; or DTensors of them (docs/distributed.md). They are on the CPU or on devices with a
    backend, one or several (docs/devices.md). A frozen parameter (`requires_grad=False`) gets its state with its first
    gradient; one whose `.grad` is None is left alone. A frozen `torch.nn.Parameter` that cannot be stepped (of another dtype or device, a
    wrapper such as a quantized weight) is taken along without state, and so is one on meta: it is stepped from its first
    gradient if it can be then, else that step is refused. From a parameter's first step on, `state[p]` holds views of its live
    state: "step" (int64) and each moment: values (float32, bfloat16), or uint8 "…_codes" with a float32 "…_scale" per block,
    which raise RuntimeError when written. Of state that streams or is on a device it holds "step", and tensors with the sizes,
    types and device of the others but no memory: reading copies the current values, writing raises RuntimeError.
    Other tensors in the groups take the place of the parameters, with their state (docs/pytorch.md).
    Removing entries from `state`, or putting {} there, starts those parameters afresh. The next step or save takes in what else
    is assigned: tensors of those names, types and shapes, or torch.optim's values, which are encoded; ValueError for others.
    """

    def offload(self) -> None:
        """Moves all state out of RAM to the disk of `memory`, or from a device to pinned host memory, to make room
        while no steps are taken (for generation, or another model). The next step, or whatever else needs the state,
        brings it back by itself; until then the tensors in `state` show zeros and must not be written.

        Raises ValueError if a budget that holds state has no disk, or not enough, or too little host memory; OSError,
        and then the state stays where it was."""
        self.engine.core.offload()

    def onload(self) -> None:
        """Brings back what `offload` moved. Raises OSError; the state is then still on the disk."""
        self.engine.core.onload()

    def demote(self, size: int | str | None = None) -> int:
        """Moves state out of device memory to the host until at least `size` bytes of it are free again (None: all that
        can go), and waits for that. With `Memory(device="auto")` it comes back when there has been room for a while;
        else it stays there, and streams. Returns the bytes freed: 0 where there are none to free, as on the CPU."""
        return self.engine.demote(None if size is None else size_of("size", size))

    def prefetch(self, size: int | str) -> int:
        """Takes up to `size` bytes more of device memory and begins to read streaming state of the next step into it,
        after what is queued on torch's current stream; the step gives it back. Returns the bytes taken: 0 if nothing
        streams or memory is short. `prefetch_in_backward` calls it."""
        return self.engine.prefetch(size_of("size", size))

    def synchronize(self) -> None:
        """Waits until all that steps have queued on a device has happened, state that streams back to the host
        included. Raises what queued work failed with."""
        self.engine.core.synchronize()

    def oom_guard(self) -> OomGuard:
        """Lets state give way where torch runs out of device memory. To be put around what computes gradients:

            guarded = opt.oom_guard()(micro_batch)      # or as a decorator
            loss = guarded(inputs)                      # must not call opt.step()

        On `torch.OutOfMemoryError` all state moves to the host (`demote`), torch's cache is emptied, gradients that the
        call has begun are dropped, and it is called once more, with the random numbers of then. A second error is
        raised with what was tried; so is the first, if gradients that were there before the call have been added to.
        `with opt.oom_guard():` does the same but for the second call: the error goes on."""
        return OomGuard(self.engine, self._in_backward)

    @property
    def skipped_steps(self) -> int:
        """Steps that changed nothing because a gradient was not finite (those that GradScaler keeps from this optimizer
        are not seen here). On a device, waits for the verdict on the last one."""
        return self.engine.report()["skipped_steps"]

    def report(self) -> Report:
        """Memory in bytes, and counts: see `lowtide.report.fields.Report`. On a device, waits for the verdict on the
        last step."""
        found = self.engine.report()
        self._residency.look(found)
        if self._in_backward and self._in_backward.steps is not None:
            found["steps"] = self._in_backward.steps
        return {
            **found,
            "bytes_per_parameter": found["state_bytes"] / found["elements"] if found["elements"] else 0.0,
        }

    def state_dict(self) -> dict[str, Any]:
        """As torch's; state that streams from a disk or is on a device is copied into CPU tensors for it (`save` does
        not need that).

        Before the first step it has no entries, as torch's; after it every parameter that is trained has one, zeros where it
        has not been stepped. Codes are "…_codes", beside "…_scale": torch.optim finds no values to take them for. Raises
        ValueError, MemoryError or OSError if the budget cannot hold state that is placed for it; ValueError for what was
        assigned to `state` and does not fit.
        """
        self._follow()
        self.onload()
        if self.state:
            self._place_states()
        spreads = spread.is_wanted(self.engine)
        saved = spread.entries_of(self.engine) if spreads else dicts.saved_entries(self.engine, self.param_groups)
        live = self.state
        self.state = States(dict, saved)
        try:
            found = super().state_dict()
        finally:
            self.state = live
        for group in found["param_groups"] if spreads else ():
            group[SPREAD] = True
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads what `state_dict()` of the same rule returned, or a state_dict of the torch.optim class of that name, if there
        is one, of bitsandbytes, torchao's low-bit optimizers, FlashOptim or the package schedulefree (docs/compat.md), whose
        moments are encoded. Load the model before: a dict of schedulefree is read beside its weights. Raises
        ValueError, and changes nothing, if anything in it does not fit; OSError when a disk fails (if only in writing,
        all is loaded all the same: see the message)."""
        self._follow(takes_state=False)
        dicts.check_dict(state_dict)
        state_dict = state_dict.copy()
        for pre_hook in self._optimizer_load_state_dict_pre_hooks.values():
            replaced = pre_hook(self, state_dict)
            if replaced is not None:
                state_dict = replaced

        def taken(groups: list[dict[str, Any]]) -> None:
            self._take_groups(groups)
            for post_hook in self._optimizer_load_state_dict_post_hooks.values():
                post_hook(self)

        assert isinstance(self.state, States)
        dicts.load(self.engine, self.param_groups, self.state, state_dict, taken)

    def _take_groups(self, groups: list[dict[str, Any]]) -> None:
        """Takes over param_groups that were read, and their seed."""
        self.param_groups = self._listed = groups
        self._groups = [*groups]
        if groups:
            self.engine.set_seed(groups[0][SEED])
            self.defaults[SEED] = self.engine.settings.seed

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch's. If other tensors have taken the place of parameters, the memory of the former ones is let go."""
        try:
            self._follow_groups()
        except (TypeError, ValueError, NotImplementedError):  # placeholders, until a step is taken
            pass
        super().zero_grad(set_to_none)
        self._clip_request = None
        self.engine.drop_gradients()

    @overload
    def save(self, path: str | os.PathLike[str], asynchronous: Literal[False] = False) -> None: ...
    @overload
    def save(
        self, path: str | os.PathLike[str], asynchronous: Literal[True], copies: int | str = "256MiB"
    ) -> PendingSave: ...
    def save(
        self, path: str | os.PathLike[str], asynchronous: bool = False, copies: int | str = "256MiB"
    ) -> PendingSave | None:
        """Writes state and options to one file, durably and all or nothing, straight from wherever the state lives:
        without a second copy in memory. The format is docs/checkpoint-format.md (no pickle).

        asynchronous: returns at once, and the file, of the state and options of now, is written while steps go on. A
        step copies what it is about to change and is not written yet, chunk by chunk: `copies` bytes at most, or one
        chunk where that is more. A step that finds no room waits for the writer. A second save waits for the first;
        `load` is refused meanwhile; an optimizer that goes, and the end of the process, wait for the file. What
        `state[p]` shows must not be written meanwhile. Other options: docs/checkpoints.md.

        Raises OSError (a file that was there before is untouched) or ValueError. The failure of an asynchronous save
        comes out of its `wait()` or, if nobody has waited, of the next `save`, which then writes nothing."""
        self._follow()
        expect(isinstance(asynchronous, bool), "asynchronous", repr(asynchronous), "True or False")
        if not asynchronous:
            files.save(self.engine, self.param_groups, path)
            return None
        return files.save_beside(self.engine, self.param_groups, path, copies)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Reads what `save` wrote from an optimizer of the same class, parameters and state formats; the state goes
        where this optimizer's `memory` says. The whole file is checked first: after a ValueError for a file that is
        damaged or of another model, or an OSError from opening it, nothing has changed."""
        self._follow(takes_state=False)

        def taken(groups: list[dict[str, Any]]) -> None:
            self._take_groups(groups)
            self._show_state()

        files.load(self.engine, self.param_groups, path, taken)

    def torch_state_dict(self) -> dict[str, Any]:
        """A dict that the torch.optim class of the same name loads: moments decoded to float32 (copies).

        Raises ValueError for what torch does not have: Lion, AdEMAMix, a Muon of other parameters than matrices."""
        self._follow()
        return torch_dict.write(self.engine, self.param_groups)

    def bitsandbytes_state_dict(self, nested: bool = True) -> dict[str, Any]:
        """A dict that the bitsandbytes optimizer of this rule loads: copies, on the CPU. Codes of dynamic8 stay as they
        are, with their map; where rows are no multiple of 256 long they are made anew, in blocks that run over the ends
        of rows. All other state becomes float32.

        nested: as bitsandbytes has it since 0.49.2; else flat, as before.

        Raises ValueError for what it has not: a rule, an option in use that it would ignore, DTensor parameters."""
        self._follow()
        return bitsandbytes.write(self.engine, self.param_groups, nested)

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
        self.onload()
        entries = [engine.live(i) for i in range(len(engine.params))]
        for i, numbers in own_numbers(engine, self.param_groups).items():
            entries[i] |= as_tensors(numbers)
        defaults = {**self.defaults, **self._beside}
        return {"defaults": defaults, "param_groups": self.param_groups, "state": entries, "options": options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        options = state["options"]
        settings: Settings = replace(options["settings"])  # copies: copy.copy hands over the original's
        self._chose_master = True
        self._begin_engine(options["rule"], state["defaults"], settings, options["backward_options"])
        groups = [
            {**group, "memory": memory} for group, memory in zip(state["param_groups"], options["budgets"], strict=True)
        ]
        params = [param for group in groups for param in group["params"]]
        for param, of_param in zip(params, options["overrides"], strict=True):
            overrides.pin(param, of_param)
        torch.optim.Optimizer.__init__(self, groups, self._cycled(state["defaults"]))
        restore.copy_in(self.engine, self.state, state["state"])
        self.engine.count(options["steps"], options["skipped_steps"])
        self._skips = Skips(options["skipped_steps"])
        if self._in_backward and self._in_backward.steps is not None:
            self._in_backward.steps = options["steps"]

    def __repr__(self) -> str:
        settings = self.engine.settings
        lines = [f"{type(self).__name__} (", f"lowtide {_core.__version__}, {self.engine.core.cpu_target()}"]
        for place in self.engine.cores:
            lines[1] += "" if place.on_host and not place.mirrored else f", {place.kind.backend} for {place.device}"
        lines.extend([f"memory: {settings.memory}"] if settings.memory else [])
        for number, (group, of) in enumerate(zip(self.param_groups, self.engine.members, strict=True)):
            lines.append(f"Parameter Group {number}: {len(group['params'])} tensors")
            lines.extend([f"    memory: {of.memory}"] if of.memory else [])
            shown = sorted(key for key in group if key not in HIDDEN_KEYS)
            lines.extend(f"    {key}: {group[key]}" for key in shown)
        return "\n".join(lines) + "\n)"
