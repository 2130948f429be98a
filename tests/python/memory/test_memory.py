"""Budgets: state on disk survives every way of saving, and says where it is. Also users' arguments."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import os
import pickle
import traceback
from pathlib import Path

import lowtide
import numpy as np
import pytest
import torch
from lowtide.devices import places
from lowtide.state.elsewhere import Elsewhere
from support import bits, through_file


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(300, 700), torch.nn.ReLU(), torch.nn.Linear(700, 65, bias=False))


def train(net: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int, seed: int = 1) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        x, y = torch.randn(8, 300, generator=generator), torch.randn(8, 65, generator=generator)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()


def same(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


def budget(path: Path, host: int | str = "200KiB") -> lowtide.Memory:
    return lowtide.Memory(host=host, disk=path, chunk="32KiB")


def test_budgets_in_text_are_budgets(tmp_path: Path) -> None:
    """The words of configuration files: alone, in a group, in a plan."""
    text = f"host=200KiB, disk={tmp_path}, disk-limit=2MiB, chunk=32KiB"
    wanted = lowtide.Memory(host="200KiB", disk=str(tmp_path), disk_limit="2MiB", chunk="32KiB")
    mapping = {"host": "200KiB", "disk": str(tmp_path), "disk_limit": "2MiB", "chunk": "32KiB"}
    assert lowtide.Memory.of(text) == lowtide.Memory.of(mapping) == lowtide.Memory.of(wanted) == wanted
    assert lowtide.Memory.of("managed,device=1GiB") == lowtide.Memory(managed=True, device="1GiB")
    assert lowtide.Memory.of("managed=False") == lowtide.Memory() and lowtide.Memory.of(None) is None
    nets, reports = [], []
    for memory in (wanted, text, mapping):
        nets.append(model())
        groups = [{"params": [param], "memory": memory if i else None} for i, param in enumerate(nets[-1].parameters())]
        for optimizer in (lowtide.AdamW(nets[-1].parameters(), memory=memory), lowtide.AdamW(groups)):
            train(nets[-1], optimizer, 2)
            reports.append({name: value for name, value in optimizer.report().items() if not name.endswith("seconds")})
        planned = lowtide.forecast(nets[-1], memory=memory)
        assert planned == lowtide.forecast(nets[-1], memory=wanted) and planned.disk_bytes > 0
    assert same(nets[0], nets[1]) and same(nets[0], nets[2])
    assert reports[0] == reports[2] == reports[4] and reports[1] == reports[3] == reports[5] and reports[0]["disk_bytes"] > 0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("8GiB", r"got '8GiB' \(did you mean 'host=8GiB'\?\), wanted some of device, host"),
        ("", "got '', wanted some of"),
        ("host=", "got 'host=', wanted NAME=VALUE"),
        ("host=1GiB,host=2GiB", "NAME=VALUE once for each"),
        ("ram=1GiB", r"got 'ram' \(did you mean 'host'\?\), wanted some of device, host, disk, disk_limit"),
        ("managed=maybe", "managed: got 'maybe', wanted true or false"),
        ("host=much", 'host: got "much" as a number of bytes'),
        ({"hosts": 1}, r"got 'hosts' \(did you mean 'host'\?\), wanted some of"),
        ({"host": "1GiB", "disk": ""}, "an empty path as disk"),
    ],
)
def test_budgets_in_text_refuse_other_words(given: str | dict[str, object], words: str) -> None:
    for groups in ([{"params": [torch.nn.Parameter(torch.ones(3))], "memory": given}], None):
        options = {} if groups else {"memory": given}
        with pytest.raises(ValueError, match=words):
            lowtide.AdamW(groups or [torch.nn.Parameter(torch.ones(3))], **options)


def test_state_dict_goes_both_ways(tmp_path: Path) -> None:
    here, there = model(), model()
    ram = lowtide.AdamW(here.parameters())
    train(here, ram, 5)
    saved = through_file({"model": here.state_dict(), "optimizer": ram.state_dict()})
    there.load_state_dict(saved["model"])
    disk = lowtide.AdamW(there.parameters(), memory=budget(tmp_path))
    disk.load_state_dict(saved["optimizer"])
    assert disk.report()["disk_bytes"] > 0
    train(here, ram, 5, seed=2)
    train(there, disk, 5, seed=2)
    assert same(here, there)
    back = model()
    back.load_state_dict(there.state_dict())
    ram2 = lowtide.AdamW(back.parameters())
    ram2.load_state_dict(disk.state_dict())
    train(back, ram2, 5, seed=3)
    train(there, disk, 5, seed=3)
    assert same(back, there)


def test_groups_page_on_their_own(tmp_path: Path) -> None:
    net, plain = model(), model()
    first, second = list(net.parameters())[:2], list(net.parameters())[2:]
    mixed = lowtide.AdamW([{"params": first, "memory": budget(tmp_path)}, {"params": second}])
    assert "memory" not in mixed.param_groups[0]
    train(net, mixed, 6)
    train(plain, lowtide.AdamW(plain.parameters()), 6)
    assert same(net, plain)
    assert isinstance(mixed.state[first[0]]["exp_avg_codes"], Elsewhere)
    assert not isinstance(mixed.state[second[0]]["exp_avg_codes"], Elsewhere)
    assert int(mixed.state[first[0]]["step"]) == 6
    assert copy.deepcopy(mixed).report()["disk_bytes"] > 0


def test_what_fits_is_not_moved(tmp_path: Path) -> None:
    net = model()
    roomy = lowtide.AdamW(net.parameters(), memory=budget(tmp_path, "8MiB"))
    train(net, roomy, 3)
    report = roomy.report()
    assert report["disk_bytes"] == report["moved_per_step"] == 0
    assert not isinstance(roomy.state[next(net.parameters())]["exp_avg_codes"], Elsewhere)
    assert not list(tmp_path.iterdir()), "nothing on disk was needed"


def test_nothing_stays_on_disk(tmp_path: Path) -> None:
    net = model()
    disk = lowtide.AdamW(net.parameters(), memory=budget(tmp_path))
    train(net, disk, 2)
    left = [entry.name for entry in tmp_path.iterdir()]
    assert [name for name in left if name != ".lowtide.lock"] == []


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"host": "8 gigs"}, ValueError, 'memory: host: got "8 gigs"'),
        ({"host": 8}, ValueError, "memory: host: got 8, which is that many bytes; did you mean '8GiB'?"),
        ({"host": "16"}, ValueError, "did you mean '16GiB'?"),
        ({"device": 24}, ValueError, "memory: device: got 24, which is that many bytes; did you mean '24GiB'?"),
        ({"host": 8.0}, TypeError, "memory: host: got 8.0 (float)"),
        ({"host": True}, TypeError, "memory: host: got True (bool)"),
        ({"host": -1}, ValueError, "0 or more"),
        ({"host": "150%"}, ValueError, "150%"),
        ({"device": "101%"}, ValueError, "memory: device: got '101%', wanted 0% to 100%"),
        ({"chunk": 5}, ValueError, "memory: chunk: got 5, wanted a multiple of 4096 bytes"),
        ({"chunk": "5000"}, ValueError, "memory: chunk: got '5000', wanted a multiple of 4096 bytes"),
        ({"step": "foo"}, ValueError, "memory: step: got 'foo', wanted one of device, host, auto, or None"),
        ({"transfer": "fast"}, ValueError, "memory: transfer: got 'fast', wanted one of copy, zero_copy, hybrid, or None"),
        ({"transfer": 1}, TypeError, "memory: transfer: got 1 (int)"),
        ({"managed": "yes"}, TypeError, "memory: managed: got 'yes' (str), wanted a bool"),
        ({"managed": True, "device": "auto"}, ValueError, "managed with device='auto'"),
        ({"disk": "FOLDER"}, ValueError, "disk without host, wanted host=BYTES too"),
        ({"host": "1GiB", "disk_limit": "1GiB"}, ValueError, "disk_limit without disk"),
        ({"host": "1GiB", "disk": 5}, TypeError, "memory: disk: got 5 (int), wanted a path"),
        ({"host": "1GiB", "disk": ""}, ValueError, "an empty path as disk"),
        ({"host": "1GiB", "disk": "a\0b"}, ValueError, "memory: disk: got 'a\\x00b', wanted a path without NUL"),
        ({"ram": "8GiB"}, TypeError, "memory: got 'ram' (did you mean 'host'?), wanted some of device, host"),
        ({"gpu": "8GiB"}, TypeError, "memory: got 'gpu' (did you mean 'device'?)"),
        ({"RAM": "8GiB"}, TypeError, "memory: got 'RAM' (did you mean 'host'?)"),
        ({"hots": "8GiB"}, TypeError, "memory: got 'hots' (did you mean 'host'?)"),
    ],
    ids=str,
)
def test_a_budget_checks_itself_when_it_is_made(given: dict[str, object], error: type[Exception], words: str, tmp_path: Path) -> None:
    given = {name: value.replace("FOLDER", str(tmp_path)) if isinstance(value, str) else value for name, value in given.items()}
    with pytest.raises(error) as caught:
        lowtide.Memory(**given)  # type: ignore[arg-type]
    assert words in str(caught.value) and "".join(traceback.format_exception(caught.value)).count(str(caught.value)) == 1


def test_a_size_without_a_name_is_told_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="got '8GiB' without a name, wanted host='8GiB'"):
        lowtide.Memory("8GiB")  # type: ignore[misc]
    with pytest.raises(TypeError, match="memory: got 5 .int., wanted a lowtide.Memory, a mapping"):
        lowtide.Memory.of(5)  # type: ignore[arg-type]
    for given in ({"memory": "hots=8GiB"}, {"memory": {"host": 8}}):
        for use in (lowtide.AdamW, lowtide.forecast):
            with pytest.raises(ValueError, match="parameter group 0: memory: .*did you mean"):
                use([{"params": [torch.nn.Parameter(torch.zeros(3))], **given}])


def test_a_directory_is_checked_by_optimizers_and_not_by_forecasts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Checks come before any step. A forecast may be for another machine."""
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    wanted = "for scratch files, wanted an existing directory that is not a symbolic link"

    def refused(disk: Path | str, error: type[Exception], words: str) -> None:
        memory = lowtide.Memory(host="1GiB", disk=disk)
        shapes = [(4096, 4096)]
        assert lowtide.forecast(shapes, memory=memory).fits and lowtide.forecast([{"params": shapes, "memory": memory}]).fits
        before = model()
        for given, own in ((memory, {}), (None, {"memory": memory})):
            with pytest.raises(error, match=words):
                lowtide.AdamW([{"params": before.parameters(), **own}], memory=given)
        with pytest.raises(error, match=words):
            lowtide.stream(before, memory, layers=before[:1])

    for name in ("none", "file", "link/"):
        refused(f"{tmp_path}/{name}", ValueError, f"/{name} {wanted}")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # as for others than root
    refused(tmp_path, PermissionError, "wanted a directory in which this process may write")


