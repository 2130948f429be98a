"""The compiler of wheels: zig's clang, for one architecture and glibc 2.28, and the headers that it reads.

Zig carries every glibc's list of symbols, so that the machine's own does not matter. The C++ library is Debian's
libstdc++: C++ exceptions cross between a wheel and nanobind-backend or libsycl, which have that. What is newer than the
libstdc++ of manylinux_2_28 is linked in (libstdcxx.cpp, and NEWER from the static library); the audit finds what is not.
CMake sees it as a toolchain file (`file`) with `settings`.
"""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

from wheels.debian import DEVELOPMENT, Debian
from wheels.work import Words, Work

GLIBC = "2.28"
# Headers as -I, for clang looks for those of the system behind them. Warnings in them are not ours.
PROGRAMS = {
    "cc": "cc -target {target}",
    "c++": "c++ -target {target} -w -nostdinc++ -nostdlib++ {headers}",
    "ar": "ar",
    "ranlib": "ranlib",
}
LIBSTDCXX = ("libstdc++-12-dev", "libstdc++6", "libgcc-s1")
NEWER = ("fs_dir.o", "fs_ops.o", "fs_path.o")  # std::filesystem, of libstdc++.a
# The header is of glibc 2.32, and zig's refuses older ones. The word says that there may be several threads.
SINGLE_THREADED = "#pragma once\nstatic const char __libc_single_threaded = 0;\n"
# CMake's launcher of compilers, which gives the CPU kernels of this machine's architecture to g++: the native build's
# machine code, where clang's steps take up to 1.4 times as long. Kernels need nothing of a standard library.
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
set(CMAKE_CXX_STANDARD_LIBRARIES "{libraries}")
# CMake links a program to try the compiler. Debian's libstdc++ needs a newer glibc than that of the target.
set(CMAKE_EXE_LINKER_FLAGS_INIT -Wl,--allow-shlib-undefined)
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
        """Makes the missing parts."""
        debian = Debian(self._work)
        debian.unpack(f"headers for {self.arch}", DEVELOPMENT + LIBSTDCXX, self.arch, self._root)
        self._make_programs()
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
            env["CCACHE_COMPILERCHECK"] = f"string:zig {self._zig_version} for {self._target}, {LIBSTDCXX[0]}"
        if launchers:
            env["CMAKE_CXX_COMPILER_LAUNCHER"] = ";".join(launchers)
        return env

    def _make_programs(self) -> None:
        where = "import os, ziglang; print(os.path.join(os.path.dirname(ziglang.__file__), 'zig'))"
        zig = self._work.run("looking for zig", [self._work.tools() / "python", "-c", where]).strip()
        self._zig_version = self._work.run("asking zig for its version", [zig, "version"]).strip()
        folder = self.folder / "bin"
        folder.mkdir(parents=True, exist_ok=True)
        usr, triple = self._root / "usr", f"{self.arch}-linux-gnu"
        (self.folder / "include" / "sys").mkdir(parents=True, exist_ok=True)
        write(self.folder / "include" / "sys" / "single_threaded.h", SINGLE_THREADED)
        include = (self.folder / "include", usr / "include/c++/12", usr / "include" / triple / "c++/12")
        for name, words in PROGRAMS.items():
            call = words.format(target=self._target, headers=" ".join(f"-I{path}" for path in include))
            write(folder / name, f'#!/bin/sh\nexec "{zig}" {call} "$@"\n')
            (folder / name).chmod(0o755)
        write(folder / "launcher", LAUNCHER)
        (folder / "launcher").chmod(0o755)
        libraries = [
            *self._newer(folder),
            usr / "lib" / triple / "libstdc++.so.6",
            self._root / "lib" / triple / "libgcc_s.so.1",
        ]
        # A system's name makes it a cross build, whose programs CMake does not run.
        cross = f"set(CMAKE_SYSTEM_NAME Linux)\nset(CMAKE_SYSTEM_PROCESSOR {self.arch})\n" if self.is_cross else ""
        words = {"bin": folder, "arch": self.arch, "prefix": usr, "libraries": " ".join(map(str, libraries))}
        write(self.file, TOOLCHAIN.format(cross=cross, **words))

    def _newer(self, programs: Path) -> tuple[Path, Path]:
        """An object and an archive with functions newer than manylinux_2_28's libstdc++; the linker takes what it needs."""
        source, added, newer = Path(__file__).with_name("libstdcxx.cpp"), self.folder / "libstdcxx.o", self.folder / "newer.a"
        compiled: Words = ["-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-c", source, "-o", added]
        self._work.run("functions newer than libstdc++", [programs / "c++", *compiled])
        [whole] = self._root.glob("usr/lib/gcc/*/12/libstdc++.a")
        self._work.run("std::filesystem", [programs / "ar", "x", whole, *NEWER], cwd=self.folder)
        self._work.run("its archive", [programs / "ar", "rcs", newer, *NEWER], cwd=self.folder)
        return added, newer


def write(path: Path, text: str) -> None:
    """Writes a file if its content is new. A new time alone would make everything compile again."""
    if not path.is_file() or path.read_text() != text:
        path.write_text(text)
