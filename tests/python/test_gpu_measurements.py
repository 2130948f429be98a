"""The measurements of a GPU machine (bench/cuda), rehearsed on the CPU: each of them runs."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import gpu_support  # noqa: F401 (makes the tools importable)
import pytest

from bench.cuda import case, counters, emulated, figures, model, resident, rows, shapes
from bench.cuda.device import GIB, MANAGED_CAP, Gpu, bytes_of
from bench.cuda.rows import Absent, Rows
from gpu import plan, suites

# Rows of bitsandbytes, torchao or features that only a device has: rehearsed as "not measured" where they are absent.
MAY_BE_ABSENT = ("torchao", "bitsandbytes", "FlashOptim", "option ", "oom_guard", "demote", "has no graphs", "has no CUDA runtime")
NAMES = case.names()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    """A rehearsal's: the emulated CUDA runtime where that is built, else the CPU."""
    import emulated_cuda

    with contextlib.suppress(ImportError):  # its first import keeps an exception, with the frames that wanted it
        import bitsandbytes  # noqa: F401
    if emulated_cuda.prepare(monkeypatch):
        yield Gpu(rehearse=True)
        return
    opened = emulated_cuda.EmulatedCuda(monkeypatch)
    yield emulated.EmulatedGpu(opened)
    opened.close()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.share
def test_every_measurement_runs(name: str, gpu: Gpu, figure: Callable[[str], None], tmp_path: Path) -> None:
    check_measurement(name, gpu, figure, tmp_path / "rows.jsonl")


@pytest.mark.parametrize("name", ["smoke", "paged.dynamic8", "overlap.fp32"])
@pytest.mark.share
def test_measurements_run_without_any_device(name: str, figure: Callable[[str], None], tmp_path: Path) -> None:
    check_measurement(name, Gpu(rehearse=True), figure, tmp_path / "rows.jsonl")


def check_measurement(name: str, gpu: Gpu, figure: Callable[[str], None], path: Path) -> None:
    found = Rows(name, path)
    module = __import__(f"bench.cuda.{name.partition('.')[0]}", fromlist=["CASES"])
    found.attempt(name, lambda: module.CASES[name](gpu, found))
    assert found.rows
    assert rows.read(path, name) == found.rows
    assert rows.read(path, "another") == []
    absent = [row for row in found.rows if "absent" in row]
    unexpected = [row for row in absent if not any(word in row["label"] + row["absent"] for word in MAY_BE_ABSENT)]
    assert not unexpected
    for row in found.rows:
        if row["figure"] in ("same_bits", "smoke", "mantissas"):
            assert row["value"] == 0
        if row["figure"] == "same_bits":
            assert row["detail"]["compared"] > 100_000
    figure(f"{type(gpu).__name__}: {len(found.rows) - len(absent)} rows, {len(absent)} absent; left out on the CPU: "
           f"{sorted(gpu.dropped)}")  # fmt: skip


def test_two_commands_have_every_measurement_and_enough_time(figure: Callable[[str], None]) -> None:
    planned = [step.name for steps in plan.COMMANDS.values() for step in steps]
    assert sorted(name for name in planned if name in NAMES) == sorted([*NAMES, plan.SMOKE])  # that one opens both
    assert set(planned) - set(NAMES) == {"suite device", "suite python", *suites.CHECKERS}
    assert all(steps[0].name == plan.SMOKE for steps in plan.COMMANDS.values())
    for command in plan.COMMANDS:
        assert plan.estimate(command) <= plan.LIMIT_S < 570
        figure(f"{command}: {len(plan.COMMANDS[command])} steps, about {plan.estimate(command):.0f} s")


def test_managed_memory_is_guarded() -> None:
    gpu = Gpu(rehearse=True)
    gpu.allow_managed(16 * GIB)
    with pytest.raises(Absent, match="at most"):
        gpu.allow_managed(MANAGED_CAP - 16 * GIB + 1)
    with pytest.raises(Absent, match="no ballast"):
        gpu.ballast(leave=0)
    other = Gpu(rehearse=True)
    other.ballast(leave=(64 << 20) - 1)
    with pytest.raises(Absent, match="no managed memory"):
        other.allow_managed(1)


def test_managed_memory_needs_room(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(rehearse=True)
    monkeypatch.setattr(gpu, "rehearsed", False)
    monkeypatch.setattr(gpu, "free", lambda: 20 * GIB)
    gpu.allow_managed(12 * GIB)
    with pytest.raises(Absent, match="bytes free"):
        gpu.allow_managed(1)


def test_figures_are_judged_by_what_must_be() -> None:
    by_id = {figure.id: figure for figure in figures.FIGURES}
    assert by_id["resident_default"].reached(0.78) and not by_id["resident_default"].reached(0.77)
    assert by_id["fits_overhead"].reached(1.01) and not by_id["fits_overhead"].reached(1.02)
    assert by_id["same_bits"].reached(0) and not by_id["same_bits"].reached(1)
    rows = [{"figure": "overlap", "label": "", "value": 0.0, "unit": "x",
             "detail": {"tokens": tokens, "hidden_from_tokens": 100, "hidden": tokens > 150}} for tokens in (50, 120, 200)]  # fmt: skip
    (entry,) = figures.judge(by_id["overlap"], rows)
    assert entry["got"].startswith("1 of 2 points")


def test_shapes_have_the_asked_elements() -> None:
    assert len(shapes.llama_7b(10**9)) == 291
    assert abs(shapes.total(shapes.llama_7b(1_500_000_000)) / 1.5e9 - 1) < 0.05
    assert abs(shapes.total(shapes.equal(2_000_000_000, 30)) / 2e9 - 1) < 0.01


def test_counters_are_read_as_ncu_prints_them() -> None:
    (launch,) = counters.metrics("==PROF== Connected\n" + counters.SAMPLE)
    assert launch == {
        "kernel": "lt::step(Batch)",
        "DRAM Throughput": "88.10 %",
        "Registers Per Thread": "80 register/thread",
    }
    assert counters.number("1,234.5 %") == 1234.5


def test_of_every_measured_step_a_share_is_expected() -> None:
    here = Gpu(rehearse=True)
    for state, label, options in resident.STEPS:
        share = model.expected(here, "AdamW", state, "bf16", options, 3e12)
        assert share is not None and 0.1 < share <= 1, label
    assert model.expected(here, "AdamW", "dynamic8", "fp16", {}, 3e12) is None
    here.rehearsed, here.cuda = False, SimpleNamespace(get_device_properties=lambda _: SimpleNamespace(major=12))
    assert model.expected(here, "AdamW", "dynamic8", "bf16", {}, 3e12) is None  # counted for another architecture


def test_sizes_have_units(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bytes_of("100G") == bytes_of("100GiB") == 100 << 30
    assert bytes_of(" 5 GB ") == 5 * 10**9 and bytes_of("4096") == 4096
    with pytest.raises(ValueError, match="many"):
        bytes_of("many")
    monkeypatch.setenv("LOWTIDE_HOST_BYTES", "100G")
    assert Gpu(rehearse=True).host_free() == 100 << 30
