"""Forecasts an optimizer: bytes of host memory and disk, bytes moved and seconds per step."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, overload

import torch

from lowtide import _core
from lowtide.checks.values import expect, number
from lowtide.devices.places import HOST
from lowtide.engine.family import Family
from lowtide.engine.groups import GroupSizes, group_defaults
from lowtide.memory.budgets import Memory
from lowtide.memory.forecast import Forecast
from lowtide.memory.forecast import forecast as of_core
from lowtide.options.hyper import BETAS, hyper_values
from lowtide.options.options import AUTO, check_kinds
from lowtide.planning.models import Shape
from lowtide.planning.on_device import DeviceForecast
from lowtide.planning.on_device import predict as predict_on
from lowtide.planning.rates import Rates, check_rates, family_of, step_rates
from lowtide.planning.shapes import Planned, groups_of, members_of
from lowtide.report.text import seconds_text, table_text

_AVERAGES = (*BETAS, "alpha")  # options that set the length of averages
_MEASURED = (*_AVERAGES, "momentum", "amsgrad", "centered", "max_unorm")  # options that change the time of a step


@dataclass(frozen=True)
class Forecasts(Forecast):
    """The sum over all budgets, and each budget. `str()` gives a table."""

    rule: str = ""
    names: tuple[str, ...] = ()  # "optimizer" (for groups without their own), "group 1", ...
    budgets: tuple[Forecast, ...] = ()
    memories: tuple[Memory | None, ...] = ()  # of each budget
    rates: Rates = field(default_factory=Rates)

    def __str__(self) -> str:
        shown = [n for n, budget in enumerate(self.budgets) if budget.params or len(self.budgets) == 1]
        columns = [("", _LABELS)] + [(self.names[n], _column(self.budgets[n], self.memories[n])) for n in shown]
        if len(shown) > 1:
            columns.append(("in all", _column(self, None, limit="")))
        lines = table_text(zip(*((head, *cells) for head, cells in columns), strict=True))
        verdict = "fits" if self.fits else "does not fit"
        head = f"{self.rule}: {self.params} parameters, {self.elements:,} elements: {verdict}"
        problems = [f"{self.names[n]}: {self.budgets[n].problem}" for n in shown if not self.budgets[n].fits]
        return "\n".join([head, *filter(None, lines), *problems])


_LABELS = (
    "state", "host memory", "  of a limit of", "  directly addressable", "  resident chunks", "  streaming buffers",
    "disk", "chunks", "moved a step", "seconds a step", "  stepping", "  disk",
)  # fmt: skip


def _column(budget: Forecast, memory: Memory | None, limit: str = "none") -> tuple[str, ...]:
    if memory and (host := memory.budget().host) >= 0:
        limit = _core.format_bytes(host)

    def size(number: int) -> str:
        return _core.format_bytes(number) if budget.fits else "-"

    def time(seconds: float) -> str:
        return seconds_text(seconds) if budget.fits else "-"

    return (
        _core.format_bytes(budget.state_bytes), size(budget.host_bytes),
        limit,
        size(budget.direct_bytes), size(budget.resident_bytes), size(budget.slot_bytes),
        size(budget.disk_bytes), str(budget.chunks) if budget.fits else "-", size(budget.moved_per_step),
        time(budget.seconds), time(budget.step_seconds),
        "0 s" if budget.fits and not budget.moved_per_step else time(budget.disk_seconds),
    )  # fmt: skip


@overload
def forecast(
    model_or_params: Any, rule: str = ..., state: str = ..., memory: Memory | None = ..., min_quantized_numel: int = ...,
    rates: Rates | Literal["measure"] | None = ..., momentum: float | None = ..., amsgrad: bool = ..., centered: bool = ...,
    master: str | None = ..., max_unorm: float = ..., betas: tuple[float, ...] | None = ..., alpha: float | None = ..., row_beta2: float | None = ...,
    on: Literal["cpu"] = ..., dtype: torch.dtype = ...,
) -> Forecasts: ...  # fmt: skip


@overload
def forecast(
    model_or_params: Any, rule: str = ..., state: str = ..., memory: Memory | None = ..., min_quantized_numel: int = ...,
    rates: Rates | Literal["measure"] | None = ..., momentum: float | None = ..., amsgrad: bool = ..., centered: bool = ...,
    master: str | None = ..., max_unorm: float = ..., betas: tuple[float, ...] | None = ..., alpha: float | None = ..., row_beta2: float | None = ...,
    *, on: str | torch.device, dtype: torch.dtype = ...,
) -> Forecasts | DeviceForecast: ...  # fmt: skip


def forecast(
    model_or_params: Any,
    rule: str = "adamw",
    state: str = "dynamic8",
    memory: Memory | Mapping[str, Any] | str | None = None,
    min_quantized_numel: int = 4096,
    rates: Rates | Literal["measure"] | None = None,
    momentum: float | None = None,
    amsgrad: bool = False,
    centered: bool = False,
    master: str | None = AUTO,
    max_unorm: float = 0.0,
    betas: tuple[float, ...] | None = None,
    alpha: float | None = None,
    row_beta2: float | None = None,
    on: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Forecasts | DeviceForecast:
    """Predicts the memory and time of an optimizer, by its own decisions. Allocates no state and touches no disk.

    Args:
        model_or_params: a module, parameters or (name, parameter) pairs, groups of these (dicts, with "state", "memory" and so
            on per group), shapes, or a number of parameters such as 7e9, planned as matrices of 4096 by 4096 (larger ones from
            69e9 on). Tensors may be on any device, including "meta". Frozen parameters are left out. For a DTensor (FSDP2),
            this rank's part is planned.
        rule: a rule from docs/rules.md, such as "adamw", or "muon".
        state, memory, min_quantized_numel: as for the optimizer.
        rates: determine the seconds. "measure" measures the rates that this model needs on this machine, in about a second per
            state format and, if state goes to disk, 1.3 seconds per directory (see `measure_rates`).
        momentum: for SGD and LARS, which have no state without it, and RMSprop; None: the rule's default.
        amsgrad: for Adam and AdamW.
        centered: for RMSprop.
        master: as for the optimizer. Residuals of bfloat16 and float16 parameters are planned with their state ("auto" has
            none).
        max_unorm: for LAMB and LARS. With it LARS reads its state twice per step, as LAMB always does.
        betas, alpha: as for the optimizer. 4-bit state accepts only short averages. None: the rule's defaults.
        row_beta2: for Muon, whose row moments are then in state_bytes and beside the weights.
        on: the device of the parameters: "cuda", "xpu", another torch accelerator, or "cpu". The machine need not have it. A
            forecast for a device needs Memory(device=) in bytes, unless the CPU takes all steps, and `rates` if the CPU may
            take some (Memory(step="auto"), or a disk). State streams as with transfer="copy".
        dtype: the type of parameters given as shapes.

    Returns Forecasts or, for parameters on a device, a DeviceForecast, whether it fits or not. Raises ValueError or TypeError
    for input that an optimizer would refuse under any budget, for rates that are not numbers, and for more than 2^52 elements;
    with rates="measure" also OSError.
    """
    given = {"state": state, "memory": memory, "min_quantized_numel": min_quantized_numel, "master": master}
    check_kinds(given, "forecast")
    memory, device = Memory.of(memory), _device(on)
    if not isinstance(rule, str):
        raise TypeError(f"forecast: rule: got {rule!r} ({type(rule).__name__}), wanted one of {_core.rule_names()}")
    check_rates("forecast: rates", rates)
    family, hyper = family_of(rule)
    options = {"momentum": momentum, "amsgrad": amsgrad, "centered": centered, "max_unorm": max_unorm, "alpha": alpha}
    options = {key: value for key, value in options.items() if value is not None}
    extra = dict(zip(options, hyper_values(list(options), options), strict=True))
    hyper |= options if betas is None else {**options, "betas": betas}
    if row_beta2 is not None:
        expect(bool(family.MOMENTS), "forecast: row_beta2", row_beta2, f"None: {rule} has no row moments")
        hyper[family.MOMENTS] = row_beta2
    defaults = {**group_defaults(hyper, {}), **given}
    del defaults["memory"]  # of the whole optimizer
    if device.type != "cpu":
        if rates == "measure":
            raise ValueError(f"forecast: got rates='measure' on {device}, wanted lowtide.Rates(link=, step=, ...): measure_rates() measures them")
        return predict_on(device, family, memory or Memory(), {**defaults, **extra}, members_of(model_or_params, dtype), rates or Rates())
    groups = groups_of(model_or_params, defaults, family, extra, dtype)
    if rates == "measure":
        rates = _measure_for(family, _predict(family, memory, groups, Rates()), groups)
    return _predict(family, memory, groups, rates or Rates())


def sizes_for(
    rule: str, shapes: Sequence[Shape], dtype: str, options: Mapping[str, Any], hyper: Mapping[str, Any]
) -> tuple[str, list[GroupSizes], int]:
    """The core's rule, the groups that an optimizer of `rule` would make of these shapes, in the form of `_core.forecast`, and
    bytes of row moments."""
    family, known = family_of(rule)
    defaults = {**group_defaults({**known, **hyper}, {}), **options}
    groups = groups_of(shapes, defaults, family, {}, getattr(torch, dtype))
    return family.core_rule, [sizes for _, sizes, _ in groups], sum(moments for *_, moments in groups)


def _device(on: str | torch.device) -> torch.device:
    """Converts to a device. Raises ValueError for a device that torch does not know, TypeError for another type."""
    if not isinstance(on, (str, torch.device)):
        raise TypeError(f"forecast: on: got {on!r} ({type(on).__name__}), wanted a device such as 'cuda'")
    wanted = "a device that torch knows, such as 'cpu', 'cuda', 'xpu' or 'mps'"
    try:
        device = torch.device(on)
    except RuntimeError:
        raise ValueError(f"forecast: on: got {on!r}, wanted {wanted}") from None
    expect(device.type != "meta", "forecast: on", repr(str(on)), f"{wanted}: where the parameters will be")
    return device


def _predict(family: Family, memory: Memory | None, groups: Planned, rates: Rates) -> Forecasts:
    read, write = number("rates: read", rates.read), number("rates: write", rates.write)
    owners = [-1, *(n for n, (_, sizes, _) in enumerate(groups) if sizes.budget)]  # of budgets
    moments = dict.fromkeys(owners, 0)
    for n, (_, sizes, size) in enumerate(groups):
        moments[next(of for of in (n, sizes.budget_of, -1) if of in moments)] += size
    memories = [memory, *(groups[n][0].memory for n in owners[1:])]
    given = {n: of.beside(moments[n], HOST).budget() if of else None for n, of in zip(owners, memories, strict=True)}
    described = [
        sizes._replace(rate=rates.step_of(sizes.options["state"]), budget=given.get(n)) for n, (_, sizes, _) in enumerate(groups)
    ]
    total, found = of_core(family.core_rule, given[-1], described, read, write)
    budgets = tuple(each.with_moments(moments[n]) for n, each in zip(owners, found, strict=True))
    total = replace(total.with_moments(sum(moments.values())), problem=next((each.problem for each in budgets if not each.fits), ""))
    names = ("optimizer", *(f"group {groups[n][0].of}" for n in owners[1:]))
    return Forecasts(**asdict(total), rule=family.rule, names=names, budgets=budgets, memories=tuple(memories), rates=rates)


def _measure_for(family: Family, unrated: Forecasts, groups: Planned) -> Rates:
    pairs = zip(unrated.memories, unrated.budgets, strict=True)
    disks = {memory.budget().disk for memory, budget in pairs if memory and budget.disk_bytes > 0}
    step: dict[str, float] = {}
    for state in sorted({sizes.options["state"] for _, sizes, _ in groups if sizes.params}):
        here = [sizes.hyper for _, sizes, _ in groups if sizes.params and sizes.options["state"] == state]
        # The slowest step has the largest value of each. The measured parameter may be too large for options of its optimizer,
        # such as long averages in 4 bits. The rate is then unknown.
        most = {key: max(hyper.get(key, 0) for hyper in here) for key in here[0] if key in _MEASURED}
        for hyper in (most, {key: value for key, value in most.items() if key not in _AVERAGES}):
            with contextlib.suppress(ValueError):
                step |= step_rates(family.core_rule, [state], hyper)
                break
    found = [_core.measure_disk_rates(disk) for disk in sorted(disks)]
    if not found:
        return Rates(step)
    slowest = {key: min(disk[key] for disk in found) for key in ("read", "write")}
    return Rates(step, **slowest, engine=found[0]["engine"], direct=all(disk["direct"] for disk in found))
