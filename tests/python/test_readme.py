"""Every ```python block of these pages runs as it stands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "docs/pytorch.md", "docs/memory.md", "docs/votes.md"]


def blocks(page: str) -> list[str]:
    path = ROOT / page
    return re.findall(r"^```python\n(.*?)^```", path.read_text(), re.S | re.M) if path.exists() else []


@pytest.mark.parametrize("page", PAGES)
def test_page_has_examples(page, figure):
    assert (ROOT / page).exists(), f"{page} is missing"
    figure(f"python blocks in {page}: {len(blocks(page))}")
    assert blocks(page), f"{page} has no ```python block"


@pytest.mark.parametrize("page, number", [(page, number) for page in PAGES for number in range(len(blocks(page)))])
def test_example_runs(page, number, tmp_path):
    block = blocks(page)[number]
    done = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{page}, block {number}:\n{block}\n{done.stderr}"
