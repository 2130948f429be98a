"""A lost CUDA device, and a process that ends with one in use: on the emulated runtime, in separate processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from emulated_cuda import EmulatedCuda


@pytest.mark.parametrize("job", ["lost", "lost_beside_the_cpu", "leave"])
def test_incidents(cuda: EmulatedCuda, job: str, tmp_path: Path, figure: Callable[[str], None]) -> None:
    """`cuda` skips if there is no device."""
    script = Path(__file__).with_name("cuda_jobs.py")
    done = subprocess.run(
        [sys.executable, str(script), job, str(tmp_path)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0 and done.stderr == "", f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    figure("; ".join(done.stdout.splitlines()))
