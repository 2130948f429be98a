"""State of voting optimizers: what is zero stays where it is, checkpoints go on bit for bit or with another number of
workers, micro-batches fold into momentum."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lowtide
import pytest
import torch
import torch.distributed as dist
import vote_jobs
from distributed_support import shared_ranks
from lowtide.distributed import SignAccumulator, Signum
from support import through_file
from vote_jobs import CLASSES, build, raised, set_gradients, snapshot
from vote_reference import Case, generator, gradient


def resume(case: Case, how: str, folder: str) -> tuple[list[bytes], list[bytes], str]:
    """Six steps in one go; three, a checkpoint into another optimizer, and three; and why none can be copied."""
    params, opt = build(case)
    for step in range(3):
        set_gradients(case, params, step)
        opt.step()
    others, other = build(case)
    with torch.no_grad():
        for there, here in zip(others, params, strict=True):
            there.copy_(here)
    if how == "state_dict":
        other.load_state_dict(through_file(opt.state_dict()))
    else:
        path = str(Path(folder) / str(dist.get_rank()))
        opt.save(path)
        other.load(path)
    for pair in ((params, opt), (others, other)):
        for step in range(3, 6):
            set_gradients(case, pair[0], step)
            pair[1].step()
    refusals = [raised(lambda: copy.deepcopy(opt)), raised(lambda: pickle.dumps(opt))]
    refusals += [raised(lambda: copy.copy(opt)), raised(lambda: pickle.dumps(opt._collective))]
    assert all(kind == "TypeError" and "process group" in text for kind, text in refusals), refusals
    return snapshot(params, opt), snapshot(others, other), refusals[0][1]


TARGET = torch.linspace(-1, 1, 5000).view(50, 100)


def descend(model: torch.nn.Parameter, opt: torch.optim.Optimizer, steps: range, noise: float) -> list[float]:
    losses = []
    for step in steps:
        losses.append(float((model.detach() - TARGET).abs().mean()))
        random = generator(step, dist.get_rank(), 3)
        model.grad = (model.detach() - TARGET).sign() + noise * torch.randn(model.shape, generator=random)
        opt.step()
    return losses


def before_change(rule: str, state: str, path: str, average: bool) -> tuple[list[float], list[bytes]]:
    """Trains; leaves rank 0's checkpoint."""
    model = torch.nn.Parameter(torch.zeros(50, 100))
    late = torch.nn.Parameter(torch.ones(300))  # has a gradient on the last rank only
    opt = CLASSES[rule]([model, late], lr=1e-2, state=state)
    losses = []
    for step in range(20):
        late.grad = torch.ones(300) if dist.get_rank() == dist.get_world_size() - 1 and step > 10 else None
        losses += descend(model, opt, range(step, step + 1), 1.0)
    if average:
        opt.average_state()
    if dist.get_rank() == 0:
        torch.save({"params": [model, late], "optimizer": opt.state_dict()}, path)
    return losses, snapshot([model, late], opt)


def after_change(rule: str, state: str, path: str) -> tuple[list[float], list[bytes], int]:
    saved = torch.load(path, weights_only=True)
    model, late = saved["params"]
    opt = CLASSES[rule]([model, late], lr=1e-2, state=state)
    opt.load_state_dict(saved["optimizer"])
    loaded = snapshot([model, late], opt)
    losses = descend(model, opt, range(20, 40), 1.0)
    return losses, loaded, int(opt.state[late]["step"])


def fold(state: str, micro_batches: int, gaps: bool) -> dict[str, Any]:
    """The same gradients folded one by one and added up: how far parameters and state are from each other."""
    case = Case(rule="signum", hyper={"lr": 1e-2}, seed=3)
    params, folding = build(case, state=state, min_quantized_numel=0)
    others, adding = build(case, state=state, min_quantized_numel=0)
    for step in range(5):
        sums: list[torch.Tensor | None] = [None] * len(params)
        for micro in range(micro_batches):
            for number, param in enumerate(params):
                grad = gradient(case, dist.get_rank(), 100 * step + micro, number)
                param.grad = None if gaps and (number + micro + step) % 3 == 0 else grad
                if param.grad is not None:
                    earlier = sums[number]
                    sums[number] = param.grad if earlier is None else earlier + param.grad
            folding.fold(micro_batches)
            assert all(param.grad is None for param in params)
        for param, total in zip(others, sums, strict=True):
            param.grad = None if total is None else total / micro_batches
        folding.step()
        adding.step()
    off = count = 0
    worst = 0.0
    for a, b in zip(params, others, strict=True):
        off, count = off + int((a != b).sum()), count + a.numel()
        if state == "fp32" and a.numel():
            far = folding.state[a]["momentum_buffer"] - adding.state[b]["momentum_buffer"]
            worst = max(worst, float(far.abs().max()))
    return {"off": off, "count": count, "worst": worst, "params": snapshot(params)}


