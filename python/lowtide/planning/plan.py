"""Plans a whole training run: bytes of weights, gradients, masters, state and activations on each tier, and what to change if
they do not fit. Imports torch only for modules and Muon."""

from __future__ import annotations

import inspect
import itertools
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowtide import _core
from lowtide.checks.hints import check_name, hint
from lowtide.memory.forecast import GRADIENT_BUCKET, STREAMED_STATE, Budget, disk_info
from lowtide.planning.activations import moments
from lowtide.planning.models import TYPES, Model, decoder_of, elements, model_of, shape_of, state_of, type_named
from lowtide.planning.result import Plan, Tiers, summed
from lowtide.report.text import size_text
from lowtide.planning.schedule import Schedule

if TYPE_CHECKING:
    import torch

_LEAST = 16 << 20  # the least that a plan streams state through
_PROCESS = 500_000_000  # measured: VmRSS of Python with torch 2.15, Transformers 5.24 and Lowtide after a step
# Assumed, not measured: a CUDA context with workspaces of its libraries, and the process that has one.
_CONTEXT, _PROCESS_BESIDE_DEVICE = 600_000_000, 1_500_000_000
_STREAMS = "Weights stream: lowtide.stream(model, memory, ...), which makes the optimizer"
_TO_DEVICE = ", by torch's CPUOffloadPolicy (calculated, not yet measured)"
_MEANT = {"vram": "gpu", "device": "gpu", "host": "ram", "dtype": "weights"}  # `plan`'s names for what others call so
_WORDS = {1: "one", 2: "two", 3: "three"}
_NEEDS_ALL = ("prodigy",)  # rules whose steps need the gradients of all parameters at once
_LINES = ("weights", "gradients", "masters", "state", "activations", "process", "never at once")


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
        stream: weights stream to where layers compute (`lowtide.stream`). With a GPU: weights and gradients are in host memory,
            where the CPU steps; one layer at a time is on the device, and tables of the vocabulary are units of their own. Without,
            or if `ram` has no room for all weights: they are on the disk, from which layers are read ahead.
        hyper: momentum, amsgrad, centered, betas, alpha, row_beta2: as for the optimizer.

    Returns a Plan, whether it fits or not. Raises ValueError, TypeError or OSError for unusable arguments.
    """
    for name, value in (("checkpointing", checkpointing), ("accumulate", accumulate), ("stream", stream)):
        if not isinstance(value, bool):
            raise TypeError(f"{name}: got {value!r}, wanted a bool")
    waiting = GRADIENT_BUCKET if step_in_backward is True else _bytes("step_in_backward", step_in_backward or 0)
    if accumulate and waiting:
        raise ValueError("got gradients to accumulate and steps in backward, wanted one of them: each backward pass would be a step")
    rules = [*_core.rule_names(), "muon"]
    if not isinstance(rule, str):
        raise TypeError(f"rule: got {rule!r} ({type(rule).__name__}), wanted one of {', '.join(rules)}")
    check_name("rule", rule, rules)
    if waiting and rule in _NEEDS_ALL:
        raise ValueError(f"step_in_backward: got {step_in_backward!r}, wanted False: a step of {rule} needs all gradients at once")
    state = state_of("state", state, _core.codec_names())
    what, weights, frozen = _model(model, weights)
    if stream and what.decoder is None:
        raise ValueError(f"stream: got a model without layers, wanted known layers: {what.unknown}")
    if stream and gpu is None and ram is None:
        raise ValueError("stream: got no gpu and no limit of ram, wanted one of them: without a limit all weights are in memory")
    if stream and gpu is None and disk is None:
        raise ValueError("stream: got no gpu and no disk, wanted a gpu, to which layers stream, or a disk, from which they do")
    training = _Training(
        what, frozen, _bytes("gpu", gpu), _bytes("ram", ram), _on_disk(disk), weights, master, rule, state, _count("seq", seq),
        _count("batch", batch), checkpointing, accumulate, waiting or 0, stream, _count("min_quantized_numel", min_quantized_numel, 0),
        {key: value for key, value in hyper.items() if value is not None},
    )  # fmt: skip
    return training.answer()


def _model(given: Any, weights: str | torch.dtype) -> tuple[Model, str, int]:
    """The model, the type of its weights, and the bytes of its frozen weights."""
    torch = sys.modules.get("torch")  # a caller with a module has imported torch
    if torch is not None and isinstance(given, torch.nn.Module):
        trained = [param for param in given.parameters() if param.requires_grad]
        types = {type_named(param.dtype) for param in trained}
        if len(types) != 1 or not types <= TYPES.keys():
            raise ValueError(f"model: got weights of {', '.join(sorted(types)) or 'no type'}, wanted one of {', '.join(TYPES)} for all")
        config = getattr(given, "config", None)
        decoder = decoder_of(config.to_dict()) if config is not None and hasattr(config, "to_dict") else None
        why = "" if decoder else "the formula is for Transformers' models like LLaMA"
        what = Model(type(given).__name__, [tuple(param.shape) for param in trained], decoder, why)
        frozen = sum(param.numel() * param.element_size() for param in given.parameters() if not param.requires_grad)
        return what, types.pop(), frozen
    short = type_named(weights)
    if short not in TYPES:
        raise ValueError(f"weights: got {weights!r}, wanted one of {', '.join(TYPES)}")
    if not isinstance(given, (list, tuple)):
        return model_of(given), short, 0
    shapes = [shape_of(shape, f"model: shape {n}") for n, shape in enumerate(given)]
    return Model(f"{len(shapes)} shapes", shapes, unknown="shapes say nothing about layers: give a name or a config.json"), short, 0


@dataclass(frozen=True)
class _Training:
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
    step_in_backward: int
    stream: bool
    min_quantized_numel: int
    hyper: Mapping[str, Any]

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
        if not self.accumulate and not self.step_in_backward and self.rule not in _NEEDS_ALL:
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
            if not self.stream:
                single.append((5, from_disk if self.gpu is None else {"stream": True}))
        for count in range(1, len(single) + 1):
            for some in itertools.combinations(single, count):
                if all(sum(name in each for _, each in some) < 2 for name in ("master", "stream")):
                    yield sum(cost for cost, _ in some), {name: value for _, each in some for name, value in each.items()}

    @cached_property
    def _elements(self) -> int:
        return elements(self.model.shapes)

    @property
    def _master(self) -> str | None:
        """The master for the core, which lacks "auto"; that takes no bytes."""
        return None if self.master == "auto" else self.master

    @property
    def _size(self) -> int:
        return TYPES[self.weights][1]

    def _plan(self) -> Plan:
        state = self._state(Budget(-1), None)["state_bytes"]
        masters = self._state(Budget(-1), self._master)["state_bytes"] - state
        lines = {"weights": self._weights(), **self._in_backward()}
        lines["process"] = Tiers(0, _PROCESS) if self.gpu is None else Tiers(_CONTEXT, _PROCESS_BESIDE_DEVICE)
        size = self._groups(self._master)[2]
        lines["state"] = rows = Tiers(0, size) if self.stream else self._at_work(size)  # row moments, beside the weights
        if from_disk := self._streams_from_disk(lines, state + masters):
            lines["weights"] = self._weights_on_disk(lines)
        where, memory, problem, moved = self._placed(summed(lines.values()), rows, state + masters, from_disk)
        if self.stream:
            moved = summed([moved, self._weights_moved(lines["weights"].host if from_disk else None)])
            memory = self._for_stream(lines, bool(from_disk or where.disk))
        share = masters / max(state + masters, 1)
        lines["masters"] = Tiers(*(int(size * share) for size in where))
        lines["state"] = Tiers(*(size - part + row for size, part, row in zip(where, lines["masters"], rows, strict=True)))
        given = (self.gpu, self.ram, self.disk)
        lacks = [
            f"{tier} lacks {size_text(total - size)}"
            for tier, total, size in zip(Tiers._fields, summed(lines.values()), given, strict=True) if size is not None and total > size
        ]  # fmt: skip
        in_backward = self.step_in_backward if self.step_in_backward != GRADIENT_BUCKET else True
        options = {"state": self.state, "master": self.master, "step_in_backward": in_backward, "memory": memory}
        return Plan(
            self.model.name, self._elements, given, {name: lines[name] for name in _LINES if any(lines[name])},
            ", ".join(lacks) or problem, self.model.unknown, {name: value for name, value in options.items() if value or (self.stream and name == "step_in_backward")},
            "" if not self.stream else _STREAMS if self.gpu is None else _STREAMS + _TO_DEVICE, moved,
        )  # fmt: skip

    def _at_work(self, size: int) -> Tiers:
        """`size` bytes where layers compute."""
        return Tiers(0, size) if self.gpu is None else Tiers(size)

    def _weights(self) -> Tiers:
        weights = self._size * self._elements + self.frozen
        if not self.stream or self.gpu is None:
            return self._at_work(weights)
        of = self.model.decoder
        assert of
        table, layer = self._units()
        # One unit at a time. A tied table belongs to no unit and stays.
        return Tiers((layer if of.tied else max(table, layer)) + of.tied * table, weights)

    def _streams_from_disk(self, lines: Mapping[str, Tiers], state: int) -> bool:
        """True if weights stream from the disk, because host memory has no room for all of them and for state, as in
        `lowtide.stream`."""
        if not self.stream or self.gpu is None:
            return self.stream
        beside = summed(lines.values()).host + min(state, STREAMED_STATE)
        return self.disk is not None and self.ram is not None and beside > self.ram

    def _weights_on_disk(self, lines: Mapping[str, Tiers]) -> Tiers:
        """Divides host memory as `lowtide.stream` does: it holds as many layers and tables as fit; a tied table stays."""
        ram, (sizes, kept) = self.ram, self._turns()
        every, least = sum(sizes), min(sum(sizes), Schedule.least(sizes))
        beside = summed(line for name, line in lines.items() if name != "weights").host + kept + STREAMED_STATE
        return Tiers(lines["weights"].device, kept + (every if ram is None else max(least, min(every, ram - beside))), every)

    def _turns(self) -> tuple[list[int], int]:
        """Bytes of the layers and tables that take turns, and of a tied table, which stays."""
        of = self.model.decoder
        assert of
        table, layer = self._units()
        layers = [layer] * of.layers
        return (layers, table) if of.tied else ([table, *layers, table], 0)

    def _weights_moved(self, in_host: int | None) -> Tiers:
        """Bytes of weights that move to the device or from and to the disk in a step, and of gradients on their way back. in_host:
        bytes of weights in host memory, if they are on the disk."""
        (sizes, kept), whole = self._turns(), self._size * self._elements + self.frozen
        trained, disk = self._size * self._elements / whole, 0
        if in_host is not None:
            disk = sum(Schedule(sizes, in_host - kept).step_bytes([int(trained * size) for size in sizes]))
        return Tiers(0 if self.gpu is None else 2 * whole - kept + self._size * self._elements, 0, disk)

    def _for_stream(self, lines: Mapping[str, Tiers], on_disk: bool) -> str:
        """`memory` for `lowtide.stream`: room for weights, gradients and state together."""
        beside = summed(lines[name] for name in ("process", "activations", "never at once"))
        rooms = (("device", self.gpu, beside.device), ("host", self.ram, beside.host))
        return ",".join([*(f"{tier}={size - taken}" for tier, size, taken in rooms if size is not None), *["disk=DIR"] * on_disk])

    def _units(self) -> tuple[int, int]:
        """Bytes of weights of a table of the vocabulary, and of a layer. Includes frozen weights."""
        of = self.model.decoder
        assert of
        whole = self._size * self._elements + self.frozen
        share = whole / max(elements(of.shapes()), 1)
        return int(share * of.vocabulary * of.hidden), int(share * elements([*of.layer().values()]))

    def _in_backward(self) -> dict[str, Tiers]:
        """Gradients and activations, each at its peak, and how much of their sum is never there at once."""
        size, of = self._size, self.model.decoder
        every, largest = size * self._elements, size * max(map(math.prod, self.model.shapes), default=0)
        if of is None:
            alive = min(every, self.step_in_backward + largest) if self.step_in_backward else every + self.accumulate * largest
            return {"gradients": self._at_work(alive), "activations": Tiers(), "never at once": Tiers()}
        trained = every / max(every + self.frozen, 1)
        table, layer = (int(trained * unit) for unit in self._units())
        streams, unit = self.stream and self.gpu is not None, max(table, layer)
        largest = unit if self.stream else largest  # a layer leaves memory once all of it has stepped

        def gradients(complete: int) -> int:
            """Bytes of gradients alive where layers compute, once `complete` units have gradients."""
            if streams:  # of a unit, and of the previous one on their way to the host
                units, done = [table] * (not of.tied), max(complete - of.tied, 0)
                units = [*units, *[layer] * of.layers, *units]
                tied = of.tied * ((complete > 0) + 2 * (complete > 1 + of.layers))  # both halves of the gradient, and their sum
                return sum(units[max(done - 2, 0) : done]) + tied * table
            if self.accumulate:
                return every + largest
            layers, last = layer * min(max(complete - 1, 0), of.layers), complete > 1 + of.layers
            # A tied table has two gradients, which autograd adds to a third.
            tables = table * ((complete > 0) + last * (1 + of.tied))
            if not self.step_in_backward:
                return layers + tables
            held = tables if of.tied else 0
            return held + min(layers + tables - held, self.step_in_backward + largest)

        at = list(moments(of, self.seq * self.batch, size, self.checkpointing))
        most, activations = max(gradients(moment.complete) for moment in at), max(moment.activations for moment in at)
        peak = max(moment.activations + gradients(moment.complete) for moment in at)
        found = {"activations": self._at_work(activations), "never at once": self._at_work(peak - most - activations)}
        if not streams:
            return {**found, "gradients": self._at_work(most)}
        on_host = unit + self.step_in_backward if self.step_in_backward else every + self.accumulate * unit
        return {**found, "gradients": Tiers(most, on_host)}

    def _placed(self, beside: Tiers, rows: Tiers, state: int, from_disk: bool) -> tuple[Tiers, str | None, str, Tiers]:
        """Places state and masters beside the rest, which includes row moments (rows): where they are, the optimizer's `memory` for
        all of these, the problem if they fit nowhere, and the bytes that a step moves. from_disk: weights stream from the disk."""
        of = self.gpu, self.ram, self.disk
        device, host, disk = (None if size is None else size - taken for size, taken in zip(of, beside, strict=True))
        steps_there = self.gpu is not None and not self.stream
        # If a device has no room for the rest, state does not change what it lacks.
        there = min(max(device or 0, 0), state) if steps_there else 0
        elsewhere = Tiers(there, state - there)
        if steps_there and there < min(state, _LEAST):
            return elsewhere, None, f"device lacks {size_text(_LEAST)} for state that streams", Tiers()
        if there == state or host is None or (host >= state - there and not from_disk):
            return elsewhere, None, "", Tiers(2 * (state - there) if steps_there else 0)
        if disk is None:
            return elsewhere, None, f"host lacks {size_text(state - there - host)}", Tiers()
        buffers = STREAMED_STATE if from_disk else _LEAST
        if host < buffers:
            in_host = max(min(host, state - there), 0)
            problem = f"host lacks {size_text(buffers)} for state that streams"
            return Tiers(there, in_host, state - there - in_host), None, problem, Tiers()
        found = self._state(Budget(host, "DIR", max(disk, 0), device=there if steps_there else -1), self._master)
        if not found["fits"]:
            return elsewhere, None, found["problem"], Tiers()
        there, host = there + rows.device, host + rows.host
        memory = f"device={there},host={host},disk=DIR,step=device" if steps_there else f"host={host},disk=DIR"
        moved = Tiers(found["moved_per_step"] if steps_there else 0, 0, found["disk_moved_per_step"])
        return Tiers(found["device_bytes"], found["host_bytes"], found["disk_bytes"]), memory, "", moved

    def _state(self, budget: Budget, master: str | None) -> dict[str, Any]:
        """The core's forecast of state and masters."""
        rule, groups, _ = self._groups(master)
        found: dict[str, Any] = _core.forecast(rule, budget, groups)[0]
        return found

    def _groups(self, master: str | None) -> tuple[str, list[Any], int]:
        """The core's rule, the groups as `_core.forecast` takes them, and bytes of row moments."""
        dtype, options = TYPES[self.weights][0], {name: default for name, default, _ in _core.group_options()}
        options |= {"state": self.state, "master": master, "min_quantized_numel": self.min_quantized_numel}
        if self.rule == "muon":
            from lowtide.planning.forecasts import sizes_for  # imports torch
            from lowtide.planning.rates import family_of

            for name in self.hyper.keys() - family_of(self.rule)[1].keys():
                _refuse(name, self.hyper[name], self.rule)
            return sizes_for(self.rule, self.model.shapes, dtype, options, self.hyper)
        params = [([*shape], None, dtype) for shape in self.model.shapes]
        return self.rule, [(params, options, _hyper(self.rule, self.hyper), None, 0.0, -1, "")], 0


def _rounded_up(size: int) -> int:
    """The next size with three digits."""
    unit: int = 10 ** max(len(str(size)) - 3, 3)
    return -(-size // unit) * unit


def _hyper(rule: str, given: Mapping[str, Any]) -> dict[str, float]:
    """Hyper-parameters as the core has them."""
    known = [each.name for each in _core.hyper_parameters(rule)]
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
        if found[2] or (found[1].isdecimal() and 0 < int(found[1]) < _LEAST):  # too few bytes to be meant
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
