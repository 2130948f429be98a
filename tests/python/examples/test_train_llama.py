"""The training example: same bits after resuming, a whole report, pictures, and errors that say what to do."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from llama_support import EXAMPLES, text, tiny  # noqa: F401, I001 - text is a fixture; puts the example on the path

import torch
import train_llama
from llama import checkpoint, data, optimizers
from llama.errors import ExampleError, Interrupted, require_packages
from llama.progress import Progress, Waiting

from imported import run_and_list

try:
    import lowtide  # noqa: F401

    HAVE_LOWTIDE = True
except ImportError:
    HAVE_LOWTIDE = False
needs_lowtide = pytest.mark.skipif(not HAVE_LOWTIDE, reason="the lowtide package is not installed")
Figure = Callable[[str], None]
EACH = [pytest.param("lowtide", marks=needs_lowtide), "torch"]


@pytest.mark.share
@pytest.mark.parametrize("label", EACH)
def test_resume_gives_the_same_bits(tmp_path: Path, text: Path, label: str, figure: Figure) -> None:
    whole = train_llama.run(tiny(tmp_path / "whole", text, optimizers=(label,)))["runs"][label]
    broken = tiny(tmp_path / "broken", text, optimizers=(label,))
    # 9 is no multiple of the checkpoint interval, and 9..14 crosses an ordinary checkpoint: both kinds are resumed.
    with pytest.raises(Interrupted, match="step 9 of 20.*--resume"):
        train_llama.run(replace(broken, stop_after=9))
    with pytest.raises(Interrupted, match="step 14 of 20"):
        train_llama.run(replace(broken, stop_after=14, resume=True))
    resumed = train_llama.run(replace(broken, resume=True))["runs"][label]
    for name in ("loss", "grad_norm", "lr", "validation"):
        assert resumed["history"][name] == whole["history"][name], name
    for name in ("final_weights_sha256", "batches_sha256", "initial_weights_sha256"):
        assert resumed[name] == whole[name], name
    assert [s["until_step"] for s in resumed["sessions"]] == [9, 14, 20]
    assert resumed["rss_peak"] == max(s["rss_peak"] for s in resumed["sessions"])
    assert whole["final_weights_sha256"] != whole["initial_weights_sha256"]
    figure(f"{label}: 20 losses and the final weights {whole['final_weights_sha256'][:12]} equal after two resumptions")

    # Resuming a finished run trains no more and reports the same.
    again = train_llama.run(replace(broken, resume=True))["runs"][label]
    assert again["final_weights_sha256"] == whole["final_weights_sha256"]
    assert [s["until_step"] for s in again["sessions"]] == [9, 14, 20]


@needs_lowtide
def test_report_of_both_optimizers_in_processes_of_their_own(tmp_path: Path, text: Path, figure: Figure) -> None:
    config = tiny(tmp_path, text, optimizers=("torch", "lowtide"), isolate=True, width=128)
    report = train_llama.run(config)
    assert json.loads((tmp_path / "report.json").read_text()) == report
    row = report["comparison"]["lowtide"]
    assert row["same_start"] and row["same_batches"]
    ours, theirs = report["runs"]["lowtide"], report["runs"]["torch"]
    # Two bytes per value in matrices plus scales, against eight; norms keep four-byte states.
    assert ours["optimizer_bytes_per_parameter"] < 2.3 < 8 <= theirs["optimizer_bytes_per_parameter"] < 8.1
    # The optimizer reports the bytes that its checkpoint holds, but for a few bytes of counters per parameter.
    assert math.isclose(ours["optimizer_bytes"], ours["optimizer_bytes_in_checkpoint"], rel_tol=0.02)
    assert abs(row["validation_loss_difference"]) < 0.05
    figure(f"bytes per parameter {theirs['optimizer_bytes_per_parameter']:.3f} torch, "
           f"{ours['optimizer_bytes_per_parameter']:.3f} lowtide; validation difference "
           f"{row['validation_loss_difference']:+.4f}")  # fmt: skip


def test_report_and_pictures(tmp_path: Path, text: Path, figure: Figure) -> None:
    config = tiny(tmp_path, text, optimizers=("torch", "torch:fused"))
    report = json.loads(json.dumps(train_llama.run(config)))
    assert report == json.loads((tmp_path / "report.json").read_text())
    assert {"config", "environment", "data", "seconds", "runs", "comparison"} <= report.keys()
    assert torch.__version__.startswith(report["environment"]["packages"]["torch"])
    run = report["runs"]["torch"]
    for name in ("loss", "grad_norm", "lr", "step_ms", "optimizer_ms", "rss", "rss_growth", "seconds", "state_ram",
                 "state_disk", "moved", "waited_ms"):  # fmt: skip
        assert len(run["history"][name]) == 20, name
    assert [step for step, _ in run["history"]["validation"]] == [0, 5, 10, 15, 20]
    assert run["history"]["loss"][-1] < run["history"]["loss"][0] - 0.3
    assert run["rss_peak"] >= max(run["history"]["rss"]) > 0
    # Two fp32 moments and a four-byte step counter per tensor.
    assert 8 * run["parameters"] < run["optimizer_bytes"] < 8 * run["parameters"] + 4096
    assert run["state_ram_bytes"] == run["optimizer_bytes"]
    assert len(run["sessions"]) == 1 and report["comparison"]["torch:fused"]["same_conditions"]
    assert report["comparison"]["torch:fused"]["same_batches"] and report["comparison"]["torch:fused"]["same_start"]
    for name in ("loss.png", "memory.png"):
        picture = (tmp_path / name).read_bytes()
        assert picture.startswith(b"\x89PNG\r\n") and len(picture) > 20_000
        figure(f"{name}: {len(picture)} bytes")
    assert not list(tmp_path.rglob("*.tmp"))


def test_bad_checkpoints_are_refused(tmp_path: Path, text: Path, figure: Figure) -> None:
    config = tiny(tmp_path, text, steps=4, checkpoint_every=0)
    train_llama.run(config)
    path = tmp_path / "torch" / "checkpoint.pt"
    good = path.read_bytes()
    cuts = [0, 1, 100, len(good) // 2, len(good) - 1]
    for size in cuts:
        path.write_bytes(good[:size])
        with pytest.raises(ExampleError, match=r"checkpoint\.pt is truncated or not.*delete it"):
            train_llama.run(replace(config, resume=True))
    flips = range(len(good) // 20, len(good), len(good) // 10)
    refused = 0
    for place in flips:
        path.write_bytes(good[:place] + bytes([good[place] ^ 0x10]) + good[place + 1 :])
        try:
            train_llama.run(replace(config, resume=True))
        except ExampleError as error:
            assert "checkpoint.pt" in str(error) and "delete it" in str(error)
            refused += 1
        else:  # padding between records carries nothing; everything that was loaded must be what was saved
            content = checkpoint.load(path, torch.load(path, weights_only=True)["identity"])
            path.write_bytes(good)
            whole = torch.load(path, weights_only=True)
            assert all(torch.equal(content["model"][k], whole["model"][k]) for k in whole["model"])
    assert refused >= 8
    figure(f"{len(cuts)} truncated refused; {refused} of {len(flips)} flipped bits refused, the others in padding")

    torch.save({"weights": torch.zeros(3)}, path)
    with pytest.raises(ExampleError, match="not written by this example"):
        train_llama.run(replace(config, resume=True))
    torch.save({"format": checkpoint.FORMAT, "trap": Path("x")}, path)
    with pytest.raises(ExampleError, match="objects other than tensors"):
        train_llama.run(replace(config, resume=True))
    path.write_bytes(good)
    with pytest.raises(ExampleError, match=r"other settings:\n  lr: 0.002 there, 0.1 now"):
        train_llama.run(replace(config, resume=True, lr=0.1))
    path.unlink()
    with pytest.raises(ExampleError, match="no checkpoint in"):
        train_llama.run(replace(config, resume=True))


def test_errors_say_what_to_do(tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ExampleError, match="no such file or folder"):
        train_llama.run(tiny(tmp_path, tmp_path / "absent"))
    small = tmp_path / "small.txt"
    small.write_text("short\n" * 20)
    with pytest.raises(ExampleError, match=r"small\.txt: .*give more text"):
        train_llama.run(tiny(tmp_path, small))
    with pytest.raises(ExampleError, match="too small: .* --context 20000 needs"):
        train_llama.run(tiny(tmp_path, text, context=20000))
    (tmp_path / "binary").write_bytes(b"\0\1")
    with pytest.raises(ExampleError, match="not a text file"):
        train_llama.run(tiny(tmp_path, tmp_path / "binary"))
    with pytest.raises(ExampleError, match="no optimizer 'sgd'; known are torch"):
        train_llama.run(tiny(tmp_path, text, optimizers=("sgd",)))
    with pytest.raises(ExampleError, match="pip install no_such_package_here"):
        require_packages(["json", "no_such_package_here"])
    with pytest.raises(ExampleError, match="exclude each other"):
        tiny(tmp_path, text, hf_dataset="name")
    monkeypatch.setitem(sys.modules, "datasets", None)
    monkeypatch.setattr(optimizers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ExampleError, match="pip install datasets"):
        data.load_corpus(tiny(tmp_path, None, hf_dataset="name"))
    with pytest.raises(ExampleError, match=r"lowtide\n  install with: pip install \."):
        optimizers.check_optimizers(tiny(tmp_path, text, optimizers=("lowtide",)))
    with pytest.raises(ExampleError, match="not finite at step .* lower --lr"):
        monkeypatch.undo()
        train_llama.run(tiny(tmp_path, text, lr=1e30, warmup=0))


@pytest.mark.skipif(os.name != "posix", reason="signals as on POSIX")
def test_ctrl_c_saves_a_checkpoint(tmp_path: Path, text: Path, figure: Figure) -> None:
    arguments = {"optimizers": "torch", "steps": 100000, "warmup": 4, "batch": 4, "context": 32, "width": 64, "layers": 1,
                 "heads": 2, "vocab": 384, "eval-windows": 8, "out": tmp_path, "data": text, "checkpoint-every": 5}  # fmt: skip
    command = [sys.executable, str(EXAMPLES / "train_llama.py")]
    command += [f"--{name}={value}" for name, value in arguments.items()]
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    path = tmp_path / "torch" / "checkpoint.pt"
    try:
        deadline = time.monotonic() + 60
        while not path.exists() and time.monotonic() < deadline:
            assert job.poll() is None, job.communicate()
            time.sleep(0.05)
        job.send_signal(signal.SIGINT)
        _, errors = job.communicate(timeout=60)
    finally:
        job.kill()
    assert job.returncode == 130, errors
    assert "checkpoint saved in" in errors and "--resume" in errors and "Traceback" not in errors
    content = torch.load(path, weights_only=True)
    assert content["step"] == len(content["history"]["loss"]) >= 5
    figure(f"stopped by SIGINT: {errors.strip()}")


MISTAKES = {
    "no state format 'foo'; known are fp32": ["--optimizers", "lowtide:foo"],
    "no optimizer 'adam'": ["--optimizers", "torch,adam"],
    "too small: at most 6 tokens": ["--data", "small.txt"],
    "no such file or folder": ["--data", "absent"],
    "no unit": ["--ram-budget", "4MiX"],
    "no such directory": ["--ram-budget", "4MiB", "--disk", "absent"],
    "--width must be a multiple": ["--width", "9"],
    "no checkpoint in": ["--resume"],
}


def test_mistakes_are_refused_before_torch_is_imported(tmp_path: Path, figure: Figure) -> None:
    (tmp_path / "small.txt").write_text("short")
    for words, arguments in MISTAKES.items():
        done, modules = run_and_list(str(EXAMPLES / "train_llama.py"), *arguments, cwd=tmp_path)
        assert done.returncode == 2 and words in done.stderr, done.stderr[-500:]
        assert "llama.config" in modules and not modules & {"torch", "numpy", "tokenizers", "transformers", "matplotlib"}
    figure(f"{len(MISTAKES)} mistakes refused without torch")


def test_a_wait_says_every_second_that_it_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    with Waiting("reading", quiet=False):
        time.sleep(2.5)
    said = capsys.readouterr().out
    assert said.startswith("reading ") and said.count(".") >= 2 and said.endswith(" s\n")
    with Waiting("reading", quiet=True):
        pass
    with pytest.raises(ZeroDivisionError), Waiting("dividing", quiet=False):
        _ = 1 / 0
    assert capsys.readouterr().out == "dividing stopped\n"


def test_a_run_in_a_file_speaks_during_long_steps(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress("torch", total=3, done=0, quiet=False)
    progress.step(1, 7.0, None)
    time.sleep(2.5)  # a step, a validation or a save
    progress.close()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "torch: step 1/3, loss 7.000" and lines[1:] and set(lines[1:]) == {"torch: step 1/3, ..."}
