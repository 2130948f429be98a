"""Saves beside steps: the file is that of the call, with the options of then; failures are heard of; nothing is lost when
the process ends or forks."""

import subprocess
import sys
import threading

import pytest
import torch

import lowtide

RULES = ["AdamW", "Adam", "NAdam", "Lion", "SGD", "Adagrad", "RMSprop", "AdEMAMix", "LAMB", "LARS"]


def make(rule="AdamW", memory=None, **options):
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(size)) for size in [(200, 300), (70_000,), (3,), (8, 513)]]
    if rule in ("SGD", "LARS"):
        options["momentum"] = 0.9
    return params, getattr(lowtide, rule)(params, lr=1e-3, memory=memory, **options)


def step(params, opt, seed):
    torch.manual_seed(seed)
    for param in params:
        param.grad = torch.randn_like(param)
    opt.step()


def memories(path):
    return {"ram": None, "disk": lowtide.Memory(host="192KiB", disk=path, chunk="16KiB")}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("tier", ["ram", "disk"])
def test_the_file_is_that_of_the_call(tmp_path, rule, tier):
    (tmp_path / "disk").mkdir()
    params, opt = make(rule, memories(tmp_path / "disk")[tier])
    alone, twin = make(rule)
    for seed in range(2):
        step(params, opt, seed)
        step(alone, twin, seed)
    twin.save(tmp_path / "wanted")
    save = opt.save(tmp_path / "got", asynchronous=True, copies="64KiB")
    assert isinstance(save, lowtide.PendingSave) and save.path == str(tmp_path / "got")
    for group in (*opt.param_groups, *twin.param_groups):
        group["lr"] = 0.5  # the file has no later options
    for seed in range(2, 5):
        opt.state_dict()
        step(params, opt, seed)
        step(alone, twin, seed)
    assert save.wait() and save.done()
    assert (tmp_path / "got").read_bytes() == (tmp_path / "wanted").read_bytes()
    assert all(torch.equal(a, b) for a, b in zip(params, alone, strict=True))
    _, again = make(rule)
    again.load(save.path)
    assert again.param_groups[0]["lr"] == 1e-3


def test_failures_are_heard_of(tmp_path):
    params, opt = make()
    step(params, opt, 0)
    opt.save(tmp_path / "kept")
    save = opt.save(tmp_path / "none" / "file", asynchronous=True)
    with pytest.raises(FileNotFoundError):
        save.wait()
    with pytest.raises(FileNotFoundError):
        save.wait()
    opt.save(tmp_path / "none" / "file", asynchronous=True)
    step(params, opt, 1)
    with pytest.raises(FileNotFoundError, match="none"):
        opt.save(tmp_path / "kept")
    opt.save(tmp_path / "kept")
    for bad in ("many", -1, 1.5, True):
        with pytest.raises((TypeError, ValueError)):
            opt.save(tmp_path / "kept", asynchronous=True, copies=bad)
    for bad in (-1, float("nan"), "10"):
        with pytest.raises(ValueError, match="timeout: got .*, wanted seconds"):
            opt.save(tmp_path / "kept", asynchronous=True).wait(bad)
    assert opt.save(tmp_path / "kept", asynchronous=True).wait(1 << 2000)
    for bad in ("256MiB", 1, None):
        with pytest.raises(ValueError, match="asynchronous: got .*, wanted True or False"):
            opt.save(tmp_path / "kept", bad)


def test_paths_are_those_of_a_synchronous_save(tmp_path, monkeypatch):
    """Names that can be no file's are refused at once, and `..` behind a link is the directory above the link's target."""
    params, opt = make()
    step(params, opt, 0)
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "link").symlink_to("a/b")
    monkeypatch.chdir(tmp_path / "a")
    for name in ("", "new/", f"{tmp_path}/new/"):
        for options in ({}, {"asynchronous": True}):
            with pytest.raises(ValueError, match="is not the name of a file"):
                opt.save(name, **options)
    for name, at in [(f"{tmp_path}/link/../one", "one"), ("../link/../two", "two"), ("three", "three")]:
        save = opt.save(name, asynchronous=True)
        monkeypatch.chdir(tmp_path)
        assert save.wait() and sorted(path.name for path in (tmp_path / "a").iterdir()) == sorted(["b", at])
        opt.load(save.path)
        (tmp_path / "a" / at).unlink()
        monkeypatch.chdir(tmp_path / "a")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "link"]


def test_other_threads_go_on_while_one_waits(tmp_path):
    params, opt = make(memory=None)
    step(params, opt, 0)
    saves = [opt.save(tmp_path / f"{n}", asynchronous=True) for n in range(5)]  # one after another
    threads = [threading.Thread(target=save.wait) for save in saves for _ in range(2)]
    for thread in threads:
        thread.start()
    for seed in range(1, 4):
        step(params, opt, seed)
    for thread in threads:
        thread.join()
    assert all(save.wait(0) for save in saves)
    assert len({(tmp_path / f"{n}").read_bytes() for n in range(5)}) == 1


def test_an_optimizer_that_goes_leaves_the_file(tmp_path):
    params, opt = make()
    step(params, opt, 0)
    opt.save(tmp_path / "wanted")
    save = opt.save(tmp_path / "got", asynchronous=True)
    del opt, params
    assert save.wait()
    assert (tmp_path / "got").read_bytes() == (tmp_path / "wanted").read_bytes()


CHILD = """
import os, sys, torch, lowtide
params = [torch.nn.Parameter(torch.ones(3_000_000))]
opt = lowtide.AdamW(params, state="fp32")
params[0].grad = torch.ones(3_000_000)
opt.step()
opt.save(sys.argv[1] + "/wanted")
save = opt.save(sys.argv[1] + "/got", asynchronous=True)
if sys.argv[2] == "fork":
    pid = os.fork()
    if pid == 0:
        try:
            save.wait()
        except ValueError:
            assert repr(save).endswith("/got', of the parent process)"), repr(save)
            opt.step()
            opt.save(sys.argv[1] + "/child", asynchronous=True).wait()
            os._exit(0)
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
opt.step()
if sys.argv[2] == "raise":
    raise SystemExit(3)
"""


@pytest.mark.parametrize("way", ["raise", "fork"])
def test_the_process_ends_with_the_file(tmp_path, way):
    done = subprocess.run([sys.executable, "-c", CHILD, str(tmp_path), way], check=False)
    assert done.returncode == (3 if way == "raise" else 0)
    assert (tmp_path / "got").read_bytes() == (tmp_path / "wanted").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["got", "wanted"] + ["child"] * (way == "fork"))
