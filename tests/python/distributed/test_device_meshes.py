"""DTensors whose local part is on a device: the steps of CPU meshes, checkpoints from and to them, saves under way. The
devices are stood in for: torch takes their memory for the CPU's, so how torch moves DTensors of a device is not seen."""

from __future__ import annotations

from pathlib import Path

import device_mesh_jobs as jobs
import emulated_cuda
import pytest
import stand_in
from distributed_jobs import Layout
from distributed_support import differing, shared_ranks, size

ROWS, COLUMNS = Layout("rows", (2,)), Layout("columns", (2,))


@pytest.fixture(autouse=True)
def _there(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, figure) -> None:
    kind = request.node.callspec.params["kind"]
    checks = {"xpu": lambda: stand_in.missing("sycl"), "cuda": lambda: emulated_cuda.prepare(monkeypatch)}
    reason = checks.get(kind.partition("+")[0])
    if reason and (text := reason()):
        figure(f"skipped: {text}")
        pytest.skip(text)


@pytest.mark.parametrize(
    ("kind", "rule", "state", "master", "budget", "layout"),
    [  # a SYCL device compiles kernels in each process: one combination is enough for it
        ("xpu", "adamw", "dynamic8", "residual16", "auto", ROWS),
        ("cuda", "adamw", "dynamic8", "residual16", "auto", ROWS),
        ("cuda", "lion", "float8", None, "streaming", COLUMNS),
        ("cuda+cpu", "adamw", "dynamic8", "residual16", "auto", ROWS),
    ],
    ids=str,
)
def test_steps_are_those_of_a_mesh_of_the_cpu(
    kind: str, rule: str, state: str, master: str | None, budget: str, layout: Layout, figure
) -> None:
    """Under FSDP2's cut, by rows, and tensor parallelism's other one."""
    compared = on_device = 0
    wanted, _ = shared_ranks().run(2, jobs.uninterrupted, "cpu", layout, rule, state, master=master)[0]
    for found, there in shared_ranks().run(2, jobs.uninterrupted, kind, layout, rule, state, budget, master=master):
        assert differing(found, wanted) == []
        compared += size(found)
        on_device += there
    assert on_device
    figure(f"{compared} bytes compared, 0 differ; {on_device} bytes of state on devices")


@pytest.mark.parametrize("kind", ["xpu", "cuda"])
def test_checkpoints_go_to_meshes_of_the_cpu_and_back(kind: str, tmp_path: Path, figure) -> None:
    compared = 0
    what = ("adamw", "dynamic8")
    for source, target, budget in ((kind, "cpu", "auto"), ("cpu", kind, "streaming")):
        path = str(tmp_path / source)
        wanted, _ = shared_ranks().run(
            2, jobs.uninterrupted, source, ROWS, *what, budget, path=path, master="residual16"
        )[0]
        one = Layout("rows", (1,))
        for found in shared_ranks().run(1, jobs.resumed, target, one, *what, path, budget, master="residual16"):
            assert differing(found, wanted) == [], source
            compared += size(found)
    figure(f"{compared} bytes compared, 0 differ")


@pytest.mark.parametrize(
    ("kind", "blocking", "budget"),
    [("cpu", False, ""), ("cpu", True, ""), ("xpu", False, "auto"), ("cuda", False, "streaming")],
)
def test_a_save_under_way_has_the_state_of_the_call(
    kind: str, blocking: bool, budget: str, tmp_path: Path, figure
) -> None:
    path = str(tmp_path)
    wanted = shared_ranks().run(2, jobs.saved_while_stepping, kind, ROWS, "dynamic8", path, blocking, budget)[0]
    [found] = shared_ranks().run(1, jobs.read_back, Layout("rows", (1,)), "dynamic8", path)
    assert differing(found, wanted) == []
    figure(f"{size(found)} bytes compared, 0 differ")
