"""The training example under a memory budget: the same bits, a report that says where state is, and clear errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llama_support import text, tiny  # noqa: F401, I001 - text is a fixture; puts the example on the path

import torch
import train_llama
from llama import checkpoint, optimizers
from llama.config import Config
from llama.errors import ExampleError, Interrupted

pytest.importorskip("lowtide")
Figure = Callable[[str], None]
# About 0.7 M parameters: 5.9 MB of fp32 state, of which a budget of 4 MiB holds about two thirds.
LARGER = {"width": 192, "heads": 6, "vocab": 512, "state": "fp32"}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "checkpoint.pt", weights_only=True)["model"]


def test_same_bits_with_a_budget_and_without(tmp_path: Path, text: Path, figure: Figure) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    labels = ("lowtide:dynamic8:ram", "lowtide:ram", "lowtide")
    config = tiny(tmp_path / "out", text, optimizers=labels, ram_budget="4MiB", disk=str(disk), steps=10,
                  **LARGER)  # fmt: skip
    report = train_llama.run(config)
    assert json.loads((tmp_path / "out" / "report.json").read_text()) == report
    assert list(report["runs"]) == list(labels)
    other, plain, limited = (report["runs"][label] for label in labels)

    a, b = (weights(config.run_dir(label)) for label in ("lowtide:ram", "lowtide"))
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name].view(torch.uint8), b[name].view(torch.uint8)) for name in a)
    compared = sum(tensor.nbytes for tensor in a.values())
    files = [next(config.run_dir(label).glob("optimizer-*.lowtide")) for label in ("lowtide:ram", "lowtide")]
    states = [path.read_bytes() for path in files]
    assert states[0] == states[1]
    for name in ("loss", "grad_norm", "validation"):
        assert plain["history"][name] == limited["history"][name], name
    assert report["comparison"]["lowtide"]["same_bits_as"] == "lowtide:ram"
    # The control: another format, which does change bits.
    assert report["comparison"]["lowtide:ram"]["same_bits_as"] is None
    assert plain["final_weights_sha256"] != other["final_weights_sha256"]
    figure(f"{compared} bytes of weights and {len(states[0])} bytes of optimizer state equal after "
           f"{limited['steps']} steps")  # fmt: skip

    assert max(limited["history"]["state_ram"]) <= 4 << 20 < plain["state_ram_bytes"]
    assert limited["state_disk_bytes"] > 0 == plain["state_disk_bytes"] == other["state_disk_bytes"]
    assert limited["optimizer_bytes"] == plain["optimizer_bytes"]
    assert limited["state_ram_bytes"] + limited["state_disk_bytes"] >= limited["optimizer_bytes"]
    # Every step reads and writes what is on disk once.
    assert limited["moved_bytes_per_step"] == 2 * limited["state_disk_bytes"]
    assert plain["moved_bytes_per_step"] == other["moved_bytes_per_step"] == 0
    for name in ("state_ram", "state_disk", "moved", "waited_ms"):
        assert len(limited["history"][name]) == 10, name
    for name in ("loss.png", "memory.png"):
        assert (tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG\r\n")
    figure(f"RAM {limited['state_ram_bytes']} of 4194304 bytes, disk {limited['state_disk_bytes']}, "
           f"moved {limited['moved_bytes_per_step']:.0f} a step; without a budget RAM "
           f"{plain['state_ram_bytes']}")  # fmt: skip


def test_the_table_says_where_state_is(tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tiny(tmp_path, text, optimizers=("lowtide:ram", "lowtide"), ram_budget="96KiB", disk=str(tmp_path),
                  steps=4, quiet=False)  # fmt: skip
    train_llama.run(config)
    printed = capsys.readouterr().out
    for words in ("where the state is", "MiB/step", "lowtide AdamW dynamic8 in 96KiB", "in RAM and 0.",
                  "same bits as lowtide AdamW dynamic8: 4 training losses"):  # fmt: skip
        assert words in printed, words
    assert "written:" in printed and max(map(len, printed.partition("written:")[0].splitlines())) <= 80


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, text: Path) -> dict[str, Any]:  # noqa: F811
    """The result of a run in RAM that nothing stops."""
    return train_llama.run(tiny(tmp_path_factory.mktemp("whole"), text, optimizers=("lowtide",)))["runs"]["lowtide"]


@pytest.mark.parametrize("budgets", [("64KiB", "64KiB", "64KiB"), ("64KiB", None, "96KiB")])
def test_resume_with_any_budget_gives_the_same_bits(
    tmp_path: Path, text: Path, unbroken: dict[str, Any], budgets: tuple[str | None, ...], figure: Figure
) -> None:
    whole = unbroken

    def config(number: int) -> Config:
        budget = budgets[number]
        more = {} if budget is None else {"ram_budget": budget, "disk": str(tmp_path), "chunk": "8KiB"}
        return tiny(tmp_path / "broken", text, optimizers=("lowtide",), **more)

    with pytest.raises(Interrupted, match="step 9 of 20.*--resume"):
        train_llama.run(replace(config(0), stop_after=9))
    with pytest.raises(Interrupted, match="step 14 of 20"):
        train_llama.run(replace(config(1), stop_after=14, resume=True))
    resumed = train_llama.run(replace(config(2), resume=True))["runs"]["lowtide"]
    for name in ("loss", "grad_norm", "lr", "validation"):
        assert resumed["history"][name] == whole["history"][name], name
    assert resumed["final_weights_sha256"] == whole["final_weights_sha256"]
    moved = resumed["history"]["moved"]
    limited = [step for step, budget in zip((0, 10, 16), budgets, strict=True) if budget]
    assert all(moved[step] > 0 for step in limited)
    folder = tmp_path / "broken" / "lowtide"
    assert len(list(folder.glob("optimizer-*.lowtide"))) == 1
    figure(f"budgets {budgets}: 20 losses and the final weights equal; {sum(map(bool, moved))} steps moved state")


def test_a_crash_between_the_two_files_leaves_the_checkpoint_before(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch, figure: Figure
) -> None:
    config = tiny(tmp_path, text, optimizers=("lowtide",))
    with pytest.raises(Interrupted):
        train_llama.run(replace(config, stop_after=9))
    folder = tmp_path / "lowtide"
    before = {path.name: path.read_bytes() for path in folder.glob("*") if path.suffix in (".pt", ".lowtide")}

    def crash(*arguments: object) -> None:
        raise KeyboardInterrupt

    # A new run over the same folder dies when its optimizer's file is there and checkpoint.pt still the old one.
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", crash)
        with pytest.raises(KeyboardInterrupt):
            train_llama.run(replace(config, stop_after=9, seed=1))
    after = {path.name: path.read_bytes() for path in folder.glob("*") if path.suffix in (".pt", ".lowtide")}
    assert len(after) == len(before) + 1 and before.items() <= after.items()
    resumed = train_llama.run(replace(config, resume=True))["runs"]["lowtide"]
    assert resumed["steps"] == 20 and len(list(folder.glob("optimizer-*.lowtide"))) == 1
    figure(f"{len(before)} files of the old checkpoint untouched by a crash after {len(after) - len(before)} new one")


def test_a_damaged_or_missing_optimizer_file_is_refused(tmp_path: Path, text: Path, figure: Figure) -> None:
    config = tiny(tmp_path, text, optimizers=("lowtide",), steps=4)
    train_llama.run(config)
    path = next((tmp_path / "lowtide").glob("optimizer-*.lowtide"))
    good = path.read_bytes()
    places = range(7, len(good), len(good) // 12)
    for place in places:
        path.write_bytes(good[:place] + bytes([good[place] ^ 0x10]) + good[place + 1 :])
        with pytest.raises(ExampleError, match=r"checkpoint\.pt does not fit.*delete it"):
            train_llama.run(replace(config, resume=True))
    path.unlink()
    with pytest.raises(ExampleError, match=r"checkpoint\.pt does not fit.*optimizer-4-"):
        train_llama.run(replace(config, resume=True))
    path.write_bytes(good)
    train_llama.run(replace(config, resume=True))
    figure(f"{len(places)} of {len(places)} flipped bits and a missing file refused; the whole one loads")


def test_errors_of_budgets_say_what_to_do(tmp_path: Path, text: Path, figure: Figure) -> None:
    messages = []

    def refused(pattern: str, **more: object) -> None:
        with pytest.raises(ExampleError, match=pattern) as caught:
            train_llama.run(tiny(tmp_path / "out", text, **{"optimizers": ("torch", "lowtide"), **more}))
        messages.append(str(caught.value))

    refused("--disk has no effect without --ram-budget", disk=str(tmp_path))
    refused("--chunk has no effect without --ram-budget", chunk="1MiB")
    refused("no such directory; make it", ram_budget="4MiB", disk=str(tmp_path / "absent"))
    refused("no such directory; make it", ram_budget="4MiB", disk=__file__)
    refused("no unit", ram_budget="4MiX", disk=str(tmp_path))
    refused("multiple of 4096", ram_budget="4MiB", disk=str(tmp_path), chunk="100")
    refused("has no effect: torch,lowtide:ram have no", ram_budget="4MiB", optimizers=("torch", "lowtide:ram"))
    # The library knows how much is needed. Nothing has been trained when it says so.
    refused(r"give at least \d+ bytes of host memory, or a directory", ram_budget="64KiB")
    refused(r"give at least \d+ bytes of host memory", ram_budget="4KiB", disk=str(tmp_path))
    assert not (tmp_path / "out" / "torch").exists()
    figure(f"{len(messages)} refused, among them: {messages[-1]}")


def test_labels() -> None:
    for label, wanted in {
        "torch": ("torch", "", False), "torch:fused": ("torch", "fused", False), "lowtide": ("lowtide", "bf16", True),
        "lowtide:ram": ("lowtide", "bf16", False), "lowtide:fp32": ("lowtide", "fp32", True),
        "lowtide:fp32:ram": ("lowtide", "fp32", False),
    }.items():  # fmt: skip
        assert optimizers.parse_label(label, "bf16") == wanted, label
    for label in ("torch:ram", "lowtide:ram:fp32", "lowtide:fp32:ram:ram", "sgd", ""):
        with pytest.raises(ExampleError, match="no optimizer"):
            optimizers.parse_label(label, "bf16")
