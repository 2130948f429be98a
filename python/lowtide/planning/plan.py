"""Plans a whole training run: bytes of weights, gradients, masters, state and activations on each tier, and what to change if
they do not fit. Imports torch only for modules and Muon."""

from __future__ import annotations

import inspect
import itertools
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from lowtide import _core
from lowtide.checks.hints import check_name, hint
from lowtide.memory.forecast import GRADIENT_BUCKET, STREAMED_STATE, Budget, disk_info
from lowtide.planning.activations import moments
from lowtide.planning.models import TYPES, Model, decoder_of, elements, model_of, shape_of, state_of, type_named
from lowtide.planning.result import Plan, Tiers, summed
from lowtide.report.text import size_text
from lowtide.planning.units import LEAST, Division, Layout, divide, layout_of

if TYPE_CHECKING:
    import torch

    from lowtide.planning.rates import Rates

_PROCESS = 500_000_000  # measured: VmRSS of Python with torch 2.15, Transformers 5.24 and Lowtide after a step
# Assumed, not measured: a CUDA context with workspaces of its libraries, and the process that has one.
_CONTEXT, _PROCESS_BESIDE_DEVICE = 600_000_000, 1_500_000_000
_MAKES = "lowtide.stream(model, memory, ...), which makes the optimizer"
_STREAMS, _STAYS = f"Weights stream: {_MAKES}", f"No weights need to stream: {_MAKES}"
_TO_DEVICE = ", by torch's CPUOffloadPolicy (calculated, not yet measured)"
_MEANT = {"vram": "gpu", "device": "gpu", "host": "ram", "dtype": "weights"}  # `plan`'s names for what others call so
_WORDS = {1: "one", 2: "two", 3: "three"}
_LINES = ("weights", "gradients", "masters", "state", "activations", "process", "page locking", "never at once")


