"""For tests that need a GPU: opens it or, with LOWTIDE_ON_GPU=cpu, its stand-in. Without either, they are skipped."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT))

from bench.cuda.device import Gpu  # noqa: E402

REHEARSED = os.environ.get("LOWTIDE_ON_GPU") == "cpu"
if not REHEARSED and not torch.cuda.is_available():
    pytest.skip("torch sees no GPU", allow_module_level=True)

GPU = Gpu(rehearse=REHEARSED)


def differing(got: list[Any], wanted: list[Any]) -> int:
    pairs = zip(got, wanted, strict=True)
    return sum(
        int((a.detach().cpu().view(-1).view(torch.uint8) != b.detach().cpu().view(-1).view(torch.uint8)).sum())
        for a, b in pairs
    )
