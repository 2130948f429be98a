"""The implementation of the commands; nothing here prints."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch

from lowtide import _core
from lowtide.memory.budgets import Memory, path_of
from lowtide.planning.on_device import DeviceForecast
from lowtide.planning.plan import Forecasts
from lowtide.planning.plan import plan as predict
from lowtide.planning.rates import Rates, family_of, measure_rates
from lowtide.planning.shapes import Shape
from lowtide.state.files import read_metadata


def describe_machine(disk: str | None) -> dict[str, Any]:
    """Values for `lowtide info`. Raises ValueError or OSError for a directory that cannot be used."""
    found_disk = None if disk is None else {"directory": disk, **_core.disk_info(disk)}
    rates = measure_rates(disk)
    if found_disk:
        found_disk |= {"read_rate": rates.read, "write_rate": rates.write}
    page = os.sysconf("SC_PAGE_SIZE")
    return {
        "version": _core.__version__,
        "torch": torch.__version__,
        "backends": _core.backends(),
        "cpu_targets": _core.cpu_targets(),
        "threads": torch.get_num_threads(),
        "cores": len(os.sched_getaffinity(0)),
        "ram_total": os.sysconf("SC_PHYS_PAGES") * page,
        "ram_free": ram_available(),
        "memory_rate": memory_rate(),
        "step_rates": rates.step,
        "disk": found_disk,
    }


def ram_available() -> int:
    """Bytes that programs can still allocate without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def memory_rate() -> float:
    """Bytes per second that `a += b` reads and writes over tensors of 128 MiB: the best of ten runs."""
    from lowtide.cli.core_model import adder, seconds_of

    add, moved = adder(32 << 20)
    return moved / min(seconds_of(add) for _ in range(10))


AnyForecast: TypeAlias = Forecasts | DeviceForecast


@dataclass(frozen=True)
class Formats:
    """Plans of one model with every state format."""

    plans: dict[str, AnyForecast]
    state: str
    memory: Memory | None
    rates: Rates
    free_on_disk: int  # -1: no directory was given

    @property
    def chosen(self) -> AnyForecast:
        return self.plans[self.state]


def plan_formats(
    model: Sequence[Shape], rule: str, state: str, memory: Memory | None, hyper: dict[str, Any], measure: bool, on: str,
    dtype: torch.dtype, link: float,
) -> Formats:  # fmt: skip
    """The forecasts of `lowtide plan`. link: bytes per second, each way, of the link to the device `on`; 0: unknown. Raises
    ValueError, TypeError or OSError for bad arguments; a forecast that does not fit says so itself."""
    known = family_of(rule)[1]
    for name, value in hyper.items():
        if value not in (None, False) and name not in known:
            raise ValueError(f"--{name.replace('_', '-')}: got {value}, wanted none: {rule} has no such option")
    free = -1
    if memory is not None and memory.disk:
        free = _core.disk_info(path_of("memory: disk", memory.disk))["free_bytes"]
    more: dict[str, Any] = {**hyper, "on": on, "dtype": dtype}
    # Plan first with arbitrary rates, so that bad arguments show before anything is measured.
    predict(model, rule, state, memory, rates=Rates(1, 1, 1, link=1), **more)
    rates = measure_rates(memory.disk if memory else None, rule, **hyper) if measure else Rates()
    rates = dataclasses.replace(rates, link=link)
    plans: dict[str, AnyForecast] = {}
    for each in _core.codec_names():
        try:
            plan = predict(model, rule, each, memory, rates=rates, **more)
        except ValueError:  # a format that the rule does not support; other errors have shown above
            if each == state:
                raise
            continue
        if plan.fits and 0 <= free < plan.disk_bytes:
            problem = (
                f"{memory.disk if memory else ''} has {free} bytes free ({_core.format_bytes(free)}); give a directory "
                f"with at least {plan.disk_bytes} bytes, or more host memory"
            )
            plan = dataclasses.replace(plan, fits=False, problem=problem)
        plans[each] = plan
    return Formats(plans, state, memory, rates, free)


def describe_checkpoint(file: Path) -> dict[str, Any]:
    """Values for `lowtide inspect`. Raises ValueError or OSError."""
    found = _core.describe_checkpoint(path_of("file", file))
    try:
        metadata = read_metadata(found.pop("metadata"), str(file))
    except ValueError:  # not a checkpoint from Python
        metadata = {}
    groups = metadata.get("lowtide_groups") if isinstance(metadata, dict) else None
    ours = isinstance(groups, list) and all(isinstance(group, dict) for group in groups)
    return {"file": str(file), "bytes": file.stat().st_size, **found, "groups": groups if ours else []}