def misuse_folds() -> list[tuple[str, str]]:
    def momentum(value: float) -> tuple[torch.nn.Parameter, Signum]:
        param = torch.nn.Parameter(torch.ones(70))
        return param, Signum([param], momentum=value)

    found = [raised(lambda: momentum(0.0)[1].fold(2)), raised(lambda: momentum(0.9)[1].fold(0))]
    found += [raised(lambda: momentum(1.0))]
    param, opt = momentum(0.9)

    def grad() -> None:
        param.grad = torch.ones(70)

    grad()
    opt.fold(2)
    found.append(raised(lambda: opt.fold(3)))
    found.append(raised(lambda: opt.add_param_group({"params": [torch.nn.Parameter(torch.ones(3))]})))
    grad()
    opt.fold(2)
    found.append(raised(lambda: opt.fold(2)))
    grad()
    found.append(raised(opt.step))
    assert bool((param == 1).all())
    param.grad = None
    opt.step()
    assert bool((param != 1).all())
    # Not finite on one rank: the vote is skipped on all.
    before = param.detach().clone()
    param.grad = torch.full((70,), float("nan") if dist.get_rank() == 0 else 1.0)
    opt.fold(1)
    opt.step()
    assert bool((param == before).all()) and opt.skipped_steps == 1
    return found


def fold_after_mixture() -> list[bytes]:
    """Folds, then plain steps: nothing of the folds is left over."""
    params, opt = build(Case(rule="signum", hyper={"lr": 1e-2}))
    for step in range(4):
        set_gradients(Case(rule="signum"), params, step)
        if step % 2:
            opt.fold(1)  # type: ignore[attr-defined]
        opt.step()
    return snapshot(params)


def accumulate() -> dict[str, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Tanh(), torch.nn.Linear(30, 5)).bfloat16()
    counts = SignAccumulator(model.parameters(), most=7)
    sums = [torch.zeros(p.shape) for p in model.parameters()]
    for _ in range(7):
        model(torch.randn(4, 20, dtype=torch.bfloat16)).square().sum().backward()
        for total, param in zip(sums, model.parameters(), strict=True):
            total += torch.where(param.grad >= 0, 1.0, -1.0)
        counts.add()
        assert all(param.grad is None for param in model.parameters())
    next(model.parameters()).grad = torch.ones(30, 20, dtype=torch.bfloat16)
    once_more = raised(counts.add)
    assert next(model.parameters()).grad is not None
    counts.finish()
    equal = all(bool((p.grad == (t / 7).bfloat16()).all()) for p, t in zip(model.parameters(), sums, strict=True))
    model(torch.full((4, 20), float("inf"), dtype=torch.bfloat16)).sum().backward()
    counts.add()
    counts.finish()
    spoilt = all(bool(p.grad.isnan().all()) for p in model.parameters())
    return {"equal": equal, "spoilt": spoilt, "again": once_more, "bytes": counts.nbytes}


def momentum_that_changes() -> list[float]:
    """The momentum of steps with gradients of 1, for β = 0, 0, 1/2, 1/2, 0, 1/2."""
    param = torch.nn.Parameter(torch.ones(70))
    opt = Signum([param], state="fp32")
    found = []
    for beta in (0.0, 0.0, 0.5, 0.5, 0.0, 0.5):
        opt.param_groups[0]["momentum"] = beta
        param.grad = torch.ones(70)
        opt.step()
        found.append(float(opt.state[param]["momentum_buffer"][0]) if "momentum_buffer" in opt.state[param] else 0.0)
    return found


def defaults() -> tuple[int, dict[str, Any]]:
    """A lowtide.SGD's dict goes into Signum, and Signum's into torch.optim.SGD."""
    param = torch.nn.Parameter(torch.ones(70))
    sgd = lowtide.SGD([param], lr=0.1, momentum=0.9)
    param.grad = torch.ones(70)
    sgd.step()
    signum = Signum([param])
    signum.load_state_dict(sgd.state_dict())
    signum.step()
    torch.optim.SGD([param]).load_state_dict(signum.torch_state_dict())
    bad = copy.deepcopy(signum.state_dict())
    bad["param_groups"][0]["votes"] = -1
    assert raised(lambda: signum.load_state_dict(bad))[0] == "ValueError"
    return signum.param_groups[0]["votes"], {"lr": signum.param_groups[0]["lr"]}


