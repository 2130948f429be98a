"""Makes the tools for GPU machines importable for their tests."""

import argparse
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
TOOL = ROOT / "tools" / "gpu_check.py"
sys.path += [str(ROOT), str(ROOT / "tools")]


def options(tmp_path: Path, **more: Any) -> argparse.Namespace:
    given = {"out": tmp_path / "out", "known": [], "rehearse": True, "go_on": False, **more}
    given["out"].mkdir(exist_ok=True)
    return argparse.Namespace(**given)
