"""The measurements of a GPU machine (tools/gpu_check.py, bench/cuda), rehearsed on the CPU: each of them runs, and one
that hangs, dies or fails is reported and stops nothing else."""

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import textwrap
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))
sys.path.append(str(ROOT / "tools"))

import gpu_bundle  # noqa: E402
from bench.cuda import case, counters, emulated, figures, model, resident, rows, shapes  # noqa: E402
from bench.cuda.device import GIB, MANAGED_CAP, Gpu, bytes_of  # noqa: E402
from bench.cuda.rows import Absent, Rows  # noqa: E402
from gpu import build, find, merge, plan, prebuilt, report, results, sources, suites, watchdog  # noqa: E402
from gpu.check import Check  # noqa: E402

# Rows of bitsandbytes, torchao or features that only a device has: rehearsed as "not measured" where they are absent.
MAY_BE_ABSENT = ("torchao", "bitsandbytes", "option ", "oom_guard", "demote", "has no graphs")
NAMES = case.names()
TOOL = ROOT / "tools" / "gpu_check.py"


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
def test_every_measurement_runs(name: str, gpu: Gpu, figure: Callable[[str], None], tmp_path: Path) -> None:
    check_measurement(name, gpu, figure, tmp_path / "rows.jsonl")


@pytest.mark.parametrize("name", ["smoke", "paged.dynamic8", "overlap.fp32"])
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


def fake_tests(folder: Path, passes: bool) -> Path:
    """A program in place of the one that tests devices."""
    cases = (
        '<testcase classname="S" name="a"/><testcase classname="S" name="b">'
        + ("" if passes else "<failure/>")
        + "</testcase>"
    )
    program = folder / build.TESTS
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
    """One of a whole command, which is shared: each of its processes imports torch."""

    code: int
    errors: str
    out: Path
    killed: Path  # the results as a command leaves them that is killed while its last step hangs

    @property
    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.out / "first.json").read_text())
        return found


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> Rehearsal:
    folder = tmp_path_factory.mktemp("rehearsal")
    chosen = ["smoke", "bits.mantissas", "rehearsal.raises", "rehearsal.crashes", "suite device", "rehearsal.hangs"]
    command = [sys.executable, str(TOOL), "first", "--rehearse", "--build", str(folder / "gpu"),
               "--steps", ",".join(chosen), "--tests", str(fake_tests(folder, passes=False))]  # fmt: skip
    out, errors = folder / "out", folder / "errors"
    with open(errors, "wb") as file:
        process = subprocess.Popen(command, env={**os.environ, "OUT": str(out)}, stdout=subprocess.DEVNULL, stderr=file)
    kept = out / "first.rows.jsonl"
    while process.poll() is None and not (kept.is_file() and "before it hung" in kept.read_text()):
        time.sleep(0.05)
    shutil.copytree(out, folder / "killed")
    return Rehearsal(process.wait(300), errors.read_text(), out, folder / "killed")


def test_a_rehearsal_ends_with_all_results(figure: Callable[[str], None], rehearsal: Rehearsal) -> None:
    assert rehearsal.code == 1, rehearsal.errors[-2000:]  # some did go wrong
    result = rehearsal.result
    cases = result["cases"]
    assert {name: entry["status"] for name, entry in cases.items()} == {
        "smoke": "ok",
        "bits.mantissas": "ok",
        "rehearsal.raises": "ok",
        "rehearsal.crashes": "failed",
        "rehearsal.hangs": "hung",
    }
    assert cases["rehearsal.crashes"]["code"] == -11
    assert 25 <= cases["rehearsal.hangs"]["seconds"] < 40
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
    text = (rehearsal.out / "first.md").read_text()
    assert "| everything fits: Memory(...) / none | ≤ 1.01 | not measured |" in text
    assert "A rehearsal on the CPU" in text
    assert "rehearsal.hangs: hung" in text
    figure(f"{len(cases)} cases; one was killed after {cases['rehearsal.hangs']['seconds']} s")


