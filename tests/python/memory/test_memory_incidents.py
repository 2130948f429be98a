"""Incidents during training: a disk that refuses writes, a change of directory, threads that read along."""

import json
import os
import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import lowtide
from lowtide import _core
from lowtide.cli import render
from lowtide.state.metadata import describe_checkpoint
from support import disk_that_refuses


def parameters(count: int = 6, seed: int = 1) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    made = [torch.nn.Parameter(torch.randn(64, 1024, generator=generator)) for _ in range(count)]
    for param in made:
        param.grad = torch.randn(64, 1024, generator=generator)
    return made


def on_disk(path: Path | str) -> lowtide.Memory:
    return lowtide.Memory(host="48KiB", disk=path, chunk="16KiB")


@pytest.mark.parametrize("way", ["load", "load_state_dict", "of torch"])
def test_what_is_loaded_is_loaded_whole_when_the_disk_refuses_it(way: str, tmp_path: Path, figure) -> None:
    source = lowtide.AdamW(parameters(), lr=0.5)
    for _ in range(2):
        source.step()
    source.save(tmp_path / "file")
    saved = source.torch_state_dict() if way == "of torch" else source.state_dict()
    target = lowtide.AdamW(parameters(seed=2), lr=0.1, memory=on_disk(tmp_path))
    target.step()
    with disk_that_refuses(), pytest.raises(OSError, match="nothing is lost"):
        target.load(tmp_path / "file") if way == "load" else target.load_state_dict(saved)
    kept = target.report()["kept_bytes"]
    assert kept > 0
    assert target.param_groups[0]["lr"] == 0.5
    now = target.state_dict()["state"]
    if way == "of torch":
        source.load_state_dict(saved)  # encoded again
    for number, entry in source.state_dict()["state"].items():
        assert all(torch.equal(entry[name], now[number][name]) for name in entry), number
    target.step()  # the disk takes it now
    assert target.report()["kept_bytes"] == 0
    figure(f"{way}: {kept} bytes kept in RAM, all {len(now)} parameters as saved")


def test_a_relative_path_is_of_the_directory_at_construction(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "scratch").mkdir()
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    optimizer = lowtide.AdamW(parameters(2), memory=on_disk("scratch"))
    optimizer.add_param_group({"params": parameters(2, seed=3), "memory": on_disk("scratch")})
    monkeypatch.chdir(tmp_path / "other")
    optimizer.step()
    assert optimizer.report()["disk_bytes"] > 0
    assert os.listdir(tmp_path / "scratch") == [".lowtide.lock"] and not os.listdir(tmp_path / "other")


# The list that report() counts moves while chunks are added. With every block of memory given back at once, reading it
# then is fatal.
_LOOKING_ON = """
import sys, threading, torch, lowtide
stop, counts = False, [0, 0]
current = []
def look():
    while not stop:
        for optimizer in list(current):
            try:
                optimizer.report()
                counts[0] += 1
            except ValueError:
                counts[1] += 1
watcher = threading.Thread(target=look)
watcher.start()
try:
    for _ in range(int(sys.argv[2])):
        memory = lowtide.Memory(host="1MiB", disk=sys.argv[1], chunk=4096)
        def group():
            params = [torch.nn.Parameter(torch.zeros(300, 1000)) for _ in range(8)]
            for param in params:
                param.grad = torch.ones_like(param)
            return {"params": params}
        optimizer = lowtide.AdamW([group()], memory=memory)
        current[:] = [optimizer]
        optimizer.step()
        optimizer.add_param_group(group())
        optimizer.step()
finally:
    stop = True
    watcher.join()
print(*counts, int(optimizer.report()["steps"]))
"""


def test_report_during_a_step_of_another_thread_waits(tmp_path: Path, figure, share: float) -> None:
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run(
        [sys.executable, "-c", _LOOKING_ON, str(tmp_path), "3" if share == 1 else "1"],
        capture_output=True, text=True, env=environment, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    reports, refused, steps = map(int, done.stdout.split())
    assert steps == 2 and reports > 0 and refused == 0
    figure(f"{reports} reports beside steps")


@pytest.mark.parametrize(
    "metadata", ['{"lowtide_groups": 3}', '{"lowtide_groups": [1]}', '{"lowtide_groups": {"a": 1}}', "[1]", "text",
                 "[" * 100_000, "9" * 5000],
)  # fmt: skip
def test_metadata_of_others_is_no_groups(metadata: str, tmp_path: Path) -> None:
    core = _core.Optimizer("adamw")
    core.add_group({}, {})
    core.save(str(tmp_path / "file"), metadata)
    found = describe_checkpoint(tmp_path / "file")
    assert found["groups"] == [] and found["rule"] == "adamw"
    assert "adamw" in render.checkpoint(found)
    with pytest.raises(ValueError, match=str(tmp_path)):
        lowtide.AdamW(parameters(1)).load(tmp_path / "file")


_LARGE: dict[str, tuple[Any, str]] = {
    "lists in an option": ({"x": [[1, 2]] * 400_000}, ""),
    "numbers in an option": ({"x": [7] * 1_500_000}, ""),
    "groups": ({}, "got 200000 groups, wanted 1"),
    "parameters": ({"params": 2**31 - 1}, "got 2147483647 parameters, wanted 1"),
}


@pytest.mark.parametrize("name", _LARGE)
def test_large_metadata_is_parsed_and_not_copied(name: str, tmp_path: Path, share: float, figure: Callable[[str], None]) -> None:
    """`load` reads metadata as one text and parses it. It calls no function for each value, as a deep copy does (some 10 per
    list), and its memory is Python's own: values of 56 bytes and their list or dict, for at least some 4 characters of text.
    Calls are counted, because seconds depend on the machine."""
    extra, refusal = _LARGE[name]
    if share < 1:  # half of the values, of which copies are seen as well
        extra = {key: value[: len(value) // 2] if isinstance(value, list) else value for key, value in extra.items()}
    (param,) = parameters(1)
    opt = lowtide.AdamW([param])
    path = tmp_path / "file"
    opt.save(path)
    (group,) = json.loads(_core.checkpoint_metadata(str(path)))["lowtide_groups"]
    metadata: dict[str, Any] = {"lowtide_groups": [group | extra]}
    if name == "groups":
        metadata["lowtide_groups"] = [{"params": 0}] * 200_000
    opt._core.save(str(path), json.dumps(metadata))
    del metadata

    def load() -> None:
        if refusal:
            with pytest.raises(ValueError, match=refusal):
                opt.load(path)
        else:
            opt.load(path)

    text = _core.checkpoint_metadata(str(path))
    calls: Counter[str] = Counter()
    sys.setprofile(lambda frame, event, function: calls.update([event]))
    try:
        load()
    finally:
        sys.setprofile(None)
    tracemalloc.start()
    load()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    called = calls["call"] + calls["c_call"]
    figure(f"{name}, {len(text) / 1e6:.1f} MB: {called} calls, peak {peak / 1e6:.0f} MB")
    assert called < 2000 and peak < 40 * len(text) + 1e6
