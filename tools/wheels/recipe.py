"""The recipe: for each architecture, the wheel is built, audited, put into the folder, and tried with each Python."""

from __future__ import annotations

from pathlib import Path

from wheels import audit, source
from wheels.bare import Bare
from wheels.borrowed import Borrowed
from wheels.build import package_wheel
from wheels.emulated import VERSION, Emulated
from wheels.hashes import Cells, Hashes, require_equal
from wheels.toolchain import Toolchain
from wheels.work import Work


class Recipe:
    """Makes wheels into `out`, and tries them with the versions `pythons` and what `borrowed` has for them."""

    def __init__(self, work: Work, pythons: list[str], borrowed: Borrowed, out: Path) -> None:
        self._work, self._pythons, self._borrowed, self._out = work, pythons, borrowed, out
        self._hashes: Cells = {}  # of all that was tried, by cell

    def source(self) -> None:
        """Makes the source distribution. `files` becomes the folder of its contents."""
        self._archive, self.files = source.distribution(self._work, self._out)

    def try_source(self) -> None:
        """Builds the source distribution as docs/quick-start.md says, without network."""
        self._compare(self._archive.name, source.trial(self._work, self._archive))

    def make(self, arch: str) -> None:
        """Makes and tries the wheel of an architecture."""
        toolchain = Toolchain(self._work, arch)
        toolchain.make()
        wheel = audit.repair(self._work, package_wheel(self._work, toolchain, self.files), arch, self._out)
        for version in [VERSION] if toolchain.is_cross else self._pythons:
            wheels = [wheel, self._borrowed.backend(version, arch)]
            trial = self._try_emulated if toolchain.is_cross else self._try_here
            self._compare(f"{wheel.name}, Python {version}", trial(wheels, arch, version))

    def _try_here(self, wheels: list[Path], arch: str, version: str) -> Hashes:
        trial = Bare(self._work, wheels, version)
        hashes = trial.bits()
        if lent := self._borrowed.folders(version):
            trial.use(lent)
        return hashes

    def _try_emulated(self, wheels: list[Path], arch: str, version: str) -> Hashes:
        trial = Emulated(self._work, arch, wheels)
        if lent := self._borrowed.foreign(arch, version):
            trial.use(lent)
        return trial.bits()

    def _compare(self, name: str, hashes: Hashes) -> None:
        """Requires every wheel, version and instruction set to have the bits of the first."""
        self._hashes = self._hashes or next(iter(hashes.values()))
        require_equal(name, hashes, self._hashes)
