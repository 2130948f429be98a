"""Predicts a run with parameters on a device: who steps them, where their state is, how much moves, and how long that takes.
The engine's own functions decide (`engine.host_steps`, `engine.shares`), given shapes instead of tensors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from lowtide import _core
from lowtide.checks.values import expect, number
from lowtide.devices.places import Place, place_on
from lowtide.engine.family import Family
from lowtide.engine.groups import CoreGroup, all_core_groups, moment_bytes, sizes_of
from lowtide.engine.host_steps import Speeds, ends, settle
from lowtide.engine.params import Param, wanted_places
from lowtide.engine.shares import shares_of, state_on_device
from lowtide.memory.budgets import Memory
from lowtide.memory.forecast import beside_moments, forecast
from lowtide.planning.rates import Rates
from lowtide.report.text import seconds_text, table_text


@dataclass(frozen=True)
class DeviceForecast:
    """A forecast for parameters on a device. Bytes equal `Optimizer.report()` after a first step in which every parameter had a
    gradient. If the state does not fit, the fields below `problem` are 0. `str()` gives a table."""

    rule: str
    device: str  # torch's name
    params: int  # with and without state
    elements: int
    state_bytes: int  # codes + scales
    fits: bool
    problem: str  # if it does not fit: what was given and what is needed
    host_params: int = 0  # parameters that the CPU steps
    host_elements: int = 0
    device_bytes: int = 0  # of state on the device, with streaming buffers
    host_bytes: int = 0  # of state in host memory, with streaming buffers
    copy_bytes: int = 0  # of host memory for copies of weights and gradients, beside `Memory(host=)`
    disk_bytes: int = 0
    streamed_per_step: int = 0  # state that travels to the device and back
    gradients_per_step: int = 0  # copied to the host if the CPU steps
    weights_per_step: int = 0  # copied to the host and back
    disk_per_step: int = 0  # read and written on disk
    device_seconds: float = 0.0  # until the device and its disk are done; here and below, 0 is unknown
    host_seconds: float = 0.0  # until the CPU, its copies and its disk are done
    seconds: float = 0.0  # of a step: a lower bound, with full overlap
    by_host: tuple[int, ...] = field(default=(), repr=False)  # numbers of the parameters that the CPU steps

    @property
    def link_per_step(self) -> int:
        """Bytes that cross the link in both directions."""
        return self.streamed_per_step + self.gradients_per_step + 2 * self.weights_per_step

    def __str__(self) -> str:
        verdict = "fits" if self.fits else "does not fit"
        head = f"{self.rule} on {self.device}: {self.params} parameters, {self.elements:,} elements: {verdict}"
        if not self.fits:
            return f"{head}\n{self.problem}"
        size = _core.format_bytes
        rows = [
            ("state", size(self.state_bytes)),
            ("  on the device", size(self.device_bytes)),
            ("  in host memory", size(self.host_bytes)),
            ("  on disk", size(self.disk_bytes)),
            ("stepped by the CPU", f"{self.host_elements / max(self.elements, 1):.1%} of the elements"),
            ("  copies in host memory", size(self.copy_bytes)),
            ("over the link a step", size(self.link_per_step)),
            ("  state, both ways", size(self.streamed_per_step)),
            ("  gradients and weights", size(self.gradients_per_step + 2 * self.weights_per_step)),
            ("read and written on disk", size(self.disk_per_step)),
            ("seconds a step, at least", seconds_text(self.seconds)),
            ("  device", seconds_text(self.device_seconds)),
            ("  CPU and disk", seconds_text(self.host_seconds) if self.host_params else "0 s"),
        ]
        return "\n".join([head, *table_text(rows)])


def predict(
    device: torch.device,
    family: Family,
    memory: Memory,
    defaults: Mapping[str, Any],
    entries: Sequence[tuple[Mapping[str, Any], list[Param]]],
    rates: Rates,
) -> DeviceForecast:
    """entries: see `shapes.members_of`. Raises ValueError or TypeError for input that an optimizer would refuse, and for a
    budget that depends on free memory at run time."""
    expect(0 <= number("rates: link", rates.link) < math.inf, "rates: link", rates.link, "bytes per second, or 0 for unknown")
    place = place_on(device)
    groups = [{**defaults, **options} for options, _ in entries]
    params = [replace(param, place=place) for _, members in entries for param in members]
    memories = [options.get("memory") for options, _ in entries]
    for budget in (memory, *memories, *(param.memory for param in params)):
        _check(budget, memory, place)

    def speeds(_: object, rule: str, hyper: object, formats: Sequence[str], disk: str) -> Speeds:
        steps = [rates.step_of(state) for state in formats]
        needed = {"link": rates.link, "step": min(steps, default=0.0)}
        if disk:
            needed["read and write"] = min(rates.read, rates.write)
        for name, rate in needed.items():
            wanted = f"bytes per second (lowtide.measure_rates): who steps what {device} has no room for depends on it"
            expect(rate > 0, f"rates: {name}", "0" if not rate else rate, wanted)
        return Speeds(rates.link, min(steps), min(rates.read, rates.write) if disk else math.inf)

    made = all_core_groups(family, groups, memories, params)
    return _Prediction(family, memory, made, settle(family, memory, groups, made, params, 0, speeds), rates, device).forecast()


def _check(budget: Memory | None, whole: Memory, place: Place) -> None:
    if budget is None:
        return
    if budget is not whole:
        raise NotImplementedError(f"forecast: got a budget of some parameters on {place.device}, wanted one for all of them")
    where = f"forecast of parameters on {place.device}: memory"
    expect(not budget.managed, where, "managed=True", "device=BYTES: a driver moves managed state as it likes")
    wanted = "bytes such as '8GiB': what is there, and free, is known when it runs"
    expect("%" not in str(budget.device), where, f"device={budget.device!r}", wanted)
    known = budget.steps_at(place) == "host" or budget.device not in (None, "auto")
    expect(known, where, f"device={budget.device!r}", wanted)


@dataclass
class _Prediction:
    _family: Family
    _memory: Memory
    _groups: Sequence[CoreGroup]
    _params: Sequence[Param]
    _rates: Rates
    _device: torch.device

    def forecast(self) -> DeviceForecast:
        at = wanted_places(self._params) if self._params else []
        shares = shares_of(self._family, self._memory, self._groups, self._params, at)
        parts = [self._part(place, shares.of_all[place] or Memory()) for place in at]
        found: dict[str, Any] = {"state_bytes": sum(part["state_bytes"] for part in parts)}
        problems = [part["problem"] for part in parts if part["problem"]]
        if not problems:
            for part in parts:
                for name in part.keys() - {"problem", "state_bytes"}:
                    found[name] = found[name] + part[name] if name in found else part[name]
        total = DeviceForecast(
            self._family.rule, str(self._device), len(self._params), sum(param.tensor.numel() for param in self._params),
            fits=not problems, problem="; ".join(problems), **found,
        )  # fmt: skip
        return total if problems or not self._rates.link else self._timed(total)

    def _part(self, place: Place, memory: Memory) -> dict[str, Any]:
        """The fields of the forecast to which parameters at one place contribute."""
        here = [i for i, param in enumerate(self._params) if param.place == place]
        sizes = [
            group._replace(rate=self._rates.step_of(group.options["state"])) for group in sizes_of(self._groups, self._params, {*here})
        ]
        budget, moments = memory.budget(place), moment_bytes(self._groups, self._params, {*here})
        if place.mirrored:
            read, write = number("rates: read", self._rates.read), number("rates: write", self._rates.write)
            found = forecast(self._family.core_rule, budget, sizes, read, write)[0]
            tensors = [self._params[i].tensor for i in here]
            weights = sum(tensor.nbytes for tensor in tensors)
            return {
                "state_bytes": found.state_bytes + moments, "problem": found.problem, "host_params": len(here), "device_bytes": moments,
                "host_elements": sum(tensor.numel() for tensor in tensors), "host_bytes": found.host_bytes,
                "copy_bytes": 2 * weights, "disk_bytes": found.disk_bytes, "gradients_per_step": weights,
                "weights_per_step": weights, "disk_per_step": found.moved_per_step, "by_host": tuple(here),
                "host_seconds": max(found.step_seconds, found.disk_seconds),
            }  # fmt: skip
        state = state_on_device(self._family, sizes, budget, budget.host)
        problem = state.problem and f"{place.device}: {beside_moments(state.problem, moments) if moments else state.problem}"
        return {
            "state_bytes": state.state_bytes + moments, "problem": problem, "device_bytes": state.device_bytes + moments,
            "host_bytes": state.host_bytes, "streamed_per_step": state.moved_per_step, "disk_bytes": state.disk_bytes,
            "disk_per_step": state.disk_moved_per_step,
        }  # fmt: skip

    def _timed(self, total: DeviceForecast) -> DeviceForecast:
        steps = total.host_seconds
        device, host = ends(total.streamed_per_step / 2, total.weights_per_step, steps, self._rates.link)
        if not total.host_params:
            host = 0.0
            if total.disk_per_step:  # to the device through host memory
                read, write = self._rates.read, self._rates.write
                if not read or not write:
                    return total
                device = max(device, total.disk_per_step / 2 * (1 / read + 1 / write))
        elif not steps and total.host_bytes + total.disk_bytes:
            return replace(total, host_seconds=0.0)
        return replace(total, device_seconds=device, host_seconds=host, seconds=max(device, host))
