"""The measurements of a GPU machine (tools/gpu_check.py, bench/cuda), rehearsed on the CPU: each of them runs, and one
that hangs, dies or fails is reported and stops nothing else."""

import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))
sys.path.append(str(ROOT / "tools"))

from bench.cuda import case, figures, instructions, shapes  # noqa: E402
from bench.cuda.device import GIB, MANAGED_CAP, Absent, Gpu  # noqa: E402
from bench.cuda.rows import Rows  # noqa: E402
from gpu import find, report, suites, watchdog  # noqa: E402

# Rows of bitsandbytes, torchao or features that only a device has: rehearsed as "not measured" where they are absent.
MAY_BE_ABSENT = ("torchao", "bitsandbytes", "Paged", "option ", "oom_guard", "demote", "cubin_report")
NAMES = case.names()


@pytest.mark.parametrize("name", NAMES)
def test_every_measurement_runs(name: str, figure: Callable[[str], None], tmp_path: Path) -> None:
    gpu, rows = Gpu(rehearse=True), Rows(tmp_path / "rows.json")
    module = __import__(f"bench.cuda.{name.partition('.')[0]}", fromlist=["CASES"])
    rows.attempt(name, lambda: module.CASES[name](gpu, rows))
    assert rows.rows
    assert json.loads((tmp_path / "rows.json").read_text()) == rows.rows
    absent = [row for row in rows.rows if "absent" in row]
    unexpected = [row for row in absent if not any(word in row["label"] + row["absent"] for word in MAY_BE_ABSENT)]
    assert not unexpected
    for row in rows.rows:
        if row["figure"] == "same_bits":
            assert row["value"] == 0
            assert row["detail"]["compared"] > 1_000_000
    figure(
        f"{len(rows.rows) - len(absent)} rows, {len(absent)} absent; options not taken on the CPU: {sorted(gpu.dropped)}"
    )


def fake_build(folder: Path) -> None:
    """A configured build whose CTest entries pass, fail, die and have no device."""
    passes = '<testsuites><testcase classname="S" name="a"/><testcase classname="S" name="b"/></testsuites>'
    fails = '<testsuites><testsuite><testcase classname="S" name="c"><failure/></testcase></testsuite></testsuites>'
    lines = []
    for name, xml, last in (("good", passes, "True"), ("bad", fails, "sys.exit(1)"), ("dies", "", "os.abort()")):
        program = folder / f"{name}.py"
        program.write_text(
            "import os, sys\nassert os.environ['GIVEN'] + os.environ['ALSO'] == '12'\n"
            f"path, xml = sys.argv[1].partition(':')[2], {xml!r}\n"
            f"xml and open(path, 'w').write(xml)\n{last}\n"
        )
        out = folder.parent / "reports" / f"{name}.xml"
        lines.append(f'add_test({name} "{sys.executable}" "{program}" "--gtest_output=xml:{out}")')
        lines.append(f'set_tests_properties({name} PROPERTIES LABELS "device;cuda" ENVIRONMENT "GIVEN=1;ALSO=2")')
    lines.append(f'add_test(emulated "{sys.executable}" "-c" "1/0")')
    lines.append('set_tests_properties(emulated PROPERTIES LABELS "device;cuda" ENVIRONMENT "LOWTIDE_CUDA_PLUGIN=/x")')
    lines.append(f'add_test(other "{sys.executable}" "-c" "1/0")')
    (folder / "CTestTestfile.cmake").write_text("\n".join(lines) + "\n")


