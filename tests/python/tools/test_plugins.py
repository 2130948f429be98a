"""Claims about plug-ins that are Python packages of their own: where the core finds them, and what their extras pin.

A plug-in that is no library stands for one here: the core's message says which file it has found.
"""

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import lowtide
import pytest
from lowtide import _core

ROOT = Path(__file__).parents[3]
sys.path.append(str(ROOT / "tools"))
from wheels import audit, plugins  # noqa: E402

# backend, number, package, extra
LISTED = re.findall(r'\{"(\w+)", (\d+), "(\w+)", "(\w+)"\}', (ROOT / "src/backend/plugin.h").read_text())


def setting(project: Path, pattern: str) -> str:
    """The only match of a pattern in a project's pyproject.toml."""
    [found] = re.findall(pattern, (project / "pyproject.toml").read_text(), re.M)
    return str(found)


def detail(backend: str, *folders: Path) -> str:
    code = f"import sys; sys.path[:0] = {[str(folder) for folder in folders]}\n"
    code += f"from lowtide import _core; print(_core.__file__, _core.backends()[{backend!r}]['detail'])"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with a package `lowtide` that contains only its core."""
    site = tmp_path / "site"
    (site / "lowtide").mkdir(parents=True)
    (site / "lowtide" / "__init__.py").touch()
    shutil.copy(_core.__file__, site / "lowtide")
    return site


def plugin(folder: Path) -> Path:
    """The SYCL plug-in's package; its __init__.py is missing, as in the wheel."""
    file = folder / "lowtide_sycl" / "liblowtide_sycl9.so"
    file.parent.mkdir(parents=True)
    file.write_text("no library")
    return file


def test_a_missing_plugin_is_told_with_the_extra_that_brings_it(site):
    said = detail("sycl", site)
    assert str(site) in said and "no plug-in" in said and 'pip install "lowtide[sycl]"' in said


def test_a_plugin_is_found_in_its_package_beside_lowtide(site):
    assert f"{plugin(site)}: file too short" in detail("sycl", site)


def test_a_plugin_is_found_wherever_python_finds_its_package(site, tmp_path):
    file = plugin(tmp_path / "elsewhere")
    assert f"{file}: file too short" in detail("sycl", site, file.parents[1])


def test_a_finder_that_raises_costs_nothing_but_its_plugin(site):
    code = """
import sys
class Finder:
    def find_spec(self, name, *_):
        if name.startswith("lowtide_"):
            raise OSError("no such disk")
sys.meta_path.insert(0, Finder())
sys.path.insert(0, sys.argv[1])
from lowtide import _core
print(_core.backends()["cpu"]["available"], _core.backends()["sycl"]["detail"])
"""
    said = subprocess.run([sys.executable, "-c", code, site], capture_output=True, text=True, check=True).stdout
    assert said.startswith("True") and "no plug-in" in said


def test_extras_pin_the_packages_of_the_same_version(tmp_path, figure):
    shutil.copytree(ROOT / "packages", tmp_path / "packages", symlinks=True)
    assert len(LISTED) == 3
    for backend, number, package, extra in LISTED:
        name = package.replace("_", "-")
        pinned = setting(ROOT, rf'^{extra} = \["([^;"]+)')
        assert pinned == f"{name}=={lowtide.__version__}"
        project = plugins.project(tmp_path, extra)
        assert setting(project, '^name = "(.*)"') == name
        assert setting(project, '^wheel.install-dir = "(.*)"') == package
        assert setting(project, '^input = "(.*)"') == "../../include/lowtide/version.h"
        assert backend != "cuda" or setting(project, r"NVIDIA CUDA :: (\d+)") == number
        figure(f"lowtide[{extra}] brings {pinned}, with {package}/liblowtide_{backend}{number}.so")


def test_the_audit_lends_the_sycl_plugin_libsycl_and_no_library_that_is_newer_than_manylinux(tmp_path, figure):
    """The plug-in of a build, by the system's compiler, beside whose libraries a wheel must not be."""
    [*built] = Path(_core.__file__).parent.glob("liblowtide_sycl*.so")
    if not built:
        figure("skipped: built without the SYCL plug-in")
        pytest.skip("built without the SYCL plug-in")
    wheel = tmp_path / "lowtide_sycl-0-py3-none-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(built[0], f"lowtide_sycl/{built[0].name}")
        archive.write(built[0], "lowtide_cuda13/liblowtide_cuda13.so")
    every = audit.offences(wheel, excluded="libsycl.so.9")
    offences = [found.removeprefix("lowtide_sycl/") for found in every if found.startswith("lowtide_sycl/")]
    figure(f"offences of the system's compiler in the SYCL plug-in: {len(offences)}")
    assert offences and not any("needs lib" in found or "shows" in found for found in offences)
    assert any("of libstdc++.so.6, newer than manylinux_2_28 has" in found for found in offences)
    others = [found for found in audit.offences(wheel) if found.startswith("lowtide_cuda13/")]
    assert any("needs libsycl" in found for found in others) and any("shows lt_sycl_plugin" in found for found in others)
