"""The training example: the same bits after resuming and under any budget, a complete report, and helpful errors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llama_support import EXAMPLES, text, tiny  # noqa: F401, I001 - text is a fixture; puts the example on the path

import numpy as np
import torch
import train_llama
from llama import memory
from llama import text as texts
from llama.common import ExampleError, require_packages
from llama.config import Config

from support import run_and_list

Figure = Callable[[str], None]


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trains here, where torch is imported."""
    monkeypatch.setattr(memory, "alone", lambda function, *arguments: function(*arguments))


@pytest.mark.share
@pytest.mark.parametrize(("label", "budgets"), [("torch", (None, None, None)), ("lowtide", (None, "64KiB", "96KiB"))])
@pytest.mark.usefixtures("one_process")
def test_resume_gives_the_same_bits(
    tmp_path: Path, text: Path, label: str, budgets: tuple[str | None, ...], capsys: pytest.CaptureFixture[str], figure: Figure
) -> None:
    """Even with another budget in each session: the checkpoint's folder moves from one label to the next."""
    whole = train_llama.run(tiny(tmp_path / "whole", text, optimizers=label))["runs"][label]
    folder = tmp_path / "broken"

    def session(number: int, **more: Any) -> dict[str, Any] | None:
        budget = budgets[number]
        name = "paged" if budget else label
        for other in ("paged", "lowtide"):
            if other != name and (folder / other).exists():
                (folder / other).rename(folder / name)
        limits = {"host": budget, "disk": str(tmp_path)} if budget else {}
        report = train_llama.run(tiny(folder, text, optimizers=name, resume=number > 0, **limits, **more))
        return report and report["runs"][name]

    # 9 is no multiple of the checkpoint interval, and 9..14 crosses an ordinary checkpoint: both kinds are resumed.
    assert session(0, stop_after=9) is None and "--resume" in capsys.readouterr().err
    assert session(1, stop_after=14) is None
    resumed = session(2)
    assert resumed is not None and train_llama.same_bits(whole, resumed)
    assert len(list(folder.glob("*/optimizer-*.lowtide"))) == (label != "torch")
    again = session(2)  # resuming a finished run trains no more and reports the same
    assert again is not None and again["history"] == resumed["history"]
    figure(f"{label}, budgets {budgets}: 20 losses and the final weights {whole['weights'][:12]} equal after two resumptions")


def test_report_of_processes_of_their_own(tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str], figure: Figure) -> None:
    # About 0.7 M parameters, and as many bytes of state for each of two averages in 8 bits, of which 512 KiB hold a part.
    config = tiny(tmp_path, text, optimizers="torch,again,lowtide,paged", host="512KiB", disk=str(tmp_path), steps=8,
                  width=192, heads=6, vocab=512)  # fmt: skip
    report = train_llama.run(config)
    assert report == json.loads((tmp_path / "report.json").read_text())
    theirs, again, ours, paged = report["runs"].values()
    starts = {run["history"]["validation"][0][1] for run in report["runs"].values()}
    assert len(starts) == 1 and theirs["history"]["loss"][0] == ours["history"]["loss"][0], "the same weights and text"
    assert again["history"]["loss"][0] != theirs["history"]["loss"][0], "the text in another order"
    assert theirs["validation_loss"] < starts.pop() - 0.1
    # Two bytes per value in matrices plus scales, against eight; norms keep four-byte states. torch counts a step in each tensor.
    count = theirs["parameters"]
    assert ours["state_bytes"] < 2.3 * count < 8 * count <= theirs["state_bytes"] < 8 * count + 4096
    assert abs(ours["validation_loss"] - theirs["validation_loss"]) < 0.05
    assert not train_llama.same_bits(theirs, ours) and train_llama.same_bits(ours, paged)
    assert paged["state_on_disk_bytes"] > 0 == ours["state_on_disk_bytes"] and paged["state_bytes"] == ours["state_bytes"]
    states = [next((tmp_path / label).glob("optimizer-*.lowtide")).read_bytes() for label in ("lowtide", "paged")]
    assert states[0] == states[1]
    shown = capsys.readouterr().out
    assert "paged: the same bits as lowtide: 8 losses and all weights" in shown
    chance = abs(again["validation_loss"] - theirs["validation_loss"])
    assert f"in another order moves torch's by {chance:.4f}.\nIts state takes {ours['state_bytes'] / theirs['state_bytes']:.2f} times" in shown
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG\r\n")
    figure(f"bytes per parameter {theirs['state_bytes'] / count:.3f} torch, {ours['state_bytes'] / count:.3f} lowtide")


