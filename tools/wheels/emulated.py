"""Tries a wheel for another architecture with Debian's Python for it under qemu-user, and torch's own wheel.

Nothing is installed; packages are unpacked side by side. pip would run the foreign Python, which starts programs that this
machine cannot run by itself.
"""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

from wheels.bare import BITS, PYTEST, readme_block
from wheels.hashes import Hashes, hashes_in
from wheels.debian import Debian
from wheels.work import Failure, Words, Work, say

PACKAGES = ("python3.11-minimal", "libpython3.11-stdlib", "libstdc++6")
VERSION = "3.11"  # of Debian's
_RUN = "import runpy, sys; sys.path[:0] = {folders!r}; sys.argv = {argv!r}; runpy.{run}({what!r}, run_name='__main__')"


class Emulated:
    """A folder with Debian's Python for `arch`, and wheels, unpacked."""

    def __init__(self, work: Work, arch: str, wheels: list[Path]) -> None:
        self._work, self._arch = work, arch
        self._root = work.folder / arch / "python"
        self._site = self._root / "site"
        Debian(work).unpack(f"Python for {arch}", PACKAGES, arch, self._root, needs=True)
        shutil.rmtree(self._site, ignore_errors=True)
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(self._site)

    def bits(self) -> Hashes:
        """The hashes that bits.py prints."""
        return hashes_in(self._run("steps without torch", [], [BITS]))

    def use(self, lent: list[Path]) -> None:
        """Runs README's first block and the golden hashes, beside torch's packages in `lent`."""
        block = self._root / "readme.py"
        block.write_text(readme_block())
        self._run("README's block", lent, [block])
        text = self._run("golden hashes", lent, PYTEST)
        say(f"{self._arch}: golden hashes: {text.strip().splitlines()[-1]}")

    def _run(self, what: str, lent: list[Path], words: list[Path] | tuple[str | Path, ...]) -> str:
        """Runs a script, or a module after -m, with arguments."""
        qemu = shutil.which(f"qemu-{self._arch}") or shutil.which(f"qemu-{self._arch}-static")
        if not qemu:
            raise Failure(f"got no qemu-{self._arch} in PATH, wanted it to try the wheel: apt-get install qemu-user")
        argv = [str(word) for word in words]
        is_module = argv[0] == "-m"
        code = _RUN.format(
            folders=[str(self._site), *map(str, lent)],
            argv=argv[is_module:],
            run="run_module" if is_module else "run_path",
            what=argv[is_module],
        )
        python = self._root / "usr" / "bin" / f"python{VERSION}"
        command: Words = [qemu, "-L", self._root, python, "-I", "-c", code]
        return self._work.run(f"{what} under qemu-{self._arch}", command, cwd=self._root)