def plan(
    model: Any,
    *,
    gpu: int | str | None = None,
    ram: int | str | None = None,
    disk: int | str | os.PathLike[str] | None = None,
    weights: str | torch.dtype = "bf16",
    master: str | None = "auto",
    rule: str = "adamw",
    state: str = "dynamic8",
    seq: int = 2048,
    batch: int = 1,
    checkpointing: bool = False,
    accumulate: bool = False,
    step_in_backward: bool | int = False,
    stream: bool = False,
    min_quantized_numel: int = 4096,
    rates: Rates | Literal["measure"] | None = None,
    **hyper: Any,
) -> Plan:
    """Says whether a training run fits, with weights, gradients, masters, optimizer state, activations and the process.
    Allocates nothing.

    State goes where there is room: on the device, then in host memory, then on disk, as `Memory` divides it. Its bytes are
    those of `forecast`; activations are an estimate (docs/will-it-fit.md has the formula).

    Args:
        model: the name of a published model such as "Llama-3.1-8B" or "Qwen/Qwen2.5-7B", a folder with a config.json, such a
            file, a JSON file of shapes, a number of parameters, shapes, or a module (on any device, even "meta"). A module's
            own types count, and its frozen parameters have no gradients.
        gpu: bytes of device memory for the whole training, as an int or "24GB" (no shares); None: the CPU trains.
        ram: bytes of host memory for the whole process; None: no limit.
        disk: bytes for state on a disk, or a directory such as "/scratch", of which the free bytes count; None: no disk.
        weights: the type of weights, gradients and activations: "fp32", "bf16" or "fp16", or torch's names.
        master: as for the optimizer; "auto" takes no bytes.
        rule, state, min_quantized_numel: as for `forecast`.
        seq, batch: tokens per sequence, and sequences per forward pass.
        checkpointing: backward recomputes layers.
        accumulate: gradients are kept over several backward passes.
        step_in_backward: as for the optimizer: True or bytes.
        stream: `lowtide.stream` makes the optimizer. If not everything fits where layers compute, weights stream there. With a GPU:
            weights and gradients are in host memory, where the CPU steps; one layer at a time is on the device, and tables of the
            vocabulary are units of their own. Without, or if `ram` has no room for all weights: they are on the disk, from which
            layers are read ahead.
        rates: determine the seconds of a step on the CPU, for a decoder. "measure" measures them here, in half a minute, or in minutes
            for a large model; `disk` must be a directory for its rates. Those of weights are measured alone and beside products,
            because both share processors and memory.
        hyper: momentum, amsgrad, centered, betas, alpha, row_beta2: as for the optimizer.

    Returns a Plan, whether it fits or not. Raises ValueError, TypeError or OSError for unusable arguments.
    """
    for name, value in (("checkpointing", checkpointing), ("accumulate", accumulate), ("stream", stream)):
        if not isinstance(value, bool):
            raise TypeError(f"{name}: got {value!r}, wanted a bool")
    waiting = GRADIENT_BUCKET if step_in_backward is True else None if step_in_backward is False else _bytes("step_in_backward", step_in_backward)
    if accumulate and waiting is not None:
        raise ValueError("got gradients to accumulate and steps in backward, wanted one of them: each backward pass would be a step")
    rules = [*_core.rule_names(), "muon"]
    if not isinstance(rule, str):
        raise TypeError(f"rule: got {rule!r} ({type(rule).__name__}), wanted one of {', '.join(rules)}")
    check_name("rule", rule, rules)
    if waiting is not None and rule in _core.rules_with_sums():
        raise ValueError(f"step_in_backward: got {step_in_backward!r}, wanted False: a step of {rule} needs all gradients at once")
    state = state_of("state", state, _core.codec_names())
    what, weights, frozen = _model(model, weights)
    if what.decoder and not what.layout:
        decoder = what.decoder
        what = replace(what, layout=lambda size, _: layout_of(decoder, size))
    if stream and what.layout is None:
        raise ValueError(f"stream: got a model without layers, wanted known layers: {what.unknown}")
    if stream and gpu is None and ram is None:
        raise ValueError("stream: got no gpu and no limit of ram, wanted one of them: without a limit all weights are in memory")
    if stream and gpu is None and disk is None:
        raise ValueError("stream: got no gpu and no disk, wanted a gpu, to which layers stream, or a disk, from which they do")
    training = Training(
        what, frozen, _bytes("gpu", gpu), _bytes("ram", ram), _on_disk(disk), weights, master, rule, state, _count("seq", seq),
        _count("batch", batch), checkpointing, accumulate, waiting, stream, _count("min_quantized_numel", min_quantized_numel, 0),
        {key: value for key, value in hyper.items() if value is not None},
    )  # fmt: skip
    if rates is None:
        return training.answer()
    from lowtide.planning.rates import check_rates  # imports torch, as does `seconds`
    from lowtide.planning.seconds import measured, timed

    check_rates("rates", rates)
    if not (found := training.answer()).fits:
        return found
    return timed(training, found, measured(training, found, disk) if isinstance(rates, str) else rates)


def _model(given: Any, weights: str | torch.dtype) -> tuple[Model, str, int]:
    """The model, the type of its weights, and the bytes of its frozen weights."""
    torch = sys.modules.get("torch")  # a caller with a module has imported torch
    if torch is not None and isinstance(given, torch.nn.Module):
        trained = [param for param in given.parameters() if param.requires_grad]
        types = {type_named(param.dtype) for param in trained}
        if len(types) != 1 or not types <= TYPES.keys():
            raise ValueError(f"model: got weights of {', '.join(sorted(types)) or 'no type'}, wanted one of {', '.join(TYPES)} for all")
        config = getattr(given, "config", None)
        lists = any(isinstance(module, torch.nn.ModuleList) for module in given.modules())
        decoder = decoder_of(config.to_dict()) if lists and config is not None and hasattr(config, "to_dict") else None
        why = "" if decoder else "the formula is for Transformers' models like LLaMA"
        from lowtide.planning.layers import planned_layout

        layout = (lambda size, device: planned_layout(given, size, device)) if lists else None
        what = Model(type(given).__name__, [tuple(param.shape) for param in trained], decoder, why, any(type_named(param.dtype) not in types for param in given.parameters()), layout)
        frozen = sum(param.nbytes for param in given.parameters() if not param.requires_grad)
        return what, types.pop(), frozen
    short = type_named(weights)
    if short not in TYPES:
        raise ValueError(f"weights: got {weights!r}, wanted one of {', '.join(TYPES)}")
    if not isinstance(given, (list, tuple)):
        return model_of(given), short, 0
    shapes = [shape_of(shape, f"model: shape {n}") for n, shape in enumerate(given)]
    return Model(f"{len(shapes)} shapes", shapes, unknown="shapes say nothing about layers: give a name or a config.json"), short, 0


