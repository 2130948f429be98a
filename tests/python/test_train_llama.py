"""The training example: same bits after resuming, a whole report, pictures, and errors that say what to do."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("tokenizers")
pytest.importorskip("matplotlib")
pytest.importorskip("rich")

import torch  # noqa: E402
import train_llama  # noqa: E402
from llama import checkpoint, data, optimizers, tokens  # noqa: E402
from llama.config import Config  # noqa: E402
from llama.errors import ExampleError, Interrupted, require_packages  # noqa: E402

try:
    import lowtide  # noqa: F401

    HAVE_LOWTIDE = True
except ImportError:
    HAVE_LOWTIDE = False
needs_lowtide = pytest.mark.skipif(not HAVE_LOWTIDE, reason="the lowtide package is not installed")
EACH = ["torch", pytest.param("lowtide", marks=needs_lowtide)]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with some files of the example itself: real text, the same everywhere."""
    folder = tmp_path_factory.mktemp("text")
    for path in sorted((EXAMPLES / "llama").glob("*.py")):
        (folder / path.name).write_text(path.read_text())
    return folder


def tiny(out: Path, source: Path | str | None, **more: Any) -> Config:
    """Twenty steps of a model with a few matrices large enough for quantized state."""
    settings: dict[str, Any] = {
        "optimizers": ("torch",), "steps": 20, "warmup": 4, "batch": 4, "context": 32, "width": 64, "layers": 1,
        "heads": 2, "vocab": 384, "eval_windows": 8, "eval_every": 5, "checkpoint_every": 6, "quiet": True,
        "isolate": False,
    }  # fmt: skip
    return Config(out=str(out), data=None if source is None else str(source), **{**settings, **more})


@pytest.mark.parametrize("label", EACH)
def test_resume_gives_the_same_bits(tmp_path: Path, text: Path, label: str) -> None:
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
    print(f"{label}: 20 losses and the final weights {whole['final_weights_sha256'][:12]} equal after two resumptions")

    # Resuming a finished run trains no more and reports the same.
    again = train_llama.run(replace(broken, resume=True))["runs"][label]
    assert again["final_weights_sha256"] == whole["final_weights_sha256"]
    assert [s["until_step"] for s in again["sessions"]] == [9, 14, 20]


@needs_lowtide
def test_report_of_both_optimizers_in_processes_of_their_own(tmp_path: Path, text: Path) -> None:
    config = tiny(tmp_path, text, optimizers=("torch", "lowtide"), isolate=True, width=128)
    report = train_llama.run(config)
    assert json.loads((tmp_path / "report.json").read_text()) == report
    row = report["comparison"]["lowtide"]
    assert row["same_start"] and row["same_batches"]
    ours, theirs = report["runs"]["lowtide"], report["runs"]["torch"]
    # Two bytes per value in matrices plus scales, against eight; norms keep four-byte states.
    assert ours["optimizer_bytes_per_parameter"] < 2.3 < 8 <= theirs["optimizer_bytes_per_parameter"] < 8.1
    # What the optimizer says it keeps is what its checkpoint holds, but for a few bytes of counters per parameter.
    assert math.isclose(ours["optimizer_bytes"], ours["optimizer_bytes_in_checkpoint"], rel_tol=0.02)
    assert abs(row["validation_loss_difference"]) < 0.05
    print(f"bytes per parameter {theirs['optimizer_bytes_per_parameter']:.3f} torch, "
          f"{ours['optimizer_bytes_per_parameter']:.3f} lowtide; validation difference "
          f"{row['validation_loss_difference']:+.4f}")  # fmt: skip


def test_report_and_pictures(tmp_path: Path, text: Path) -> None:
    config = tiny(tmp_path, text, optimizers=("torch", "torch:fused"))
    report = json.loads(json.dumps(train_llama.run(config)))
    assert report == json.loads((tmp_path / "report.json").read_text())
    assert {"config", "environment", "data", "seconds", "runs", "comparison"} <= report.keys()
    assert torch.__version__.startswith(report["environment"]["packages"]["torch"])
    run = report["runs"]["torch"]
    for name in ("loss", "grad_norm", "lr", "step_ms", "optimizer_ms", "rss", "rss_growth", "seconds"):
        assert len(run["history"][name]) == 20, name
    assert [step for step, _ in run["history"]["validation"]] == [0, 5, 10, 15, 20]
    assert run["history"]["loss"][-1] < run["history"]["loss"][0] - 0.3
    assert run["rss_peak"] >= max(run["history"]["rss"]) > 0
    # Two fp32 moments and a four-byte step counter per tensor.
    assert 8 * run["parameters"] < run["optimizer_bytes"] < 8 * run["parameters"] + 4096
    assert len(run["sessions"]) == 1 and report["comparison"]["torch:fused"]["same_conditions"]
    assert report["comparison"]["torch:fused"]["same_batches"] and report["comparison"]["torch:fused"]["same_start"]
    for name in ("loss.png", "memory.png"):
        picture = (tmp_path / name).read_bytes()
        assert picture.startswith(b"\x89PNG\r\n") and len(picture) > 20_000
        print(f"{name}: {len(picture)} bytes")
    assert not list(tmp_path.rglob("*.tmp"))


