"""Audits a wheel: auditwheel checks manylinux, abi3audit checks Python's stable ABI, and this file checks every shared library
in it."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from wheels.work import Failure, Words, Work, say

NEWEST = (2, 28)  # of glibc's versions: the wheel is manylinux_2_28 or older
MAX_BYTES = 5_000_000
# The parts of glibc. A wheel needs no other library of the system.
GLIBC = re.compile(r"^(lib(c|m|dl|rt|pthread)\.so\.[0-9]+|ld-linux-[a-z0-9-]+\.so\.[0-9]+)$")
GLIBC_VERSION = re.compile(r"^GLIBC_([0-9]+)\.([0-9]+)(\.[0-9]+)?$")
# The functions that a library exports. All else is hidden, because two C++ libraries in one process must not meet.
SHOWN = {
    re.compile(r"_core\.abi3\.so$"): re.compile(r"PyInit__core$"),
    re.compile(r"liblowtide_cuda[0-9]+\.so$"): re.compile(r"lt_cuda_plugin$"),
    re.compile(r"liblowtide_sycl[0-9]+\.so$"): re.compile(r"lt_sycl_plugin$"),
}
# The C++ library, and the newest version of its symbols that manylinux_2_28 has.
CXX = re.compile(r"^(libstdc\+\+\.so\.6|libgcc_s\.so\.1)$")
CXX_VERSION = re.compile(r"^(GLIBCXX_3\.4(\.([0-9]|1[0-9]|2[0-4]))?|CXXABI_1\.3(\.([0-9]|1[01]))?|GCC_[34]\..*)$")


@dataclass
class Library:
    """A shared library, as its dynamic section describes it."""

    name: str
    machine: str
    needed: list[str] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)  # RPATH, RUNPATH
    versions: dict[str, set[str]] = field(default_factory=dict)  # of symbols, by the library that provides them
    shown: list[str] = field(default_factory=list)
    executable_stack: bool = False


def repair(work: Work, wheel: Path, arch: str, out: Path, *, most: int = MAX_BYTES, excluded: str = "") -> Path:
    """Audits a wheel and writes it into `out`, named for its platform. Raises Failure with every offence. most: the most bytes
    of the wheel. excluded: a library that another package provides."""
    out.mkdir(parents=True, exist_ok=True)
    tools = work.tools()
    repaired = wheel.parent / "repaired"
    # "auto" is the oldest platform that fits. auditwheel knows no names for another architecture.
    options: Words = ["--zip-compression-level=9", "--plat", "auto", "--wheel-dir", repaired]
    options += ["--exclude", excluded] if excluded else []
    path = {"PATH": f"{tools}:/usr/bin:/bin"}
    work.run(f"auditing {wheel.name}", [tools / "auditwheel", "repair", *options, wheel], env=path)
    [made] = repaired.glob("*.whl")
    if "-abi3-" in made.name:  # plug-ins know nothing of Python
        work.run(f"auditing the stable ABI of {made.name}", [tools / "abi3audit", "--strict", "--report", made])
    found = offences(made, arch, excluded)
    if "manylinux" not in made.name:
        found.append("has no manylinux tag")
    if made.stat().st_size > most:
        found.append(f"has {made.stat().st_size} bytes, wanted {most} at most")
    if found:
        raise Failure(f"{made.name}:\n  " + "\n  ".join(found))
    libraries = list(_libraries(made))
    newest = max(map(_newest, libraries))
    others = {needed for library in libraries for needed in library.needed if not GLIBC.match(needed)}
    beside = ", ".join(sorted(others)) or "nothing else"
    say(f"{made.name}: {made.stat().st_size / 1e6:.2f} MB, glibc {'.'.join(map(str, newest))} or newer and {beside}")
    return made.replace(out / made.name)


def offences(wheel: Path, arch: str = "x86_64", excluded: str = "") -> list[str]:
    """Everything in a wheel's shared libraries that it may not have, in words; excluded: as for repair."""
    libraries = list(_libraries(wheel))
    if not libraries:
        raise Failure(f"{wheel.name} has no shared library")
    return [offence for library in libraries for offence in _offences(library, arch, excluded)]


def _libraries(wheel: Path) -> Iterator[Library]:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".so"):
                yield _read(name, archive.read(name))


def _read(name: str, content: bytes) -> Library:
    elf: Any = ELFFile(io.BytesIO(content))
    library = Library(name, elf["e_machine"])
    for tag in elf.get_section_by_name(".dynamic").iter_tags():
        if tag.entry.d_tag == "DT_NEEDED":
            library.needed.append(tag.needed)
        elif tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH"):
            library.paths.append(getattr(tag, tag.entry.d_tag[3:].lower()))
    for section in elf.iter_sections():
        if isinstance(section, GNUVerNeedSection):
            for needed, versions in section.iter_versions():
                library.versions.setdefault(str(needed.name), set()).update(version.name for version in versions)
    for symbol in elf.get_section_by_name(".dynsym").iter_symbols():
        if symbol["st_shndx"] != "SHN_UNDEF" and symbol["st_info"]["bind"] in ("STB_GLOBAL", "STB_WEAK"):
            library.shown.append(symbol.name)
    library.executable_stack = any(s["p_type"] == "PT_GNU_STACK" and s["p_flags"] & 1 for s in elf.iter_segments())
    return library


def _newest(library: Library) -> tuple[int, ...]:
    """The newest version of glibc that a library needs."""
    found = [GLIBC_VERSION.match(version) for versions in library.versions.values() for version in versions]
    return max((tuple(int(n) for n in match.groups()[:2]) for match in found if match), default=(2, 0))


def _offences(library: Library, arch: str, excluded: str) -> Iterator[str]:
    machine = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}[arch]
    if library.machine != machine:
        yield f"{library.name} is for {library.machine}, wanted {machine}"
    for needed in library.needed:
        if not GLIBC.match(needed) and not CXX.match(needed) and needed != excluded:
            yield f"{library.name} needs {needed}, wanted libraries of glibc and C++ alone"
    for needed, versions in library.versions.items():
        for version in sorted(versions):
            match = GLIBC_VERSION.match(version)
            is_old = tuple(int(n) for n in match.groups()[:2]) <= NEWEST if match else CXX_VERSION.match(version)
            if not is_old:
                yield f"{library.name} needs {version} of {needed}, newer than manylinux_{NEWEST[0]}_{NEWEST[1]} has"
    for path in library.paths:
        if path != "$ORIGIN" and not path.startswith("$ORIGIN/"):
            yield f"{library.name} looks for libraries in {path}, wanted no folder but $ORIGIN and those in it"
    wanted = [shown for pattern, shown in SHOWN.items() if pattern.search(library.name)]
    if not wanted:
        yield f"{library.name} is none of the libraries that a wheel has"
    for symbol in library.shown:
        if wanted and not wanted[0].match(symbol):
            yield f"{library.name} shows {symbol}, wanted {wanted[0].pattern} alone"
    if library.executable_stack:
        yield f"{library.name} has an executable stack"