def test_what_a_budget_shows_and_keeps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    memory = lowtide.Memory(host="1GiB", disk="~")
    assert memory == lowtide.Memory(host="1GiB", disk=tmp_path) and repr(memory) == f"Memory(host='1GiB', disk={str(tmp_path)!r})"
    assert repr(lowtide.Memory()) == "Memory()" and repr(lowtide.Memory(device=0)) == "Memory(device=0)"
    assert eval(repr(memory), {"Memory": lowtide.Memory}) == memory == pickle.loads(pickle.dumps(memory)) == copy.deepcopy(memory)
    parameters = inspect.signature(lowtide.Memory).parameters
    assert [*parameters] == [field.name for field in dataclasses.fields(memory)]
    assert all(one.kind is one.KEYWORD_ONLY for one in parameters.values())


@pytest.mark.parametrize(
    ("of", "files", "wanted"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "3000", "a/memory.max": "2000", "memory.max": "max"}, 2000),
        ("0::/docker/123\n", {"memory.max": "4000", "memory.current": "900", "memory.stat": "anon 1\ninactive_file 200\n"}, 4000),  # in a container the folder of the group is the root
        ("3:cpu,memory:/x\n1:pids:/x\n0::/\n", {"memory/x/memory.limit_in_bytes": "5000", "memory/x/memory.usage_in_bytes": "700", "memory/memory.limit_in_bytes": str(2**63 - 4096)}, 5000),
        ("2:pids:/y\n", {"pids/y/memory.limit_in_bytes": "7"}, None),
        ("0::/\n", {"memory.max": "max"}, None),
        ("0::/\n", {}, None),
        ("", {}, None),
    ],
)
def test_shares_are_of_what_a_container_allows(
    of: str, files: dict[str, str], wanted: int | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    (tmp_path / "self").write_text(of)
    for name, text in files.items():
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_text(text)
    found = places.ram(tmp_path / "self", tmp_path / "root")
    used = sum(int(text) for name, text in files.items() if name.endswith(("current", "usage_in_bytes"))) - 200 * ("memory.stat" in files)
    (tmp_path / "meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable:    {machine >> 11} kB\n")
    free = places.ram_free(tmp_path / "self", tmp_path / "root", tmp_path / "meminfo")
    assert free == (wanted - used if wanted else machine >> 11 << 10)
    assert found == (wanted or machine) and places.ram(tmp_path / "none", tmp_path / "root") == machine
    monkeypatch.setattr(places, "ram", lambda: found)
    assert lowtide.Memory(host="50%").budget().host == found // 2


def test_too_small_a_budget_names_what_it_takes(tmp_path: Path) -> None:
    net = model()
    tight = lowtide.AdamW(net.parameters(), memory=lowtide.Memory(host="1KiB", disk=tmp_path))
    before = [p.detach().clone() for p in net.parameters()]
    with pytest.raises(ValueError, match="at least [0-9]+ bytes"):
        train(net, tight, 1)
    assert all(torch.equal(p, q) for p, q in zip(before, net.parameters(), strict=True))
    with pytest.raises(ValueError, match="missing"):
        lowtide.AdamW(net.parameters(), memory=lowtide.Memory(host="1GiB", disk=tmp_path / "missing"))


@pytest.mark.parametrize("source", ["ram", "disk"])
@pytest.mark.parametrize("target", ["ram", "disk"])
@pytest.mark.parametrize("state", ["dynamic8", "fp32"])
@pytest.mark.share
def test_files_go_from_any_tier_to_any(source: str, target: str, state: str, tmp_path: Path) -> None:
    def build(net: torch.nn.Module, kind: str, lr: float) -> lowtide.AdamW:
        memory = budget(tmp_path) if kind == "disk" else None
        return lowtide.AdamW(net.parameters(), lr=lr, betas=(0.8, 0.99), state=state, memory=memory)

    net, again = model(), model()
    first, second = build(net, source, 1e-3), build(again, target, 5e-3)
    train(net, first, 6)
    path = tmp_path / "opt.lowtide"
    first.save(path)
    again.load_state_dict(net.state_dict())
    second.load(path)
    assert second.param_groups[0]["lr"] == 1e-3
    assert second.param_groups[0]["betas"] == (0.8, 0.99)
    train(net, first, 6, seed=7)
    train(again, second, 6, seed=7)
    assert same(net, again)


def test_a_damaged_file_changes_nothing(tmp_path: Path) -> None:
    net = model()
    optimizer = lowtide.AdamW(net.parameters(), memory=budget(tmp_path))
    train(net, optimizer, 3)
    path = tmp_path / "opt.lowtide"
    optimizer.save(path)
    good = path.read_bytes()
    before = optimizer.state_dict()
    refused = 0
    for damage in (good[:100], good[:-1], good[: len(good) // 2], good[:5000] + b"\x55" + good[5001:], b"", b"x" * 9999):
        if damage == good:
            continue
        path.write_bytes(damage)
        with pytest.raises((ValueError, OSError)):
            optimizer.load(path)
        refused += 1
    assert refused >= 5
    after = optimizer.state_dict()
    for number, entry in before["state"].items():
        assert all(torch.equal(entry[name], after["state"][number][name]) for name in entry)
    other = lowtide.Lion(model().parameters())
    path.write_bytes(good)
    with pytest.raises(ValueError, match="lion"):
        other.load(path)
    with pytest.raises(FileNotFoundError):
        optimizer.load(tmp_path / "absent")
    with pytest.raises(OSError, match="absent"):
        optimizer.save(tmp_path / "absent" / "opt.lowtide")


def test_offload_and_onload(tmp_path: Path) -> None:
    here, there = model(), model()
    there.load_state_dict(here.state_dict())
    ram = lowtide.AdamW(here.parameters())
    disk = lowtide.AdamW(there.parameters(), memory=lowtide.Memory(host="1GiB", disk=tmp_path))
    train(here, ram, 3, seed=1)
    train(there, disk, 3, seed=1)
    in_ram = disk.report()["allocated_bytes"]
    ways = {
        "step": lambda: (train(here, ram, 2, seed=2), train(there, disk, 2, seed=2)),
        "state_dict": lambda: disk.load_state_dict(disk.state_dict()),
        "torch_state_dict": disk.torch_state_dict,
        "copy": lambda: copy.deepcopy(disk),
        "onload": disk.onload,
        "removed entries": lambda: (ram.state.clear(), disk.state.clear(), train(here, ram, 1), train(there, disk, 1)),
    }
    for name, way in ways.items():
        disk.offload()
        report = disk.report()
        assert report["allocated_bytes"] == 0, name
        assert report["offloaded_bytes"] == in_ram, name
        way()
        assert disk.report()["offloaded_bytes"] == 0, name
        train(here, ram, 2, seed=3)
        train(there, disk, 2, seed=3)
        assert same(here, there), name
    print(f"{in_ram} bytes put aside and brought back by {len(ways)} ways: 0 bytes differ")
    with pytest.raises(ValueError, match="no disk"):
        ram.offload()


def parameters(count: int = 2, numel: int = 20000) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    made = [torch.nn.Parameter(torch.randn(numel, generator=generator)) for _ in range(count)]
    for param in made:
        param.grad = torch.randn(numel, generator=generator)
    return made


def test_paths_may_be_bytes_and_must_be_utf8(tmp_path: Path) -> None:
    optimizer = lowtide.AdamW(parameters(), memory=lowtide.Memory(host="64KiB", chunk="16KiB", disk=os.fsencode(tmp_path)))
    optimizer.step()
    assert optimizer.report()["disk_bytes"] > 0
    optimizer.save(os.fsencode(tmp_path / "file"))
    optimizer.load(str(tmp_path / "file"))
    strange = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    for call in (
        lambda: optimizer.save(strange),
        lambda: optimizer.load(strange),
        lambda: lowtide.AdamW(parameters(), memory=lowtide.Memory(host=0, disk=strange)),
        lambda: lowtide.measure_rates(strange),
    ):
        with pytest.raises(ValueError, match="UTF-8"):
            call()
    with pytest.raises(TypeError):
        optimizer.save(3)  # type: ignore[arg-type]


def test_a_group_keeps_its_budget_however_often_its_dict_is_used(tmp_path: Path) -> None:
    own = lowtide.Memory(host="64KiB", chunk="16KiB", disk=tmp_path)
    group = {"params": parameters(), "memory": own, "lr": -1.0}
    optimizer = lowtide.AdamW(parameters(1))
    with pytest.raises(ValueError, match="lr"):
        optimizer.add_param_group(group)
    group["lr"] = 1e-3
    optimizer.add_param_group(group)
    for again in (optimizer, lowtide.AdamW([group])):
        again.step()
        assert again.report()["disk_bytes"] > 0
        assert all("memory" not in group for group in again.param_groups)
    assert group["memory"] is own


def test_a_group_added_later_takes_no_memory_above_the_budget(tmp_path: Path, figure) -> None:
    def peak() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

    def growth(memory: lowtide.Memory | None) -> int:
        optimizer = lowtide.AdamW(parameters(1), memory=memory)
        optimizer.step()
        late = torch.nn.Parameter(torch.empty(32 << 20))
        Path("/proc/self/clear_refs").write_text("5")
        start = peak()
        optimizer.add_param_group({"params": [late]})
        return peak() - start

    limited, free = growth(lowtide.Memory(host="4MiB", disk=tmp_path)), growth(None)
    figure(f"a group of 64 MiB of state added: peak grew by {limited >> 20} MiB under a budget, {free >> 20} without")
    assert free > 30 << 20, "control: codes of a first moment are not zero bytes"
    assert limited < 4 << 20


@pytest.mark.parametrize("late", [8, 2000, 8000, 12_000, 40_000])
def test_a_group_added_to_a_full_budget_goes_to_the_disk_with_the_others(late: int, tmp_path: Path) -> None:
    """State that fitted whole leaves no room to stream beside it. Bits equal those without a budget."""
    runs = []
    for memory in (None, lowtide.Memory(host="1MiB", disk=tmp_path)):
        params = [torch.nn.Parameter(torch.ones(500, 256)), torch.nn.Parameter(torch.ones(late))]
        optimizer = lowtide.AdamW(params[:1], lr=1e-2, state="fp32", memory=memory)
        for step in range(3):
            for i, param in enumerate(params):
                param.grad = torch.randn(param.shape, generator=torch.Generator().manual_seed(10 * step + i))
            optimizer.step()
            if step == 0:
                optimizer.add_param_group({"params": params[1:]})
        runs.append([bits(param.detach()) for param in params])
    report = optimizer.report()
    assert runs[0] == runs[1] and report["steps"] == 3 and report["allocated_bytes"] <= 1 << 20


def test_numbers_of_numpy_can_be_saved(tmp_path: Path) -> None:
    optimizer = lowtide.AdamW(parameters(), lr=np.float32(0.5), min_quantized_numel=np.int64(16))
    optimizer.step()
    optimizer.save(tmp_path / "file")
    optimizer.load(tmp_path / "file")
    group = optimizer.param_groups[0]
    assert group["lr"] == 0.5 and type(group["lr"]) is float


def test_a_parameter_that_moved_without_a_gradient_stops_nothing(tmp_path: Path) -> None:
    arena = torch.randn(3, 20000)
    first, second = (torch.nn.Parameter(arena[i]) for i in range(2))
    optimizer = lowtide.AdamW([first, second], memory=lowtide.Memory(host="64KiB", disk=tmp_path, chunk="16KiB"))
    second.grad = torch.randn(20000)
    optimizer.step()
    first.data, second.data = arena[2], arena[0]  # second is where first was when a step last saw it
    optimizer.step()
    assert optimizer.report()["steps"] == 2
    first.grad = torch.randn(20000)
    optimizer.step()
    second.data = arena[2]
    with pytest.raises(ValueError, match="overlaps"):
        optimizer.step()
