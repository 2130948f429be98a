"""Claims about what `make wheels` (tools/wheels) checks of every wheel: here, of the build that is installed.

make wheels itself takes minutes; it is a job of its own. Its steps without torch use stand-ins for tensors, which prove
that instruction sets agree with each other.
"""

import ctypes
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import emulated_cuda
import lowtide
import pytest

ROOT = Path(__file__).parents[3]
PACKAGE = Path(lowtide.__file__).parent

sys.path.append(str(ROOT / "tools"))
from wheels import audit, work  # noqa: E402


def test_steps_without_torch_have_equal_bits_on_every_instruction_set(figure):
    script = ROOT / "tools" / "wheels" / "bits.py"
    code = f"import runpy, sys; sys.path = {sys.path!r}; runpy.run_path({str(script)!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    hashes = json.loads(done.stdout)
    assert list(hashes)[-1] == "scalar"
    assert len(set(hashes["scalar"].values())) > 33  # of 45 cells, those that refuse 4 bits share words
    figure(f"rules x formats, without torch: {len(hashes['scalar'])} on {', '.join(hashes)}")
    for target, cells in hashes.items():
        assert cells == hashes["scalar"], target


def wheel_of(folder: Path, *files: Path) -> Path:
    wheel = folder / "lowtide-0-py3-none-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file in files:
            archive.write(file, f"lowtide/{file.name}")
    return wheel


def library(path: Path, *options: str | Path) -> Path:
    """A module that holds nothing."""
    words = ["cc", "-shared", "-fPIC", "-nostdlib", "-x", "c", "-", "-x", "none", *options, "-o", path]
    subprocess.run(words, input="void PyInit__core(void) {}", text=True, check=True)
    return path


def test_the_audit_names_every_library_that_a_wheel_must_not_need(tmp_path):
    other = library(tmp_path / "other.so", "-Wl,-soname,libother.so.1")
    core = library(tmp_path / "_core.abi3.so", "-Wl,--no-as-needed", other)
    assert audit.offences(wheel_of(tmp_path, core)) == [
        "lowtide/_core.abi3.so needs libother.so.1, wanted libraries of glibc and C++ alone"
    ]


def test_the_audit_names_every_symbol_that_old_systems_lack(tmp_path, figure):
    """A build by the system's compiler needs symbols newer than manylinux_2_28, and hides what a wheel must hide."""
    [core] = PACKAGE.glob("_core*.so")
    offences = audit.offences(wheel_of(tmp_path, core))
    figure(f"offences of a build by the system's compiler: {len(offences)}")
    assert any("of libstdc++.so.6, newer than manylinux_2_28 has" in offence for offence in offences), offences
    shown = [offence for offence in offences if "shows" in offence]
    # A build with tests shows the C interface too, as stand_in.py opens devices by it; a wheel does not.
    assert all("shows lt_" in offence for offence in shown), offences


def test_the_core_of_a_build_with_tests_has_what_stand_ins_of_devices_need(figure):
    """Without it every test on an emulated device would be skipped, and no run would fail."""
    if emulated_cuda.plugin() is None:
        figure("skipped: no emulated CUDA, so nothing stands in for devices here")
        pytest.skip("no emulated CUDA")
    [core] = PACKAGE.glob("_core*.so")
    assert hasattr(ctypes.CDLL(str(core)), "lt_device_open"), f"{core} was not built with tests: make test does"


def test_the_audit_refuses_symbols_that_a_library_must_hide(tmp_path):
    """Another library stands in for _core: it exports its own functions."""
    import _ctypes

    foreign = tmp_path / "_core.abi3.so"
    foreign.write_bytes(Path(_ctypes.__file__).read_bytes())
    assert any(
        "shows PyInit__ctypes, wanted PyInit__core" in offence for offence in audit.offences(wheel_of(tmp_path, foreign))
    )


def test_the_audit_refuses_folders_outside_the_package(tmp_path):
    core = library(tmp_path / "_core.abi3.so", "-Wl,-rpath,/opt/lib")
    [offence] = audit.offences(wheel_of(tmp_path, core))
    assert "looks for libraries in /opt/lib, wanted no folder but $ORIGIN" in offence


def test_the_audit_refuses_a_wheel_without_libraries(tmp_path):
    with pytest.raises(work.Failure, match="no shared library"):
        audit.offences(wheel_of(tmp_path))
