"""Votes of parameters on a device: the bits of the CPU's, for workers that each have parameters there.

Stand-ins take the place of devices (stand_in.py), so this tests Lowtide's kernels and copies, and nothing of torch's streams. Ranks are
threads of one process (rank_threads.py), except in a few cases over gloo. test_votes.py compares the CPU's votes with plain torch."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import vote_device_jobs as jobs
from distributed_support import shared_ranks
from emulated_cuda import prepare
from lowtide import _core
from lowtide.distributed import buffers, device_vote
from rank_threads import Between, RankThreads
from stand_in import StandIn
from vote_device_jobs import VOTES_EACH, cases_of
from xpu_device import missing

Figure = Callable[[str], None]
CASES = 1200  # of each number of workers, each of three votes: 10,800 in all
STAYING = 240  # of votes whose bits a group moves between devices
FEW = 6  # where a run asks for a share of them
AT_A_TIME = 20  # cases, after which the device's memory is freed


def run(ranks: RankThreads, device: StandIn, cases: Sequence[Any]) -> jobs.Found:
    """The first rank's findings; any difference in another rank's is a failure."""
    total = jobs.Found()
    for first in range(0, len(cases), AT_A_TIME):
        for rank, found in enumerate(ranks.run(jobs.compared, device, cases[first : first + AT_A_TIME])):
            assert not found.differing, (rank, found.differing[:3])
        total.join(found)
        gc.collect()
        device.forget_tensors()
    return total


@pytest.mark.parametrize("world", [2, 3, 4])
def test_votes(device: StandIn, world: int, seed: int, share: float, monkeypatch: pytest.MonkeyPatch, figure: Figure) -> None:
    """Optimizers, tensors and hooks; ties, weights, masters, folds, values that are not finite."""
    cases = cases_of(seed + world, CASES if share == 1 else FEW)
    found = run(RankThreads(monkeypatch, world), device, cases)
    assert found.votes == VOTES_EACH * len(cases) and found.skipped > 0
    figure(f"{device.kind}, {world} workers: {found.votes} votes on {found.signs} signs, 0 bits differ from the CPU's")


@pytest.mark.parametrize("world", [2, 3, 4])
def test_votes_whose_bits_stay_on_the_device(
    device: StandIn, world: int, seed: int, share: float, monkeypatch: pytest.MonkeyPatch, figure: Figure
) -> None:
    """As in a group of NCCL or XCCL, bits, presence and scales travel in tensors of the device. The threads stand in for the
    collectives of torch.distributed, and a wait for torch's order on the stream."""
    fetched, between = _watch(monkeypatch, device)
    cases = cases_of(seed + 10 * world, STAYING if share == 1 else FEW)
    found = run(RankThreads(monkeypatch, world, moved=device.kind), device, cases)
    assert found.votes == VOTES_EACH * len(cases) and found.skipped > 0
    moved = sum(one.moved_bytes for one in between)
    assert moved > 0 and fetched and max(fetched) == buffers._MARK
    figure(
        f"{device.kind}, {world} workers: {found.votes} votes on {found.signs} signs, 0 bits differ; {moved} bytes between "
        f"devices, {len(fetched)} marks of {buffers._MARK} bytes to the host, and no ballot"
    )


def _watch(patches: pytest.MonkeyPatch, device: StandIn) -> tuple[list[int], list[Between]]:
    """Bytes of each copy to the host that a vote's buffers make, and all transports to come. Torch's operations on the
    stand-in's memory wait for the device."""
    run_there = device_vote.DeviceVote.run
    patches.setattr(device_vote.DeviceVote, "run", lambda *of: (device.synchronize(), run_there(*of))[1])
    for name in ("vote_ballots", "average_ballots"):
        kernel = getattr(_core, name)
        patches.setattr(_core, name, lambda *of, kernel=kernel: (kernel(*of), device.synchronize())[0])
    fetched: list[int] = []
    fetch = buffers.SignBuffers.fetch

    def watched(self: buffers.SignBuffers, *of: Any) -> bool:
        if not self.place.on_host:
            fetched.append(buffers._MARK if self.stay else self.bits.nbytes)
        return fetch(self, *of)

    patches.setattr(buffers.SignBuffers, "fetch", watched)
    between: list[Between] = []
    made = Between.__init__
    patches.setattr(Between, "__init__", lambda self, *of: (made(self, *of), between.append(self))[0])
    return fetched, between


@pytest.fixture(params=["cuda", "xpu"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, figure: Figure) -> str:
    """A kind of device that processes can have; skipped, with the reason, where there is none."""
    reason = prepare(monkeypatch) if request.param == "cuda" else missing()
    if reason:
        figure(f"skipped: {reason}")
        pytest.skip(reason)
    return str(request.param)


@pytest.mark.share  # every process compiles kernels for xpu
def test_votes_of_processes(kind: str, seed: int, share: float, figure: Figure) -> None:
    """Over gloo, each process with a device, and hooks with threads of their own."""
    cases = cases_of(seed, max(4, int(40 * share)))
    for found in shared_ranks().run(2, jobs.in_process, kind, jobs.compared, cases):
        assert not found.differing, found.differing[:3]
    figure(f"{kind}, 2 processes: {found.votes} votes on {found.signs} signs, 0 bits differ from the CPU's")


def test_what_cannot_vote_there(kind: str) -> None:
    name = f"{kind}:"
    for rank, found in enumerate(shared_ranks().run(2, jobs.in_process, kind, jobs.refusals)):
        two, mixed, model, broken, untouched, after, moved = found
        assert two[0] == mixed[0] == model[0] == "NotImplementedError"
        assert f"{name}0 and {name}1" in two[1] and f"{name}0 and cpu" in mixed[1]
        assert "one device" in model[1] and "bias on cpu" in model[1] and f"weight on {name}0" in model[1]
        assert broken[0] == ("IndexError" if rank == 1 else "RuntimeError"), broken
        assert untouched[1] == "True" and after[0] == "nothing" and moved[1] == "True"
