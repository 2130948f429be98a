"""Nothing works silently: words on stderr come before slow work begins, and signs of life while it continues."""

from __future__ import annotations

import io
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path

import lowtide
import pytest
from lowtide.cli import machine, quick_bench, waiting
from lowtide.cli.main import main
from lowtide.cli.waiting import Waiting

PATIENCE = 120  # seconds until a test gives up
BLOCKED = """
import os
with open(os.environ["GATE"]) as gate:  # until somebody opens it for writing
    gate.read()
raise ModuleNotFoundError("No module named 'torch'", name="torch")
"""


def read_until(stream: int, words: str) -> str:
    """Reads a program's output until it contains `words`, which must come before anything else happens."""
    end, found = time.monotonic() + PATIENCE, b""
    while words.encode() not in found:
        assert select.select([stream], [], [], max(0.0, end - time.monotonic()))[0], f"silent after {found!r}"
        more = os.read(stream, 4096)
        assert more, f"ended after {found!r}"
        found += more
    return found.decode()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["info", "--json"], "lowtide: importing torch"),
        (["bench", "--json"], "lowtide: importing torch"),
        (["plan", "1e6", "--rule", "muon", "--json"], "lowtide: importing torch"),
        (["plan", "config.json", "--json"], "lowtide: reading the model"),
    ],
)
def test_words_come_before_torch_is_imported(tmp_path: Path, arguments: list[str], words: str) -> None:
    """torch is a double that waits until these words have been read. Dots appear while it waits."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(BLOCKED)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    paths = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "GATE": str(gate), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-m", "lowtide", *arguments]
    program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, cwd=tmp_path)
    try:
        assert program.stderr
        said = read_until(program.stderr.fileno(), f"{words}..")
        assert said.startswith(words), said
        gate.write_text("")
        out, err = program.communicate(timeout=PATIENCE)
    finally:
        program.kill()
    assert program.returncode == 2 and out == b"", err
    assert err.decode().rpartition("\n")[0].splitlines()[-1].startswith("lowtide: "), err


def test_words_come_before_rates_are_measured(monkeypatch, capsys, tmp_path):
    rates, said = lowtide.measure_rates(tmp_path, elements=4096, disk_bytes="16MiB", seconds=0.001), []

    def measure_rates(disk):
        said.append(capsys.readouterr().err)
        return rates

    monkeypatch.setattr(machine, "measure_rates", measure_rates)
    with pytest.raises(SystemExit):
        main(["info", "--json"])
    out, err = capsys.readouterr()
    assert said == ["lowtide: measuring steps of AdamW"] and "\nlowtide: measuring memory" in err
    assert json.loads(out)["version"] == lowtide.__version__


def test_words_come_before_a_step_is_timed(monkeypatch, capsys):
    said = []

    def seconds_of(step):
        said.append(capsys.readouterr().err)
        step()
        return 1.0

    monkeypatch.setattr(quick_bench, "seconds_of", seconds_of)
    with pytest.raises(SystemExit) as ended:
        main(["bench", "--elements", "4Ki", "--rounds", "2", "--state", "fp32"])
    assert ended.value.code == 0 and said[0].endswith("lowtide: round 1 of 2")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_signs_of_life(monkeypatch, capsys, stream):
    """Dots, or seconds in a line that disappears. Lines of the result in between stay whole."""
    monkeypatch.setattr(waiting, "_EVERY", 0.01)
    err = stream()
    monkeypatch.setattr(sys, "stderr", err)
    terminal = err.isatty()

    def until(words: str) -> None:
        end = time.monotonic() + PATIENCE
        while words not in err.getvalue():
            assert time.monotonic() < end, err.getvalue()
            time.sleep(0.001)

    with Waiting("program") as wait:
        wait("first")
        assert err.getvalue() == "program: first"
        until("first, 2 s" if terminal else "first..")
        wait.say("a result")
        until("\x1b[Kprogram: first" if terminal else "\nprogram: first")
        wait("no matter", perhaps=True)
        wait("second", perhaps=True)
        until("program: second")
    said = err.getvalue()
    assert capsys.readouterr().out == "a result\n" and said.endswith("\r\x1b[K" if terminal else "\n")
    assert ("\x1b" in said) == terminal and ("\n" in said) != terminal


def test_a_wait_without_a_reader_goes_on(monkeypatch):
    """With stderr closed, waiting does no harm."""
    closed = io.StringIO()
    with Waiting("program") as wait:
        monkeypatch.setattr(wait, "_out", closed)
        closed.close()
        wait("first")
