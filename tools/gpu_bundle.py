#!/usr/bin/env python3
"""Collects the requirements of tools/gpu_check.py on a machine with a network, for one without: a folder, and its tar.

    python3 tools/gpu_bundle.py                                    build/gpu-bundle and build/gpu-bundle.tar
    python3 tools/gpu_bundle.py --with bitsandbytes,torchao        with wheels of what is compared, and of tools (--list)
    python3 tools/gpu_bundle.py --python-version 3.12              of the Python over there (default: this one's)

The folder holds: source.tar.gz (the last commit), prefix (headers and libraries that are Debian packages here), wheels,
revision. Needs the packages that tools/bootstrap.sh --system-only installs, and pip.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MOST_BYTES = 64 << 20  # without what --with adds

# Wheels of any Python that lowtide, its build and its tests need beside torch, and that torch does not bring.
WHEELS = ("nanobind", "ninja", "pytest", "pluggy", "iniconfig", "packaging", "pygments", "hypothesis", "sortedcontainers",
          "rich", "markdown-it-py", "mdurl", "typer", "click", "shellingham", "typing_extensions",
          "annotated-doc")  # fmt: skip
OPTIONAL = {
    "cmake": ("cmake",),
    "numpy": ("numpy",),
    "bitsandbytes": ("bitsandbytes==0.50.2",),
    "torchao": ("torchao==0.18.*",),
    "cuobjdump": ("nvidia-cuda-cuobjdump", "nvidia-cuda-nvdisasm"),
}
PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_24", "manylinux_2_17", "manylinux2014", "manylinux_2_12",
             "manylinux2010", "manylinux_2_5", "manylinux1")  # fmt: skip

# Package: paths of it, by what they start with, and where they go in the prefix.
HEADERS = {
    "libhwy-dev": "/usr/include/hwy",
    "libgtest-dev": "/usr/include/gtest",
    "nlohmann-json3-dev": "/usr/include/nlohmann",
    "libxxhash-dev": "/usr/include/xxhash.h",
}
LIBRARIES = ("libhwy.so.1", "libgtest.a", "libgtest_main.a")  # beside the compiler's own

HWY_CONFIG = """# Highway as it was collected: its library and headers are beside this folder.
get_filename_component(lt_prefix "${CMAKE_CURRENT_LIST_DIR}" DIRECTORY)
add_library(hwy::hwy SHARED IMPORTED)
set_target_properties(hwy::hwy PROPERTIES
  IMPORTED_LOCATION "${lt_prefix}/lib/libhwy.so.1" IMPORTED_SONAME libhwy.so.1
  INTERFACE_COMPILE_DEFINITIONS HWY_SHARED_DEFINE INTERFACE_INCLUDE_DIRECTORIES "${lt_prefix}/include")
"""
HWY_VERSION = 'set(PACKAGE_VERSION "1.0.0")\nset(PACKAGE_VERSION_COMPATIBLE TRUE)\n'
GTEST_CONFIG = """# GoogleTest as it was collected: its libraries and headers are beside this folder.
get_filename_component(lt_prefix "${CMAKE_CURRENT_LIST_DIR}" DIRECTORY)
find_package(Threads REQUIRED)
add_library(GTest::gtest STATIC IMPORTED)
set_target_properties(GTest::gtest PROPERTIES IMPORTED_LOCATION "${lt_prefix}/lib/libgtest.a"
  INTERFACE_INCLUDE_DIRECTORIES "${lt_prefix}/include" INTERFACE_LINK_LIBRARIES Threads::Threads)
add_library(GTest::gtest_main STATIC IMPORTED)
set_target_properties(GTest::gtest_main PROPERTIES IMPORTED_LOCATION "${lt_prefix}/lib/libgtest_main.a"
  INTERFACE_LINK_LIBRARIES GTest::gtest)
"""


def die(text: str) -> None:
    sys.exit(f"gpu-bundle: {text}")


def output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode != 0:
        die(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def prefix(target: Path) -> None:
    """Headers and libraries, with CMake packages of a few lines instead of those that know Debian's folders."""
    include, lib, cmake = target / "include", target / "lib", target / "cmake"
    for folder in (include, lib, cmake):
        folder.mkdir(parents=True)
    for package, path in HEADERS.items():
        source = Path(path)
        if source.is_dir():
            shutil.copytree(source, include / source.name)
        elif source.is_file():
            shutil.copy2(source, include)
        else:
            die(f"{path} is not there: run tools/bootstrap.sh --system-only first (Debian package {package})")
    folder = Path(output("g++", "-print-file-name=libgtest.a").strip()).resolve().parent
    for name in LIBRARIES:
        if not (folder / name).exists():
            die(f"{folder / name} is not there: run tools/bootstrap.sh --system-only first")
        shutil.copy2((folder / name).resolve(), lib / name)
    (cmake / "hwyConfig.cmake").write_text(HWY_CONFIG)
    (cmake / "hwyConfigVersion.cmake").write_text(HWY_VERSION)
    (cmake / "GTestConfig.cmake").write_text(GTEST_CONFIG)


def wheels(target: Path, names: list[str], version: str) -> None:
    """Downloads wheels one by one, without their dependencies: each is named above, and torch never comes along."""
    target.mkdir()
    tags = [f"--platform={name}_{platform.machine()}" for name in PLATFORMS]
    for name in names:
        output(sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps",
               "--only-binary=:all:", "--implementation=cp", f"--python-version={version}", *tags,
               "-d", str(target), name)  # fmt: skip


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu-bundle")
    parser.add_argument("--python-version", default=f"{sys.version_info.major}.{sys.version_info.minor}")
    parser.add_argument("--with", dest="extra", default="", help="comma-separated, some of: " + ", ".join(OPTIONAL))
    parser.add_argument("--no-wheels", action="store_true", help="nothing from a package index")
    parser.add_argument("--no-tar", action="store_true")
    args = parser.parse_args()
    extra = [name for name in args.extra.split(",") if name]
    if unknown := set(extra) - set(OPTIONAL):
        parser.error(f"--with: got {', '.join(sorted(unknown))}, wanted some of {', '.join(OPTIONAL)}")
    out: Path = args.out
    if out.exists():
        if not (out / "revision").is_file():
            die(f"{out} is there and no bundle: remove it, or name another folder with --out")
        shutil.rmtree(out)
    out.mkdir(parents=True)
    (out / "revision").write_text(output("git", "describe", "--always", "--dirty"))
    output("git", "archive", "--format=tar.gz", "--prefix=lowtide/", "-o", str(out.resolve() / "source.tar.gz"), "HEAD")
    prefix(out / "prefix")
    if not args.no_wheels:
        wheels(out / "wheels", [*WHEELS, *(wheel for name in extra for wheel in OPTIONAL[name])], args.python_version)
    count = size(out)
    print(f"{out}: {count / (1 << 20):.1f} MiB")
    if count > MOST_BYTES and not extra:
        die(f"got {count} bytes, wanted at most {MOST_BYTES}")
    if not args.no_tar:
        path = out.with_suffix(".tar")
        with tarfile.open(path, "w") as tar:
            tar.add(out, arcname="gpu-bundle")
        print(path)


if __name__ == "__main__":
    main()
