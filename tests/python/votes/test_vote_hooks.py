"""SignVote and ShardVote: DistributedDataParallel and FSDP2 turn gradients into the majority of the gradients that ranks compute alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from distributed_support import of_all, on_ranks, shared_ranks
from lowtide.distributed import ShardVote, SignVote, hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from support import raised
from vote_jobs import Bucket, by_bucket, one_pass
from vote_reference import aligned, elect, generator, tie_bits


class Branches(torch.nn.Module):
    """Ranks take different branches; no rank takes one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.root = torch.nn.Linear(20, 33)
        self.sides = torch.nn.ModuleList([torch.nn.Linear(33, 60), torch.nn.Linear(33, 60), torch.nn.Linear(33, 60)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.sides[dist.get_rank() % 2](self.root(x).relu())


def network(kind: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    if kind == "branches":
        return Branches().to(dtype)
    widths = (20, 60, 41, 50, 7)
    layers = [(torch.nn.Linear(n, m), torch.nn.Tanh()) for n, m in zip(widths, widths[1:], strict=False)]
    return torch.nn.Sequential(*(module for pair in layers for module in pair)).to(dtype)


def batch(dtype: torch.dtype, *of: int) -> torch.Tensor:
    return torch.randn(8, 20, generator=generator(dist.get_rank(), *of)).to(dtype)


def local_gradients(plain: torch.nn.Module, dtype: torch.dtype, step: int, micro_batches: int) -> list[torch.Tensor]:
    plain.zero_grad()
    for micro in range(micro_batches):
        plain(batch(dtype, step, micro)).square().mean().backward()
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in plain.parameters()]


def reference(
    mine: list[torch.Tensor], votes: int, seed: int = 0, weights: tuple[int, ...] = (1,) * 4, ties_stay: bool = False
) -> tuple[list[torch.Tensor], int]:
    """The majority of all ranks' gradients, and the number of ties."""
    every = of_all(mine)
    tie = tie_bits(sum(aligned(grad.numel()) for grad in mine), seed, votes)
    if ties_stay:
        tie.zero_()
    first, ties, out = 0, 0, []
    for number, grad in enumerate(mine):
        part = tie[first : first + grad.numel()]
        result, _, tied = elect([one[number].float() for one in every], list(weights[: len(every)]), votes % 2 == 0, part)
        out.append(result.to(grad.dtype).view(grad.shape))
        first, ties = first + aligned(grad.numel()), ties + tied
    return out, ties


def watch_buckets(hook: SignVote) -> list[int]:
    """Numbers of buckets of each pass to come."""
    found: list[int] = []
    finish: Callable[[Any], None] = hook._finish

    def watched(arrived: Any) -> None:
        found.append(len(arrived))
        finish(arrived)

    hook._finish = watched  # type: ignore[method-assign]
    return found


def votes_of_signs(
    kind: str, dtype: torch.dtype, micro_batches: int, ddp_options: dict[str, Any], weighted: bool = False
) -> dict[str, Any]:
    """Four passes. weighted: also ties that become 0."""
    model = network(kind, dtype)
    plain = copy.deepcopy(model)
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.002, **ddp_options)
    weights = (1, 2, 3, 2) if weighted else (1, 1, 1, 1)
    ties = "zero" if weighted else "hash"
    hook = by_bucket(SignVote(ddp, timeout=15, weight=weights[dist.get_rank()], ties=ties))
    hook.register(ddp)
    buckets = watch_buckets(hook)
    wrong = compared = tied = unused = 0
    for step in range(4):
        for param in model.parameters():
            param.grad = None
        for micro in range(micro_batches):
            with ddp.no_sync() if micro + 1 < micro_batches else nullcontext():
                ddp(batch(dtype, step, micro)).square().mean().backward()
        mine = local_gradients(plain, dtype, step, micro_batches)
        wanted, more = reference(mine, step, weights=weights, ties_stay=weighted)
        tied += more
        for param, want in zip(model.parameters(), wanted, strict=True):
            if param.grad is None:
                assert not want.any()
                unused += 1
                continue
            wrong, compared = wrong + int((param.grad != want).sum()), compared + want.numel()
        with torch.no_grad():
            for param, same, want in zip(model.parameters(), plain.parameters(), wanted, strict=True):
                param -= 0.01 * want
                same -= 0.01 * want
    counts = {"wrong": wrong, "compared": compared, "ties": tied, "unused": unused, "votes": hook.votes}
    return {**counts, "buckets": buckets}


CASES: dict[str, tuple[str, torch.dtype, int, dict[str, Any]]] = {
    "plain": ("plain", torch.float32, 1, {}),
    "bfloat16": ("plain", torch.bfloat16, 1, {}),
    "float16": ("plain", torch.float16, 1, {}),
    "views": ("plain", torch.float32, 1, {"gradient_as_bucket_view": True}),
    "accumulated": ("plain", torch.float32, 3, {}),
    "accumulated_views": ("plain", torch.bfloat16, 2, {"gradient_as_bucket_view": True}),
    "static_graph": ("plain", torch.float32, 1, {"static_graph": True}),
    "unused": ("branches", torch.float32, 1, {"find_unused_parameters": True}),
}


@pytest.mark.parametrize(
    ("name", "world"), [(name, world) for name in CASES for world in ((2, 4) if "16" in name else (1, 2, 3, 4))]
)
@pytest.mark.share
def test_gradients_are_majorities(name: str, world: int, figure: Callable[[str], None]) -> None:
    for found in shared_ranks().run(world, votes_of_signs, *CASES[name]):
        assert found["wrong"] == 0 and found["votes"] == 4 and found["compared"] > 10_000
        assert bool(found["ties"]) == (world % 2 == 0 or (name == "unused" and world > 1))
        assert (found["unused"] > 0) == (name == "unused")
        assert max(found["buckets"]) >= 3
    figure(
        f"{name}, {world} workers: {found['compared']} elements equal, {found['ties']} ties; buckets of each pass: "
        f"{found['buckets']}"
    )


def test_buckets_are_laid_anew(figure: Callable[[str], None]) -> None:
    """Control: the passes above differ in their buckets."""
    found = shared_ranks().run(2, votes_of_signs, *CASES["plain"])[0]
    assert found["buckets"][0] != found["buckets"][-1]
    figure(f"buckets of each pass: {found['buckets']}")


@pytest.mark.parametrize("world", [3, 4])
def test_weighted_votes(world: int, figure: Callable[[str], None]) -> None:
    """1, 2 and 3 votes tie where the last stands alone; 1, 2, 3 and 2 where halves do."""
    for found in shared_ranks().run(world, votes_of_signs, *CASES["plain"], weighted=True):
        assert found["wrong"] == 0 and found["ties"] > 1000
    figure(f"{world} workers: {found['compared']} elements equal, {found['ties']} ties that are 0")


SIZES = (1000, 65, 1, 2049, 1024, 7)
# Contiguous from the last on, as torch's; in runs of their own; one for each parameter; one for all.
CUTS = (((4, 5), (2, 3), (0, 1)), ((5, 3, 1), (0, 4, 2)), ((5,), (4,), (3,), (2,), (1,), (0,)), (range(6),))


def zeros() -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.zeros(size)) for size in SIZES]


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("ties", ["hash", "plus", "minus", "zero", "previous"])
@on_ranks()
def test_buckets_change_no_bit(ties: str, world: int, seed: int, share: float) -> str:
    """Ranks vote on buckets one by one, as they come; the result equals one vote on all gradients. Hooks of equal models
    have other buckets, the first without overlap, the second with buckets that wait for more."""
    params = zeros()
    all_cuts = (CUTS[0], CUTS[2], *CUTS)
    hooks = [
        SignVote(
            torch.nn.ParameterList(params), ties=ties, seed=seed, weight=1 + dist.get_rank(), overlap=number > 0
        )
        for number in range(len(all_cuts))
    ]  # fmt: skip
    for number, hook in enumerate(hooks):
        hook._least = 1500 if number == 1 else 1
    compared = skipped = 0
    for number in range(max(8, int(40 * share))):
        random = generator(seed, dist.get_rank(), number)
        grads = [torch.randint(-1, 2, (size,), generator=random).float() for size in SIZES]
        grads[3][:192] = 0
        if number % 4 == 2:
            grads[number % 6][0] = float("nan") if dist.get_rank() == world - 1 else 1.0
        found = [torch.cat(one_pass(hook, params, grads, cuts)) for hook, cuts in zip(hooks, all_cuts, strict=True)]
        for other, hook in zip(found, hooks, strict=True):
            assert torch.equal(other.nan_to_num(5), found[-1].nan_to_num(5)) and hook.votes == hooks[-1].votes
            assert hook.last_outcome.nonfinite_ranks == hooks[-1].last_outcome.nonfinite_ranks
            compared += other.numel()
        skipped += not hooks[0].last_outcome.applied
    assert skipped >= 2
    return f"{ties}, {world} workers: {compared} elements in {len(CUTS)} sets of buckets, 0 differ; {skipped} passes NaN"


