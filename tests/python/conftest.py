"""Fixtures. `share`: how much of a long test to run. `figure`: records what a test has proved, in numbers, for the summary.
`seed`: makes random tests repeat. `device`: torch's xpu and then its cuda, by stand-ins; `xpu` and `cuda`: one of them;
`machine`: both."""

import gc
import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
import torch

if TYPE_CHECKING:
    import emulated_cuda
    import several_devices_support
    import stand_in
    import xpu_device

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), *(str(path) for path in sorted(HERE.iterdir()) if path.is_dir())]  # for helpers, of any room

_SHARE = float(os.environ.get("LOWTIDE_TEST_SHARE", "1"))  # of the cases of long tests that a run takes
_GOLDEN = 0.6180339887498949  # multiples of it, less their whole parts, are evenly spread (tests/support/test.h)
_XPU = os.environ.get("LOWTIDE_TEST_XPU", "")
_FIGURE = "figure"  # a property of a test's report, which travels between processes


# The slowest files, slowest first. Workers begin with them, because a slow last file would leave the other worker idle.
SLOW = (
    "test_readme", "test_train_llama", "test_gpu_check", "test_distributed", "test_muon_sharded", "test_device_steps",
    "test_deepspeed", "test_stream", "test_vote_devices", "test_bench_e2e", "test_vote_hooks", "test_plan", "test_stream_device",
    "test_packbits_listings", "test_xpu", "test_planning", "test_memory_incidents", "test_train_ddp_sign", "test_fsdp1",
    "test_host_steps", "test_muon", "test_cli", "test_clipping_sharded", "test_votes", "test_stream_trainer", "test_site",
    "test_types", "test_small_examples", "test_loss_parity",
)  # fmt: skip


def _is_on_xpu(item: pytest.Item) -> bool:
    """True for a test on torch's xpu (devices/xpu_device.py)."""
    params = getattr(getattr(item, "callspec", None), "params", {}).values()
    return "xpu" in getattr(item, "fixturenames", ()) or any(isinstance(value, str) and value == "xpu" for value in params)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps the order within a file; all workers must find the same order. LOWTIDE_TEST_XPU is "only" or "without": autograd
    starts threads for the devices that exist at a process's first backward pass, so tests on xpu need their own processes or
    come first."""
    seen: Counter[str] = Counter()
    taken: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        function = item.nodeid.partition("[")[0]
        is_taken = item.get_closest_marker("share") is None or seen[function] * _GOLDEN % 1 < _SHARE
        is_taken &= _XPU in ("", "only" if _is_on_xpu(item) else "without")
        seen[function] += 1
        (taken if is_taken else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = taken
    items.sort(key=lambda item: (not _is_on_xpu(item), SLOW.index(item.path.stem) if item.path.stem in SLOW else len(SLOW)))


def pytest_collection_finish() -> None:
    """Imported objects live to the end. Freezing them makes the hundreds of collections in tests cheap."""
    gc.collect()
    gc.freeze()


def pytest_configure() -> None:
    """A run with its own seed also repeats Hypothesis's examples."""
    hypothesis.settings.register_profile("seeded", derandomize=True)
    if "LOWTIDE_TEST_SEED" in os.environ:
        hypothesis.settings.load_profile("seeded")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for category in terminalreporter.stats.values() for report in category]
    lines = [
        f"{report.nodeid.rsplit('::', 1)[-1]}: {value}"
        for report in reports
        for name, value in getattr(report, "user_properties", ())
        if name == _FIGURE and getattr(report, "when", "") == "call"
    ]
    if lines:
        terminalreporter.section("figures")
        for line in lines:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def share() -> float:
    """The share to run, for long tests whose cases are not parameters."""
    return _SHARE


@pytest.fixture(scope="session")
def in_share() -> Callable[[int, int, int], bool]:
    """Call it with a row, a column and the number of columns: returns whether the share includes that case of a grid. It
    includes at least one case of each row, in columns that take turns."""

    def has(row: int, column: int, columns: int) -> bool:
        return column == int(row * _GOLDEN % 1 * columns) or (row * columns + column) * _GOLDEN % 1 < _SHARE

    return has


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Call it with the figure that proves the test's claim."""

    def record(text: str) -> None:
        print(text)
        request.node.user_properties.append((_FIGURE, text))

    return record


@pytest.fixture
def seed() -> Iterator[int]:
    """LOWTIDE_TEST_SEED, or a new seed per test. torch's generator starts from it, and a failure prints it."""
    value = int(os.environ.get("LOWTIDE_TEST_SEED", random.SystemRandom().randrange(2**31)))
    print(f"seed {value} (repeat with LOWTIDE_TEST_SEED={value})")
    torch.manual_seed(value)
    yield value


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@contextmanager
def _opened(kind: str, patches: pytest.MonkeyPatch, figure: Callable[[str], None]) -> Iterator[Any]:
    """Opens devices of this torch type. Skips, with the reason, if there are none."""
    import emulated_cuda
    import xpu_device

    if reason := emulated_cuda.prepare(patches) if kind == "cuda" else xpu_device.missing():
        figure(f"skipped: {reason}")
        pytest.skip(reason)
    opened = emulated_cuda.EmulatedCuda(patches) if kind == "cuda" else xpu_device.Xpu(patches)
    yield opened
    opened.close()


@pytest.fixture(params=["xpu", "cuda"])
def device(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, figure: Callable[[str], None]
) -> Iterator["stand_in.StandIn"]:
    with _opened(request.param, monkeypatch, figure) as opened:
        yield opened


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch, figure: Callable[[str], None]) -> Iterator["emulated_cuda.EmulatedCuda"]:
    with _opened("cuda", monkeypatch, figure) as opened:
        yield opened


@pytest.fixture
def xpu(monkeypatch: pytest.MonkeyPatch, figure: Callable[[str], None]) -> Iterator["xpu_device.Xpu"]:
    with _opened("xpu", monkeypatch, figure) as opened:
        yield opened


@pytest.fixture
def machine(
    cuda: "emulated_cuda.EmulatedCuda", xpu: "xpu_device.Xpu"
) -> "several_devices_support.Machine":
    import several_devices_support

    return several_devices_support.Machine(cuda, xpu)
