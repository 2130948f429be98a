"""Tries a wheel for another architecture: Debian's Python of that architecture under qemu-user, without torch."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

from wheels.bare import Hashes
from wheels.debian import Debian
from wheels.work import Failure, Work, say

PACKAGES = ("python3.11-minimal", "libpython3.11-stdlib")
VERSION = "3.11"  # of Debian's


class Emulated:
    """A folder with Debian's Python for `arch`, unpacked."""

    def __init__(self, work: Work, arch: str) -> None:
        self._work, self._arch = work, arch
        self._root = work.folder / arch / "python"

    def bits(self, wheel: Path, version: str) -> Hashes | None:
        """The hashes that bits.py prints with the wheel; None for a version of Python that Debian does not have."""
        if version != VERSION:
            say(f"{wheel.name}: audited, not run: Debian's Python for {self._arch} is {VERSION}")
            return None
        qemu = shutil.which(f"qemu-{self._arch}") or shutil.which(f"qemu-{self._arch}-static")
        if not qemu:
            raise Failure(f"got no qemu-{self._arch} in PATH, wanted it to try {wheel.name}: apt-get install qemu-user")
        Debian(self._work).unpack(f"Python for {self._arch}", PACKAGES, self._arch, self._root, needs=True)
        site = self._root / "site"
        shutil.rmtree(site, ignore_errors=True)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
        python = self._root / "usr" / "bin" / f"python{VERSION}"
        bits = Path(__file__).with_name("bits.py")
        printed = self._work.run(
            f"steps of {wheel.name} under qemu", [qemu, "-L", self._root, python, "-I", "-c",
            f"import runpy, sys; sys.path.insert(0, {str(site)!r}); runpy.run_path({str(bits)!r}, run_name='__main__')"],
        )  # fmt: skip
        hashes: Hashes = json.loads(printed.splitlines()[-1])
        return hashes
