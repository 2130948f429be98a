"""The optimizers under comparison: how to make one from its label and how many bytes its state takes."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .config import Config
from .errors import ExampleError

if TYPE_CHECKING:  # importing it takes seconds, which mistakes in labels and sizes do not wait for
    import torch

NAMES = ("torch", "lowtide")


class Choice(NamedTuple):
    """An optimizer as its label names it."""

    library: str  # of NAMES
    variant: str  # torch: "" or "fused"; lowtide: the state format
    budget: bool  # keeps its state within --ram-budget, if there is one


def parse_label(label: str, default_state: str) -> Choice:
    """Split ``torch``, ``torch:fused``, ``lowtide`` or ``lowtide:STATE``, each of the last two perhaps with ``:ram``."""
    name, *variants = label.split(":")
    if name == "torch" and variants in ([], ["fused"]):
        return Choice(name, "".join(variants), False)
    in_ram = variants[-1:] == ["ram"]
    states = variants[:-1] if in_ram else variants
    if name != "lowtide" or len(states) > 1:
        raise ExampleError(f"no optimizer {label!r}; known are torch, torch:fused, lowtide (with --state) and "
                           "lowtide:STATE, for example lowtide:bf16; lowtide:ram and lowtide:STATE:ram stay in RAM "
                           "whatever --ram-budget says")  # fmt: skip
    return Choice(name, "".join(states) or default_state, not in_ram)


def memory_of(config: Config) -> Any:
    """The budget as a ``lowtide.Memory``; None without one."""
    if config.ram_budget is None:
        return None
    import lowtide

    memory = lowtide.Memory(host=config.ram_budget, disk=config.disk, chunk=config.chunk)
    try:
        memory.budget()
    except (ValueError, TypeError) as error:
        raise ExampleError(f"--ram-budget or --chunk: {error}") from error
    return memory


def check_optimizers(config: Config) -> None:
    """Refuse unknown names, a missing library and a budget that cannot be before any time is spent."""
    choices = [parse_label(label, config.state) for label in config.optimizers]
    ours = any(choice.library == "lowtide" for choice in choices)
    if ours and importlib.util.find_spec("lowtide") is None:
        raise ExampleError("missing Python package: lowtide\n  install with: pip install .  (in the root of the "
                           "repository), or compare nothing with --optimizers torch")  # fmt: skip
    if ours:
        from lowtide import _core

        for label, choice in zip(config.optimizers, choices, strict=True):
            if choice.library == "lowtide" and choice.variant not in _core.codec_names():
                raise ExampleError(f"{label}: no state format {choice.variant!r}; known are {', '.join(_core.codec_names())}")
        for name in ("ram_budget", "chunk"):
            size = getattr(config, name)
            try:
                if size is not None and not size.strip().endswith("%"):
                    _core.parse_bytes(size)
            except ValueError as error:
                raise ExampleError(f"--{name.replace('_', '-')}: {error}") from error
    if config.ram_budget is None:
        return
    if not any(choice.budget for choice in choices):
        raise ExampleError(f"--ram-budget {config.ram_budget} has no effect: {','.join(config.optimizers)} have no optimizer "
                           "that keeps a budget; add lowtide to --optimizers")  # fmt: skip
    if config.disk is not None and not Path(config.disk).is_dir():
        raise ExampleError(f"--disk {config.disk}: no such directory; make it, best on a local SSD, or name another")
    memory_of(config)


def format_name(label: str, config: Config) -> str:
    """Library and format: what decides the bits of a run."""
    library, variant, _ = parse_label(label, config.state)
    if library == "torch":  # it keeps its state in the type of the weights
        return f"torch AdamW {config.dtype}, {variant or 'not fused'}"
    return f"lowtide AdamW {variant}"


def is_limited(label: str, config: Config) -> bool:
    """Whether the run keeps its state within ``--ram-budget``."""
    return config.ram_budget is not None and parse_label(label, config.state).budget


def title(label: str, config: Config) -> str:
    """How tables and plots name a run."""
    return format_name(label, config) + (f" in {config.ram_budget}" if is_limited(label, config) else "")


def make_optimizer(label: str, config: Config, groups: list[dict[str, object]]) -> torch.optim.Optimizer:
    """Make AdamW of either library with the same hyper-parameters."""
    library, variant, _ = parse_label(label, config.state)
    settings: dict[str, Any] = {"lr": config.lr, "betas": (config.beta1, config.beta2), "eps": config.eps}
    if library == "torch":
        import torch

        return torch.optim.AdamW(groups, fused=variant == "fused" or None, **settings)
    import lowtide

    memory = memory_of(config) if is_limited(label, config) else None
    try:
        return lowtide.AdamW(groups, state=variant, memory=memory, **settings)
    except (ValueError, OSError) as error:
        raise ExampleError(f"lowtide refused {label!r} with state {variant!r}: {error}") from error


class Residency(NamedTuple):
    """Where an optimizer's state is, and what has been moved so far. Bytes and seconds."""

    ram: int
    disk: int
    moved: int
    waited: float


def residency(optimizer: torch.optim.Optimizer) -> Residency:
    """As the optimizer reports it; one that does not has all of its tensors in RAM."""
    tell = getattr(optimizer, "report", None)
    if not callable(tell):
        return Residency(sum(tensor.nbytes for tensor in _tensors(list(optimizer.state.values()))), 0, 0, 0.0)
    report = tell()
    moved = report["read_bytes"] + report["written_bytes"]
    return Residency(report["allocated_bytes"], report["disk_bytes"], moved, report["waited_seconds"])


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of all tensors that the optimizer would hand to a checkpoint, each counted once."""
    seen: dict[tuple[int, int], int] = {}
    for tensor in _tensors(optimizer.state_dict()["state"]):
        seen[tensor.data_ptr(), tensor.numel()] = tensor.numel() * tensor.element_size()
    return sum(seen.values())


def reported_bytes(optimizer: torch.optim.Optimizer) -> int | None:
    """The state bytes that the optimizer itself reports; None if it reports none."""
    report = getattr(optimizer, "report", None)
    return int(report()["state_bytes"]) if callable(report) else None


def _tensors(value: object) -> Iterator[torch.Tensor]:
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
