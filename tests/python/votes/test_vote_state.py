"""State of voting optimizers: what is zero stays where it is, checkpoints go on bit for bit or with another number of
workers, micro-batches fold into momentum."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import vote_jobs
import vote_state_jobs as jobs
from distributed_support import shared_ranks
from vote_reference import Case

STEPS = 10_000


@pytest.mark.parametrize(
    ("rule", "weight_decay", "state"),
    [("lion", 0.0, "fp32"), ("lion", 0.1, "dynamic8"), ("signum", 0.0, "dynamic8"), ("signum", 0.1, "fp32")],
)
def test_zero_gradients(rule: str, weight_decay: float, state: str, figure: Callable[[str], None]) -> None:
    (moved,) = shared_ranks().run(1, jobs.zeros_for_long, rule, STEPS, weight_decay, state)
    assert moved["none"] == moved["dead"] == 0 and moved["live"] > 0.1
    # + and - lr in turn, each rounded to half an ulp of a value below 4: a pair comes back to where it began.
    if not weight_decay:
        assert 0.5e-3 < moved["isolated"] <= 1e-3 + 4 * 2**-23
    figure(
        f"{rule}, weight decay {weight_decay}: {STEPS} steps move a dead parameter by {moved['dead']}, a zero inside a "
        f"block by at most {moved['isolated']:.6f} (lr 0.001), others by {moved['live']:.2f}"
    )


@pytest.mark.parametrize("how", ["state_dict", "file"])
@pytest.mark.parametrize(("rule", "state"), [("lion", "dynamic8"), ("lion", "bf16"), ("signum", "fp32")])
def test_resumes_bit_for_bit(
    rule: str, state: str, how: str, tmp_path: Path, seed: int, figure: Callable[[str], None]
) -> None:
    options = {"state": state, "min_quantized_numel": 0}
    case = Case(rule=rule, hyper={"lr": 1e-2}, seed=seed, missing=True, options=options)
    answers = shared_ranks().run(3, jobs.resume, case, how, str(tmp_path))
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
    apart = shared_ranks().run(world, jobs.before_change, rule, state, path, False)
    assert len({b"".join(found) for _, found in apart}) == world, "control: without averaging, state differs"
    before = shared_ranks().run(world, jobs.before_change, rule, state, path, True)
    assert len({b"".join(found) for _, found in before}) == 1
    after = shared_ranks().run(then, jobs.after_change, rule, state, path)
    losses = before[0][0] + after[0][0]
    for each, loaded, steps in after:
        assert loaded == before[0][1] and each == after[0][0] and steps == 9
    steps = [abs(b - a) for a, b in zip(losses, losses[1:], strict=False)]
    assert steps[19] <= 1.5 * max(steps[:19] + steps[20:]) and losses[-1] < losses[19] < losses[0]
    figure(f"{rule} {state}, {world} -> {then} workers: loss {losses[19]:.4f} -> {losses[20]:.4f} -> {losses[-1]:.4f}")


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("micro_batches", [1, 4, 7])
def test_folds_are_sums(micro_batches: int, gaps: bool, figure: Callable[[str], None]) -> None:
    answers = shared_ranks().run(2, jobs.fold, "fp32", micro_batches, gaps)
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
    for found in shared_ranks().run(1, jobs.fold, state, 4, True):
        share = found["off"] / found["count"]
        assert share < 0.15, share  # independent signs of 5 votes: 60 % or more end elsewhere
        figure(f"{state}: {share:.1%} of elements end elsewhere than with added gradients")


def test_misused_folds() -> None:
    wanted = [
        "momentum: got 0", "micro_batches: got 0", "momentum: got 1.0", "micro_batches: got 3, wanted 2",
        "wanted step()", "call 3 for 2", "beside those folded",
    ]  # fmt: skip
    for answers in shared_ranks().run(2, jobs.misuse_folds):
        for (kind, text), words in zip(answers, wanted, strict=True):
            assert kind == "ValueError" and words in text, (kind, text)


def test_folds_among_plain_steps() -> None:
    folded = shared_ranks().run(2, jobs.fold_after_mixture)
    case = Case(rule="signum", hyper={"lr": 1e-2}, steps=4)
    assert folded == shared_ranks().run(2, vote_jobs.train, case)


def test_counts_of_signs(figure: Callable[[str], None]) -> None:
    (found,) = shared_ranks().run(1, jobs.accumulate)
    assert found["equal"] and found["spoilt"] and found["again"][0] == "ValueError" and "7" in found["again"][1]
    numel = 20 * 30 + 30 + 30 * 5 + 5
    assert numel * 3 / 8 <= found["bytes"] <= numel * 3 / 8 + 4 * 3 * 64
    figure(f"{numel} elements, 7 passes: {found['bytes']} bytes of counters, float32 sums {4 * numel}")


def test_momentum_that_changes() -> None:
    (found,) = shared_ranks().run(1, jobs.momentum_that_changes)
    assert found[:4] == [0.0, 0.0, 0.5, 0.75] and found[5] == 0.875


def test_dicts_of_others() -> None:
    votes, group = shared_ranks().run(1, jobs.defaults)[0]
    assert votes == 1 and group == {"lr": 0.1}