@dataclass(frozen=True)
class Training:
    """The arguments of `plan`, with sizes in bytes, and what follows from them."""

    model: Model
    frozen: int  # bytes of weights without gradients
    gpu: int | None
    ram: int | None
    disk: int | None
    weights: str
    master: str | None
    rule: str
    state: str
    seq: int
    batch: int
    checkpointing: bool
    accumulate: bool
    step_in_backward: int | None  # bytes that wait for a step in backward
    stream: bool
    min_quantized_numel: int
    hyper: Mapping[str, Any]
    _made: dict[tuple[str, str | None], tuple[str, list[Any], int]] = field(default_factory=dict, compare=False)  # shared with changes

    def answer(self) -> Plan:
        """The plan. If it does not fit, it has the smallest change that would, or the effect of all changes."""
        found, changed = self._plan(), None
        if found.fits:
            return found
        last: dict[str, Any] = {}
        for _, last in sorted(self._changes(), key=lambda each: each[0]):
            changed = replace(self, **last)._plan()
            if changed.fits:
                break
        spelled: dict[str, Any] = {"step_in_backward": True}
        if changed and self.disk is None and "disk" in last:  # the disk may be as large as it takes
            enough = _rounded_up(changed.total.disk) if changed.total.disk else None
            changed = replace(changed, given=(*changed.given[:2], enough))
            last["disk"], spelled["disk"] = enough, size_text(enough or 0)
        change = {name: spelled.get(name, value) for name, value in last.items() if value != getattr(self, name)}
        return replace(found, change=change, changed=changed)

    def _changes(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Every sensible set of changes, with its cost. From cheap to dear: more computing, less precision, a disk, weights
        that travel through every layer of every pass, a CPU that computes."""
        single: list[tuple[int, dict[str, Any]]] = []
        if not self.checkpointing and self.model.decoder:
            single.append((1, {"checkpointing": True}))
        if not self.accumulate and self.step_in_backward is None and self.rule not in _core.rules_with_sums():
            single.append((1, {"step_in_backward": GRADIENT_BUCKET}))
        if self.weights == "fp32":
            single.append((2, {"weights": "bf16", "master": "auto"}))
        elif self.master in ("residual16", "residual8"):
            single.append((2, {"master": "auto"}))
        if self.disk is None:
            single.append((3, {"disk": 1 << 60}))
        if self.model.decoder:
            from_disk = {"gpu": None, "stream": True, "disk": 1 << 60 if self.disk is None else self.disk}
            if self.gpu is not None:
                single += [(18, {"gpu": None, "stream": False}), (20, from_disk)]
            if not self.stream and (self.gpu is None or self._can_stream()):
                single.append((5, from_disk if self.gpu is None else {"stream": True}))
        for count in range(1, len(single) + 1):
            for some in itertools.combinations(single, count):
                if all(sum(name in each for _, each in some) < 2 for name in ("master", "stream")):
                    yield sum(cost for cost, _ in some), {name: value for _, each in some for name, value in each.items()}

    def _can_stream(self) -> bool:
        """Whether torch can move the layers to a device."""
        try:
            return replace(self, stream=True).layout is not None
        except ValueError:
            return False

    @cached_property
    def _elements(self) -> int:
        return elements(self.model.shapes)

    @property
    def layout(self) -> Layout | None:
        """The weights, if layers are known."""
        return self.model.layout(self._size, self.stream and self.gpu is not None) if self.model.layout and (self.model.decoder or self.stream) else None

    @property
    def _master(self) -> str | None:
        """The master for the core, which lacks "auto"; that takes no bytes."""
        return None if self.master == "auto" else self.master

    @property
    def _size(self) -> int:
        return TYPES[self.weights][1]

    def _plan(self) -> Plan:
        _, groups, size = self.core_groups
        plain = [(params, {**options, "master": None}, *rest) for params, options, *rest in groups]
        state = self._state(Budget(-1), plain)["state_bytes"]
        masters = self._state(Budget(-1))["state_bytes"] - state
        lines = {"process": Tiers(0, _PROCESS) if self.gpu is None else Tiers(_CONTEXT, _PROCESS_BESIDE_DEVICE)}
        found, budget = self._divided(lines, state + masters + size)
        there = self.gpu is not None and not found.streams  # state may be on the device
        lines["state"] = rows = Tiers(size) if there else Tiers(0, size)  # row moments, beside the weights
        where, memory, problem, moved = self._placed(summed(lines.values()), rows, state + masters, there, found)
        if budget:
            moved = summed([moved, found.moved])
            memory = ",".join([*(f"{tier}={left}" for tier, left in zip(Tiers._fields, budget) if left is not None), *["disk=DIR"] * bool(found.weights.disk or where.disk)])
        share = masters / max(state + masters, 1)
        lines["masters"] = Tiers(*(int(size * share) for size in where))
        lines["state"] = Tiers(*(size - part + row for size, part, row in zip(where, lines["masters"], rows, strict=True)))
        given = self._given
        lacks = [
            f"{tier} lacks {size_text(total - size)}"
            for tier, total, size in zip(Tiers._fields, summed(lines.values()), given, strict=True) if size is not None and total > size
        ]  # fmt: skip
        if budget and found.short:
            problem = f"{found.short.tier} lacks {size_text(found.short.needed - (budget[found.short.tier == 'host'] or 0))}"
        streams = _STREAMS + _TO_DEVICE * (self.gpu is not None) if found.streams else _STAYS if self.stream else ""
        in_backward = self.step_in_backward if self.step_in_backward != GRADIENT_BUCKET else True
        options = {"state": self.state, "master": self.master, "step_in_backward": in_backward is not None and in_backward, "memory": memory}
        shown = {name: value for name, value in options.items() if value or (name == "step_in_backward" and (self.stream or value is not False))}
        return Plan(
            self.model.name, self._elements, given, {name: lines[name] for name in _LINES if any(lines.get(name, ()))},
            ", ".join(lacks) or problem, self.model.unknown, shown, streams, moved,
            found.moved.disk if budget else 0,
        )  # fmt: skip

    def _at_work(self, size: int) -> Tiers:
        """`size` bytes where layers compute."""
        return Tiers(0, size) if self.gpu is None else Tiers(size)

    def _divided(self, lines: dict[str, Tiers], state: int) -> tuple[Division, list[int | None] | None]:
        """Adds the lines of weights, gradients and activations, each at its peak, and how much of their sum is never there at once.
        Returns how they are divided and, if weights may stream, the budgets of `lowtide.stream`, of device and host memory."""
        bucket, of = self.step_in_backward, self.model.decoder
        layout = self.layout
        every, largest = self._size * self._elements, self._size * max(map(math.prod, self.model.shapes), default=0)
        at = list(moments(of, self.seq * self.batch, self._size, self.checkpointing)) if of else []
        activations = max((moment.activations for moment in at), default=0)
        if self.stream and layout:
            largest = max((unit.gradient_bytes for unit in layout.units), default=0)
        more = self.accumulate * largest  # arrives beside gradients that are kept
        most = layout.gradients(bucket, layout.tied, largest) if layout else every if bucket is None else min(every, bucket + largest)

        def beside(most: int, alive: Callable[[int, int], int]) -> int:
            """The bytes that activations add to the most bytes of weights and gradients. alive: those bytes at a moment."""
            if not (of and layout):
                return 0
            ends = len(layout.units) > of.layers
            peaks = []
            for moment in at:
                begun, last = moment.complete > 0, moment.complete > 1 + of.layers
                done = min(moment.complete - (begun and not ends), len(layout.units))
                peaks.append(moment.activations + alive(done, begun + last))
            return max(peaks) - most

        def gradients(done: int, kept: int) -> int:
            return most if self.accumulate or not layout else min(most, layout.gradients_alive(done, kept))

        def divided(layout: Layout, outside: int, in_host: int) -> tuple[Division, list[int | None]]:
            """outside: bytes beside weights, gradients and state where layers compute. in_host: in host memory, if a device computes."""
            taken = self._at_work(outside)._replace(host=in_host) if self.gpu is not None else Tiers(0, outside)
            budget = [None if size is None else size - line - more for size, line, more in zip(self._given, lines["process"], taken)][:2]
            return divide(layout, state, bucket, budget, self.disk is not None), budget

        outside, budget = beside(most, gradients), cast("list[int | None] | None", None)
        if not (self.stream and layout):
            found = Division(self._at_work(every + self.frozen), self._at_work(most), (None, None), False)
        else:
            found, budget = divided(layout, outside + more, 0)
            if self.gpu is not None and found.streams:
                least = beside(layout.device_bytes(), layout.alive_on_device)
                if (other := divided(layout, least, more))[0].streams:
                    outside, (found, budget) = least, other
        more_at = Tiers(0, more) if found.streams else self._at_work(more)
        lines |= {"weights": found.weights, "gradients": summed([found.gradients, more_at]), "activations": self._at_work(activations)}
        lines |= {"page locking": Tiers(0, found.pinned or 0), "never at once": self._at_work(outside - activations)}
        return found, budget

    @property
    def _given(self) -> tuple[int | None, int | None, int | None]:
        return self.gpu, self.ram, self.disk

    def _placed(self, beside: Tiers, rows: Tiers, state: int, steps_there: bool, found: Division) -> tuple[Tiers, str | None, str, Tiers]:
        """Places state and masters beside the rest, which includes row moments (rows): where they are, the optimizer's `memory` for
        all of these, the problem if they fit nowhere, and the bytes that a step moves. steps_there: the device steps."""
        device, host, disk = (None if size is None else size - taken for size, taken in zip(self._given, beside, strict=True))
        # If a device has no room for the rest, state does not change what it lacks.
        there = min(max(device or 0, 0), state) if steps_there else 0
        elsewhere = Tiers(there, state - there)
        if steps_there and there < min(state, LEAST):
            return elsewhere, None, f"device lacks {size_text(LEAST)} for state that streams", Tiers()
        if there == state or host is None or (host >= state - there and not self.stream):
            return elsewhere, None, "", Tiers(2 * (state - there) if steps_there else 0)
        if found.short or (disk is None and host < state - there):
            if disk is not None and found.short and found.short.tier == "host":  # host memory lacks the least: all other state is on the disk
                elsewhere = Tiers(0, min(state, STREAMED_STATE), max(state - STREAMED_STATE, 0))
            return elsewhere, None, f"host lacks {size_text(state - there - host)}", Tiers()
        if host < (0 if self.stream else LEAST):
            in_host = max(host, 0)
            problem = f"host lacks {size_text(LEAST)} for state that streams"
            return Tiers(there, in_host, state - there - in_host), None, problem, Tiers()
        limit = ("DIR", max(disk, 0)) if disk is not None else ()
        forecast = self._state(Budget(host, *limit)._replace(device=there if steps_there else -1))
        if not forecast["fits"]:
            return elsewhere, None, forecast["problem"], Tiers()
        there, host = there + rows.device, host + rows.host
        memory = f"device={there},host={host},disk=DIR,step=device" if steps_there else f"host={host},disk=DIR"
        again = 2 * max(found.steps - 1, 0) * forecast["disk_bytes"] // max(forecast["chunks"], 1)  # chunks that two steps share
        moved = Tiers(forecast["moved_per_step"] if steps_there else 0, 0, forecast["disk_moved_per_step"] + again)
        if disk is None or not forecast["disk_bytes"]:
            return elsewhere, None, "", moved
        return Tiers(forecast["device_bytes"], forecast["host_bytes"], forecast["disk_bytes"]), memory, "", moved

    def _state(self, budget: Budget, groups: Sequence[Any] | None = None) -> dict[str, Any]:
        """The core's forecast of state and masters."""
        rule, own, _ = self.core_groups
        found: dict[str, Any] = _core.forecast(rule, budget, own if groups is None else groups)[0]
        return found

    @property
    def core_groups(self) -> tuple[str, list[Any], int]:
        """The core's rule, the groups as `_core.forecast` takes them, and bytes of row moments. Made once for all changes."""
        key = self.weights, self.master
        if key not in self._made:
            self._made[key] = self._make_groups()
        return self._made[key]

    def _make_groups(self) -> tuple[str, list[Any], int]:
        dtype, options = TYPES[self.weights][0], {name: default for name, default, _ in _core.group_options()}
        options |= {"state": self.state, "master": self._master, "min_quantized_numel": self.min_quantized_numel}
        if self.rule == "muon":
            from lowtide.planning.forecasts import sizes_for  # imports torch
            from lowtide.planning.rates import family_of

            for name in self.hyper.keys() - family_of(self.rule)[1].keys():
                _refuse(name, self.hyper[name], self.rule)
            return sizes_for(self.rule, self.model.shapes, dtype, options, self.hyper)
        params = [([*shape], None, dtype, i) for i, shape in enumerate(self.model.shapes)]
        return self.rule, [(params, options, _hyper(self.rule, self.hyper), None, 0.0, -1, "")], 0


def _rounded_up(size: int) -> int:
    """The next size with three digits."""
    unit: int = 10 ** max(len(str(size)) - 3, 3)
    return -(-size // unit) * unit


def _hyper(rule: str, given: Mapping[str, Any]) -> dict[str, float]:
    """Hyper-parameters as the core has them."""
    known = [name for name, _ in _core.hyper_parameters(rule)]
    found: dict[str, float] = {}
    for name, value in given.items():
        if name == "betas":
            names = [key for key in ("beta1", "beta2", "beta3") if key in known]
            if not names or not isinstance(value, (tuple, list)) or len(value) != len(names):
                wanted = f"{_WORDS[len(names)]} numbers: {', '.join(names)}" if names else f"none: {rule} has no such option"
                raise ValueError(f"betas: got {value!r}, wanted {wanted}")
            found |= dict(zip(names, map(float, value), strict=True))
        elif name in known:
            if not isinstance(value, (int, float)):
                raise TypeError(f"{name}: got {value!r} ({type(value).__name__}), wanted a number")
            found[name] = value
        else:
            _refuse(name, value, rule)
    return found


def _refuse(name: str, value: Any, rule: str) -> None:
    """Raises ValueError for an option that the rule lacks, unless it is off."""
    if value is not False:
        instead = hint(name, [*inspect.signature(plan).parameters], meant=_MEANT.get(name))
        raise ValueError(f"{name}: got {value!r}, wanted none: {rule} has no such option{instead}")


def _count(name: str, value: Any, least: int = 1) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**63:
        raise ValueError(f"{name}: got {value!r}, wanted a whole number of {least} or more")
    return value


def _bytes(name: str, value: int | str | None) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        if value and value < 1024 and name in ("gpu", "ram"):
            raise ValueError(f"{name}: got {value!r}, wanted bytes; did you mean '{value}GB'?")
        return value
    if not isinstance(value, str):
        raise ValueError(f"{name}: got {value!r}, wanted bytes as an int or '24GB'")
    if found := re.fullmatch(r"\s*([0-9.]+)\s*([kmgtKMGT]?)\s*", value):
        if found[2] or (found[1].isdecimal() and 0 < int(found[1]) < LEAST):  # too few bytes to be meant
            unit = f"{found[2].upper().replace('K', 'k') or 'G'}B"
            raise ValueError(f"{name}: got {value!r}, wanted bytes with a unit; did you mean {found[1]}{unit}?")
    try:
        return _core.parse_bytes(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _on_disk(value: int | str | os.PathLike[str] | None) -> int | None:
    """Bytes of a disk: a size, or the free bytes of a directory."""
    if value is None or isinstance(value, int) or (isinstance(value, str) and "/" not in value):
        try:
            return _bytes("disk", value)
        except ValueError as error:
            if not (isinstance(value, str) and Path(value).is_dir()):
                if isinstance(value, str) and not value[:1].isdecimal():
                    raise ValueError(f"disk: got {value!r}, wanted a size such as 1TB, or a directory that exists") from None
                raise error
    return int(disk_info("disk", value)["free_bytes"])
