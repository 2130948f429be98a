"""The compiler of wheels: zig's clang, for one architecture and glibc 2.28, and the headers that it reads.

Zig has every glibc's list of symbols and links libc++ statically, so the machine's own glibc and libstdc++ do not matter. CMake
sees it as a toolchain file (`file`) with `settings`.
"""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

from wheels.debian import DEVELOPMENT, Debian
from wheels.work import Work

GLIBC = "2.28"
PROGRAMS = {"cc": "cc -target {target}", "c++": "c++ -target {target}", "ar": "ar", "ranlib": "ranlib"}
# CMake's compiler launcher. It compiles CPU kernels for this machine's architecture with g++, as native builds do: steps by
# clang take up to 1.4 times as long. Kernels need nothing from a standard library.
LAUNCHER = """\
#!/bin/sh
for word; do
  case "$word" in *rules/step_*.cpp | *backend/cpu/*_kernels.cpp) kernel=yes ;; esac
done
[ "$kernel" ] || exec "$@"
if [ "${1##*/}" = ccache ]; then cache=ccache; shift; fi
unset CCACHE_COMPILERTYPE CCACHE_COMPILERCHECK
shift
exec $cache g++ "$@"
"""
TOOLCHAIN = """\
{cross}set(CMAKE_C_COMPILER "{bin}/cc")
set(CMAKE_CXX_COMPILER "{bin}/c++")
set(CMAKE_AR "{bin}/ar")
set(CMAKE_RANLIB "{bin}/ranlib")
set(CMAKE_SHARED_LINKER_FLAGS_INIT -s)
set(CMAKE_MODULE_LINKER_FLAGS_INIT -s)
set(CMAKE_LIBRARY_ARCHITECTURE {arch}-linux-gnu)
# Libraries from the prefix alone. The build's Python, and its headers, are this machine's.
set(CMAKE_FIND_ROOT_PATH "{prefix}")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE BOTH)
include_directories(BEFORE SYSTEM "{prefix}/include")
"""


class Toolchain:
    """Compiles for `arch` (x86_64, aarch64)."""

    def __init__(self, work: Work, arch: str) -> None:
        self.arch = arch
        self.is_cross = arch != platform.machine()
        self._work = work
        self.folder = work.folder / arch
        self.file = self.folder / "toolchain.cmake"
        self._root = self.folder / "root"
        self.settings: dict[str, str] = {}  # CMake settings by name
        self._target = f"{arch}-linux-gnu.{GLIBC}"
        self._zig_version = ""

    def make(self) -> None:
        """Makes what does not exist yet."""
        self._make_programs()
        debian = Debian(self._work)
        debian.unpack(f"headers for {self.arch}", DEVELOPMENT, self.arch, self._root)
        self.settings = {
            "CMAKE_TOOLCHAIN_FILE": str(self.file),
            "LOWTIDE_HIGHWAY_SOURCE": str(debian.highway()),
        }

    def environment(self) -> dict[str, str]:
        """Variables for CMake: a compiler cache, if there is one, and g++ for kernels."""
        launchers = [] if self.is_cross else [str(self.folder / "bin" / "launcher")]
        env: dict[str, str] = {}
        if shutil.which("ccache"):
            launchers.append("ccache")
            # ccache sees a script named c++. It cannot know that it is clang, its target, or that zig has changed.
            env |= {"CMAKE_C_COMPILER_LAUNCHER": "ccache", "CCACHE_COMPILERTYPE": "clang"}
            env["CCACHE_COMPILERCHECK"] = f"string:zig {self._zig_version} for {self._target}"
        if launchers:
            env["CMAKE_CXX_COMPILER_LAUNCHER"] = ";".join(launchers)
        return env

    def _make_programs(self) -> None:
        where = "import os, ziglang; print(os.path.join(os.path.dirname(ziglang.__file__), 'zig'))"
        zig = self._work.run("looking for zig", [self._work.tools() / "python", "-c", where]).strip()
        self._zig_version = self._work.run("asking zig for its version", [zig, "version"]).strip()
        folder = self.folder / "bin"
        folder.mkdir(parents=True, exist_ok=True)
        for name, words in PROGRAMS.items():
            call = words.format(target=self._target)
            write(folder / name, f'#!/bin/sh\nexec "{zig}" {call} "$@"\n')
            (folder / name).chmod(0o755)
        write(folder / "launcher", LAUNCHER)
        (folder / "launcher").chmod(0o755)
        # A system name makes it a cross build, whose programs CMake does not run.
        cross = f"set(CMAKE_SYSTEM_NAME Linux)\nset(CMAKE_SYSTEM_PROCESSOR {self.arch})\n" if self.is_cross else ""
        write(self.file, TOOLCHAIN.format(cross=cross, bin=folder, arch=self.arch, prefix=self._root / "usr"))


def write(path: Path, text: str) -> None:
    """Writes a file if its content is new. A new time alone would make everything compile again."""
    if not path.is_file() or path.read_text() != text:
        path.write_text(text)
