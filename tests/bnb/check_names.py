#!/usr/bin/env python3
"""Checks that liblowtide_bnb shows bitsandbytes' names and ours, and no other: check_names.py LIBRARY [BITSANDBYTES]

With the path of one of bitsandbytes' CUDA libraries, also that what it shows of these parts is all here.
"""

from __future__ import annotations

import re
import subprocess
import sys

THREE, TWO = ("fp32", "fp16", "bf16"), ("32", "16")
SUFFIXES_32BIT = {"adam": THREE, "lion": THREE, "ademamix": THREE, "momentum": TWO, "rmsprop": TWO, "adagrad": TWO}
THEIRS = {
    *(f"c{name}32bit_grad_{suffix}" for name, suffixes in SUFFIXES_32BIT.items() for suffix in suffixes),
    *(f"c{name}_8bit_blockwise_grad_{suffix}" for name in SUFFIXES_32BIT for suffix in THREE),
    *("cget_managed_ptr", "cprefetch", "cfill_fp32", "cfill_uint8"),
}
OURS = {
    *("cfree_managed_ptr", "lt_bnb_place", "lt_bnb_last_error", "lt_bnb_clear_error"),
    *("lt_bnb_use_backend", "lt_bnb_set_threads"),
}


def names_of(library: str) -> set[str]:
    """Defined symbols that others can see, without the linker's own and those of sanitizers."""
    listed = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    names = {line.split()[-1] for line in listed.splitlines()}
    return {name for name in names if not re.match(r"_|__asan|__tsan", name)}


def main() -> int:
    shown = names_of(sys.argv[1])
    missing, more = (THEIRS | OURS) - shown, shown - (THEIRS | OURS)
    for name in sorted(missing):
        print(f"missing: {name}")
    for name in sorted(more):
        print(f"not in the list: {name}")
    if len(sys.argv) > 2:
        part = re.compile(r"c[a-z]+(32bit|_8bit_blockwise)_grad_|cget_managed_ptr|cprefetch|cfill_")
        unknown = {name for name in names_of(sys.argv[2]) if part.match(name)} ^ THEIRS
        print(f"{sys.argv[2]}: {len(unknown)} names differ {sorted(unknown)}")
        missing |= unknown
    print(f"{len(shown)} names: {len(THEIRS)} of bitsandbytes, {len(OURS)} of ours")
    return 1 if missing or more else 0


if __name__ == "__main__":
    sys.exit(main())
