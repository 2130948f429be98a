"""Parts that are built here and travel to a GPU machine (tools/gpu, tools/gpu_bundle.py)."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from gpu_support import ROOT, TOOL

from gpu import machine, parts, sources


def test_prebuilt_parts_travel_and_are_refused_where_they_do_not_fit(tmp_path: Path) -> None:
    built, bundle = tmp_path / "built", tmp_path / "bundle"
    built.mkdir()
    bundle.mkdir()
    names = {"_core.abi3.so", "liblowtide_cuda13.so", parts.TESTS}
    for name in names:
        shutil.copy2("/bin/true", built / name)
    about = {"architectures": ["80", "90"], "sources": "a", "revision": "v1"}
    parts.pack(built, built / "liblowtide_cuda13.so", bundle / parts.ARCHIVE, about)
    folders = parts.Folders(tmp_path / "gpu", bundle)
    assert parts.unpack(folders) == about
    assert {path.name for path in folders.prebuilt.iterdir()} == {*names, parts.LIBRARY, parts.MANIFEST}
    assert folders.tests == folders.prebuilt / parts.TESTS
    parts.package(folders)
    assert {path.name for path in (folders.site / "lowtide").glob("*.so")} == names - {parts.TESTS}
    assert (folders.site / "lowtide" / "__init__.py").is_file()

    def unfit(capability: str) -> str:
        found = machine.Found("python", gpu={"compute_cap": capability})
        return parts.unfit(about, found, "a")

    assert unfit("9.0") == unfit("8.6") == ""
    assert "sm_80, sm_90, and the GPU is sm_120" in unfit("12.0")
    assert "of other sources than this tree (v1)" in parts.unfit(about, machine.Found("python"), "b")
    assert "of other sources" in parts.unfit({"architectures": []}, machine.Found("python"), "a")
    assert parts.unfit(parts.unpack(parts.Folders(tmp_path / "gpu")), machine.Found("python"), "a") == "the bundle has none"
    assert not folders.prebuilt.exists()  # an earlier run unpacked another bundle


def test_prebuilt_parts_that_cannot_be_imported_are_named(tmp_path: Path) -> None:
    """A library of a newer system, say: the run ends at once, and says what the import said."""
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    built = tmp_path / "built"
    built.mkdir()
    shutil.copy2("/bin/true", built / parts.TESTS)
    with tarfile.open(bundle / parts.ARCHIVE, "w:xz") as tar:
        tar.add(built / parts.TESTS, arcname="_core.abi3.so")
        about = {"architectures": ["90"], "sources": sources.digest(ROOT)}
        (tmp_path / parts.MANIFEST).write_text(json.dumps(about))
        tar.add(tmp_path / parts.MANIFEST, arcname=parts.MANIFEST)
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho a GPU, 1, 2, 9.0, 4, 16\n")
    smi.chmod(0o755)
    command = [sys.executable, str(TOOL), "run", "--rehearse", "--bundle", str(bundle), "--build", str(tmp_path / "gpu")]
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "OUT": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env, timeout=120)
    assert done.returncode == 2 and "missing: no package to measure: ImportError" in done.stdout, done.stdout + done.stderr


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
    command = parts.configure(Path("folder"), "python3", "90")
    preset = command[command.index("--preset") + 1]
    presets = json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]
    (chosen,) = [entry for entry in presets if entry["name"] == preset]
    assert chosen["cacheVariables"] == {"CMAKE_BUILD_TYPE": "Release"}  # with CMake's flags: -O3 -DNDEBUG
    assert "-DLOWTIDE_DEV=ON" in command  # for the program that tests devices