def test_a_killed_command_has_all_rows_until_then(rehearsal: Rehearsal, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(rehearsal.killed, out)
    before = json.loads((out / "first.json").read_text())
    assert list(before["cases"]) == ["smoke", "bits.mantissas", "rehearsal.raises", "rehearsal.crashes"]
    with open(out / "first.rows.jsonl", "a") as file:
        file.write('{"case": "rehearsal.hangs", "la')  # a line that was cut off
    found = merged(out, tmp_path / "both")["cases"]["rehearsal.hangs"]
    assert found["status"] == "cut off" and [row["value"] for row in found["rows"]] == [1]


def test_a_step_that_no_longer_fits_is_left_out_and_both_results_are_merged(tmp_path: Path) -> None:
    check = command(tmp_path, seconds=45)
    check.take([plan.Step("llama.peaks", 50)])
    left_out = check.result["cases"]["llama.peaks"]
    assert left_out["status"] == "not run" and "takes about 50 s" in left_out["reason"]
    check.keep(plan.Step("rehearsal.raises", 5), case_of("raised"))
    second = command(tmp_path, "second")
    second.folders.given_tests = fake_tests(tmp_path, passes=True)
    second.take([plan.Step("suite device", 5), plan.Step("memcheck", 5)])
    suites_run = second.result["suites"]
    assert suites_run["suite device"]["passed"] == 2 and suites_run["memcheck"]["status"] == "not run"
    both = merged(tmp_path / "out", tmp_path / "both")
    assert both["commands"] == ["first", "second"]
    assert set(both["cases"]) == {"llama.peaks", "rehearsal.raises"}
    assert set(both["suites"]) == {"suite device", "memcheck"}


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
    if find.gpu():
        pytest.skip("this machine has a GPU")
    env = {**os.environ, "PATH": str(tmp_path), "CUDA_HOME": "", "OUT": str(tmp_path)}
    command = [
        sys.executable,
        str(TOOL),
        "first",
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


def test_prebuilt_parts_travel_and_are_refused_where_they_do_not_fit(tmp_path: Path) -> None:
    built, bundle = tmp_path / "built", tmp_path / "bundle"
    built.mkdir()
    bundle.mkdir()
    names = {"_core.cpython-312-x86_64-linux-gnu.so", "liblowtide_cuda13.so", build.TESTS}
    for name in names:
        shutil.copy2("/bin/true", built / name)
    about = {"python": "cpython-312-x86_64-linux-gnu", "architectures": ["80", "90"], "sources": "a", "revision": "v1"}
    prebuilt.pack(built, built / "liblowtide_cuda13.so", bundle / prebuilt.ARCHIVE, about)
    folders = build.Folders(tmp_path / "gpu", bundle)
    assert prebuilt.unpack(bundle, folders) == about
    assert {path.name for path in folders.prebuilt.iterdir()} == {*names, prebuilt.LIBRARY, prebuilt.MANIFEST}
    assert folders.tests == folders.prebuilt
    build.package(folders, folders.prebuilt)
    assert {path.name for path in (folders.site / "lowtide").glob("*.so")} == names - {build.TESTS}
    assert (folders.site / "lowtide" / "__init__.py").is_file()

    def unfit(soabi: str, capability: str) -> str:
        found = find.Found("python", gpu={"compute_cap": capability}, torch={"soabi": soabi})
        return prebuilt.unfit(about, found, "a")

    assert unfit("cpython-312-x86_64-linux-gnu", "9.0") == unfit("cpython-312-x86_64-linux-gnu", "8.6") == ""
    assert "sm_80, sm_90, and the GPU is sm_120" in unfit("cpython-312-x86_64-linux-gnu", "12.0")
    assert "the Python that has torch is cpython-311" in unfit("cpython-311-x86_64-linux-gnu", "9.0")
    assert "of other sources than this tree (v1)" in prebuilt.unfit(about, find.Found("python"), "b")
    assert "of other sources" in prebuilt.unfit({"python": "", "architectures": []}, find.Found("python"), "a")
    assert prebuilt.unfit(prebuilt.unpack(None, folders), find.Found("python"), "a") == "the bundle has none"
    assert not folders.prebuilt.exists()  # what an earlier run has unpacked is of another bundle


def test_damaged_prebuilt_parts_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = build.Folders(tmp_path / "gpu", tmp_path)
    archive = tmp_path / prebuilt.ARCHIVE
    with tarfile.open(archive, "w:xz") as tar:
        tar.add(TOOL, arcname=prebuilt.MANIFEST)  # no JSON
    whole = archive.read_bytes()
    for damaged in (b"", b"no archive", whole[: len(whole) // 2], whole):
        archive.write_bytes(damaged)
        assert prebuilt.unpack(tmp_path, folders) == {}
        assert "cannot be read" in capsys.readouterr().out
        assert not folders.prebuilt.exists()


def test_prebuilt_parts_that_cannot_be_imported_are_built_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figure: Callable[[str], None]
) -> None:
    folders = build.Folders(tmp_path / "gpu")
    folders.prebuilt.mkdir(parents=True)
    shutil.copy2("/bin/true", folders.prebuilt / build.TESTS)
    (folders.prebuilt / "_core.x.so").write_bytes(b"of a newer system")
    about = {"python": "x", "architectures": ["90"], "sources": "a"}
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho \"ImportError: version 'GLIBC_2.99' not found\"; exit 1\n")
    python.chmod(0o755)
    found = find.Found(str(python), gpu={"compute_cap": "9.0"}, torch={"soabi": "x"})
    steps, deadline = build.Steps(), plan.Deadline(100)
    unfit = prebuilt.use(about, found, folders, "a", steps, deadline)
    assert unfit == "they cannot be imported: ImportError: version 'GLIBC_2.99' not found"
    assert steps.results["prebuilt parts"]["status"] == "not usable"
    assert folders.tests == folders.cmake and not list(folders.site.glob("lowtide/*"))
    built: list[object] = []
    monkeypatch.setattr(build, "build", lambda *arguments: built.append(arguments) or True)
    check = Check(options(tmp_path, rehearse=False), found, folders, deadline)
    check.result["build"].update(steps.results)
    assert check.prepare(unfit) and not check.stopped and len(built) == 1
    assert check.ok  # parts of another system are no failure of what was built
    figure(unfit)


def options(tmp_path: Path, **more: Any) -> argparse.Namespace:
    given = {"out": tmp_path / "out", "command": "first", "rehearse": True, "python_include": None,
             "step_seconds": plan.LIMIT_S, **more}  # fmt: skip
    given["out"].mkdir(exist_ok=True)
    return argparse.Namespace(**given)


def command(tmp_path: Path, name: str = "first", seconds: float = 100) -> Check:
    """A command of which nothing is run yet, on a machine without a Python that has torch."""
    found = find.Found("/no/python", tools={"compute-sanitizer": ""})
    return Check(options(tmp_path, command=name), found, build.Folders(tmp_path), plan.Deadline(seconds))


def case_of(label: str) -> dict[str, Any]:
    row = {"label": label, "value": 1, "unit": "", "figure": None, "detail": {}}
    return {"status": "ok", "seconds": 1.0, "rows": [row]}


def labels(result: dict[str, Any]) -> dict[str, list[str]]:
    return {name: [row["label"] for row in case["rows"]] for name, case in result["cases"].items()}


def test_no_run_overwrites_an_earlier_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = [plan.Step("calls.fork", 1), plan.Step("counters.step", 1)]
    for number, chosen in enumerate((steps, steps[1:], steps[1:])):
        check = command(tmp_path)
        for step in chosen:
            check.keep(step, case_of(f"run {number}"))
            Rows(step.name, check.rows).add(f"run {number}", 1, "")
    out = tmp_path / "out"
    names = ("first", "first.1", "first.2")
    assert {path.name for path in out.iterdir()} == {name + end for name in names for end in results.SUFFIXES}
    assert "first.1.*" in capsys.readouterr().out
    assert len((out / "first.1.rows.jsonl").read_text().splitlines()) == 2
    assert merge.merge([out], tmp_path / "both") == 0
    read = [line for line in capsys.readouterr().out.splitlines() if line.startswith("merge: read")]
    assert [line.rpartition("/")[2] for line in read] == ["first.json", "first.2.json", "first.1.json"]
    (page,) = (tmp_path / "both").glob("*.json")
    both = json.loads(page.read_text())
    assert both["commands"] == ["first"]
    assert labels(both) == {"counters.step": ["run 2"], "calls.fork": ["run 0"]}


def test_results_of_other_sources_are_not_mixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for digest in ("a" * 64, "b" * 64):
        monkeypatch.setattr(sources, "digest", lambda root, digest=digest: digest)
        command(tmp_path).keep(plan.Step("calls.fork", 1), case_of(digest[0]))
    command(tmp_path, "second").keep(plan.Step("calls.tensors", 1), {"status": "not run", "seconds": 0.0, "reason": ""})
    out = tmp_path / "out"
    assert merge.merge([out], tmp_path / "both") == 0
    assert "merge: left out" in (text := capsys.readouterr().out) and "first.1.json: " in text
    (page,) = (tmp_path / "both").glob("*.json")
    assert labels(json.loads(page.read_text())) == {"calls.fork": ["b"], "calls.tensors": []}
    assert merge.merge([out / "first.json", out / "first.1.json"], tmp_path / "both") == 2  # named: not left out


def test_a_digest_tells_sources_apart(tmp_path: Path) -> None:
    for name in ("src/a.cpp", "python/lowtide/b.py", "CMakeLists.txt", "CMakePresets.json", "tests/python/c.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    before = sources.digest(tmp_path)
    for generated in ("python/lowtide/_core.pyi", "python/lowtide/_core.so", "tests/python/c.py"):
        (tmp_path / generated).write_text("2")
    assert sources.digest(tmp_path) == before
    for name in ("src/a.cpp", "python/lowtide/b.py", "CMakeLists.txt"):
        (tmp_path / name).write_text("2")
        assert sources.digest(tmp_path) != before
        (tmp_path / name).write_text("1")
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "revision").write_text("v2\n")
    (bundle / "sources").write_text(before)
    assert sources.revision(tmp_path, bundle, before, "v7 of the tree around") == "v2"
    assert sources.revision(tmp_path, bundle, "f" * 64, "unknown") == "sources " + "f" * 12
    (tmp_path / ".git").mkdir()
    assert sources.revision(tmp_path, bundle, before, "v3") == "v3"


def test_prebuilt_parts_are_those_that_ship() -> None:
    command = prebuilt.configure(Path("folder"), "python3", "nanobind", "90")
    preset = command[command.index("--preset") + 1]
    presets = json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]
    (chosen,) = [entry for entry in presets if entry["name"] == preset]
    assert chosen["cacheVariables"] == {"CMAKE_BUILD_TYPE": "Release"}  # with CMake's flags: -O3 -DNDEBUG
    here = build._configure(find.Found("python3", tools={"cmake": "cmake", "ninja": ""}), build.Folders(ROOT), None)
    assert {"-DCMAKE_BUILD_TYPE=Release", "-DLOWTIDE_DEV=ON"} <= {str(word) for word in here}
    assert "-DLOWTIDE_DEV=ON" in command


def test_a_folder_that_cannot_be_written_ends_the_command_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/none/out")):
        done = subprocess.run(
            [sys.executable, str(TOOL), "first", "--rehearse", "--build", str(tmp_path / "gpu")],
            env={**os.environ, "OUT": str(place)}, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (2, "")
        assert done.stdout.startswith(f"--out or $OUT: got {place}, where nothing can be written")
        assert not (tmp_path / "gpu").exists()


def test_no_command_waits_longer_than_its_limit(tmp_path: Path, figure: Callable[[str], None]) -> None:
    start = time.monotonic()
    assert find.output(["sh", "-c", "echo complaint >&2; echo it"]) == "it\n"
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nsleep 60\n")
    python.chmod(0o755)
    for name in ("one", "two"):
        (tmp_path / f"{name}-1-py3-none-any.whl").touch()
    steps, folders = build.Steps(), build.Folders(tmp_path / "gpu", wheels=tmp_path)
    build.install_wheels(find.Found(str(python)), folders, steps, plan.Deadline(plan.RESERVE_S + 1))
    assert {entry["status"] for entry in steps.results.values()} == {"hung"}
    assert time.monotonic() - start < 25
    figure(f"{time.monotonic() - start:.1f} s")


def test_a_command_that_cannot_be_killed_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that waits inside a driver: here no signal is sent."""
    monkeypatch.setattr(os, "killpg", lambda group, signal: None)
    monkeypatch.setattr(subprocess.Popen, "send_signal", lambda process, signal: None)
    monkeypatch.setattr(watchdog, "GRACE_S", 0.1)
    monkeypatch.setattr(watchdog, "GIVE_UP_S", 0.1)
    start = time.monotonic()
    assert find.output(["sleep", "20"], 0.1) == ""
    assert time.monotonic() - start < 15


def test_a_bundle_leaves_out_libraries_of_other_gpus(tmp_path: Path) -> None:
    names = ["bitsandbytes/__init__.py", *(f"bitsandbytes/libbitsandbytes_{kind}.so"
             for kind in ("cpu", "cuda130", "cuda126", "rocm62", "xpu"))]  # fmt: skip
    with zipfile.ZipFile(tmp_path / "bitsandbytes-1-py3-none-any.whl", "w") as wheel:
        for name in names:
            wheel.writestr(name, name)
    gpu_bundle.thinned(tmp_path, "130")
    (path,) = tmp_path.iterdir()
    with zipfile.ZipFile(path) as wheel:
        assert wheel.namelist() == names[:3]


def test_reports_of_suites_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "r.xml"
    path.write_text(
        '<s><testcase name="a"/><testcase name="b"><skipped/></testcase><testcase name="c"><error/></testcase></s>'
    )
    assert suites.counts(path) == {"passed": 1, "failed": ["None.c"], "skipped": 1}
    assert suites.counts(tmp_path / "none.xml") == {}
    assert report.VERDICT[False] == "**no**"