def test_bad_checkpoints_are_refused(tmp_path: Path, text: Path) -> None:
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
    print(f"{len(cuts)} truncated refused; {refused} of {len(flips)} flipped bits refused, the others in padding")

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


def test_alpaca_json(tmp_path: Path) -> None:
    rows = [{"instruction": f"Add {a} and {b} {{braces}}.", "input": "now" if a % 2 else "", "output": f"It is {a + b}."}
            for a in range(20) for b in range(20)]  # fmt: skip
    as_json, as_lines = tmp_path / "alpaca.json", tmp_path / "alpaca.jsonl"
    as_json.write_text(json.dumps(rows))
    as_lines.write_text("\n".join(map(json.dumps, rows)))
    corpora = [data.load_corpus(tiny(tmp_path, path)) for path in (as_json, as_lines)]
    assert [len(corpus.records) for corpus in corpora] == [400, 400]
    assert {r.text for r in corpora[0].records} == {r.text for r in corpora[1].records}
    sample = next(r.text for r in corpora[0].records if r.name == "alpaca.json#23")
    assert sample == "### Instruction:\nAdd 1 and 3 {braces}.\n\n### Input:\nnow\n\n### Response:\nIt is 4."
    report = train_llama.run(tiny(tmp_path / "out", as_json, steps=3))
    assert report["data"]["records"]["train"] + report["data"]["records"]["validation"] == 400
    print(f"alpaca: 400 rows, {report['data']['tokens']['train']} training tokens")

    as_json.write_text(json.dumps([{"instruction": "x"}]))
    with pytest.raises(ExampleError, match="row 0: field 'output'"):
        data.load_corpus(tiny(tmp_path, as_json))
    as_json.write_text('{"instruction": ')
    with pytest.raises(ExampleError, match="not valid JSON"):
        data.load_corpus(tiny(tmp_path, as_json))


def test_sources_are_deterministic_and_parts_disjoint(tmp_path: Path, text: Path) -> None:
    first, second = (data.load_corpus(tiny(tmp_path, None, max_data_bytes=1 << 20)) for _ in range(2))
    assert first == second and 0.5 * (1 << 20) < first.size <= 1 << 20
    assert not any("site-packages" in record.name or "test" in record.name.split("/") for record in first.records)
    train, validation = tokens.split(first.records)
    assert not {r.name for r in train} & {r.name for r in validation} and len(train) + len(validation) == len(
        first.records
    )
    one = tmp_path / "one.txt"
    one.write_text("".join(f"line {i}\n" for i in range(5000)))
    cut = data.load_corpus(tiny(tmp_path, one)).records
    by_place = sorted(cut, key=lambda r: int(r.name.partition("#")[2]))
    assert len(cut) > 3 and "".join(r.text for r in by_place) == one.read_text()
    print(f"standard library: {len(train)} files train, {len(validation)} validate, no file in both")


def test_batches_depend_on_seed_and_number_only() -> None:
    import numpy as np

    ids = np.arange(1001, dtype=np.uint16)
    one, two, other = (tokens.Batches(ids, 4, 10, seed) for seed in (1, 1, 2))
    forward = [one[k] for k in range(60)]
    assert all(torch.equal(two[k], forward[k]) for k in reversed(range(60)))
    assert not torch.equal(other[0], forward[0])
    # 100 windows, 25 batches: one epoch shows every window once.
    starts = sorted(int(row[0]) for batch in forward[:25] for row in batch)
    assert starts == list(range(0, 1000, 10))


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


def test_hf_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for the ``datasets`` package: what is asked of it, and what its failures become."""
    import importlib.machinery
    import types

    fake = types.ModuleType("datasets")
    fake.__spec__ = importlib.machinery.ModuleSpec("datasets", None)
    asked: list[Any] = []
    rows = [{"text": f"row {i}", "id": i} for i in range(50)]

    def load_dataset(*args: Any, **more: Any) -> list[dict[str, Any]]:
        asked.append((args, more))
        if args[0] == "absent":
            raise ConnectionError("no network")
        return rows

    fake.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", fake)
    corpus = data.load_corpus(tiny(tmp_path, None, hf_dataset="some/name", hf_config="en"))
    assert len(corpus.records) == 50 and asked[0] == (("some/name", "en"), {"split": "train", "streaming": True})
    with pytest.raises(ExampleError, match="ConnectionError: no network.*--data"):
        data.load_corpus(tiny(tmp_path, None, hf_dataset="absent"))
    with pytest.raises(ExampleError, match="no text column 'body'; choose one of text, id"):
        data.load_corpus(tiny(tmp_path, None, hf_dataset="some/name", text_column="body"))


@pytest.mark.skipif(os.name != "posix", reason="signals as on POSIX")
def test_ctrl_c_saves_a_checkpoint(tmp_path: Path, text: Path) -> None:
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
    print(f"stopped by SIGINT: {errors.strip()}")
