"""The recipe: toolchain, wheels, audit and trial of one architecture after the other."""

from __future__ import annotations

from pathlib import Path

from wheels import audit, bare, source
from wheels.build import Builder
from wheels.emulated import Emulated
from wheels.toolchain import Toolchain
from wheels.work import Failure, Work, say


class Recipe:
    """Makes wheels for `interpreters` (by version) into `out`."""

    def __init__(self, work: Work, interpreters: dict[str, Path], torch_python: Path, out: Path) -> None:
        self._work, self._interpreters, self._torch_python, self._out = work, interpreters, torch_python, out
        self._source = source.distribution(work, out)
        self._hashes: dict[str, str] = {}  # of all wheels, by cell

    @property
    def files(self) -> Path:
        """The folder with the files of the source distribution."""
        return self._source

    def make(self, arch: str) -> None:
        toolchain = Toolchain(self._work, arch)
        toolchain.make()
        builder = Builder(self._work, toolchain, self._source)
        for version, interpreter in self._interpreters.items():
            raw = builder.wheel(version, interpreter)
            wheel = audit.repair(self._work, raw, arch, self._out)
            if toolchain.is_cross:
                tried = Emulated(self._work, arch).bits(wheel, version)
            else:
                tried = self._try_here(wheel, version, interpreter)
            if tried:
                self._compare(wheel.name, tried)

    def _try_here(self, wheel: Path, version: str, interpreter: Path) -> bare.Hashes:
        trial = bare.Bare(self._work, wheel, version, interpreter)
        hashes = trial.bits()
        lent = bare.lent_packages(self._torch_python, version)
        if lent:
            trial.use(lent)
        else:
            say(f"Python {version}: tried without torch, which {self._torch_python} does not have for it")
        return hashes

    def _compare(self, name: str, hashes: bare.Hashes) -> None:
        """Every wheel, version and instruction set has the bits of the first."""
        for target, cells in hashes.items():
            self._hashes = self._hashes or cells
            different = [cell for cell in self._hashes if cells.get(cell) != self._hashes[cell]]
            if different:
                raise Failure(
                    f"{name}, {target}: {len(different)} cells differ from the first wheel's: {', '.join(different)}"
                )
        say(f"{name}: {len(self._hashes)} cells equal on {', '.join(hashes)}")