@on_ranks(3)
def test_workers_with_other_buckets() -> None:
    """The last rank has other buckets in one pass, and the others' buckets in the next."""
    params, grads = zeros(), [torch.ones(size) for size in SIZES]
    hook = by_bucket(SignVote(torch.nn.ParameterList(params), timeout=15))
    kind, text = raised(lambda: one_pass(hook, params, grads, CUTS[2 if dist.get_rank() == 2 else 0]))
    assert kind == "ValueError" and "2" in text, text
    one_pass(hook, params, grads, CUTS[0])


@pytest.mark.parametrize(("world", "wanted"), [(2, "one_phase"), (3, "two_phase")])
@on_ranks()
def test_nothing_is_measured_beside_computing(world: int, wanted: str) -> None:
    """Only a hook that overlaps and has a large model chooses how bits travel without measuring."""
    params, grads = zeros(), [torch.full((size,), -0.5) for size in SIZES]
    least = hooks.LEAST
    for large, overlap in ((True, True), (False, True), (True, False)):
        hooks.LEAST = 1 if large else least
        try:
            hook = SignVote(torch.nn.ParameterList(params), overlap=overlap)
        finally:
            hooks.LEAST = least
        one_pass(hook, params, grads, CUTS[0])
        measured = hook.last_outcome.seconds["measure"] > 0
        assert (hook.last_outcome.algorithm == wanted and not measured) if large and overlap else measured


