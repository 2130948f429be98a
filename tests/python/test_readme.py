"""Every ```python block of README.md runs as it stands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.S | re.M) if README.exists() else []


def test_readme_has_examples(figure):
    assert README.exists(), "README.md is missing"
    figure(f"python blocks in README.md: {len(BLOCKS)}")
    assert BLOCKS, "README.md has no ```python block"


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_example_runs(number, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", BLOCKS[number]], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, f"block {number}:\n{BLOCKS[number]}\n{done.stderr}"
