"""State gives way or is read ahead as the device's memory is short or plentiful. On CPU parameters that count as on a device,
whose free memory the test sets."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import lowtide
import pytest
import torch
from lowtide.devices import places
from lowtide.optimizers import backward
from lowtide.report.log import Residency, logger
from lowtide.report.fields import CoreReport
from support import bits, parameter
from torch.distributed.tensor import distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

Figure = Callable[[str], None]
MEMORY = 1 << 30


class Elsewhere:
    """A device that computes like the CPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free = MEMORY
        self.capturing = False
        self.emptied = 0
        kind = places.Kind(
            "cpu",
            lambda _: 0,
            lambda _: MEMORY,
            free=lambda _: self.free,
            capturing=lambda _: self.capturing,
            empty_cache=self._empty,
        )
        monkeypatch.setitem(places.KINDS, "xpu", kind)
        monkeypatch.setattr(places, "device_of", lambda _: torch.device("xpu", 0))

    def _empty(self) -> None:
        self.emptied += 1


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Elsewhere:
    return Elsewhere(monkeypatch)


def watched(opt: lowtide.Optimizer, monkeypatch: pytest.MonkeyPatch, name: str, give: int) -> list[Any]:
    """Records the first arguments, sizes, of later calls of the engine's method, which returns `give`."""
    asked: list[Any] = []

    def method(*args: Any) -> int:
        asked.append(args[0] if args else None)
        return give

    monkeypatch.setattr(opt.engine, name, method)
    return asked


def run(params: list[torch.nn.Parameter]) -> torch.Tensor:
    loss: torch.Tensor = sum((p * p).sum() for p in params)  # type: ignore[assignment]
    loss.backward()
    return loss.detach()


def test_reading_ahead(elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch, figure: Figure) -> None:
    monkeypatch.setattr(backward, "_ASK_AFTER", 4096)
    params = [parameter(1024) for _ in range(6)]  # gradients of 4096 bytes
    opt = lowtide.AdamW(params, prefetch_in_backward=True)
    asked = watched(opt, monkeypatch, "prefetch", 1000)
    run(params)
    assert asked == [], "how many passes a step has is not known yet"
    opt.step()
    opt.zero_grad()
    run(params)
    reserve = MEMORY // 32
    # The whole memory, less what has been taken, if only so much were free; and less gradients to come.
    assert asked == [MEMORY - 4096 * (5 - i) - reserve for i in range(6)]
    opt.step()
    opt.zero_grad()
    asked.clear()
    elsewhere.free = reserve + 3 * 4096
    run(params)
    assert asked == [4096 * (3 - (5 - i)) for i in range(3, 6)], "asked for nothing while gradients need it"
    opt.step()
    opt.zero_grad()
    asked.clear()
    elsewhere.capturing = True
    run(params)
    assert asked == [], "a recording must not depend on it"
    figure("6 + 3 questions, each for what is free beside gradients to come")


def test_reading_ahead_with_accumulation(elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch, figure: Figure) -> None:
    monkeypatch.setattr(backward, "_ASK_AFTER", 0)
    params = [parameter(64) for _ in range(3)]
    opt = lowtide.AdamW(params, prefetch_in_backward="1000B")
    asked = watched(opt, monkeypatch, "prefetch", 400)
    passes = []
    for step, micro_batches in enumerate((3, 3, 2, 2)):
        for i in range(micro_batches):
            before = len(asked)
            run(params)
            passes.append((step, i, len(asked) - before))
        if step == 1:
            assert asked == [1000, 600, 200], "never more than the limit"
        opt.step()
        opt.zero_grad()
    assert [entry for entry in passes if entry[2]] == [(1, 2, 3), (3, 1, 3)], "the last pass, as the step before had it"
    figure(f"{len(passes)} passes: {passes}")


def test_reading_ahead_takes_no_unknown_memory(elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backward, "_ASK_AFTER", 0)
    elsewhere.free = -1
    for limit, wanted in ((True, []), ("64KiB", [65536])):
        params = [parameter(64)]
        opt = lowtide.AdamW(params, prefetch_in_backward=limit)
        asked = watched(opt, monkeypatch, "prefetch", 0)
        for _ in range(2):
            run(params)
            opt.step()
        assert asked == wanted


class Short:
    """A micro-batch that runs out of memory as often as told: before, within or after its backward."""

    def __init__(self, params: list[torch.nn.Parameter], times: int, when: str) -> None:
        self.params, self.times, self.when, self.calls = params, times, when, 0

    def __call__(self, weight: float = 1.0) -> float:
        """Runs the micro-batch."""
        self.calls += 1
        short, self.times = self.times > 0, self.times - 1
        if short and self.when == "before":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        loss = run(self.params[:1] if short else self.params)
        if short:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return float(loss) * weight


