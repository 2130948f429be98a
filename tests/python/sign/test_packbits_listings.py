"""Each listing of the document on packbits runs as it stands (packbits_listings.py), on the CPU and on torch's xpu (xpu_device.py),
and does what its code says: also where its words promise more, for which the right function stands beside it."""

from __future__ import annotations

import builtins
import re
import warnings
from collections.abc import Callable
from contextlib import closing, nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from distributed_support import shared_ranks
from lowtide.compat.deepspeed import all_reduce_majority, byte_sum, majority, packbits, parity, unpackbits
from lowtide.distributed import SignAccumulator
from packbits_listings import adapted
from xpu_device import Xpu


class Squares(torch.nn.Module):
    """Some parameters' sizes are multiples of 8, others' are not; the batch gives the gradients."""

    def __init__(self, sizes: tuple[tuple[int, ...], ...]) -> None:
        super().__init__()
        self.parts = torch.nn.ParameterList([torch.zeros(size) for size in sizes])

    def forward(self, batch: Any) -> torch.Tensor:
        random = torch.Generator().manual_seed(int(batch))
        losses = [(part * (torch.randn(part.shape, generator=random) + 0.3).to(part)).sum() for part in self.parts]
        return torch.stack(losses).sum()


def train_step(kind: str, sizes: tuple[tuple[int, ...], ...]) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """By parameter: this rank's ballot, the gradient that the document's trainer leaves, and the majority of all."""
    with pytest.MonkeyPatch.context() as patches, closing(Xpu(patches, VOTERS)) if kind == "xpu" else nullcontext():
        return [tuple(one.cpu() for one in each) for each in _train_step(kind, sizes)]  # type: ignore[misc]


def _train_step(kind: str, sizes: tuple[tuple[int, ...], ...]) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    rank, world = dist.get_rank(), dist.get_world_size()
    names: dict[str, Any] = {}
    exec(adapted("Distributed Training Integration", kind), names)
    model = Squares(sizes).to("cpu" if kind == "cpu" else f"xpu:{rank}")
    model(rank).backward()
    ballots = [packbits(part.grad, part.numel(), rank) for part in model.parts if part.grad is not None]
    model.zero_grad()
    names["XPUDistributedTrainer"](model, rank, world).train_step(rank)
    votes = [all_reduce_majority(b.clone(), part.numel()) for b, part in zip(ballots, model.parts, strict=True)]
    return [(b, part.grad, vote) for b, part, vote in zip(ballots, model.parts, votes, strict=True) if part.grad is not None]


Figure = Callable[[str], None]
SIZES = ((64, 64), (1000,), (3, 7), (1,))
VOTERS = 3


@pytest.fixture(params=["cpu", "xpu"])
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "xpu":
        request.getfixturevalue("xpu").allow(4 << 30)  # for 100 Mi elements
    return str(request.param)


def run(heading: str, kind: str, **given: Any) -> dict[str, Any]:
    """Runs a listing with these names defined, and returns the names that it leaves."""
    names: dict[str, Any] = dict(given)
    exec(adapted(heading, kind), names)
    return names


def agreement(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a == b).float().mean())


def test_basic_gradient_compression(kind: str, capsys: pytest.CaptureFixture[str], figure: Figure) -> None:
    run("Basic Gradient Compression", kind)
    lines = capsys.readouterr().out.splitlines()
    # One bit for 32: the document's comment says 8×.
    wanted = ["Original size: 16777216 bytes", "Packed size: 524288 bytes", "Compression: 32.0×", "Sign accuracy: 100.00%"]
    assert lines == wanted
    figure("; ".join(lines))


def test_sign_sgd_communication(kind: str, seed: int, figure: Figure) -> None:
    model = Squares(SIZES).to(kind)
    model(seed).backward()
    before = [part.detach().clone() for part in model.parts]
    run("SignSGD Communication", kind, model=model, learning_rate=0.125)
    for part, old in zip(model.parts, before, strict=True):
        assert torch.equal(part, old - 0.125 * torch.sign(part.grad))
    elements = sum(part.numel() for part in model.parts)
    figure(f"{elements} elements, of a parameter of one too: each moved by 0.125 sign(gradient)")


def test_distributed_training_integration(kind: str, figure: Figure) -> None:
    answers = shared_ranks().run(VOTERS, train_step, kind, SIZES)
    right = wrong = elements = 0.0
    for number, size in enumerate(SIZES):
        n = torch.Size(size).numel()
        ballots = [answer[number][0] for answer in answers]
        with pytest.warns(UserWarning, match="byte_sum adds bytes.*no majority"):
            summed = byte_sum(ballots)
        signs = torch.stack([unpackbits(ballot, ballot.numel(), 0)[:n] for ballot in ballots]).sum(0).sign()
        for _, grad, vote in (answer[number] for answer in answers):
            # The document's trainer does what `byte_sum` says; the vote equals counting.
            assert torch.equal(grad.view(-1), unpackbits(summed, summed.numel(), 0)[:n])
            assert torch.equal(vote, majority(ballots, n))
            found = unpackbits(vote, vote.numel(), 0)[:n]
            right, wrong = right + n * agreement(found, signs), wrong + n * agreement(grad.view(-1), signs)
            elements += n
    assert right == elements and wrong < 0.9 * elements
    figure(f"{VOTERS} ranks: signs as of the majority {wrong / elements:.1%} by the sum of bytes, 100 % by all_reduce_majority")