@pytest.mark.usefixtures("one_process")
def test_a_crash_between_the_two_files_leaves_the_checkpoint_before(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch, figure: Figure
) -> None:
    config = tiny(tmp_path, text, optimizers="lowtide")
    assert train_llama.run(replace(config, stop_after=9)) is None
    folder = tmp_path / "lowtide"
    before = {path.name: path.read_bytes() for path in folder.glob("*")}

    def crash(*arguments: object) -> None:
        raise KeyboardInterrupt

    # A new run over the same folder dies when its optimizer's file is there and checkpoint.pt still the old one.
    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", crash)
        with pytest.raises(KeyboardInterrupt):
            train_llama.run(replace(config, stop_after=9, seed=1))
    after = {path.name: path.read_bytes() for path in folder.glob("*")}
    assert len(after) == len(before) + 1 and before.items() <= after.items()
    assert train_llama.run(replace(config, resume=True)) is not None
    with pytest.raises(ExampleError, match=r"other settings:\n  lr: 0.002 there, 0.1 now"):
        train_llama.run(replace(config, resume=True, lr=0.1))
    next(folder.glob("optimizer-*.lowtide")).unlink()
    with pytest.raises(ExampleError, match=r"optimizer-20-"):
        train_llama.run(replace(config, resume=True))
    figure(f"{len(before)} files of the old checkpoint untouched by a crash after {len(after) - len(before)} new one")


@pytest.mark.usefixtures("one_process")
def test_errors_say_what_to_do(tmp_path: Path, text: Path) -> None:
    small = tmp_path / "small.txt"
    small.write_text("short\n" * 20)
    with pytest.raises(ExampleError, match=r"small\.txt: .*give more text"):
        train_llama.run(tiny(tmp_path, small))
    with pytest.raises(ExampleError, match="too small: .* --context 20000 needs"):
        train_llama.run(tiny(tmp_path, text, context=20000))
    (tmp_path / "binary").write_bytes(b"\0\1")
    with pytest.raises(ExampleError, match="not a text file"):
        train_llama.run(tiny(tmp_path, tmp_path / "binary"))
    with pytest.raises(ExampleError, match="pip install no_such_package_here"):
        require_packages(["json", "no_such_package_here"])
    with pytest.raises(ExampleError, match="not finite at step .* lower --lr"):
        train_llama.run(tiny(tmp_path, text, lr=1e30, warmup=0))
    with pytest.raises(ExampleError, match=r"paged: .*give at least \d+ bytes of host memory, or a directory on disk"):
        train_llama.run(tiny(tmp_path, text, optimizers="paged", host="64KiB"))


MISTAKES = {
    "no state format 'foo'; known are fp32": ["--optimizers", "lowtide:foo"],
    "got 'adam', wanted torch": ["--optimizers", "torch,adam"],
    "wanted each once": ["--optimizers", "torch,torch"],
    "no such file or folder": ["--data", "absent"],
    "not a unit": ["--optimizers", "paged", "--host", "4MiX"],
    "no such directory": ["--optimizers", "paged", "--host", "4MiB", "--disk", "absent"],
    "go together": ["--host", "4MiB"],
    "wanted a multiple of 8": ["--width", "9"],
    "no checkpoint in": ["--resume"],
}


def test_mistakes_are_refused_before_torch_is_imported(tmp_path: Path, figure: Figure) -> None:
    for words, arguments in MISTAKES.items():
        done, modules = run_and_list(str(EXAMPLES / "train_llama.py"), *arguments, cwd=tmp_path)
        assert done.returncode == 2 and words in done.stderr, done.stderr[-500:]
        assert "llama.config" in modules and not modules & {"torch", "numpy", "tokenizers", "transformers", "matplotlib"}
    figure(f"{len(MISTAKES)} mistakes refused without torch")


