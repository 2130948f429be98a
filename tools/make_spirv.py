#!/usr/bin/env python3
"""Makes the SPIR-V of the SYCL kernels (src/backend/sycl/spirv) from the portable kernels and the kernels of src/backend.

    make_spirv.py                 compile anew; needs g++ and: pip install intel-sycl-rt intel-opencl-rt
    make_spirv.py --check         compare what is there with its sources; needs nothing
    make_spirv.py --check --sycl-root DIR    and, if DIR has the very compiler that made it, compile and compare bytes;
                                  with --sample N of N programs, which the hash of the sources picks

The files are committed, so that building and running need no SYCL compiler. manifest.json holds a hash of the sources
without comments and white space, which change no kernel. DIR holds include/sycl and lib/libsycl.so; by default it is
where this Python has the package intel-sycl-rt.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
OUT = SRC / "backend/sycl/spirv"
MANIFEST = OUT / "manifest.json"
# As the CPU kernels are compiled: no contraction, and division and square root as IEEE 754 has them.
OPTIONS = ["-ffp-contract=off", "-fno-math-errno", "-foffload-fp32-prec-div", "-foffload-fp32-prec-sqrt"]


def programs() -> dict[str, str]:
    """Program name -> SYCL source: two for each rule, one for the norms of those that need them, one for each type of
    signs, and the rest."""
    rules, norms = _listed("LT_(?:NORM_)?RULE"), _listed("LT_NORM_RULE")
    found = {
        f"{kind}_{name}": f"#define LT_SYCL_RULE {struct}\n#define LT_SYCL_RULE_NAME {name}\n"
        f'#include "backend/sycl/device/{kind}_rule.inc"\n'
        for kind, of in (("step", rules), ("ballot", rules), ("norms", norms))
        for name, struct in of
    }
    for name, struct in {"float32": "float", "bfloat16": "bf16", "float16": "f16"}.items():
        found[f"sign_{name}"] = (
            f"#define LT_SYCL_SIGN_TYPE {struct}\n#define LT_SYCL_SIGN_NAME {name}\n"
            '#include "backend/sycl/device/sign_kernels.inc"\n'
        )
    others = ("aux", "fill", "vote", "apply", "feedback", "sums")
    return found | {name: f'#include "backend/sycl/device/{name}_kernels.inc"\n' for name in others}


def _listed(macro: str) -> list[tuple[str, str]]:
    """The names and structs of rules.def."""
    text = (SRC / "portable/rules.def").read_text()
    return re.findall(rf"^{macro}\(\d+, (\w+), (\w+)\)", text, re.MULTILINE)


def sources_hash() -> str:
    files = [SRC / "backend/limits.h", SRC / "backend/norms.h", SRC / "backend/kernels/items.h", SRC / "backend/kernels/sums.h", *(SRC / "backend/kernels").glob("*-inl.h")]
    for folder in ("portable", "backend/sycl/device"):
        files += (f for f in (SRC / folder).rglob("*") if f.suffix in (".h", ".inc", ".def"))
    digest = hashlib.sha256(json.dumps([OPTIONS, programs()]).encode())
    for file in sorted(files):
        code = re.sub(r"//.*", "", file.read_text(encoding="utf-8"))
        digest.update(f"{file.relative_to(SRC).as_posix()}\n{' '.join(code.split())}\n".encode())
    return digest.hexdigest()


def hash_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def installed_root() -> Path | None:
    """The prefix of the package intel-sycl-rt of this Python."""
    try:
        files = metadata.files("intel-sycl-rt") or []
    except metadata.PackageNotFoundError:
        return None
    headers = [Path(str(f.locate())).resolve() for f in files if f.as_posix().endswith("include/sycl/sycl.hpp")]
    return headers[0].parents[2] if headers else None


def compiler_version(root: Path) -> str:
    header = (root / "include/sycl/version.hpp").read_text()
    found = re.search(r"__SYCL_COMPILER_VERSION (\d+)", header)
    if not found:
        sys.exit(f"make_spirv: {root}/include/sycl/version.hpp names no compiler version")
    return found[1]


def compile_into(out: Path, root: Path, chosen: dict[str, str]) -> None:
    """Writes NAME.spv of the programs into `out`, on all cores."""
    # The CPU device's driver, which no system folder lists when it comes from pip.
    env = {"OCL_ICD_FILENAMES": str(root / "lib/libintelocl.so"), **os.environ}
    with tempfile.TemporaryDirectory() as folder:
        compiler = Path(folder) / "spirv_compiler"
        run(
            "g++", "-std=c++20", "-O1", "-DSYCL_DISABLE_FSYCL_SYCLHPP_WARNING", "-isystem", root / "include",
            ROOT / "tools/spirv_compiler.cpp", "-o", compiler, f"-L{root}/lib", "-lsycl", f"-Wl,-rpath,{root}/lib",
        )  # fmt: skip
        pairs = []
        for name, source in chosen.items():
            (Path(folder) / f"{name}.cpp").write_text(source)
            pairs.append((Path(folder) / f"{name}.cpp", out / f"{name}.spv"))
        cores = len(os.sched_getaffinity(0))

        def compile_share(core: int) -> None:
            if files := [file for pair in pairs[core::cores] for file in pair]:
                run(compiler, f"-I{SRC}", *OPTIONS, "--", *files, env=env)

        with ThreadPoolExecutor(cores) as pool:
            list(pool.map(compile_share, range(cores)))


def run(*command: object, env: dict[str, str] | None = None) -> None:
    words = [str(word) for word in command]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"make_spirv: {Path(words[0]).name} failed with {done.returncode}\n{done.stdout}{done.stderr}")


def make(root: Path) -> None:
    OUT.mkdir(exist_ok=True)
    for old in OUT.glob("*.spv"):
        old.unlink()
    compile_into(OUT, root, programs())
    files = {name: hash_of(OUT / f"{name}.spv") for name in programs()}
    manifest = {"compiler": compiler_version(root), "sources": sources_hash(), "files": files}
    MANIFEST.write_text(json.dumps(manifest, indent=2) + "\n")
    print(f"{len(files)} programs, {sum((OUT / f'{name}.spv').stat().st_size for name in files)} bytes")


def check(root: Path | None, sample: int | None) -> None:
    manifest = json.loads(MANIFEST.read_text())
    again = "run tools/make_spirv.py"
    if manifest["sources"] != sources_hash():
        sys.exit(f"make_spirv: the kernels' sources have changed since their SPIR-V was made: {again}")
    there = {file.stem: hash_of(file) for file in OUT.glob("*.spv")}
    if manifest["files"] != there:
        sys.exit(f"make_spirv: the files in {OUT.relative_to(ROOT)} are not those of manifest.json: {again}")
    print(f"{len(there)} programs are those of their sources")
    what = f"compiler {compiler_version(root)}" if root else "no SYCL compiler"
    if root and not list((root / "lib").glob("libsycl-jit.so*")):
        what = "libsycl without libsycl-jit"
    if what != f"compiler {manifest['compiler']}":
        print(f"not compiled anew: {what} here, they were made by compiler {manifest['compiler']}")
        return
    all_of_them = programs()
    turn = {name: hashlib.sha256(f"{manifest['sources']} {name}".encode()).hexdigest() for name in all_of_them}
    chosen = {name: all_of_them[name] for name in sorted(all_of_them, key=turn.__getitem__)[:sample]}
    with tempfile.TemporaryDirectory() as folder:
        compile_into(Path(folder), root, chosen)
        differing = [name for name in chosen if hash_of(Path(folder) / f"{name}.spv") != there[name]]
    if differing:
        sys.exit(f"make_spirv: compiled anew, these differ: {', '.join(differing)}: {again}")
    print(f"{len(chosen)} of {len(there)} programs compiled anew, 0 differ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--sycl-root", type=Path, metavar="DIR")
    parser.add_argument("--sample", type=int, metavar="N")
    options = parser.parse_args()
    root = options.sycl_root or installed_root()
    if options.check:
        check(root, options.sample)
    elif root:
        make(root)
    else:
        sys.exit("make_spirv: no SYCL compiler; pip install intel-sycl-rt intel-opencl-rt, or give --sycl-root DIR")


if __name__ == "__main__":
    main()
