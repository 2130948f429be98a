"""Looks for types that files of CPU kernels define differently: check.py COMPILE_COMMANDS COMPILER [SOURCE_ROOT].

The files share one namespace per instruction set, so each type must be the same in all of them, whatever headers they
include. The compiler's link-time optimizer compares types across files; -O0 keeps that affordable. Flags are those of
COMPILE_COMMANDS (compile_commands.json). SOURCE_ROOT: other sources of the same layout, to see the check fail.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
# The rules' files differ in their rule alone: one of each kind stands for all, and has every codec.
FILES = re.compile(r"src/(backend/cpu/\w+_kernels|rules/step_(adamw|lamb|sgd_plain))\.cpp$")


def main(commands: str, compiler: str, source_root: str = str(ROOT)) -> None:
    listed = {entry["file"]: entry for entry in json.loads(Path(commands).read_text())}
    entries = [entry for file, entry in listed.items() if FILES.search(file)]
    if len(entries) < 5:
        sys.exit(f"{commands}: got {len(entries)} files of kernels, wanted 5 or more")
    with tempfile.TemporaryDirectory() as folder:
        objects = [f"{folder}/{i}.o" for i in range(len(entries))]

        def compile_one(entry: dict[str, str], out: str) -> None:
            flags = [f"-I{source_root}/src", *shlex.split(entry["command"])]
            flags = [flag for flag in flags if re.match(r"-[DIWfmis]", flag)]
            source = entry["file"].replace(f"{ROOT}/src", f"{source_root}/src")
            run([compiler, "-O0", "-flto", *flags, "-c", source, "-o", out])

        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            list(pool.map(compile_one, entries, objects))
        said = run([compiler, "-O0", "-flto", "-Wodr", "-r", "-flinker-output=nolto-rel", *objects, "-o", f"{folder}/all.o"])
    if "One Definition Rule" in said:
        sys.exit(f"files of CPU kernels define a type differently\n{said}")
    print(f"{len(entries)} files of CPU kernels agree on all types")


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{command[0]} failed with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


if __name__ == "__main__":
    main(*sys.argv[1:])
