"""The rates of a machine: bytes of state stepped per second, and the rates of a disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from itertools import cycle
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import nn

from lowtide import _core
from lowtide.checks.values import number
from lowtide.engine.family import Family
from lowtide.engine.host_steps import link_rate
from lowtide.memory.budgets import size_of
from lowtide.memory.forecast import path_of
from lowtide.optimizers.classes import CLASSES
from lowtide.optimizers.registry import hyper_of
from lowtide.options.hyper import hyper_keys, hyper_values
from lowtide.planning.models import Decoder, elements


@dataclass(frozen=True)
class Rates:
    """The rates of a machine. 0: unknown.

    Attributes:
        step: bytes of state stepped per second, for all state formats or by format.
        read, write: bytes per second of the disk.
        engine: the I/O engine that was measured: "io_uring" or "threads".
        direct: whether the measurement bypassed the page cache; if not, read and write partly measure it.
        link: bytes per second between a device and host memory, in each direction.
        layers: floating-point operations of products with weights per second of a CPU's forward and backward passes.
        head: likewise, of the output layer and the loss.
        read_weights, write_weights: bytes per second of the disk for weights that stream, through the page cache.
        change_weights: bytes per second at which such weights are first changed in memory.
        read_beside, write_beside: as read_weights and write_weights, while the CPU computes; 0: the same.
        compute_reading, compute_writing: the shares of its speed that computation keeps while such weights are read or written;
            0: all.
    """

    step: float | Mapping[str, float] = 0.0
    read: float = 0.0
    write: float = 0.0
    engine: str = ""
    direct: bool = False
    link: float = 0.0
    layers: float = 0.0
    head: float = 0.0
    read_weights: float = 0.0
    write_weights: float = 0.0
    change_weights: float = 0.0
    read_beside: float = 0.0
    write_beside: float = 0.0
    compute_reading: float = 0.0
    compute_writing: float = 0.0

    def step_of(self, state: str) -> float:
        """Bytes of state in this format stepped per second."""
        rate = self.step.get(state, 0.0) if isinstance(self.step, Mapping) else self.step
        return number(f"rates: step of {state}", rate)


def check_rates(where: str, rates: object) -> None:
    """Raises TypeError unless it is an argument `rates`."""
    if not (rates is None or (isinstance(rates, str) and rates == "measure") or isinstance(rates, Rates)):
        raise TypeError(f"{where}: got {rates!r}, wanted lowtide.Rates(...), 'measure' or None")


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


def layers_rates(of: Decoder, kind: torch.dtype, seq: int, batch: int) -> dict[str, float]:
    """The rates `layers` and `head` of a decoder; at most 1024 tokens and about 64 MiB of weights are computed, each of them once in a
    pass, as in training."""
    batch, seq = (1, min(seq, 1024)) if seq * batch > 1024 else (batch, seq)
    layer = of.layer()
    count = max(2, (64 << 20) // (kind.itemsize * elements([*layer.values()])))
    layers = [{name: torch.rand(shape, dtype=kind) / shape[-1] for name, shape in layer.items()} for _ in range(count)]
    given = torch.rand(batch, seq, of.hidden, dtype=kind)
    half = of.queries // of.heads // 2
    turn = torch.rand(seq, 2 * half, dtype=kind)

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(kind)

    def turned(x: torch.Tensor) -> torch.Tensor:
        return x * turn + torch.cat((-x[..., half:], x[..., :half]), -1) * turn

    def forward() -> torch.Tensor:
        """As Transformers' LLaMA computes."""
        x, linear = given, nn.functional.linear
        for each in layers:
            y = norm(x, each["norm1"])
            q, k, v = (linear(y, each[name]).view(batch, seq, -1, 2 * half).transpose(1, 2) for name in "qkv")
            k, v = (z.repeat_interleave(of.heads // of.keys, 1) for z in (turned(k), v))
            y = nn.functional.scaled_dot_product_attention(turned(q), k, v, is_causal=True).transpose(1, 2).flatten(2)
            x = x + linear(y, each["o"])
            y = norm(x, each["norm2"])
            x = x + linear(nn.functional.silu(linear(y, each["gate"])) * linear(y, each["up"]), each["down"])
        return x

    def rate(weights: list[torch.Tensor], forward: Callable[[], torch.Tensor], operations: float) -> float:
        for weight in weights:
            weight.requires_grad_()
        return 3 * operations / _median_seconds(lambda: torch.autograd.grad(found := forward(), weights, torch.ones_like(found)))

    table, rows, targets = torch.rand(of.vocabulary, of.hidden, dtype=kind), given.flatten(0, 1).clone(), torch.zeros(batch * seq, dtype=torch.int64)
    weights = [weight for each in layers for name, weight in each.items() if not name.endswith((".bias", "q.norm", "k.norm"))]
    each = 2.0 * batch * seq * elements([*layer.values()]) + pairs_operations(of, seq, batch)
    return {
        "layers": rate(weights, forward, count * each),
        "head": rate([table, rows], lambda: nn.functional.cross_entropy(nn.functional.linear(rows, table).float(), targets), 2.0 * table.numel() * batch * seq),
    }


def pairs_operations(of: Decoder, seq: int, batch: int) -> float:
    """Operations of a layer with half of all pairs of tokens, in a forward pass."""
    return 2.0 * batch * seq * seq * of.queries


def weights_rates(disk: str, unit: int, of: Decoder, kind: torch.dtype, tokens: int, size: int = 256 << 20) -> dict[str, float]:
    """The rates of weights in a file in this directory, which move by `unit` bytes as in backward, alone and beside the products of a
    decoder with at most 1024 tokens."""
    unit = min(-(-unit // 4096) * 4096, size)
    places = [unit * number for number in reversed(range(max(1, size // unit)))]
    size = unit * len(places)
    file = _core.MappedFile(disk, size)
    values = file.tensor(0, size)
    values.random_(256)
    pages = values[:: 1 << 12]
    rows = -(-(1 << 20) // of.hidden)  # a product is short beside a read
    tables = torch.rand((64 << 20) // (kind.itemsize * rows * of.hidden) + 1, rows, of.hidden, dtype=kind)  # more than a cache has
    given, weights = torch.rand(min(tokens, 1024), of.hidden, dtype=kind), cycle(tables)

    def write() -> None:
        for place in places:
            file.let_go(place, unit, changed=True)

    def read() -> None:
        for place in places:
            file.bring(place, unit)

    def compute() -> None:
        nn.functional.linear(given, next(weights))

    times: list[list[tuple[float, float]]] = []
    beside: list[list[tuple[float, float]]] = []
    changes = []
    for _ in range(3):
        for found in (times, beside):
            found.append([_beside(act, compute) if found is beside else (seconds_of(act), 1.0) for act in (write, read)])
            changes.append(seconds_of(lambda: pages.add_(1)))
    alone, both = ([[median(each) for each in zip(*of, strict=True)] for of in zip(*found, strict=True)] for found in (times, beside))
    return {
        "write_weights": size / alone[0][0], "read_weights": size / alone[1][0], "change_weights": size / median(changes),
        "write_beside": size / both[0][0], "read_beside": size / both[1][0], "compute_writing": both[0][1], "compute_reading": both[1][1],
    }  # fmt: skip


def _beside(act: Callable[[], object], compute: Callable[[], object]) -> tuple[float, float]:
    """The seconds of `act` in a thread of its own while another computes, and the share of its speed that the other keeps."""
    with ThreadPoolExecutor(1) as pool:
        count, began, done = 0, perf_counter(), pool.submit(seconds_of, act)
        while not (count and done.done()):
            compute()
            count += 1
        both = perf_counter() - began
    return done.result(), min(seconds_of(lambda: [compute() for _ in range(count)]) / both, 1.0)


def seconds_of(act: Callable[[], object]) -> float:
    began = perf_counter()
    act()
    return perf_counter() - began


def _median_seconds(work: Callable[[], object], least: float = 1.0) -> float:
    """The median of its runs: at least five, and `least` seconds."""
    work()
    times: list[float] = []
    while len(times) < 5 or sum(times) < least:
        times.append(seconds_of(work))
    return median(times)


def family_of(rule: str) -> tuple[Family, dict[str, Any]]:
    """The family of the rule's class, and the hyper-parameters of its groups. Raises ValueError for an unknown rule."""
    if rule not in CLASSES:
        return Family(rule, rule, hyper := _core.default_hyper(rule)), hyper
    cls = CLASSES[rule]
    hyper = {key: 0.0 if key == "max_unorm" else value for key, value in hyper_of(cls).items()}
    return cls.FAMILY(cls.__name__, rule, hyper), hyper
