"""Parts that are built here and travel to a GPU machine (tools/gpu, tools/gpu_bundle.py)."""

import json
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from gpu_support import ROOT, TOOL, options

import gpu_bundle
from gpu import build, find, plan, prebuilt, sources
from gpu.check import Check


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
