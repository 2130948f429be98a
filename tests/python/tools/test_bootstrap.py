"""tools/bootstrap.sh: waits that speak, and arguments that are refused. The script's own functions run, taken out of it."""

import shutil
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "tools/bootstrap.sh"


def functions() -> str:
    """Everything from `say` to the lock."""
    text = SCRIPT.read_text(encoding="utf-8")
    return "set -euo pipefail\nlogs=$PWD\n" + text[text.index("say() {") : text.index("# One bootstrap at a time")]


def listened(script: str, folder: Path) -> tuple[int, str, float]:
    """Exit status, output and the longest silence in seconds."""
    job = subprocess.Popen(["bash", "-c", script], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert job.stdout is not None
    said, last, longest = b"", time.monotonic(), 0.0
    while part := job.stdout.read1(4096):  # type: ignore[attr-defined]
        now = time.monotonic()
        said, last, longest = said + part, now, max(longest, now - last)
    return job.wait(), said.decode(), longest


def test_a_wait_shows_how_far_it_is(tmp_path, figure):
    work = "for n in 1 2 3 4; do sleep 1; echo \"  [$n/147] Building CXX object\"; done"
    status, said, longest = listened(f"{functions()}\nlogged build bash -c {work!r}\necho then", tmp_path)
    assert status == 0 and " [2/147]" in said and said.endswith("then\n")
    assert longest < 2 and "Building" in (tmp_path / "build.log").read_text()
    figure(f"4 s of a build: {said.splitlines()[0]!r}, the longest silence {longest:.1f} s")


def test_a_failure_shows_the_end_of_the_log(tmp_path):
    status, said, _ = listened(f"{functions()}\nlogged pip bash -c 'seq 100; exit 3'\necho never", tmp_path)
    assert status == 1 and "\n100\n" in said and "failed: bash -c seq 100; exit 3 (whole output: " in said
    assert "\n40\n" not in said and "never" not in said


@pytest.mark.parametrize(
    ("log", "shown"),
    [
        ("Collecting torch>=2.4\n  Downloading torch-2.15.0-cp311.whl (900.1 MB)\n", "Downloading torch-2.15.0-cp311.whl"),
        ("  [1/9] Building a\n  [2/9] Building b\nwarning: words\n", "[2/9]"),
        ("Get:1 http://x\nUnpacking g++ (4:12) ...\n", "Unpacking g++"),
        ("no known words\n", ""),
    ],
)
def test_words_of_a_log(tmp_path, log, shown):
    (tmp_path / "log").write_text(log)
    assert listened(f"{functions()}\nhow_far log || true", tmp_path)[1].strip() == shown


@pytest.mark.parametrize("arguments", [["--nativ"], ["--native", "--build-dir", "build/dev"], ["--extras"]])
def test_mistakes_are_refused_before_anything_is_done(tmp_path, arguments):
    """The script runs in a copy of the tree, in which nothing may appear."""
    (tmp_path / "tools").mkdir()
    shutil.copy(SCRIPT, tmp_path / "tools")
    done = subprocess.run(["bash", tmp_path / "tools/bootstrap.sh", *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and "want" in done.stderr
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["bootstrap.sh", "tools"]
