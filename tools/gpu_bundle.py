#!/usr/bin/env python3
"""Collects what tools/gpu_check.py needs on a GPU machine, on a machine without a GPU: a folder and its tar.

    python3 tools/gpu_bundle.py --python 3.12                         build/gpu-bundle and build/gpu-bundle.tar
    python3 tools/gpu_bundle.py --with bitsandbytes,tests             with one of the compared libraries, and pytest

The folder holds: source.tar.gz (the last commit), revision, sources (their hash), prebuilt.tar.xz (the module, the
plug-in for --architectures, the tests of devices), and wheels: nanobind-backend's, which the module needs, and what
--with asks for. Name with --with only what the GPU machine lacks; plug-ins to compare with the package's go into its
folder variants. Needs the packages that tools/bootstrap.sh --system-only installs, nvcc, and pip and nanobind in this Python.
"""

from __future__ import annotations

import argparse
import importlib.util
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from gpu import parts, sources

ROOT = Path(__file__).resolve().parents[1]
MOST_BYTES = 48 << 20  # together with this tree, less than 64 MiB

# Requirements for pip. "tests": everything that the package and its tests need and torch does not bring.
WHEELS = {
    "tests": ("pytest", "pytest-xdist", "execnet", "pluggy", "iniconfig", "packaging", "pygments", "hypothesis",
              "sortedcontainers", "typing_extensions", "numpy"),
    "bitsandbytes": ("bitsandbytes==0.50.2",),
    "flashoptim": ("flashoptim==0.1.4",),
}  # fmt: skip
LIBRARY_OF_A_GPU = re.compile(r"libbitsandbytes_(cuda|rocm|xpu)(\d*)\.so$")
PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_24", "manylinux_2_17", "manylinux2014", "manylinux_2_12",
             "manylinux2010", "manylinux_2_5", "manylinux1")  # fmt: skip


def die(text: str) -> None:
    sys.exit(f"gpu-bundle: {text}")


def output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode != 0:
        die(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def wheels(target: Path, names: list[str], version: str) -> None:
    """Downloads wheels without their dependencies: all that are needed are listed above, and torch must not come along."""
    target.mkdir()
    tags = [f"--platform={name}_{platform.machine()}" for name in PLATFORMS]
    for name in names:
        output(sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps",
               "--only-binary=:all:", "--implementation=cp", f"--python-version={version}", *tags,
               "-d", str(target), name)  # fmt: skip


def thinned(folder: Path, cuda: str) -> None:
    """Removes the libraries for other GPUs and CUDA versions from bitsandbytes' wheel (43 MiB)."""
    for wheel in folder.glob("bitsandbytes-*.whl"):
        whole = wheel.with_suffix(".whole")
        wheel.rename(whole)
        with zipfile.ZipFile(whole) as source, zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as target:
            for name in source.namelist():
                found = LIBRARY_OF_A_GPU.search(name)
                if not found or (found[1], found[2]) == ("cuda", cuda):
                    target.writestr(source.getinfo(name), source.read(name))
        whole.unlink()


def build(out: Path, architectures: str, revision: str, digest: str) -> None:
    """The prebuilt parts. Objects are kept in build/gpu-prebuilt, for the next time."""
    if not importlib.util.find_spec("nanobind"):
        die(f"{sys.executable} has no nanobind: pip install nanobind")
    folder = ROOT / "build" / "gpu-prebuilt"
    (folder / "CMakeCache.txt").unlink(missing_ok=True)  # which keeps the flags of another preset
    output(*parts.configure(folder, sys.executable, architectures))
    plugin = re.search(r"^lowtide_cuda\d+(?=:)", output("cmake", "--build", str(folder), "--target", "help"), re.M)
    if not plugin:
        die("no target lowtide_cuda<N>: nvcc was not found")
    output("cmake", "--build", str(folder), "--target", "_core", plugin[0], parts.TESTS)
    library = Path(output("g++", f"-print-file-name={parts.LIBRARY}").strip())
    about = {"architectures": architectures.split(";"), "revision": revision.strip(), "sources": digest,
             "made_on": platform.platform()}  # fmt: skip
    parts.pack(folder, library, out / parts.ARCHIVE, about)


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu-bundle")
    parser.add_argument("--python", default="3.12", help="the GPU machine's version, for wheels (default: %(default)s)")
    parser.add_argument("--architectures", default="90", help="compute capabilities, as 80;90 (default: %(default)s)")
    parser.add_argument("--cuda", default="130", help="of torch over there, as bitsandbytes names it (default: %(default)s)")
    parser.add_argument("--with", dest="extra", default="bitsandbytes,flashoptim",
                        help="comma-separated, some of: " + ", ".join(WHEELS) + " (default: %(default)s)")  # fmt: skip
    args = parser.parse_args()
    extra = [name for name in args.extra.split(",") if name]
    if unknown := set(extra) - set(WHEELS):
        parser.error(f"--with: got {', '.join(sorted(unknown))}, wanted some of {', '.join(WHEELS)}")
    out: Path = args.out
    if out.exists():
        if not (out / "revision").is_file():
            die(f"{out} is there and no bundle: remove it, or name another folder with --out")
        shutil.rmtree(out)
    out.mkdir(parents=True)
    revision = output("git", "describe", "--always", "--dirty")
    digest = sources.digest(ROOT)
    (out / "revision").write_text(revision)
    (out / "sources").write_text(digest)
    if revision.strip().endswith("-dirty"):
        print("uncommitted work is in the prebuilt parts, and not in source.tar.gz: with that, the check builds anew")
    output("git", "archive", "--format=tar.gz", "--prefix=lowtide/", "-o", str(out.resolve() / "source.tar.gz"), "HEAD")
    build(out, args.architectures, revision, digest)
    wheels(out / "wheels", ["nanobind-backend", *(wheel for name in extra for wheel in WHEELS[name])], args.python)
    thinned(out / "wheels", args.cuda)
    count = size(out)
    print(f"{out}: {count / (1 << 20):.1f} MiB of {MOST_BYTES >> 20}")
    for path in sorted(out.rglob("*")):
        if path.is_file() and path.stat().st_size > 1 << 20:
            print(f"  {path.relative_to(out)}: {path.stat().st_size / (1 << 20):.1f} MiB")
    if count > MOST_BYTES:
        print(f"more than {MOST_BYTES >> 20} MiB: leave wheels out that the GPU machine has (--with)")
    path = out.with_suffix(".tar")
    with tarfile.open(path, "w") as tar:
        tar.add(out, arcname="gpu-bundle")
    print(path)


if __name__ == "__main__":
    main()