@pytest.mark.parametrize("alone", [False, True])
@on_ranks(3)
def test_a_pass_that_is_broken_off(alone: bool) -> None:
    """After two of three buckets. The next pass has nothing of its parts; where the last worker alone breaks off, it is a pass
    ahead: its first bucket meets the others' third, all are refused, and the pass after it is right."""
    params, grads = zeros(), [torch.full((size,), -0.5) for size in SIZES]
    hook = by_bucket(SignVote(torch.nn.ParameterList(params), timeout=30))
    if not alone or dist.get_rank() == dist.get_world_size() - 1:
        for index, numbers in enumerate(CUTS[0][:2]):
            buffer = torch.cat([torch.full((SIZES[number],), 2.0) for number in numbers])
            hook(None, Bucket(index, False, [params[number] for number in numbers], buffer))
    if alone:
        assert raised(lambda: one_pass(hook, params, grads, CUTS[0]))[0] == "ValueError"
    assert all(bool((one == -1).all()) for one in one_pass(hook, params, grads, CUTS[0]))


@pytest.mark.parametrize("where", ["pack", "values"])
@on_ranks(2)
def test_a_worker_that_fails_in_the_middle_of_a_pass(where: str) -> None:
    """Rank 0, in the second bucket's ballot, or when it looks at the parameters' values: the other hears of it at once, no
    gradient is replaced anywhere, and the next pass goes on."""
    params, grads = zeros(), [torch.full((size,), -0.5) for size in SIZES]
    hook = by_bucket(SignVote(torch.nn.ParameterList(params), timeout=30, check_every=1))
    owner, name = (hook._buffers, "pack") if where == "pack" else (hook, "_values")
    works, calls, kept = getattr(owner, name), [], []

    def failing(*given: Any) -> Any:
        calls.append(given)
        if dist.get_rank() == 0 and (where == "values" or len(calls) == 2):
            raise MemoryError("none left")
        return works(*given)

    setattr(owner, name, failing)
    text = raised(lambda: one_pass(hook, params, grads, CUTS[0], lambda buffer: (kept.append(buffer), buffer)[1]))[1]
    assert ("none left" if dist.get_rank() == 0 else "[0] failed") in text, text
    assert len(kept) == 3 and all(bool((buffer == -0.5).all()) for buffer in kept)
    setattr(owner, name, works)
    one_pass(hook, params, grads, CUTS[0])


