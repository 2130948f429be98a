"""The rates of a machine: bytes of state that it steps in a second, and those of a disk."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch

from lowtide import _core
from lowtide.checks.values import number
from lowtide.engine.family import Family
from lowtide.engine.host_steps import link_rate
from lowtide.memory.budgets import path_of, size_of
from lowtide.optimizers.classes import CLASSES
from lowtide.optimizers.registry import hyper_of
from lowtide.options.hyper import hyper_keys, hyper_values


@dataclass(frozen=True)
class Rates:
    """The rates of a machine; 0: unknown.

    Attributes:
        step: bytes of state that a step takes per second, for all state formats alike or by format.
        read, write: bytes per second of the disk.
        engine: how the disk was measured: "io_uring" or "threads".
        direct: past the page cache; if not, read and write are partly rates of the page cache.
        link: bytes per second between a device and host memory, each way.
    """

    step: float | Mapping[str, float] = 0.0
    read: float = 0.0
    write: float = 0.0
    engine: str = ""
    direct: bool = False
    link: float = 0.0

    def step_of(self, state: str) -> float:
        """Bytes per second of this state format."""
        rate = self.step.get(state, 0.0) if isinstance(self.step, Mapping) else self.step
        return number(f"rates: step of {state}", rate)


def seconds_text(seconds: float) -> str:
    """ "1.23 s", "4.56 ms"; "unknown" for 0."""
    if seconds <= 0:
        return "unknown"
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1 or unit == "us":
            break
    return f"{seconds * scale:.3g} {unit}" if seconds * scale < 1000 else f"{seconds * scale:,.0f} {unit}"


def measure_rates(
    disk: str | os.PathLike[str] | None = None,
    rule: str = "adamw",
    states: Iterable[str] | None = None,
    momentum: float | None = 0.0,
    elements: int = 0,
    disk_bytes: int | str = "256MiB",
    seconds: float = 0.5,
    amsgrad: bool = False,
    centered: bool = False,
    max_unorm: float = 0.0,
    betas: tuple[float, ...] | None = None,
    alpha: float | None = None,
    link: str | torch.device | None = None,
) -> Rates:
    """Measures this machine: takes about seconds + 0.5 for each state format, 2 x seconds + 0.3 for the disk, and less for the link.

    Args:
        disk: a directory, whose scratch file's rates are measured with the requests that streaming uses; nothing stays
            but the small lock file ".lowtide.lock". None: read and write are 0.
        rule: whose steps are measured, over float32 parameters and gradients, with torch's number of threads.
        states: state formats; by default all that the rule can have.
        momentum, amsgrad, centered, max_unorm, betas, alpha: as for `plan`.
        elements: of the parameter that is stepped; 0: enough to be out of the cache. Takes 16 bytes of RAM for each.
        disk_bytes: size of the scratch file at most; half of what is free, if that is less.
        seconds: to measure for, more than 0.
        link: a device such as "cuda", whose copies to and from page-locked memory are measured (64 MiB there and here). None: link is 0.

    Raises ValueError (a rule, state or directory that there is none of, numbers out of range), OSError, MemoryError.
    """
    given = {"momentum": momentum, "amsgrad": amsgrad, "centered": centered, "max_unorm": max_unorm, "betas": betas,
             "alpha": alpha}  # fmt: skip
    given = {key: value for key, value in given.items() if value is not None}
    core_rule = family_of(rule)[0].core_rule
    keys = hyper_keys(core_rule, given)
    hyper = dict(zip(keys, hyper_values(keys, given), strict=True))
    found: dict[str, Any] = {}
    if disk is not None:
        found = _core.measure_disk_rates(path_of("disk", disk), size_of("disk_bytes", disk_bytes), 2 * seconds)
    step = step_rates(core_rule, None if states is None else list(states), hyper, elements, seconds)
    if link is not None:
        found["link"] = link_rate(torch.device(link))
    return Rates(step, **{f.name: found[f.name] for f in fields(Rates) if f.name in found})


def step_rates(
    rule: str, states: list[str] | None, hyper: dict[str, float], elements: int = 0, seconds: float = 0.5
) -> dict[str, float]:
    """Bytes of state per second, by format; None: of all that the rule can have."""
    threads = torch.get_num_threads()
    wanted = _core.codec_names() if states is None else states
    step: dict[str, float] = {}
    for state in wanted:
        try:
            step[state] = _core.measure_step_rate(rule, state, hyper, threads, elements, seconds)
        except ValueError:  # by default, of a format that the rule cannot have; it can have the first
            if states is not None or state == wanted[0]:
                raise
    return step


def family_of(rule: str) -> tuple[Family, dict[str, Any]]:
    """That of the rule's class, and the hyper-parameters that a group of it has. ValueError for an unknown rule."""
    if rule not in CLASSES:
        return Family(rule, rule, hyper := _core.default_hyper(rule)), hyper
    cls = CLASSES[rule]
    hyper = {key: 0.0 if key == "max_unorm" else value for key, value in hyper_of(cls).items()}
    return cls.FAMILY(cls.__name__, rule, hyper), hyper