@pytest.mark.parametrize("when", ["before", "within"])
def test_a_guarded_call_is_made_again(
    elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch, when: str, caplog: pytest.LogCaptureFixture, figure: Figure
) -> None:
    params = [parameter(64), parameter(9)]
    opt = lowtide.AdamW(params)
    demoted = watched(opt, monkeypatch, "demote", 3 << 20)
    short = Short(params, 1, when)
    caplog.set_level(logging.INFO, "lowtide")
    loss = opt.oom_guard()(short.__call__)(weight=2.0)
    assert loss == pytest.approx(2 * sum(float((p.detach() ** 2).sum()) for p in params))
    assert all(torch.equal(p.grad, 2 * p) for p in params if p.grad is not None), "one backward, not one and a half"
    assert demoted == [None] and elsewhere.emptied == 1 and short.calls == 2
    assert "3.00 MiB of state" in caplog.text

    short.times = 2
    opt.zero_grad()
    with pytest.raises(torch.OutOfMemoryError, match=r"2 GiB \(lowtide moved 3.00 MiB .* and tried again\)") as caught:
        opt.oom_guard()(short.__call__)()
    assert short.calls == 4 and opt.oom_guard()(short.__call__).__doc__ == Short.__call__.__doc__
    figure(str(caught.value))


def test_a_guard_does_not_spoil_accumulated_gradients(
    elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch, figure: Figure
) -> None:
    params = [parameter(64), parameter(9)]
    opt = lowtide.AdamW(params)
    watched(opt, monkeypatch, "demote", 0)
    for when, calls in (("before", 2), ("within", 1)):
        opt.zero_grad()
        run(params)
        short = Short(params, 1, when)
        if when == "before":
            opt.oom_guard()(short.__call__)()
            assert all(torch.equal(p.grad, 4 * p) for p in params if p.grad is not None)
        else:
            with pytest.raises(torch.OutOfMemoryError, match="not tried again: backward has added to gradients"):
                opt.oom_guard()(short.__call__)()
        assert short.calls == calls
    within = lowtide.AdamW(params, step_in_backward=0)
    watched(within, monkeypatch, "demote", 0)
    opt.zero_grad()
    short = Short(params, 1, "within")
    with pytest.raises(torch.OutOfMemoryError, match="not tried again"):
        within.oom_guard()(short.__call__)()
    figure("tried again where that is the same, not where it is not")


def test_a_guard_around_a_block(elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch) -> None:
    opt = lowtide.AdamW([parameter(3)])
    demoted = watched(opt, monkeypatch, "demote", 0)
    with pytest.raises(torch.OutOfMemoryError, match="^no memory$"), opt.oom_guard():
        raise torch.OutOfMemoryError("no memory")
    assert demoted == [None] and elsewhere.emptied == 1
    with pytest.raises(ValueError, match="other"), opt.oom_guard():
        raise ValueError("other")
    with opt.oom_guard():
        pass
    assert demoted == [None]


def test_what_is_told(elsewhere: Elsewhere, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    opt = lowtide.AdamW([parameter(3)])
    found: CoreReport = opt.report()
    residency = Residency()
    caplog.set_level(logging.INFO, "lowtide")
    residency.look(found)
    assert caplog.text == ""
    found |= {"transfer": "zero_copy", "moved_per_step": 77, "promotions": 2, "device_bytes": 40, "state_bytes": 60}
    for _ in range(2):
        residency.look(found)
    assert [record.getMessage() for record in caplog.records] == [
        "state streams to the device by zero_copy: 77 bytes a step",
        "state was moved to the device 2 and away 0 times; 40 of 60 bytes are there",
    ]
    logger.warning("to nobody")
    assert capfd.readouterr() == ("", ""), "nothing is printed"


def test_refused(figure: Figure) -> None:
    params = [parameter(3)]
    before = bits(params[0])
    with pytest.raises(TypeError, match="prefetch_in_backward: got None"):
        lowtide.AdamW(params, prefetch_in_backward=None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="prefetch_in_backward"):
        lowtide.AdamW(params, prefetch_in_backward="a lot")
    opt = lowtide.AdamW(params)
    for call in (opt.demote, opt.prefetch):
        with pytest.raises(ValueError, match="size: got -1"):
            call(-1)
        with pytest.raises(TypeError, match="size"):
            call(1.5)  # type: ignore[arg-type]
        assert call("1MiB") == 0, "nothing of the CPU moves"
    opt.synchronize()
    with pytest.raises(ValueError, match="capturable: got True"):
        lowtide.AdamW(params, capturable=True)
    assert bits(params[0]) == before
    figure("8 refused by name")


def test_what_has_the_host_decide_is_not_captured(elsewhere: Elsewhere, figure: Figure) -> None:
    torch.distributed.init_process_group("fake", rank=0, world_size=1, store=FakeStore())
    try:
        mesh = torch.distributed.init_device_mesh("cpu", (1,))
        param = torch.nn.Parameter(distribute_tensor(torch.ones(3), mesh))
        opt = lowtide.AdamW([param])
        (param * param).sum().backward()
        elsewhere.capturing = True
        before = bits(param.to_local())
        with pytest.raises(ValueError, match="DTensor parameters whose gradients are checked while a graph is captured"):
            opt.step()
        assert bits(param.to_local()) == before
        elsewhere.capturing = False
        opt.step()
        assert bits(param.to_local()) != before
    finally:
        torch.distributed.destroy_process_group()
    figure("refused by name, and stepped after it")
