#!/usr/bin/env python3
"""Checks a built CUDA plug-in: it shows its entry points and nothing else, and needs no library but the C++ compiler's
and the C library (so it loads without CUDA). Prints what it found, and exits 1 on an offence."""

from __future__ import annotations

import re
import subprocess
import sys

SHOWN = {"lt_cuda_version", "lt_cuda_devices", "lt_cuda_open"}
# libdl, libpthread and librt are parts of libc, and libraries of their own before glibc 2.34.
NEEDED = re.compile(r"lib(stdc\+\+|gcc_s|c|m|dl|pthread|rt)\.so\.\d+|ld-linux.*\.so\.\d+")


def output_of(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main(path: str) -> int:
    shown = {line.split()[-1].split("@")[0] for line in output_of("nm", "-D", "--defined-only", path).splitlines()}
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", output_of("readelf", "-d", path))
    print(f"{path} shows {len(shown)} symbols, needs {', '.join(needed)}")
    offences = [f"shows {name}, wanted {', '.join(sorted(SHOWN))} only" for name in sorted(shown - SHOWN)]
    offences += [f"does not show {name}" for name in sorted(SHOWN - shown)]
    offences += [f"needs {name}, wanted none but the C++ compiler's and the C library" for name in needed
                 if not NEEDED.fullmatch(name)]
    for offence in offences:
        print(f"{path} {offence}")
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
