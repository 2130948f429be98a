"""The measurements of a GPU machine (bench/cuda), rehearsed on the CPU: each of them runs."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import gpu_support  # noqa: F401 (makes the tools importable)
import pytest

from bench.cuda import case, counters, emulated, figures, rows, shapes, timing, variants
from bench.cuda.device import GIB, MANAGED_CAP, Gpu
from bench.cuda.rows import Absent, Rows
from gpu import plan, suites

# Rows of bitsandbytes or features that only a device has: rehearsed as "not measured" where they are absent.
MAY_BE_ABSENT = ("bitsandbytes", "FlashOptim", "option ", "oom_guard", "demote", "has no graphs", "has no CUDA runtime", "no variant is faster")
NAMES = case.names()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    """A rehearsal's device: the emulated CUDA runtime where it is built, else the CPU."""
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
    path = tmp_path / "rows.jsonl"
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


def test_the_queue_has_every_measurement(figure: Callable[[str], None]) -> None:
    planned = [step.name for step in plan.QUEUE]
    assert planned[0] == plan.SMOKE and len(set(planned)) == len(planned)
    assert set(planned) == {*NAMES, "suite device", *suites.PYTHON_TESTS, *suites.CHECKERS}
    figure(f"{len(planned)} steps, about {plan.SETUP_S + sum(step.estimate_s for step in plan.QUEUE):.0f} s")


def test_figures_are_judged_by_what_must_be() -> None:
    by_id = {figure.id: figure for figure in figures.FIGURES}
    assert by_id["resident_default"].reached(0.93) and not by_id["resident_default"].reached(0.92)
    assert by_id["fits_overhead"].reached(1.01) and not by_id["fits_overhead"].reached(1.02)
    assert by_id["same_bits"].reached(0) and not by_id["same_bits"].reached(1)
    row = {"figure": "norms", "label": "LAMB", "value": 1.9}
    (entry,) = figures.judge(by_id["norms"], [row])
    assert (entry["got"], entry["must"], entry["reached"]) == (1.9, "≤ 2", True)
    (entry,) = figures.judge(by_id["norms"], [{"figure": "norms", "label": "LARS", "absent": "why"}])
    assert (entry["got"], entry["reason"]) == (None, "why")


def test_the_time_of_a_stream_has_none_of_the_host(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device's clock, and a device that does 1 ms of work in a call of 5 ms: a held stream is done with that by then."""
    now, device = [0.0], [0.0]

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            self.at = 0.0

        def record(self) -> None:
            self.at = device[0] = max(device[0], now[0])

        def elapsed_time(self, end: "Event") -> float:
            return (end.at - self.at) * 1e3

    def run() -> None:
        now[0] += 5e-3
        device[0] = max(device[0], now[0]) + 1e-3

    def hold(seconds: float) -> None:
        device[0] = max(device[0], now[0]) + seconds

    def synchronize() -> None:
        now[0] = device[0] = max(device[0], now[0])

    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(gpu, "hold", hold)
    monkeypatch.setattr(gpu.cuda, "Event", Event)
    monkeypatch.setattr(gpu.cuda, "synchronize", synchronize)
    steps = {"step": timing.Step(run)}
    held, idle = timing.in_turns(gpu, steps)["step"], timing.in_turns(gpu, steps, idle=True)["step"]
    assert held.event == pytest.approx([1e-3] * 2) and held.call == pytest.approx([5e-3] * 2) and not held.wall
    assert idle.wall == pytest.approx([6e-3] * 2) and not idle.event


def test_managed_memory_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
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
    real = Gpu(rehearse=True)
    monkeypatch.setattr(real, "rehearsed", False)
    monkeypatch.setattr(real, "free", lambda: 20 * GIB)
    real.allow_managed(12 * GIB)
    with pytest.raises(Absent, match="bytes free"):
        real.allow_managed(1)


def test_shapes_are_those_of_the_models() -> None:
    whole = {shapes.LLAMA_7B: 6_738_415_616, shapes.LLAMA_8B: 8_030_261_248}
    for model, count in whole.items():
        assert shapes.total(model.shapes(model.layers)) == count == shapes.total(model.fitting(10**10))
        fitted = model.fitting(1_750_000_000)
        assert 0.8 < shapes.total(fitted) / 1.75e9 <= 1 and (model.feed_forward, model.width) in fitted
    assert len(shapes.LLAMA_100M.shapes(32)) == 291
    assert abs(shapes.total(shapes.LLAMA_100M.shapes(32)) / 1e8 - 1) < 0.2
    assert abs(shapes.total(shapes.equal(2_000_000_000, 30)) / 2e9 - 1) < 0.01


def test_a_variant_that_fails_stops_no_other(gpu: Gpu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Processes stand in for the measuring ones: one dies, one has other bits, one is fastest."""
    for name in ("1-dies", "2-wrong", "3-best"):
        (tmp_path / f"{name}.so").touch()
    program = tmp_path / "program.py"
    program.write_text(f"""
import json, os, sys, time
print("loading")
if "dies" in (path := os.environ.get("LOWTIDE_CUDA_PLUGIN", "")):
    sys.exit("no kernel image")
print("ready", flush=True)
sys.stdin.readline()
shares = {{"2": 0.99, "3": 0.95}}
name = os.path.basename(path)[:1]
for step in {list(variants.STEPS)}:
    print(json.dumps({{"step": step, "share": shares.get(name, 0.8), "differing": int(name == "2"), "hash": "a"}}), flush=True)
time.sleep(60)
""")
    monkeypatch.setenv("LOWTIDE_VARIANTS", str(tmp_path))
    monkeypatch.setenv("LOWTIDE_SCRATCH", str(tmp_path))
    monkeypatch.delenv("LOWTIDE_CUDA_PLUGIN", raising=False)
    monkeypatch.setattr(variants, "__file__", str(program))
    found = Rows("variants.steps")
    variants.compare(gpu, found)
    by_label = {row["label"]: row for row in found.rows}
    assert by_label["1-dies, fp32: bandwidth / copy"]["absent"] == "no kernel image"
    assert by_label["2-wrong: differing bytes"]["value"] == len(variants.STEPS)
    assert by_label["the package's, default: bandwidth / copy"]["figure"] == "resident_default"
    assert by_label["the fastest with the CPU's bits: 3-best, mean"]["value"] == pytest.approx(0.95)
    assert variants.best() == str(tmp_path / "3-best.so")


def test_counters_are_read_as_ncu_prints_them() -> None:
    (launch,) = counters.metrics("==PROF== Connected\n" + counters.SAMPLE)
    assert launch == {"kernel": "lt::step(Batch)", "dram__throughput.avg.pct_of_peak_sustained_elapsed": "88.10 %",
                      "dram__bytes_read.sum": "1,234.5 Mbyte", "launch__registers_per_thread": "80 register/thread"}  # fmt: skip
    assert counters.number("1,234.5 %") == 1234.5