def test_a_rehearsal_ends_with_all_results(figure: Callable[[str], None], tmp_path: Path) -> None:
    cmake = tmp_path / "gpu" / "cmake"
    cmake.mkdir(parents=True)
    fake_build(cmake)
    chosen = ["instructions.cubins", "rehearsal.raises", "rehearsal.crashes", "rehearsal.hangs"]
    site = tmp_path / "gpu" / "site"  # where the package would be: this Python has it
    command = [sys.executable, str(ROOT / "tools" / "gpu_check.py"), "--rehearse", "--build", str(tmp_path / "gpu"),
               "--cases", ",".join(chosen), "--case-seconds", "25"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1, done.stderr[-2000:]  # some cases did go wrong
    assert not site.exists()
    (path,) = (tmp_path / "gpu").glob("rehearsal-*.json")
    result: dict[str, Any] = json.loads(path.read_text())
    cases = result["cases"]
    assert {name: entry["status"] for name, entry in cases.items()} == {
        "instructions.cubins": "ok",
        "rehearsal.raises": "ok",
        "rehearsal.crashes": "failed",
        "rehearsal.hangs": "hung",
    }
    assert cases["rehearsal.crashes"]["code"] == -11
    assert 25 <= cases["rehearsal.hangs"]["seconds"] < 40
    for name in ("crashes", "hangs"):  # what was measured before is kept
        assert [row["value"] for row in cases[f"rehearsal.{name}"]["rows"]] == [1]
    assert "as meant" in cases["rehearsal.raises"]["rows"][0]["absent"]
    assert result["rehearsal"] is True
    assert result["machine"]["torch"]["torch"]
    if find.tool("ctest", []):
        found = {name: (entry["status"], entry.get("passed")) for name, entry in result["suites"].items()}
        found.pop("compute-sanitizer", None)
        assert {name: value for name, value in found.items() if " " not in name} == {
            "good": ("ok", 2), "bad": ("failed", 0), "dies": ("failed", None)
        }  # fmt: skip
        assert result["suites"]["bad"]["failed"] == ["S.c"]
    by_what = {entry["what"]: entry for entry in result["figures"]}
    assert len(by_what) == len(figures.FIGURES)
    assert by_what["bytes of spills in all kernels"]["reached"] is True
    assert by_what["everything fits: Memory(...) / none"]["got"] is None
    text = path.with_suffix(".md").read_text()
    assert "| everything fits: Memory(...) / none | ≤ 1.01 | not measured |" in text
    assert "A rehearsal on the CPU" in text
    assert "rehearsal.hangs: hung" in text
    figure(
        f"{len(cases)} cases, {len(result['suites'])} suites; one was killed after {cases['rehearsal.hangs']['seconds']} s"
    )


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    if find.gpu():
        pytest.skip("this machine has a GPU")
    env = {**os.environ, "PATH": str(tmp_path), "CUDA_HOME": ""}
    command = [
        sys.executable,
        str(ROOT / "tools" / "gpu_check.py"),
        "--build",
        str(tmp_path / "gpu"),
        "--python",
        "/no/python",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env)
    assert done.returncode == 2
    for text in ("no GPU", "no torch", "no g++", "no cmake", "neither ninja nor make"):
        assert f"missing: {text}" in done.stdout
    assert not list(tmp_path.rglob("*.md"))


def _is_alive(status: Path) -> bool:
    try:
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_the_watchdog_kills_children_too(tmp_path: Path) -> None:
    marker = tmp_path / "pid"
    script = textwrap.dedent(f"""
        import subprocess, time
        child = subprocess.Popen(["sleep", "600"])
        open({str(marker)!r}, "w").write(str(child.pid))
        time.sleep(600)
    """)
    result = watchdog.run([sys.executable, "-c", script], 3, tmp_path / "log")
    assert result.status == "hung"
    status = Path(f"/proc/{marker.read_text()}/stat")
    deadline = time.monotonic() + 10  # a process that was killed dies when it is next run
    while (alive := _is_alive(status)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not alive
    assert watchdog.run(["/no/such/program"], 3, tmp_path / "log").status == "missing"


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
    assert by_id["resident_8bit"].reached(0.9) and not by_id["resident_8bit"].reached(0.89)
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


def test_cubins_are_read_as_cuobjdump_prints_them() -> None:
    assert instructions.usage(instructions.SAMPLE) == {"sm_90": [("_Z4stepv", 80, 0)]}


def test_reports_of_suites_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "r.xml"
    path.write_text(
        '<s><testcase name="a"/><testcase name="b"><skipped/></testcase><testcase name="c"><error/></testcase></s>'
    )
    assert suites.cases(path) == {"passed": 1, "failed": ["None.c"], "skipped": 1}
    assert suites.cases(tmp_path / "none.xml") == {}
    assert report.VERDICT[False] == "**no**"
