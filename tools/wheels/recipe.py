"""For each architecture, builds, audits, stores and tries the wheel of each Python."""

from __future__ import annotations

from pathlib import Path

from wheels import audit, bare, source
from wheels.borrowed import Borrowed
from wheels.build import Builder
from wheels.emulated import Emulated
from wheels.interpreters import STABLE, is_stable
from wheels.hashes import Cells, Hashes, require_equal
from wheels.toolchain import Toolchain
from wheels.work import Work


class Recipe:
    """Makes wheels for `interpreters` (by version) into `out`, and tries them with the packages that `borrowed` has."""

    def __init__(self, work: Work, interpreters: dict[str, Path], borrowed: Borrowed, out: Path) -> None:
        self._work, self._interpreters, self._borrowed, self._out = work, interpreters, borrowed, out
        self._hashes: Cells = {}  # of all wheels so far, by cell

    def source(self) -> None:
        """Makes the source distribution. `files` becomes the folder of its contents."""
        self._archive, self.files = source.distribution(self._work, self._out)

    def try_source(self) -> None:
        """Builds the source distribution as docs/quick-start.md says, without network."""
        version, interpreter = next(iter(self._interpreters.items()))
        self._compare(self._archive.name, source.trial(self._work, self._archive, version, interpreter))

    def make(self, arch: str) -> None:
        """Makes and tries the wheels of an architecture."""
        toolchain = Toolchain(self._work, arch)
        toolchain.make()
        builder = Builder(self._work, toolchain, self.files)
        made: dict[str, Path] = {}  # by version, or STABLE for all later ones
        for version, interpreter in self._interpreters.items():
            name = STABLE if is_stable(version) else version
            if name not in made:
                made[name] = audit.repair(self._work, builder.wheel(version, interpreter), arch, self._out)
            tried = (self._try_emulated if toolchain.is_cross else self._try_here)(made[name], arch, version, interpreter)
            if tried:
                self._compare(f"{made[name].name}, Python {version}", tried)

    def _try_here(self, wheel: Path, arch: str, version: str, interpreter: Path) -> Hashes:
        trial = bare.Bare(self._work, wheel, version, interpreter)
        hashes = trial.bits()
        if lent := self._borrowed.folders(version, interpreter):
            trial.use(lent)
        return hashes

    def _try_emulated(self, wheel: Path, arch: str, version: str, interpreter: Path) -> Hashes | None:
        trial = Emulated(self._work, arch)
        if not trial.unpack(wheel, version):
            return None
        if lent := self._borrowed.foreign(arch, version, interpreter):
            trial.use(lent)
        return trial.bits()

    def _compare(self, name: str, hashes: Hashes) -> None:
        """Requires every wheel, version and instruction set to have the bits of the first."""
        self._hashes = self._hashes or next(iter(hashes.values()))
        require_equal(name, hashes, self._hashes)