@pytest.mark.parametrize("how", ["state_dict", "file"])
@pytest.mark.parametrize(("rule", "state"), [("lion", "dynamic8"), ("lion", "bf16"), ("signum", "fp32")])
def test_resumes_bit_for_bit(
    rule: str, state: str, how: str, tmp_path: Path, seed: int, figure: Callable[[str], None]
) -> None:
    options = {"state": state, "min_quantized_numel": 0}
    case = Case(rule=rule, hyper={"lr": 1e-2}, seed=seed, missing=True, options=options)
    answers = shared_ranks().run(3, resume, case, how, str(tmp_path))
    states = set()
    for through, resumed, _ in answers:
        assert through == resumed
        states.add(b"".join(through))
    assert len(states) == 3, "control: state differs between ranks"
    figure(f"{rule} {state}, {how}: {sum(map(len, answers[0][0]))} bytes equal on each of 3 ranks")


@pytest.mark.parametrize(("world", "then"), [(4, 2), (2, 3), (3, 1)])
@pytest.mark.parametrize(("rule", "state"), [("lion", "dynamic8"), ("signum", "fp32"), ("signum", "bf16")])
def test_another_number_of_workers(
    rule: str, state: str, world: int, then: int, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    path = str(tmp_path / "rank0")
    apart = shared_ranks().run(world, before_change, rule, state, path, False)
    assert len({b"".join(found) for _, found in apart}) == world, "control: without averaging, state differs"
    before = shared_ranks().run(world, before_change, rule, state, path, True)
    assert len({b"".join(found) for _, found in before}) == 1
    after = shared_ranks().run(then, after_change, rule, state, path)
    losses = before[0][0] + after[0][0]
    for each, loaded, steps in after:
        assert loaded == before[0][1] and each == after[0][0] and steps == 9
    steps = [abs(b - a) for a, b in zip(losses, losses[1:], strict=False)]
    assert steps[19] <= 1.5 * max(steps[:19] + steps[20:]) and losses[-1] < losses[19] < losses[0]
    figure(f"{rule} {state}, {world} -> {then} workers: loss {losses[19]:.4f} -> {losses[20]:.4f} -> {losses[-1]:.4f}")


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("micro_batches", [1, 4, 7])
def test_folds_are_sums(micro_batches: int, gaps: bool, figure: Callable[[str], None]) -> None:
    answers = shared_ranks().run(2, fold, "fp32", micro_batches, gaps)
    assert answers[0]["params"] == answers[1]["params"]
    # Momentum below 5: each of the k additions in either order rounds by half an ulp of it.
    bound = 5 * (2 * micro_batches + 4) * 5 * 2**-24
    for found in answers:
        assert found["worst"] <= bound and found["off"] <= found["count"] // 1000
    figure(
        f"{micro_batches} micro-batches: momentum within {max(f['worst'] for f in answers):.2e} (bound {bound:.2e}), "
        f"{answers[0]['off']} of {answers[0]['count']} elements voted otherwise"
    )


@pytest.mark.parametrize("state", ["dynamic8", "bf16"])
def test_folds_into_small_state(state: str, figure: Callable[[str], None]) -> None:
    for found in shared_ranks().run(1, fold, state, 4, True):
        share = found["off"] / found["count"]
        assert share < 0.15, share  # independent signs of 5 votes: 60 % or more end elsewhere
        figure(f"{state}: {share:.1%} of elements end elsewhere than with added gradients")


def test_misused_folds() -> None:
    wanted = [
        "momentum: got 0", "micro_batches: got 0", "momentum: got 1.0", "micro_batches: got 3, wanted 2",
        "wanted step()", "call 3 for 2", "beside those folded",
    ]  # fmt: skip
    for answers in shared_ranks().run(2, misuse_folds):
        for (kind, text), words in zip(answers, wanted, strict=True):
            assert kind == "ValueError" and words in text, (kind, text)


def test_folds_among_plain_steps() -> None:
    folded = shared_ranks().run(2, fold_after_mixture)
    case = Case(rule="signum", hyper={"lr": 1e-2}, steps=4)
    assert folded == shared_ranks().run(2, vote_jobs.train, case)


def test_counts_of_signs(figure: Callable[[str], None]) -> None:
    (found,) = shared_ranks().run(1, accumulate)
    assert found["equal"] and found["spoilt"] and found["again"][0] == "ValueError" and "7" in found["again"][1]
    numel = 20 * 30 + 30 + 30 * 5 + 5
    assert numel * 3 / 8 <= found["bytes"] <= numel * 3 / 8 + 4 * 3 * 64
    figure(f"{numel} elements, 7 passes: {found['bytes']} bytes of counters, float32 sums {4 * numel}")


def test_momentum_that_changes() -> None:
    (found,) = shared_ranks().run(1, momentum_that_changes)
    assert found[:4] == [0.0, 0.0, 0.5, 0.75] and found[5] == 0.875


def test_dicts_of_others() -> None:
    votes, group = shared_ranks().run(1, defaults)[0]
    assert votes == 1 and group == {"lr": 0.1}