@pytest.mark.parametrize("world", [2, 3])
@on_ranks()
def test_nan_on_one_rank(world: int) -> str:
    """Rank 1 has a NaN in the second of four passes; then another hook takes over the state."""
    model = network("plain")
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.004)
    hook = by_bucket(SignVote(model))
    hook.register(ddp)
    for step in range(4):
        model.zero_grad()
        spoilt = batch(torch.float32, step)
        if step == 1 and dist.get_rank() == 1:
            spoilt[0, 0] = float("nan")
        ddp(spoilt).sum().backward()
        for p in model.parameters():
            assert bool(p.grad.isnan().all()) if step == 1 else {*p.grad.unique().tolist()} <= {-1.0, 0.0, 1.0}
    other = network("plain")
    other_ddp, taking_over = DistributedDataParallel(other), SignVote(other)
    taking_over.register(other_ddp)
    taking_over.load_state_dict(hook.state_dict())
    for forward, of in ((ddp, model), (other_ddp, other)):
        of.zero_grad()
        forward(batch(torch.float32, 9)).sum().backward()
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(model.parameters(), other.parameters(), strict=True))
    assert hook.votes == taking_over.votes == 4, "the pass of a NaN is none"
    return f"{world} workers: a NaN on one is NaN on all, in that pass only"


@pytest.mark.parametrize("world", [2, 4])
@on_ranks()
def test_two_models(world: int) -> None:
    """Hooks of two models whose passes follow each other without a pause; one uneven, one with other weights."""
    models = [network("plain", seed=seed) for seed in (0, 1)]
    plains = [copy.deepcopy(model) for model in models]
    ddps = [DistributedDataParallel(model, bucket_cap_mb=0.004) for model in models]
    for number, ddp in enumerate(ddps):
        SignVote(ddp, seed=number).register(ddp)
    for step in range(3):
        for model in models:
            model.zero_grad()
        data = batch(torch.float32, step, 0)
        (ddps[0](data).square().mean() + ddps[1](data).square().mean()).backward()
        for number, (model, plain) in enumerate(zip(models, plains, strict=True)):
            wanted, _ = reference(local_gradients(plain, torch.float32, step, 1), step, number)
            assert all(torch.equal(p.grad, want) for p, want in zip(model.parameters(), wanted, strict=True))


def in_pairs() -> tuple[torch.nn.Module, dist.ProcessGroup]:
    """A model under FSDP2 inside pairs, and the group between them."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("between", "inside"))
    model = network("plain")
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh["inside"])
    fully_shard(model, mesh=mesh["inside"])
    return model, mesh["between"].get_group()


def between(tensor: torch.Tensor, group: dist.ProcessGroup) -> list[torch.Tensor]:
    every = [torch.empty_like(tensor) for _ in range(2)]
    dist.all_gather(every, tensor.contiguous(), group=group)
    return every


@on_ranks(4)
def test_fsdp2_between_nodes() -> str:
    model, group = in_pairs()
    vote = ShardVote(group=group)
    calls = elements = ties = 0

    def hook(tensor: torch.Tensor) -> None:
        nonlocal calls, elements, ties
        every, before = between(tensor, group), vote.votes
        vote(tensor)
        total = every[0].sign() + every[1].sign()
        assert not bool(((total != 0) & (tensor != total.sign())).any())
        tied = every[0] * every[1] < 0
        assert torch.equal(tensor[tied], tie_bits(aligned(tensor.numel()), 0, before)[: tensor.numel()][tied])
        calls, elements, ties = calls + 1, elements + tensor.numel(), ties + int(tied.sum())

    for module in model.modules():
        if hasattr(module, "set_all_reduce_hook"):
            module.set_all_reduce_hook(hook)
    for step in range(3):
        model.zero_grad()
        model(batch(torch.float32, step)).square().mean().backward()
        for param in model.parameters():
            every = between(param.grad.to_local(), group)
            assert torch.equal(*every) and not bool((every[0].abs() > 1).any())
    assert calls >= 3 and ties > 100
    return f"2 x 2 ranks: {calls} votes on {elements} elements of shards, {ties} ties"


@on_ranks(4)
def test_every_fsdp2_module_votes() -> str:
    """`register` takes nested modules; it refuses shards that do not start alike."""
    model, group = in_pairs()
    vote = ShardVote(group=group)
    vote.register(model)
    model(batch(torch.float32, 0)).square().mean().backward()
    for name, param in model.named_parameters():
        mine = param.grad.to_local()
        assert torch.equal(*between(mine, group)) and {*mine.unique().tolist()} <= {-1.0, 0.0, 1.0}, name
    assert vote.votes >= 3
    with torch.no_grad():
        next(model.parameters()).to_local().add_(dist.get_rank(group))
    kind, text = raised(lambda: ShardVote(group=group).register(model))
    assert kind == "ValueError" and "seed alike" in text, text
    return f"2 x 2 ranks: {vote.votes} modules within each other voted in one pass, and all gradients are signs"
