#!/usr/bin/env python3
"""Unpacks into build/arm-packages what `make arm`, a cross build for ARM64, needs besides Debian's compiler: headers and
libraries for ARM64 (root), and the source of Highway, which becomes part of the library. Installs nothing into the system."""

from __future__ import annotations

import sys

from wheels.debian import DEVELOPMENT, Debian
from wheels.work import ROOT, Failure, Work

FOLDER = ROOT / "build" / "arm-packages"  # CMakePresets.json knows it, too


def main() -> None:
    work = Work(FOLDER, "arm")
    debian = Debian(work)
    try:
        debian.unpack("libraries for ARM64", (*DEVELOPMENT, "libgtest-dev"), "aarch64", FOLDER / "root")
        debian.highway()
    except Failure as failure:
        sys.exit(f"arm: {failure}")


if __name__ == "__main__":
    main()