def test_memory_efficient_gradient_accumulation(kind: str, figure: Figure) -> None:
    steps = 5

    class Kept:
        """An optimizer that keeps the gradients it was given."""

        def step(self) -> None:
            self.grads = [part.grad.clone() for part in model.parts]

    model, kept = Squares(SIZES).to(kind), Kept()
    left = run("Memory-Efficient Gradient Accumulation", kind, model=model, gradient_accumulation_steps=steps, optimizer=kept)
    assert not any(bool(packed.any()) for packed in left["accumulator"].accumulated.values()), "zero() has been called"
    counts = SignAccumulator(model.parameters(), most=steps)
    ballots: list[list[torch.Tensor]] = [[] for _ in SIZES]
    for batch in range(steps):
        model.zero_grad()
        model(batch).backward()
        for part, packed in zip(model.parts, ballots, strict=True):
            packed.append(packbits(part.grad, part.numel(), 0))
        counts.add()
    counts.finish()
    wrong = elements = 0.0
    for part, grad, packed in zip(model.parts, kept.grads, ballots, strict=True):
        n = part.numel()
        with pytest.warns(UserWarning, match="odd number.*no majority"):
            odd = parity(packed)
        # The document's accumulator does what `parity` says; the vote equals SignAccumulator's.
        assert torch.equal(grad.view(-1), unpackbits(odd, odd.numel(), 0)[:n])
        vote = unpackbits(majority(packed, n), -(-n // 8), 0)[:n]
        assert torch.equal(part.grad.sign().view(-1), vote)
        wrong, elements = wrong + n * agreement(grad.view(-1), vote), elements + n
    assert wrong < 0.9 * elements
    figure(f"{steps} passes: signs as of the majority {wrong / elements:.1%} by XOR, 100 % by SignAccumulator")


def test_benchmarking_compression_speed(kind: str, capsys: pytest.CaptureFixture[str], share: float, figure: Figure) -> None:
    def repeats(count: int) -> range:
        """All repeats where time allows: 220 passes over 400 MiB."""
        return builtins.range(count if share == 1 else max(1, count // 100))

    run("Benchmarking Compression Speed", kind, range=repeats)
    found = re.findall(r"Size: ([\d,]+) elements\nPack time: .*?GB/s\)\nUnpack time: .*?GB/s\)\n", capsys.readouterr().out)
    assert found == ["1,048,576", "10,485,760", "104,857,600"]
    figure("times of packing and unpacking at 1, 10 and 100 Mi elements are printed")


def test_error_feedback_for_improved_accuracy(kind: str, seed: int, figure: Figure) -> None:
    model = Squares(SIZES).to(kind)
    feedback = run("Error Feedback for Improved Accuracy", kind)["ErrorFeedbackSignSGD"](model, 0)
    error = [torch.zeros_like(part) for part in model.parts]
    turned = 0
    for batch in range(3):
        model.zero_grad()
        model(seed + batch).backward()
        grads = [part.grad.clone() for part in model.parts]
        feedback.compress_and_communicate(model)
        for number, (part, grad, kept) in enumerate(zip(model.parts, grads, feedback.error_buffer.values(), strict=True)):
            assert torch.equal(part.grad, torch.where(torch.signbit(grad + error[number]), -1.0, 1.0))
            assert torch.equal(kept, grad - part.grad)
            turned += int((part.grad != grad.sign()).sum())
            error[number] = kept
    assert turned > 0
    figure(f"gradient + error becomes ±1, the error gradient - sign, in 3 steps; {turned} signs are not the gradient's own")


def test_a_vote_warns_of_nothing_and_bad_ballots_are_refused() -> None:
    one, two = torch.tensor([0x80], dtype=torch.uint8), torch.tensor([0x80, 0], dtype=torch.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert majority([one, one, one ^ 0xFF], 8).tolist() == [0x80]
        assert majority([one, one ^ 0xFF], 8, ties="plus").tolist() == [0xFF]
    cases: list[tuple[str, Callable[[], object]]] = [
        ("ballots: got none, wanted one or more", lambda: byte_sum([])),
        (r"ballots\[1\]: got \(2,\), wanted \(1,\)", lambda: parity([one, two])),
        (r"ballots\[0\]: got torch.int32, wanted uint8", lambda: byte_sum([one.int()])),
        ("ties: got 'zero', wanted 'hash'", lambda: majority([one], 8, ties="zero")),
        ("got 1 bytes for n=64 signs, wanted 8", lambda: majority([one], 64)),
    ]
    for words, call in cases:
        with pytest.raises(ValueError, match=words):
            call()
