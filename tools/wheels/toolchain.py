"""The compiler of wheels: clang as zig ships it, for one architecture and for glibc 2.28, and the libraries it links.

Zig carries every glibc's list of symbols and links libc++ statically, so that the machine's own glibc and libstdc++ do
not matter. CMake sees it as a toolchain file (`file`); what the library needs is in `prefix`.
"""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path

from wheels.debian import DEVELOPMENT, Debian
from wheels.work import Work

GLIBC = "2.28"
PROGRAMS = {"cc": "cc -target {target}", "c++": "c++ -target {target}", "ar": "ar", "ranlib": "ranlib"}
# CMake's launcher of compilers, which gives the CPU kernels of this machine's architecture to g++: the native build's
# machine code, where clang's steps take up to 1.4 times as long. Kernels need nothing of a standard library.
LAUNCHER = """\
#!/bin/sh
for word; do
  case "$word" in *rules/step_*.cpp | *backend/cpu/*_kernels.cpp) kernel=yes ;; esac
done
[ "$kernel" ] || exec "$@"
if [ "${1##*/}" = ccache ]; then cache=ccache; shift; fi
unset CCACHE_COMPILERTYPE
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
set(hwy_DIR "{prefix}/lib/cmake/hwy")
include_directories(BEFORE SYSTEM "{prefix}/include")
"""
HIGHWAY_CONFIG = """\
# Highway as a static library; its own build installs no CMake package.
if(NOT TARGET hwy::hwy)
  add_library(hwy::hwy STATIC IMPORTED)
  set_target_properties(
    hwy::hwy PROPERTIES IMPORTED_LOCATION "{prefix}/lib/libhwy.a" INTERFACE_INCLUDE_DIRECTORIES "{prefix}/include"
                        INTERFACE_COMPILE_DEFINITIONS HWY_STATIC_DEFINE)
endif()
"""
HIGHWAY_VERSION = "set(PACKAGE_VERSION 1.0.3)\nset(PACKAGE_VERSION_COMPATIBLE TRUE)\n"
HIGHWAY_OPTIONS = (
    "HWY_ENABLE_TESTS",
    "HWY_ENABLE_EXAMPLES",
    "HWY_ENABLE_CONTRIB",
    "BUILD_TESTING",
    "BUILD_SHARED_LIBS",
)


class Toolchain:
    """Compiles for `arch` (x86_64, aarch64)."""

    def __init__(self, work: Work, arch: str) -> None:
        self.arch = arch
        self.is_cross = arch != platform.machine()
        self._work = work
        self.folder = work.folder / arch
        self.prefix = self.folder / "root" / "usr"
        self.file = self.folder / "toolchain.cmake"

    def make(self) -> None:
        """Makes what is not there yet."""
        self._make_programs()
        Debian(self._work).unpack(f"headers for {self.arch}", DEVELOPMENT, self.arch, self.prefix.parent)
        self._make_highway(Debian(self._work).highway())

    def environment(self) -> dict[str, str]:
        """Variables for CMake: a compiler cache where there is one, and g++ for kernels."""
        launchers = [] if self.is_cross else [str(self.folder / "bin" / "launcher")]
        env: dict[str, str] = {}
        if shutil.which("ccache"):
            launchers.append("ccache")
            # Under the name c++, ccache would not know clang.
            env |= {"CMAKE_C_COMPILER_LAUNCHER": "ccache", "CCACHE_COMPILERTYPE": "clang"}
        if launchers:
            env["CMAKE_CXX_COMPILER_LAUNCHER"] = ";".join(launchers)
        return env

    def _make_programs(self) -> None:
        where = "import os, ziglang; print(os.path.join(os.path.dirname(ziglang.__file__), 'zig'))"
        zig = self._work.run("looking for zig", [self._work.tools() / "python", "-c", where]).strip()
        folder = self.folder / "bin"
        folder.mkdir(parents=True, exist_ok=True)
        for name, words in PROGRAMS.items():
            call = words.format(target=f"{self.arch}-linux-gnu.{GLIBC}")
            write(folder / name, f'#!/bin/sh\nexec "{zig}" {call} "$@"\n')
            (folder / name).chmod(0o755)
        write(folder / "launcher", LAUNCHER)
        (folder / "launcher").chmod(0o755)
        # A system's name makes it a cross build, whose programs CMake does not run.
        cross = f"set(CMAKE_SYSTEM_NAME Linux)\nset(CMAKE_SYSTEM_PROCESSOR {self.arch})\n" if self.is_cross else ""
        write(self.file, TOOLCHAIN.format(cross=cross, bin=folder, arch=self.arch, prefix=self.prefix))

    def _make_highway(self, source: Path) -> None:
        config = self.prefix / "lib" / "cmake" / "hwy" / "hwy-config.cmake"
        if config.is_file():
            return
        build = self.folder / "highway"
        settings = [f"-D{name}=OFF" for name in HIGHWAY_OPTIONS]
        settings += ["-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_POSITION_INDEPENDENT_CODE=ON", "-DCMAKE_INSTALL_LIBDIR=lib"]
        settings += [f"-DCMAKE_TOOLCHAIN_FILE={self.file}", f"-DCMAKE_INSTALL_PREFIX={self.prefix}"]
        env = self.environment()
        what = f"Highway for {self.arch}"
        self._work.run(f"configuring {what}", ["cmake", "-G", "Ninja", "-S", source, "-B", build, *settings], env=env)
        jobs = str(os.cpu_count() or 1)
        self._work.run(
            f"compiling {what} (the first time zig makes its libc++)", ["cmake", "--build", build, "-j", jobs]
        )
        self._work.run(f"installing {what}", ["cmake", "--install", build])
        config.parent.mkdir(parents=True, exist_ok=True)
        (config.parent / "hwy-config-version.cmake").write_text(HIGHWAY_VERSION)
        config.write_text(HIGHWAY_CONFIG.format(prefix=self.prefix))


def write(path: Path, text: str) -> None:
    """Writes a file unless it says so already: a new time would have all compiled anew."""
    if not path.is_file() or path.read_text() != text:
        path.write_text(text)
