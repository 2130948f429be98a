"""The ranks' jobs in test_vote_devices.py: the same votes on the CPU and on a device that stands in for one (stand_in.py), and random
votes of every kind to compare. A job runs on every rank, whether that is a process or a thread (rank_threads.py)."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import lowtide
import pytest
import torch
import torch.distributed as dist
from emulated_cuda import EmulatedCuda, prepare
from lowtide.distributed import DistributedLion, ShardVote, SignOptimizer, Signum
from stand_in import StandIn
from support import DTYPES, bits, raised
from vote_jobs import by_bucket, one_pass
from xpu_device import Xpu, missing

CLASSES: dict[str, type[SignOptimizer]] = {"lion": DistributedLion, "signum": Signum}


@dataclass
class Case:
    """One run of equal workers on both. Random gradients and formats follow `seed`."""

    seed: int
    rule: str = "lion"
    ties: str = "hash"
    weighted: bool = False
    dtype: torch.dtype = torch.float32
    state: str = "fp32"
    master: str | None = None
    shapes: tuple[tuple[int, ...], ...] = ((7, 13), (1000,), ())
    steps: int = 3
    momentum: float = 0.9
    folds: int = 0  # micro-batches; 0: none
    bad: int = -1  # step in which the last rank has a NaN


@dataclass
class Shards:
    """Votes of a ShardVote on tensors of these sizes, one after another."""

    seed: int
    ties: str
    dtype: torch.dtype
    sizes: tuple[int, ...]


@dataclass
class Hooks:
    """Passes of a hook of equal models, whose parameters have these sizes, in two buckets."""

    seed: int
    name: str
    options: dict[str, Any]
    dtype: torch.dtype
    sizes: tuple[int, ...]
    passes: int = 3


@dataclass
class Found:
    """The findings of one rank."""

    differing: list[Any] = field(default_factory=list)
    votes: int = 0
    signs: int = 0
    skipped: int = 0  # for a value that is not finite

    def join(self, other: Found) -> None:
        self.differing += other.differing
        self.votes += other.votes
        self.signs += other.signs
        self.skipped += other.skipped


@contextmanager
def device_of(kind: str) -> Iterator[StandIn]:
    """The device in this process; raises AssertionError without one."""
    patches = pytest.MonkeyPatch()
    try:
        reason = prepare(patches) if kind == "cuda" else missing()
        assert not reason, reason
        device = EmulatedCuda(patches) if kind == "cuda" else Xpu(patches)
        try:
            yield device
        finally:
            gc.collect()
            device.close()
    finally:
        patches.undo()


def in_process(kind: str, job: Callable[..., Any], *args: Any) -> Any:
    """The job of a rank that is a process, on a device of its own."""
    with device_of(kind) as device:
        return job(device, *args)


def compared(device: StandIn, cases: Sequence[Case | Shards | Hooks]) -> Found:
    """The findings over all cases."""
    found = Found()
    for case in cases:
        compare = {Case: _votes_of_optimizers, Shards: _votes_on_tensors, Hooks: _votes_of_hooks}[type(case)]
        wrong = compare(case, device, found)
        if wrong:
            found.differing.append((case, wrong))
    return found


def _gradient(case: Case, random: torch.Generator, shape: Sequence[int], step: int) -> torch.Tensor | None:
    """Few values: ties, zeros of both signs, blocks of them; sometimes none at all."""
    kind = int(torch.randint(0, 6, (), generator=random))
    spoilt = step == case.bad and dist.get_rank() == dist.get_world_size() - 1
    if kind == 0 and not spoilt:
        return None
    values = torch.randint(-1, 2, tuple(shape), generator=random).float()
    if kind == 1:
        values = torch.randn(tuple(shape), generator=random)
    if values.numel() > 128 and kind == 2:
        values.view(-1)[:128] = -0.0
    if kind == 3:
        values.zero_()
    if spoilt and values.numel():
        values.view(-1)[-1] = float("nan")
    return values.to(case.dtype)


def _optimizer(case: Case, params: Sequence[torch.nn.Parameter]) -> SignOptimizer:
    weight = (3, 1, 0, 2)[dist.get_rank()] if case.weighted else 1
    vote = {"ties": case.ties, "seed": case.seed % 1000, "weight": weight, "algorithm": "two_phase"}
    options: dict[str, Any] = {"state": case.state, "min_quantized_numel": 0, "master": case.master}
    if case.rule == "signum":
        options["momentum"] = case.momentum
    return CLASSES[case.rule](params, lr=0.01, weight_decay=0.1, vote=vote, **options)


def _votes_of_optimizers(case: Case, device: StandIn, found: Found) -> list[str]:
    """Parameters after each step, the results of votes, and state at the end."""
    random = torch.Generator().manual_seed(case.seed)
    mine = torch.Generator().manual_seed(case.seed * 7919 + dist.get_rank())
    here = [torch.nn.Parameter(torch.randn(shape, generator=random).to(case.dtype)) for shape in case.shapes]
    there = device.parameters(here)
    first, second = _optimizer(case, here), _optimizer(case, there)
    wrong = []
    for step in range(case.steps):
        for _ in range(max(case.folds, 1)):
            for param, other in zip(here, there, strict=True):
                param.grad = _gradient(case, mine, param.shape, step)
                other.grad = None if param.grad is None else device.tensor(param.grad)
            if case.folds:
                first.fold(case.folds)  # type: ignore[attr-defined]
                second.fold(case.folds)  # type: ignore[attr-defined]
        first.step()
        second.step()
        device.synchronize()
        same = [bits(a) == bits(b) for a, b in zip(here, there, strict=True)]
        outcomes = [opt.last_outcome._replace(seconds={}, sent_bytes=0) for opt in (first, second) if opt.last_outcome]
        if not all(same) or outcomes[0] != outcomes[1]:
            wrong.append(f"step {step}: {same}, {outcomes}")
        assert first._buffers and second._buffers
        if outcomes[0].applied and bits(first._buffers.bits) != bits(second._buffers.bits):
            wrong.append(f"step {step}: results")
        found.votes += 1
        found.signs += sum(param.numel() for param in here)
    found.skipped += first.skipped_steps
    states = [opt.state_dict()["state"] for opt in (first, second)]
    for number, entry in states[0].items():
        if any(bits(value) != bits(states[1][number][name]) for name, value in entry.items()):
            wrong.append(f"state {number}")
    return wrong


def _votes_on_tensors(case: Shards, device: StandIn, found: Found) -> list[str]:
    group = dist.group.WORLD or object()
    here, there = (ShardVote(group=group, ties=case.ties, seed=case.seed % 1000) for _ in range(2))  # type: ignore[typeddict-item]
    random = torch.Generator().manual_seed(case.seed * 31 + dist.get_rank())
    wrong = []
    for number, numel in enumerate(case.sizes):
        tensor = torch.randint(-1, 2, (numel,), generator=random).to(case.dtype)
        if numel and (case.seed + number) % 7 == 0 and dist.get_rank() == 0:
            tensor[numel // 2] = float("inf")
        other = device.tensor(tensor)
        here(tensor)
        there(other)
        device.synchronize()
        if bits(tensor) != bits(other):
            wrong.append(f"vote {number}")
        found.votes += 1
        found.skipped += int(numel > 0 and bool(tensor.isnan().all()))
        found.signs += numel
    return wrong


def _votes_of_hooks(case: Hooks, device: StandIn, found: Found) -> list[str]:
    """DistributedDataParallel has no such device: this calls the hooks as it would."""
    random = torch.Generator().manual_seed(case.seed * 97 + dist.get_rank())
    here = torch.nn.ParameterList(torch.zeros(n, dtype=case.dtype) for n in case.sizes)
    there = torch.nn.ParameterList(device.parameters(list(here)))
    cls = getattr(lowtide.distributed, case.name)
    pair = by_bucket(cls(here, **case.options)), by_bucket(cls(there, **case.options))
    half = len(case.sizes) // 2
    cuts = range(half, len(case.sizes)), range(half)
    wrong = []
    for step in range(case.passes):
        grads = [torch.randn(n, generator=random).mul(2).round().div(4).to(case.dtype) for n in case.sizes]
        grads[-1][:128] = 0
        if (case.seed + step) % 5 == 3 and dist.get_rank() == 0:
            grads[step % len(grads)][:1] = float("nan")
        mine = one_pass(pair[0], list(here), grads, cuts)
        other = one_pass(pair[1], list(there), grads, cuts, device.tensor)
        device.synchronize()
        if [*map(bits, mine)] != [*map(bits, other)] or pair[0].votes != pair[1].votes:
            wrong.append(f"pass {step}")
        found.votes += 1
        found.signs += sum(grad.numel() for grad in grads)
        found.skipped += bool(mine[0].isnan().all())
    if case.name == "ErrorFeedbackSign":
        saved = [hook.state_dict() for hook in pair]
        pair[1].load_state_dict(saved[0])
        saved.append(pair[1].state_dict())
        kept = [
            [bits(part) for one in each["residual"].values() for part in one.values()] + [bits(each["shard"])]
            for each in saved
        ]
        if kept[0] != kept[1] or kept[0] != kept[2] or not any(map(any, kept[0])):
            wrong.append("residuals")
    return wrong


def refusals(device: StandIn) -> list[tuple[str, str]]:
    """Errors for parameters that are not in one place, and of one worker that cannot vote; then a step."""
    return [*_misplaced(device), *_one_cannot_vote(device)]


def _misplaced(device: StandIn) -> list[tuple[str, str]]:
    values = [torch.ones(100), torch.ones(30)]
    two = [*device.parameters(values[:1], 0), *device.parameters(values[1:], 1)]
    mixed = [*device.parameters(values[:1]), torch.nn.Parameter(values[1])]
    model = torch.nn.Linear(3, 3)
    model.weight = device.parameters([model.weight])[0]
    return [
        raised(lambda: DistributedLion(two)),
        raised(lambda: DistributedLion(mixed)),
        raised(lambda: lowtide.distributed.SignVote(model)),
    ]


def _one_cannot_vote(device: StandIn) -> list[tuple[str, str]]:
    values = [torch.ones(100), torch.ones(30)]
    params = device.parameters(values)
    opt: Any = DistributedLion(params, lr=0.1)
    fetch: Callable[[], None] = opt._ballots

    def step(broken: bool) -> tuple[str, str]:
        for param, value in zip(params, values, strict=True):
            param.grad = device.tensor(value)
        opt._ballots = (lambda scale: [][1]) if broken else fetch
        return raised(opt.step)

    out: list[tuple[str, str]] = []
    before = [bits(param) for param in params]
    for broken, what in ((dist.get_rank() == 1, "untouched"), (False, "moved")):
        out.append(step(broken))
        device.synchronize()
        unchanged = [bits(param) for param in params] == before
        out.append((what, str(unchanged == (what == "untouched"))))
    return out


TIES = ("hash", "plus", "minus", "zero", "previous")
SIZES = (0, 1, 7, 8, 63, 64, 65, 511, 1000, 1023, 1024, 1025, 2049)
MASTERS = ("residual16", "residual8", "stochastic", None)
VOTES_EACH = 3  # of every case


def cases_of(seed: int, count: int) -> list[Case | Shards | Hooks]:
    """Half of the cases are optimizers' steps, a quarter each tensors and hooks, in turns."""
    optimizers, tensors, hooks = _optimizers(seed), _tensors(seed), _hooks(seed)
    order = (optimizers, tensors, optimizers, hooks)
    return [next(order[number % len(order)]) for number in range(count)]


