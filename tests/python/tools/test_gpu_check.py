"""The command that measures on a GPU machine (tools/gpu_check.py), rehearsed on the CPU: a part that hangs, dies or fails is
reported and stops nothing else."""

import argparse
import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from gpu_support import TOOL, options

from bench.cuda.rows import Rows
from gpu import machine, parts, plan, results, sources, suites, watchdog
from gpu.check import Check


def fake_tests(folder: Path, passes: bool) -> Path:
    """A program in place of the one that tests devices."""
    cases = (
        '<testcase classname="S" name="a"/><testcase classname="S" name="b">'
        + ("" if passes else "<failure/>")
        + "</testcase>"
    )
    program = folder / parts.TESTS
    program.write_text(
        f"#!{sys.executable}\nimport os, sys\nassert os.environ['LOWTIDE_TEST_DEVICE'] == 'cuda'\n"
        f"open(sys.argv[1].partition(':')[2], 'w').write({'<s>' + cases + '</s>'!r})\nsys.exit({int(not passes)})\n"
    )
    program.chmod(0o755)
    return folder


def merged(folder: Path, target: Path) -> dict[str, Any]:
    command = [sys.executable, str(TOOL), "merge", str(folder), "--rehearse", "--out", str(target)]
    subprocess.run(command, check=True, timeout=60)
    (path,) = target.glob("rehearsal-*.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@dataclass
class Rehearsal:
    """One shared rehearsal of a whole command: each of its processes imports torch."""

    code: int
    errors: str
    out: Path
    killed: Path  # the results that a command leaves when killed in a hanging last step

    @property
    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(next(self.out.glob("run-*.json")).read_text())
        return found


@pytest.fixture(scope="module", autouse=True)
def begun(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Future[Rehearsal]]:
    """Begins with the first test of this file: the rehearsal waits for half of its time, in which the other tests run."""
    folder = tmp_path_factory.mktemp("rehearsal")
    chosen = ["smoke", "bits.mantissas", "rehearsal.raises", "rehearsal.crashes", "suite device", "rehearsal.hangs"]
    command = [sys.executable, str(TOOL), "run", "--rehearse", "--build", str(folder / "gpu"),
               "--steps", ",".join(chosen), "--tests", str(fake_tests(folder, passes=False))]  # fmt: skip
    out, errors = folder / "out", folder / "errors"
    with open(errors, "wb") as file:
        process = subprocess.Popen(command, env={**os.environ, "OUT": str(out)}, stdout=subprocess.DEVNULL, stderr=file)

    def watch() -> Rehearsal:
        while process.poll() is None and not any("before it hung" in path.read_text() for path in out.glob("*.rows.jsonl")):
            time.sleep(0.05)
        shutil.copytree(out, folder / "killed")
        return Rehearsal(process.wait(300), errors.read_text(), out, folder / "killed")

    with ThreadPoolExecutor(1) as thread:
        yield thread.submit(watch)
        process.terminate()  # if no test has waited for it


@pytest.fixture
def rehearsal(begun: Future[Rehearsal]) -> Rehearsal:
    return begun.result()


def test_a_step_that_no_longer_fits_is_left_to_the_next_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = (plan.Step(plan.SMOKE, 1), plan.Step("overlap.dynamic8", 50), plan.Step("suite device", 5), plan.Step("memcheck", 5))
    monkeypatch.setattr(Check, "case", lambda check, name, limit, more: case_of(name))
    first = command(tmp_path, seconds=45)
    first.folders.given_tests = fake_tests(tmp_path, passes=True)
    first.take(first.wanted(queue))
    left_out = first.result["cases"]["overlap.dynamic8"]
    assert left_out["status"] == "not run" and "takes about 50 s" in left_out["reason"]
    assert first.result["suites"]["suite device"]["passed"] == 2
    assert first.result["suites"]["memcheck"]["status"] == "not run"
    second = command(tmp_path)
    assert [step.name for step in second.wanted(queue)] == [plan.SMOKE, "overlap.dynamic8", "memcheck"]
    second.take(second.wanted(queue))
    both = merged(tmp_path / "out", tmp_path / "both")
    assert labels(both) == {plan.SMOKE: [plan.SMOKE], "overlap.dynamic8": ["overlap.dynamic8"]}
    assert both["suites"]["suite device"]["passed"] == 2


def test_a_step_that_was_cut_off_is_not_known(tmp_path: Path) -> None:
    for status in ("hung", "cut off", "not run", "not finished in time", "missing"):
        assert not results.finished({"status": status})
    assert results.finished({"status": "failed"})
    absent = {"status": "ok", "rows": [{"label": "it", "absent": "ncu was not found"}]}
    assert not results.finished(absent) and results.finished(case_of("it"))


def test_a_smoke_test_that_fails_ends_the_command() -> None:
    def verdict(status: str, *rows: dict[str, Any], go_on: bool = False) -> str:
        check = Check.__new__(Check)
        check.args = argparse.Namespace(go_on=go_on)
        return check.smoke_failed({"status": status, "rows": list(rows), "reason": "it died"})

    right = {"label": "one step, fp32", "figure": "smoke", "value": 0}
    wrong = {"label": "one step, float8", "figure": "smoke", "value": 7}
    lost = {"label": "one step, float8", "figure": "smoke", "absent": "DeviceLostError"}
    assert verdict("ok", right) == ""
    assert "one step, float8: 7" in verdict("ok", right, wrong)
    assert "DeviceLostError" in verdict("ok", lost)
    assert "it died" in verdict("failed", right)
    assert verdict("ok", wrong, go_on=True) == ""


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    if machine.gpu():
        pytest.skip("this machine has a GPU")
    env = {**os.environ, "PATH": str(tmp_path), "CUDA_HOME": "", "OUT": str(tmp_path)}
    command = [sys.executable, str(TOOL), "run", "--build", str(tmp_path / "gpu"), "--python", "/no/python"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env)
    assert done.returncode == 2
    for text in ("no GPU", "no torch"):
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


def command(tmp_path: Path, seconds: float = 100) -> Check:
    """A run that has not started, on a machine without a Python that has torch."""
    return Check(options(tmp_path), machine.Found("/no/python"), parts.Folders(tmp_path), plan.Deadline(seconds))


def case_of(label: str) -> dict[str, Any]:
    row = {"label": label, "value": 1, "unit": "", "figure": None, "detail": {}}
    return {"status": "ok", "seconds": 1.0, "rows": [row]}


def labels(result: dict[str, Any]) -> dict[str, list[str]]:
    return {name: [row["label"] for row in case["rows"]] for name, case in result["cases"].items()}


def test_no_run_overwrites_an_earlier_one(tmp_path: Path) -> None:
    steps = [plan.Step("calls.fork", 1), plan.Step("counters.step", 1)]
    for number, chosen in enumerate((steps, steps[1:], steps[1:])):
        check = command(tmp_path)
        for step in chosen:
            check.keep(step, case_of(f"run {number}"))
            Rows(step.name, check.rows).add(f"run {number}", 1, "")
    assert len(list((tmp_path / "out").iterdir())) == 3 * 3
    found = merged(tmp_path / "out", tmp_path / "both")
    assert labels(found) == {"counters.step": ["run 2"], "calls.fork": ["run 0"]}
    assert "## All rows" not in next((tmp_path / "both").glob("*.md")).read_text()  # the JSON has them


def test_results_of_other_sources_or_gpus_are_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    step = plan.Step("calls.fork", 1)
    for digest in ("a" * 64, "b" * 64):
        monkeypatch.setattr(sources, "digest", lambda root, digest=digest: digest)
        check = command(tmp_path)
        assert check.wanted((step,)) == [step]
        check.keep(step, case_of(digest[0]))
    assert "left out" in (text := capsys.readouterr().out) and "another sources" in text
    assert command(tmp_path).wanted((step,)) == []
    other = machine.Found("/no/python", gpu={"name": "another"})
    assert Check(options(tmp_path), other, parts.Folders(tmp_path), plan.Deadline(9)).wanted((step,)) == [step]


def test_a_folder_that_cannot_be_written_ends_the_command_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    place, command = tmp_path / "file" / "below", [sys.executable, str(TOOL), "run", "--rehearse", "--build", str(tmp_path / "gpu")]
    done = subprocess.run(command, env={**os.environ, "OUT": str(place)}, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (2, "")
    assert done.stdout.startswith(f"--out or $OUT: got {place}, where nothing can be written")
    assert not (tmp_path / "gpu").exists()


def test_reports_of_suites_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "r.xml"
    path.write_text(
        '<s><testcase name="a"/><testcase name="b"><skipped/></testcase><testcase name="c"><error/></testcase>'
        '<testcase classname="t" name="d"><failure message="RuntimeError: spoilt&#10;advice"/></testcase></s>'
    )
    assert suites.counts(path) == {"passed": 1, "failed": ["None.c", "t.d: RuntimeError: spoilt"], "skipped": 1}
    assert suites.counts(tmp_path / "none.xml") == {}
    for tests, status in ((10, "ok"), (0, "failed")):  # a checker that ran no test has failed
        tail = f"[==========] {tests} tests from 3 test suites ran. (3782 ms total)"
        assert suites.checked(watchdog.Result("ok", 0, 1, tail), {"status": "ok"})["status"] == status


def test_a_rehearsal_ends_with_all_results(figure: Callable[[str], None], rehearsal: Rehearsal) -> None:
    assert rehearsal.code == 1, rehearsal.errors[-2000:]  # some did go wrong
    result = rehearsal.result
    cases = result["cases"]
    assert {name: entry["status"] for name, entry in cases.items()} == {
        "smoke": "ok", "bits.mantissas": "ok", "rehearsal.raises": "ok", "rehearsal.crashes": "failed", "rehearsal.hangs": "hung",
    }  # fmt: skip
    assert cases["rehearsal.crashes"]["code"] == -11
    assert 15 <= cases["rehearsal.hangs"]["seconds"] < 30
    for name in ("crashes", "hangs"):  # what was measured before is kept
        assert [row["value"] for row in cases[f"rehearsal.{name}"]["rows"]] == [1]
    assert "as meant" in cases["rehearsal.raises"]["rows"][0]["absent"]
    device = result["suites"]["suite device"]
    assert (device["status"], device["passed"], device["failed"]) == ("failed", 1, ["S.b"])
    assert result["rehearsal"] is True
    assert {result["machine"]["torch"]["torch"], result["date"], result["driver"], result["revision"]}
    by_what = {entry["what"]: entry for entry in result["figures"]}
    assert by_what["exact steps from all mantissas against the CPU: differing values"]["reached"] is True
    assert by_what["everything fits: Memory(...) / none"]["got"] is None
    text = next(rehearsal.out.glob("*.md")).read_text()
    assert "| everything fits: Memory(...) / none | ≤ 1.01 | not measured |" in text
    assert "A rehearsal on the CPU" in text
    assert "rehearsal.hangs: hung" in text
    assert "## All rows" in text
    figure(f"{len(cases)} cases; one was killed after {cases['rehearsal.hangs']['seconds']} s")


def test_a_killed_command_has_all_rows_until_then(rehearsal: Rehearsal, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(rehearsal.killed, out)
    (path,) = out.glob("run-*.json")
    before = json.loads(path.read_text())
    assert list(before["cases"]) == ["smoke", "bits.mantissas", "rehearsal.raises", "rehearsal.crashes"]
    with open(path.with_suffix(".rows.jsonl"), "a") as file:
        file.write('{"case": "rehearsal.hangs", "la')  # a line that was cut off
    found = merged(out, tmp_path / "both")["cases"]["rehearsal.hangs"]
    assert found["status"] == "cut off" and [row["value"] for row in found["rows"]] == [1]
