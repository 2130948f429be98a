"""bench/e2e: turns are stored, resumed and compared on one machine only; every contender is there or says why not."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="models are made by it")
sys.path.append(str(Path(__file__).resolve().parents[3] / "bench"))

from common.contenders import PEERS  # noqa: E402
from common.llama import Decoder, Llama, build, loss_of  # noqa: E402
from e2e import run  # noqa: E402
from e2e.contenders import ALL, Job, cannot  # noqa: E402
from e2e.training import decoder_of, main  # noqa: E402

TINY = ["--model", "32x1x88x2x256", "--batch", "1", "--seq", "16", "--steps", "2", "--warmup", "1", "--turns", "1"]


def test_turns_are_stored_resumed_and_of_one_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], figure: Callable[[str], None]
) -> None:
    of = f"--optimizers lowtide,lowtide-disk,trainstream --budget 64KiB --out {tmp_path} --disk {tmp_path}"
    options = [*TINY, *of.split()]
    assert run.main(options) == 0
    said = capsys.readouterr()
    assert (
        "lowtide-disk has the same bits as lowtide" in said.out
        and "trainstream: not measured: it is for parameters on cuda" in said.out
    )
    report = json.loads((tmp_path / "e2e.json").read_text())
    rows = {row["optimizer"]: row for row in report["rows"]}
    assert set(rows) == {"lowtide", "lowtide-disk"} and (tmp_path / "e2e.md").read_text() in said.out
    for row in rows.values():
        assert (
            row["tokens_per_s"] > 0 and 0 < row["optimizer_share"] < 1 and row["command"].startswith("python bench/e2e/run.py")
        )
        assert row["weight_bytes"] == 4 * row["parameters"] == 4 * 29024
    assert (rows["lowtide"]["disk_bytes"], rows["lowtide"]["moved_bytes"]) == (0, 0)
    assert rows["lowtide-disk"]["disk_bytes"] > 0 and rows["lowtide-disk"]["moved_bytes"] > 0
    figure(f"two processes, {rows['lowtide']['tokens_per_s']:.0f} and {rows['lowtide-disk']['tokens_per_s']:.0f} tokens/s")

    assert run.main(options) == 0
    assert "tokens_per_s" not in capsys.readouterr().err, "a turn that was stored ran again"

    (turn,) = tmp_path.glob("*/lowtide-0.json")
    other = json.loads(turn.read_text())
    other["made"]["machine"]["cpu"] = "another"
    turn.write_text(json.dumps(other))
    for more in ([], ["--report"]):
        assert run.main([*options, *more]) == 2
        assert "cannot be compared: choose another --out" in capsys.readouterr().err


def test_what_fails_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main([*TINY, "--optimizers", "lowtide-disk", "--budget", "much", "--out", str(tmp_path)]) == 1
    assert "lowtide-disk: not measured: ValueError:" in capsys.readouterr().err
    for options, words in (
        (["--model", "32x1x88x3x256"], "a multiple of twice the heads"),
        (["--model", "32x1x88x2x64"], "got a vocabulary of 64, wanted 256 or more"),
        (["--model", "none-such"], "none-such"),
        (["--model", str(tmp_path)], "without config.json, wanted a folder that save_pretrained wrote"),
    ):
        assert run.main([*TINY, *options, "--out", str(tmp_path)]) == 2
        assert words in capsys.readouterr().err
    for options, words in (
        (["--optimizers", "sgd"], "--optimizers: got sgd, wanted some of lowtide,"),
        (["--clip", "nan"], "--clip: got nan, wanted 0 or more"),
        (["--packages", str(tmp_path / "none")], f"--packages: got {tmp_path / 'none'}, wanted a folder that exists"),
    ):
        with pytest.raises(SystemExit):
            run.main(options)
        assert words in capsys.readouterr().err


def test_a_folder_is_trained_from_its_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights of zeros give equal probabilities, a loss of log(vocabulary), which random ones do not; a rate of 0 keeps them.
    Checkpointing changes no bit, clipping does. Other weights in the folder are another job."""
    model = build(Decoder(1, 32, 88, 2, 2, 256), 16)
    for param in model.parameters():
        param.data.zero_()
    folder, out = tmp_path / "model", tmp_path / "out"
    model.save_pretrained(folder)  # type: ignore[operator]

    def row(*options: str) -> dict[str, Any]:
        assert run.main([*TINY, "--model", str(folder), "--optimizers", "lowtide", "--out", str(out), *options]) == 0
        found: dict[str, Any] = json.loads((out / "e2e.json").read_text())["rows"][0]
        return found

    assert abs(row("--lr", "0")["loss"] - math.log(256)) < 1e-5, "not the folder's weights"
    # The other turns train here, where torch and transformers are imported.
    here = SimpleNamespace(run=lambda command, **_: main(*command[2:]), TimeoutExpired=TimeoutError)
    monkeypatch.setattr(run, "subprocess", here)
    build(Decoder(1, 32, 88, 2, 2, 256), 16).save_pretrained(folder)  # type: ignore[operator]
    assert abs(row("--lr", "0")["loss"] - math.log(256)) > 1e-4, "a turn of the weights that lay there before"
    plain, again, clipped = row(), row("--checkpointing"), row("--clip", "1e-3")
    assert plain["bits"] == again["bits"] != clipped["bits"]
    capsys.readouterr()
    assert run.main([*TINY, "--model", str(folder), "--seq", "32", "--out", str(out)]) == 2
    assert f"--seq: got 32, wanted 16 or less, the positions of {folder}" in capsys.readouterr().err
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"vocab_size": 256', '"vocab_size": 255'))
    assert run.main([*TINY, "--model", str(folder), "--out", str(out)]) == 2
    assert "got a vocabulary of 255, wanted 256 or more, for bytes of text" in capsys.readouterr().err


