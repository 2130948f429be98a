#!/usr/bin/env python3
"""Makes the wheels to publish, audits them, and tries each in a bare environment.

    make wheels                                            x86-64 and ARM64, for CPython 3.10 and newer, into dist
    make wheels ARGS="--arch x86_64 --python 3.11"         one, tried with Python 3.11
    make wheels ARGS="--plugins cuda13,sycl"               also those of plug-ins, for x86-64 (cuda12: by nvcc LOWTIDE_NVCC)
    make wheels ARGS=--torch                               tried with torch, which is installed for each version

Tools and libraries come from PyPI and Debian into build/wheels, not into the system (docs/project/wheels.md).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

from wheels.work import Failure, Work, say  # noqa: E402

ARCHITECTURES = ("x86_64", "aarch64")
PLUGINS = ("cuda12", "cuda13", "sycl")


def words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", type=words, default=list(ARCHITECTURES), help="comma-separated (default: both)")
    parser.add_argument("--python", type=words, default=["3.10", "3.13"], help="to try them with (default: 3.10,3.13)")
    parser.add_argument(
        "--torch-python",
        type=Path,
        action="append",
        default=[ROOT / ".venv" / "bin" / "python"],
        help="a Python whose torch the wheel for its version is tried with, besides .venv's; may be repeated",
    )
    parser.add_argument("--plugins", type=words, default=[], help=f"comma-separated, of {', '.join(PLUGINS)} (default: none)")
    parser.add_argument("--torch", action="store_true", help="install torch for versions that lack it")
    parser.add_argument("--no-source", action="store_true", help="do not build the source distribution, as a trial")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where wheels go (default: dist)")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "wheels", help="folder to work in")
    args = parser.parse_args()
    for name, got, known in (("--arch", args.arch, ARCHITECTURES), ("--plugins", args.plugins, PLUGINS)):
        for word in got:
            if word not in known:
                parser.error(f"{name}: got {word}, wanted some of {','.join(known)}")
    if "cuda12" in args.plugins and not os.access(nvcc := os.environ.get("LOWTIDE_NVCC", ""), os.X_OK):
        parser.error(f"--plugins cuda12: got LOWTIDE_NVCC={nvcc!r}, wanted the path of nvcc of CUDA 12.8 or 12.9")
    return args


def make(args: argparse.Namespace, work: Work) -> None:
    from wheels.borrowed import Borrowed
    from wheels.plugins import Plugins
    from wheels.recipe import Recipe

    start = time.monotonic()
    recipe = Recipe(work, args.python, Borrowed(work, args.torch_python, args.torch), args.out.resolve())
    recipe.source()
    for arch in sorted(args.arch, key=ARCHITECTURES.index):
        recipe.make(arch)
    if not args.no_source:
        recipe.try_source()
    plugins = Plugins(work, recipe.files, args.out.resolve())
    for name in args.plugins:
        plugin = plugins.make(name)
        if wheel := plugins.fitting():
            plugins.try_beside(wheel, plugin, name)
        else:
            say(f"{plugin.name}: not tried, for want of a wheel of lowtide in {args.out}")
    say(f"done in {time.monotonic() - start:.0f} s; the wheels are in {args.out}")


def main() -> int:
    args = arguments()
    work = Work(args.work)
    try:
        # The audit reads shared libraries with a package from requirements.txt.
        tools = work.tools() / "python"
        if Path(sys.prefix).resolve() != tools.parent.parent.resolve():
            os.execv(tools, [str(tools), *sys.argv])
        make(args, work)
    except Failure as failure:
        print(f"wheels: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