def _sizes(choose: random.Random, most: int) -> tuple[int, ...]:
    return tuple(choose.choice(SIZES) for _ in range(choose.randint(1, most)))


def _optimizers(seed: int) -> Iterator[Case]:
    """Every rule of ties with every type, one after another, and the rest at random."""
    choose, number = random.Random(seed), 0
    while True:
        dtype = DTYPES[number % len(DTYPES)]
        rule, momentum = choose.choice(("lion", "signum")), choose.choice((0.0, 0.9))
        spoilt = number % 5 == 1
        folding = rule == "signum" and momentum > 0 and choose.random() < 0.3
        yield Case(
            seed=seed % 2**20 * 1000 + number, rule=rule, ties=TIES[number % len(TIES)], dtype=dtype,
            weighted=choose.random() < 0.3, state=choose.choice(("fp32", "bf16", "dynamic8")), momentum=momentum,
            master=choose.choice(MASTERS) if dtype.itemsize == 2 else None, steps=VOTES_EACH,
            shapes=tuple((size,) for size in _sizes(choose, 3) + (65,) * spoilt), folds=2 if folding else 0,
            bad=1 if spoilt else -1,
        )  # fmt: skip
        number += 1


def _tensors(seed: int) -> Iterator[Shards]:
    choose, number = random.Random(seed + 1), 0
    while True:
        sizes = tuple(choose.choice(SIZES) for _ in range(VOTES_EACH))
        yield Shards(seed % 2**20 + number, TIES[number % (len(TIES) - 1)], DTYPES[number % len(DTYPES)], sizes)
        number += 1


def _hooks(seed: int) -> Iterator[Hooks]:
    choose, number = random.Random(seed + 2), 0
    kinds = [("SignVote", {"ties": ties}) for ties in TIES]
    kinds += [("ErrorFeedbackSign", {"residual": residual}) for residual in ("fp32", "bf16", "dynamic8")]
    while True:
        name, options = kinds[number % len(kinds)]
        sizes = (1000, *(max(size, 1) for size in _sizes(choose, 2)), 2049)
        yield Hooks(seed % 2**20 + number, name, options, DTYPES[number % len(DTYPES)], sizes, VOTES_EACH)
        number += 1