@pytest.mark.skipif(os.name != "posix", reason="signals as on POSIX")
def test_ctrl_c_saves_a_checkpoint(tmp_path: Path, text: Path, figure: Figure) -> None:
    arguments = {"optimizers": "torch", "steps": 100000, "warmup": 4, "batch": 4, "context": 32, "width": 64, "layers": 1,
                 "heads": 2, "vocab": 384, "eval-windows": 8, "out": tmp_path, "data": text, "checkpoint-every": 5}  # fmt: skip
    command = [sys.executable, str(EXAMPLES / "train_llama.py")]
    command += [f"--{name}={value}" for name, value in arguments.items()]
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    path = tmp_path / "torch" / "checkpoint.pt"
    try:
        deadline = time.monotonic() + 120
        while not path.exists() and time.monotonic() < deadline:
            assert job.poll() is None, job.communicate()
            time.sleep(0.05)
        os.killpg(job.pid, signal.SIGINT)  # as a terminal does
        _, errors = job.communicate(timeout=60)
    finally:
        job.kill()
    assert job.returncode == 130, errors
    assert "checkpoint saved in" in errors and "--resume" in errors and "Traceback" not in errors
    content = torch.load(path, weights_only=True)
    assert content["step"] == len(content["history"]["loss"]) >= 5
    figure(f"stopped by SIGINT after step {content['step']}")


def test_alpaca_json(tmp_path: Path) -> None:
    rows = [{"instruction": f"Add {a} and {b} {{braces}}.", "input": "now" if a % 2 else "", "output": f"It is {a + b}."}
            for a in range(20) for b in range(20)]  # fmt: skip
    as_json, as_lines = tmp_path / "alpaca.json", tmp_path / "alpaca.jsonl"
    as_json.write_text(json.dumps(rows))
    as_lines.write_text("\n".join(map(json.dumps, rows)))
    corpora = [texts.load_corpus(tiny(tmp_path, path)) for path in (as_json, as_lines)]
    assert [len(corpus.records) for corpus in corpora] == [400, 400]
    assert {r.text for r in corpora[0].records} == {r.text for r in corpora[1].records}
    sample = {r.name: r.text for r in corpora[0].records}
    assert sample["alpaca.json#23"] == "### Instruction:\nAdd 1 and 3 {braces}.\n\n### Input:\nnow\n\n### Response:\nIt is 4."
    assert sample["alpaca.json#0"] == "### Instruction:\nAdd 0 and 0 {braces}.\n\n### Response:\nIt is 0."
    for content, words in (('[{"instruction": "x"}]', "row 0: expected texts"), ('{"instruction": ', "not valid JSON"), ("{}", "a list")):
        as_json.write_text(content)
        with pytest.raises(ExampleError, match=words):
            texts.load_corpus(tiny(tmp_path, as_json))


def test_sources_are_deterministic_and_parts_disjoint(tmp_path: Path, figure: Figure) -> None:
    first, second = (texts.load_corpus(Config(max_data_bytes=1 << 20)) for _ in range(2))
    assert first == second and 0.5 * (1 << 20) < first.size <= 1 << 20
    assert not any("site-packages" in record.name or "test" in record.name.split("/") for record in first.records)
    train, validation = texts.split(first.records)
    assert not {r.name for r in train} & {r.name for r in validation} and len(train) + len(validation) == len(first.records)
    one = tmp_path / "one.txt"
    one.write_text("".join(f"line {i}\n" for i in range(5000)))
    cut = sorted(texts.load_corpus(tiny(tmp_path, one)).records, key=lambda record: int(record.name.partition("#")[2]))
    assert len(cut) > 3 and "".join(record.text for record in cut) == one.read_text()
    figure(f"standard library: {len(train)} files train, {len(validation)} validate, no file in both")


def test_batches_depend_on_seed_and_number_only() -> None:
    ids = np.arange(1001, dtype=np.uint16)
    one, two, other = (texts.Batches(ids, 4, 10, seed) for seed in (1, 1, 2))
    forward = [one[k] for k in range(60)]
    assert all(torch.equal(two[k], forward[k]) for k in reversed(range(60)))
    assert not torch.equal(other[0], forward[0])
    # 100 windows, 25 batches: one epoch shows every window once.
    starts = sorted(int(row[0]) for batch in forward[:25] for row in batch)
    assert starts == list(range(0, 1000, 10))
