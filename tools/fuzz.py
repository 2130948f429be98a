#!/usr/bin/env python3
"""Fuzzes the parsers, guided by coverage, in pieces. Keeps count in docs/benchmarks/fuzz.json, so that a stopped run resumes.
Needs the fuzzers built (make fuzz builds them).

    python3 tools/fuzz.py                      runs every parser until it has 10,000,000 executions
    python3 tools/fuzz.py votes                runs only that one
    python3 tools/fuzz.py --executions 20e6    runs until each has this many
    python3 tools/fuzz.py --fresh              counts from 0
    python3 tools/fuzz.py --report             only prints the kept counts
    python3 tools/fuzz.py --pack               only replaces the tree's corpora by those that runs have grown

The C++ fuzzers are built with clang's libFuzzer and AddressSanitizer from tests/fuzz. The fuzzer of foreign state dicts is
tests/fuzz/foreign.py, under atheris. Inputs that crash a parser are saved in build/fuzz/crashes.
"""

from __future__ import annotations

import argparse
import base64
import datetime
import hashlib
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "docs/benchmarks/fuzz.json"
CORPORA = ROOT / "tests/fuzz/corpus"  # one file for each parser: inputs in base64, with white space between
WORK = ROOT / "build/fuzz"
LONGEST = {"checkpoint_header": 512, "checkpoint_file": 1200, "votes": 400, "foreign": 400}  # bytes of an input
# Without stacks of allocations, and with little freed memory held back, there are several times as many executions.
SANITIZER = "malloc_context_size=0:quarantine_size_mb=1:detect_leaks=0"


def command(name: str, programs: Path) -> list[str]:
    if name == "foreign":
        return [sys.executable, str(ROOT / "tests/fuzz/foreign.py")]
    return [str(programs / f"lowtide_fuzz_{name}")]


def unpack(name: str) -> Path:
    """The folder that the fuzzer works on, filled with the inputs of the tree."""
    folder = WORK / "corpus" / name
    folder.mkdir(parents=True, exist_ok=True)
    for line in (CORPORA / f"{name}.txt").read_text(encoding="ascii").split():
        data = base64.b64decode(line)
        (folder / hashlib.sha1(data).hexdigest()).write_bytes(data)
    return folder


def pack(name: str, programs: Path, most: int = 45_000) -> None:
    """Keeps the inputs, shortest first, that together reach all that the corpus reaches, in at most `most` bytes."""
    whole, least = unpack(name), WORK / "least" / name
    least.mkdir(parents=True, exist_ok=True)
    for path in least.iterdir():
        path.unlink()
    merge = [*command(name, programs), "-set_cover_merge=1", str(least), str(whole)]
    subprocess.run(merge, check=True, capture_output=True)
    inputs: list[str] = []
    for path in sorted(least.iterdir(), key=lambda path: (path.stat().st_size, path.name)):
        text = base64.b64encode(path.read_bytes()).decode()
        if sum(map(len, inputs)) + len(inputs) + len(text) < most:
            inputs.append(text)
    lines = textwrap.fill(" ".join(inputs), 120, break_long_words=False, break_on_hyphens=False)
    (CORPORA / f"{name}.txt").write_text(lines + "\n", encoding="ascii")
    print(f"{name}: {len(inputs)} inputs")


def run_piece(name: str, programs: Path, executions: int) -> dict[str, int]:
    """Executions, crashes, and the places of code reached, as libFuzzer counts them."""
    crashes = WORK / "crashes"
    crashes.mkdir(parents=True, exist_ok=True)
    words = [f"-runs={executions}", f"-max_len={LONGEST[name]}", f"-artifact_prefix={crashes}/{name}-"]
    words += ["-rss_limit_mb=2048", "-malloc_limit_mb=64", "-timeout=300", "-print_final_stats=1"]
    done = subprocess.run(
        [*command(name, programs), str(unpack(name)), *words],
        env=os.environ | {"ASAN_OPTIONS": SANITIZER},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    ran = re.search(r"stat::number_of_executed_units: (\d+)", done.stderr)
    reached = re.findall(r"cov: (\d+)", done.stderr)
    if done.returncode != 0:
        print(done.stderr[-4000:])
    return {
        "executions": int(ran[1]) if ran else 0,
        "crashes": int(done.returncode != 0),
        "places": int(reached[-1]) if reached else 0,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parsers", nargs="*", choices=[*LONGEST, []], help="only these (default: all)")
    parser.add_argument("--executions", type=float, default=1e7, help="of each parser, including kept ones")
    parser.add_argument("--piece", type=float, default=1e6, help="executions after which the count is kept")
    parser.add_argument("--programs", type=Path, default=WORK, help="the folder of the C++ fuzzers")
    parser.add_argument("--fresh", action="store_true", help="count from 0")
    parser.add_argument("--pack", action="store_true", help="fuzz nothing; write the corpora of the tree")
    parser.add_argument("--report", action="store_true", help="fuzz nothing; print the kept counts")
    options = parser.parse_args()
    kept = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    for name in options.parsers or LONGEST:
        if options.pack:
            pack(name, options.programs)
            continue
        count = {} if options.fresh else kept.get(name, {})
        while not options.report and count.get("executions", 0) < options.executions:
            piece = int(min(options.piece, options.executions - count.get("executions", 0)))
            found = run_piece(name, options.programs, piece)
            count = {
                "executions": count.get("executions", 0) + found["executions"],
                "crashes": count.get("crashes", 0) + found["crashes"],
                "places": max(count.get("places", 0), found["places"]),
                "date": datetime.date.today().isoformat(),
            }
            kept = (json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}) | {name: count}
            KEPT.write_text(json.dumps(dict(sorted(kept.items())), indent=1) + "\n", encoding="utf-8")
            print(f"  {name}: {count['executions']:,}", flush=True)
            if found["crashes"] or not found["executions"]:
                break
        executions, crashes, places = (count.get(key, 0) for key in ("executions", "crashes", "places"))
        print(f"{name}: {executions:,} executions, {crashes} crashes, {places} places reached", flush=True)
    return int(any(each["crashes"] for each in kept.values()))


if __name__ == "__main__":
    sys.exit(main())
