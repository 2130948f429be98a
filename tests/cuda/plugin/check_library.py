#!/usr/bin/env python3
"""Checks a built CUDA plug-in: it shows its entry points and nothing else, needs no library but the C++ compiler's and the
C library (so it loads without CUDA), and has machine code and PTX of these compute capabilities for each of so many source files:

    check_library.py PLUGIN MACHINE_CODE PTX FILES      as in: liblowtide_cuda13.so 75,80,90,100,120 75,120 42

Prints what it found, and exits 1 on an offence. Without cuobjdump (tools/cubin_report.py says where from) the code is not
looked at, and it says so."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "tools"))
from cubin_report import find_tool

SHOWN = {"lt_cuda_plugin"}
# libdl, libpthread and librt are parts of libc, and libraries of their own before glibc 2.34.
NEEDED = re.compile(r"lib(stdc\+\+|gcc_s|c|m|dl|pthread|rt)\.so\.\d+|ld-linux.*\.so\.\d+")


def output_of(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def offences_of_code(path: str, machine_code: str, ptx: str, files: int) -> list[str]:
    cuobjdump = find_tool("cuobjdump")
    if cuobjdump is None:
        print("code: not looked at, no cuobjdump (pip install nvidia-cuda-cuobjdump)")
        return []
    offences = []
    for what, option, wanted in (("machine code", "--list-elf", machine_code), ("PTX", "--list-ptx", ptx)):
        found = Counter(re.findall(r"\.sm_(\d+)\.\w+$", output_of(str(cuobjdump), option, path), re.MULTILINE))
        print(f"{what} of {', '.join(f'{arch} ({count} files)' for arch, count in sorted(found.items()))}")
        if found != Counter(dict.fromkeys(wanted.split(","), files)):
            offences.append(f"has {what} {dict(found)}, wanted {wanted}, {files} files of each")
    return offences


def main(path: str, machine_code: str, ptx: str, files: str) -> int:
    shown = {line.split()[-1].split("@")[0] for line in output_of("nm", "-D", "--defined-only", path).splitlines()}
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", output_of("readelf", "-d", path))
    print(f"{path} shows {len(shown)} symbols, needs {', '.join(needed)}")
    offences = [f"shows {name}, wanted {', '.join(sorted(SHOWN))} only" for name in sorted(shown - SHOWN)]
    offences += [f"does not show {name}" for name in sorted(SHOWN - shown)]
    offences += [f"needs {name}, wanted none but the C++ compiler's and the C library" for name in needed
                 if not NEEDED.fullmatch(name)]
    offences += offences_of_code(path, machine_code, ptx, int(files))
    for offence in offences:
        print(f"{path} {offence}")
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
