"""Parameters on an accelerator that Lowtide has no kernels for (docs/devices.md): the jobs of `accelerator_jobs`, in a process of
their own, for a process registers a device with torch for good."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

JOBS = Path(__file__).with_name("accelerator_jobs.py")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("toy")
    found = subprocess.run([sys.executable, JOBS, folder], capture_output=True, text=True, timeout=600)
    assert found.returncode == 0, found.stdout + found.stderr
    return dict(json.loads(found.stdout.splitlines()[-1]))


@pytest.mark.parametrize("job", ["every_rule", "training", "failures", "traffic", "inputs"])
def test_an_accelerator_without_kernels_is_stepped_by_the_cpu(job: str, told: dict[str, str], figure: Callable[[str], None]) -> None:
    figure(told[job])
