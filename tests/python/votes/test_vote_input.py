"""Bad input to votes: refused by name, on every worker; what one worker cannot do, the others hear of."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import vote_input_jobs as jobs
from distributed_support import shared_ranks
from lowtide.distributed.buffers import SignBuffers


@pytest.mark.parametrize("world", [1, 2])
def test_bad_arguments(world: int, figure: Callable[[str], None]) -> None:
    for answers in shared_ranks().run(world, jobs.bad_calls):
        for name, (kind, words, _) in jobs.CALLS.items():
            assert answers[name][0] == kind and words in answers[name][1], (name, answers[name])
    figure(f"{len(jobs.CALLS)} calls refused on each of {world} workers")


def test_processes_outside_the_group() -> None:
    inside, away = shared_ranks().run(2, jobs.outside)
    assert inside[0][0] == inside[1][0] == "nothing" and inside[2] == 0.5
    for kind, text in away[:2]:
        assert kind == "ValueError" and "not in" in text
    assert away[2] == 1.0


def test_without_process_group() -> None:
    for kind, text in shared_ranks().run(1, jobs.without_group)[0]:
        assert kind == "ValueError" and "init_process_group" in text


@pytest.mark.parametrize(
    ("what", "words"), [("gradient", "sparse"), ("option", "lr"), ("ballot", "list index out of range")]
)
def test_one_worker_that_cannot_vote(what: str, words: str) -> None:
    answers = shared_ranks().run(3, jobs.one_cannot, what)
    for rank, ((kind, text), untouched, after) in enumerate(answers):
        assert untouched and after[0] == "nothing", after
        if rank == 1:
            assert kind in ("ValueError", "IndexError") and words in text, (kind, text)
        else:
            assert kind == "RuntimeError" and "1" in text, (kind, text)


@pytest.mark.parametrize("algorithm", ["one_phase", "two_phase", "auto"])
def test_nothing_to_move(algorithm: str) -> None:
    for rank, found in enumerate(shared_ranks().run(2, jobs.nothing_to_move, algorithm)):
        own = "IndexError" if rank == 1 else "RuntimeError"
        assert [kind for kind, _ in found] == ["nothing", own, "nothing", "nothing"], found


def test_one_hook_that_cannot_vote() -> None:
    for rank, found in enumerate(shared_ranks().run(3, jobs.one_hook_cannot)):
        kinds = [kind for kind, _ in found]
        own = "ValueError" if rank == 1 else "RuntimeError"
        assert kinds == ["RuntimeError", "nothing", own, "ValueError", "nothing"], found
        assert ("loss_scale: got -3" if rank == 1 else "ranks [1] failed") in found[0][1]
        assert ("strides" if rank == 1 else "ranks [1] failed") in found[2][1]
        assert "numel" in found[3][1]


def test_plain_tensors(figure: Callable[[str], None]) -> None:
    answers = shared_ranks().run(3, jobs.shards)
    for found in answers:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            wanted = (torch.arange(-100, 101) + 0.5).sign()
            wanted[64:128] = 0
            assert bool((found[str(dtype)] == wanted).all())
        assert found["scalar"] == -1 and found["nan"] and found["votes"] == 86
        assert 8 <= found["plus"] <= 32 and found["plus"] == answers[0]["plus"]
    figure(f"a zero is + in {answers[0]['plus']} of 40 votes that take turns with those of another tensor")


def test_broadcasts_of_every_type() -> None:
    answers = shared_ranks().run(3, jobs.broadcast)
    assert answers[0] == answers[1] == answers[2] and len(answers[0]) == 12


@pytest.mark.parametrize(("ties", "times"), [("hash", 1), ("zero", 2), ("previous", 2), (None, 1)])
def test_buffers_are_bits(ties: str | None, times: int, figure: Callable[[str], None]) -> None:
    signs = 1024 * 1000
    buffers = SignBuffers(signs, ties)
    parts = [part for part in vars(buffers).values() if isinstance(part, torch.Tensor)]
    found = sum(part.nbytes for part in parts)
    assert found == times * signs // 8 + signs // 512  # presence, or scales: 2 bytes for 1024
    figure(f"{ties}: {found} bytes for {signs} signs, float32 {4 * signs}")