def test_the_plain_model_computes_activations_again() -> None:
    """The model without transformers keeps fewer bytes for backward, and has the same gradients."""
    torch.manual_seed(0)
    model, tokens = Llama(Decoder(2, 32, 88, 2, 2, 64)).train(), torch.arange(32).view(2, 16)

    def gradients() -> tuple[int, list[torch.Tensor]]:
        kept = 0

        def keep(value: torch.Tensor) -> torch.Tensor:
            nonlocal kept
            kept += value.nbytes
            return value

        model.zero_grad()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
            loss = loss_of(model, tokens)
        loss.backward()
        return kept, [param.grad for param in model.parameters() if param.grad is not None]

    before, wanted = gradients()
    model.gradient_checkpointing_enable()
    after, got = gradients()
    assert after < before / 2 and all(map(torch.equal, got, wanted))


def test_shapes_are_those_of_transformers() -> None:
    """`build` raises unless the model has as many parameters as the shape says."""
    for kind, given in {"llama": {}, "qwen2": {"qkv_bias": True, "tied": True}, "qwen3": {"head": 16, "qk_norm": True}}.items():
        model = build(Decoder(2, 64, 96, 4, 2, 128, **given), 32)
        assert type(model).__name__.lower().startswith(kind)
    assert decoder_of("Qwen3-0.6B").qk_norm and decoder_of("llama-26M").layers == 8


def test_every_contender_is_there_or_says_why_not(figure: Callable[[str], None]) -> None:
    reasons = {name: cannot(name, Job(device="cuda", dtype="bf16", clip=1.0)) for name in ALL}
    refused = {"lowtide-in-backward", "lowtide-stream", "trainstream", "bitsandbytes-cpu-fork", "flashoptim-plain", "deepspeed"}
    assert {name for name, reason in reasons.items() if reason} == refused
    try:
        told = str(PEERS["bitsandbytes-cpu-fork"].load())
    except ImportError as error:  # missing, or upstream has the name
        told = str(error)
        assert "bitsandbytes" in told
    figure(f"bitsandbytes-cpu-fork: {told}")
    assert PEERS["torch"].load() is None
