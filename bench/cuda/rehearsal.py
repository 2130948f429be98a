"""Cases that fail, to rehearse the runner: one hangs, one dies, one raises."""

from __future__ import annotations

import os
import signal
import time

from bench.cuda.device import Gpu
from bench.cuda.rows import Rows


def hangs(gpu: Gpu, rows: Rows) -> None:
    rows.add("measured before it hung", 1, "")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(3600)


def crashes(gpu: Gpu, rows: Rows) -> None:
    rows.add("measured before it died", 1, "")
    os.kill(os.getpid(), signal.SIGSEGV)


def raises(gpu: Gpu, rows: Rows) -> None:
    raise RuntimeError("as meant")


CASES = {"rehearsal.raises": raises, "rehearsal.crashes": crashes, "rehearsal.hangs": hangs}
