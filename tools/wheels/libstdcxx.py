"""The compiler for a plug-in whose runtime uses types of libstdc++ in its interface: zig's clang, for the same old glibc, with
headers and library of libstdc++ from Debian.

Functions newer than manylinux_2_28's libstdc++ are linked into the plug-in (libstdcxx.cpp); the audit finds any others.
"""

from __future__ import annotations

from pathlib import Path

from wheels.debian import Debian
from wheels.toolchain import Toolchain, write
from wheels.work import Words, Work

PACKAGES = ("libstdc++-12-dev", "libstdc++6", "libgcc-s1")
VERSION = "12"
# The header is from glibc 2.32, and zig's refuses older ones. Its word says that there may be several threads.
SINGLE_THREADED = "#pragma once\nstatic const char __libc_single_threaded = 0;\n"
TOOLCHAIN = """\
include("{base}")
set(CMAKE_CXX_FLAGS_INIT "{flags}")
set(CMAKE_CXX_STANDARD_LIBRARIES "{libraries}")
# CMake links a program to try the compiler. Debian's libstdc++ needs a newer glibc than that of the target.
set(CMAKE_EXE_LINKER_FLAGS_INIT -Wl,--allow-shlib-undefined)
"""


def make(work: Work, toolchain: Toolchain) -> Path:
    """Makes the compiler beside those of `toolchain`, and returns CMake's toolchain file."""
    folder = toolchain.folder / "libstdcxx"
    root = folder / "root"
    Debian(work).unpack("libstdc++", PACKAGES, toolchain.arch, root)
    (folder / "sys").mkdir(exist_ok=True)
    write(folder / "sys" / "single_threaded.h", SINGLE_THREADED)
    triple = f"{toolchain.arch}-linux-gnu"
    headers = (folder, root / "usr/include/c++" / VERSION, root / "usr/include" / triple / "c++" / VERSION)
    # clang searches -I before the system's headers. Warnings in these headers are not ours.
    flags = ["-w", "-nostdinc++", "-nostdlib++", *(f"-I{path}" for path in headers)]

    added, source = folder / "libstdcxx.o", Path(__file__).with_suffix(".cpp")
    compiled: Words = ["-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-c", source, "-o", added]
    work.run("functions newer than libstdc++", [toolchain.folder / "bin" / "c++", *flags, *compiled])
    libraries = (added, root / "usr/lib" / triple / "libstdc++.so.6", root / "lib" / triple / "libgcc_s.so.1")
    file = folder / "toolchain.cmake"
    words = {"flags": " ".join(flags), "libraries": " ".join(map(str, libraries))}
    write(file, TOOLCHAIN.format(base=toolchain.file, **words))
    return file
