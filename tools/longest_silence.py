#!/usr/bin/env python3
"""Runs a command and measures how long it says nothing: its output passes through, and the silences over --limit seconds
close the run, each with the words before it. Exit status: the command's, or 1 if it was good but there was such a silence.

    python3 tools/longest_silence.py make train
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time


def listen(command: list[str]) -> tuple[int, list[tuple[float, float, str]]]:
    """The command's exit status; and of each silence its seconds, its start in seconds, and the last words before it."""
    begin = last = time.monotonic()
    said = ""
    silences: list[tuple[float, float, str]] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as job:
        assert job.stdout is not None
        while part := os.read(job.stdout.fileno(), 1 << 16):
            now = time.monotonic()
            silences.append((now - last, last - begin, said[-60:]))
            last, said = now, (said + part.decode(errors="replace"))[-200:]
            sys.stdout.buffer.write(part)
            sys.stdout.flush()
        status = job.wait()
    silences.append((time.monotonic() - last, last - begin, said[-60:]))
    return status, sorted(silences, reverse=True)


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=float, default=2.0, metavar="SECONDS", help="(default: %(default)s)")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if not options.command:
        parser.error("got no command, wanted one, e.g. make train")
    status, silences = listen(options.command)
    long = [one for one in silences if one[0] > options.limit]
    print(f"longest silence {silences[0][0]:.1f} s; {len(long)} over {options.limit:g} s")
    for seconds, start, words in long:
        print(f"  {seconds:.1f} s, from {start:.0f} s on, after {words!r}")
    return status or bool(long)


if __name__ == "__main__":
    sys.exit(main())
