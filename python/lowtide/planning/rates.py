"""The rates of a machine: bytes of state stepped per second, and the rates of a disk."""

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
from lowtide.memory.budgets import size_of
from lowtide.memory.forecast import path_of
from lowtide.optimizers.classes import CLASSES
from lowtide.optimizers.registry import hyper_of
from lowtide.options.hyper import hyper_keys, hyper_values


@dataclass(frozen=True)
class Rates:
    """The rates of a machine. 0: unknown.

    Attributes:
        step: bytes of state stepped per second, for all state formats or by format.
        read, write: bytes per second of the disk.
        engine: the I/O engine that was measured: "io_uring" or "threads".
        direct: whether the measurement bypassed the page cache; if not, read and write partly measure it.
        link: bytes per second between a device and host memory, in each direction.
    """

    step: float | Mapping[str, float] = 0.0
    read: float = 0.0
    write: float = 0.0
    engine: str = ""
    direct: bool = False
    link: float = 0.0

    def step_of(self, state: str) -> float:
        """Bytes of state in this format stepped per second."""
        rate = self.step.get(state, 0.0) if isinstance(self.step, Mapping) else self.step
        return number(f"rates: step of {state}", rate)


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
    """Measures this machine, in about seconds + 0.5 per state format, 2 x seconds + 0.3 for the disk, and less for the link.

    Args:
        disk: a directory; measures a scratch file there, with the requests that streaming makes. Only the small lock file
            ".lowtide.lock" stays. None: read and write are 0.
        rule: the rule to measure, over float32 parameters and gradients, with torch's number of threads.
        states: state formats; by default all that the rule supports.
        momentum, amsgrad, centered, max_unorm, betas, alpha: as for `forecast`.
        elements: elements of the stepped parameter; 0: enough to exceed the cache. Takes 16 bytes of RAM per element.
        disk_bytes: the largest scratch file, or half of the free space if that is less.
        seconds: length of each measurement, more than 0.
        link: a device such as "cuda"; measures copies to and from page-locked memory (64 MiB on each side). None: link is 0.

    Raises ValueError (unknown rule, state or directory, numbers out of range), OSError, MemoryError.
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
    """Bytes of state stepped per second, by format. states: None: all that the rule supports."""
    threads = torch.get_num_threads()
    wanted = _core.codec_names() if states is None else states
    step: dict[str, float] = {}
    for state in wanted:
        try:
            step[state] = _core.measure_step_rate(rule, state, hyper, threads, elements, seconds)
        except ValueError:  # the rule lacks this format; every rule has the first
            if states is not None or state == wanted[0]:
                raise
    return step


def family_of(rule: str) -> tuple[Family, dict[str, Any]]:
    """The family of the rule's class, and the hyper-parameters of its groups. Raises ValueError for an unknown rule."""
    if rule not in CLASSES:
        return Family(rule, rule, hyper := _core.default_hyper(rule)), hyper
    cls = CLASSES[rule]
    hyper = {key: 0.0 if key == "max_unorm" else value for key, value in hyper_of(cls).items()}
    return cls.FAMILY(cls.__name__, rule, hyper), hyper
