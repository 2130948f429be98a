"""Gets Highway's source, and headers and libraries for the build, from Debian, whatever this machine has installed.

apt-get uses its own lists in the work folder, so it needs no root and changes nothing on the machine. It checks signatures as
usual.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from wheels.work import Failure, Work

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
SUITE = "bookworm"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}  # our name: Debian's
DEVELOPMENT = ("libxxhash-dev", "nlohmann-json3-dev", "liburing-dev")
SOURCES = """\
Types: deb deb-src
URIs: http://deb.debian.org/debian
Suites: {suite}
Components: main
Architectures: {architectures}
Signed-By: {keyring}
"""


class Debian:
    """Packages of Debian's release SUITE, for both architectures."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._folder = work.folder / "debian"

    def highway(self) -> Path:
        """The folder of Highway's source."""
        target = self._folder / "highway"
        if not target.is_dir():
            self._fetch("Highway's source", "source", "--download-only", "highway")
            [archive] = self._folder.glob("highway_*.orig.tar.*")
            unpacked = self._folder / "highway.unpacked"
            unpacked.mkdir(exist_ok=True)
            self._work.run("unpacking Highway", ["tar", "xf", archive, "-C", unpacked, "--strip-components=1"])
            unpacked.rename(target)
        return target

    def unpack(self, what: str, packages: tuple[str, ...], arch: str, into: Path, *, needs: bool = False) -> None:
        """Unpacks packages for an architecture into a folder, without installing. needs: also all packages that they need."""
        stamp = into / ".unpacked"
        if stamp.is_file() and stamp.read_text() == " ".join(packages):
            return
        native = ("-o", f"APT::Architecture={ARCHITECTURES[arch]}")
        if needs:
            options = ("--no-install-recommends", "-y", "--download-only", "install")
            self._fetch(what, *native, *options, *packages)
            archives = sorted((self._folder / "cache" / "archives").glob("*.deb"))
        else:
            self._fetch(what, *native, "download", *packages)
            archives = [path for name in packages for path in self._folder.glob(f"{name}_*.deb")]
        into.mkdir(parents=True, exist_ok=True)
        fitting = [path for path in archives if path.stem.rsplit("_", 1)[1] in (ARCHITECTURES[arch], "all")]
        each = 'for archive; do dpkg-deb -x "$archive" . || exit 1; done'
        self._work.run(f"unpacking {what}", ["sh", "-c", each, "sh", *fitting], cwd=into)
        stamp.write_text(" ".join(packages))

    def _fetch(self, what: str, *arguments: str) -> None:
        for program in ("apt-get", "dpkg-deb"):
            if not shutil.which(program):
                raise Failure(f"got no {program}, wanted Debian's or Ubuntu's: packages come from there")
        if not KEYRING.is_file():
            raise Failure(f"got no {KEYRING}: apt-get install debian-archive-keyring")
        folder = self._folder
        listed = folder / "lists"
        if not listed.is_dir():
            for name in ("lists.new/partial", "cache/archives/partial"):
                (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / "status").touch()
            text = SOURCES.format(suite=SUITE, keyring=KEYRING, architectures=" ".join(ARCHITECTURES.values()))
            (folder / "debian.sources").write_text(text)
            self._apt("reading Debian's lists", "lists.new", "update")
            (folder / "lists.new").rename(listed)
        self._apt(f"fetching {what}", "lists", *arguments)

    def _apt(self, what: str, lists: str, *arguments: str) -> None:
        options = {
            "Dir::Etc::sourcelist": self._folder / "debian.sources",
            "Dir::Etc::sourceparts": "-",
            "Dir::State::lists": self._folder / lists,
            "Dir::State::status": self._folder / "status",
            "Dir::Cache": self._folder / "cache",
            "APT::Sandbox::User": "",
            "Debug::NoLocking": "true",
        }
        settings = [f"-o{name}={value}" for name, value in options.items()]
        settings += [f"-oAPT::Architectures::={name}" for name in ARCHITECTURES.values()]
        self._work.run(what, ["apt-get", "-q", *settings, *arguments], cwd=self._folder)
