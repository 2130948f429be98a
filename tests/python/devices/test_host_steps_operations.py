"""Random operations on an optimizer whose device parameters are stepped by the device, the CPU or both, compared with the CPU:
gradients that come and go, groups, freezing, files and dicts, moves of state, and users' writes to weights."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import lowtide
import pytest
import torch
from lowtide.engine import host_steps
from lowtide.engine.host_steps import Speeds
from stand_in import StandIn
from support import CODECS, DTYPES, RULES, bits, make, parameter
from twins import Count


@pytest.fixture(autouse=True)
def speeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_steps, "speeds_of", lambda *of: Speeds(1e9, 4e9, 1e8) if of[-1] else Speeds(1e9, 4e9))


class Pair(Count):
    """The same optimizer on the CPU and on the device."""

    def __init__(self, device: StandIn, folder: Path, random: Random) -> None:
        self._device, self._folder, self._random = device, folder, random
        self.rule, self.state = random.choice([*RULES]), random.choice(CODECS)
        self.here = [self._parameter() for _ in range(random.randint(2, 6))]
        self.there = device.parameters(self.here)
        self.first, self.second = self._make(self.here, None), self._make(self.there, self._memory())
        self.done: list[str] = []

    def _parameter(self) -> torch.nn.Parameter:
        shape = self._random.choice([(1, 257), (7, 300), (32, 257), (16, 512), (9,), ()])
        return parameter(*shape, dtype=self._random.choice(DTYPES))

    def _memory(self) -> lowtide.Memory | None:
        chunk, folder = self._random.choice((4096, 8192)), self._folder
        ways: list[dict[str, Any] | None] = [
            {"step": "host"}, {"device": 0, "host": "96KiB", "disk": folder}, {"device": "200KiB", "host": "200KiB", "disk": folder},
            {"device": "100KiB", "host": "4MiB", "disk": folder}, {"device": "64KiB", "step": "auto"}, {"device": "64KiB"}, None,
            {"device": "100KiB", "host": "100KiB", "disk": folder, "step": "device"},
        ]  # fmt: skip
        way = self._random.choice(ways)
        return None if way is None else lowtide.Memory(chunk=chunk, **way)

    def _make(self, params: Any, memory: lowtide.Memory | None) -> Any:
        return make(self.rule, params, state=self.state, **({} if memory is None else {"memory": memory}))

    def step(self) -> None:
        bad = self._random.random() < 0.1
        for one, other in zip(self.here, self.there, strict=True):
            if not one.requires_grad or self._random.random() < 0.2:
                one.grad = other.grad = None
                continue
            one.grad = torch.randn(one.shape).to(one.dtype)
            if bad and one.numel():
                one.grad.view(-1)[self._random.randrange(one.numel())] = self._random.choice((torch.nan, torch.inf))
            other.grad = self._device.tensor(one.grad)
        for opt in (self.first, self.second):
            opt.step()

    def clip(self) -> None:
        if all(one.grad is None for one in self.here):
            return
        norms = [opt.clip_grad_norm_(0.3) for opt in (self.first, self.second)]
        self._device.synchronize()
        assert torch.equal(norms[0].float(), norms[1].float().clone()) or torch.isnan(norms[0])
        for opt in (self.first, self.second):
            opt.step()

    def write(self) -> None:
        self._device.synchronize()
        i = self._random.randrange(len(self.here))
        with torch.no_grad():
            for param in (self.here[i], self.there[i]):
                (param if self._random.random() < 0.5 else param.data).mul_(0.5)

    def freeze(self) -> None:
        i = self._random.randrange(len(self.here))
        for param in (self.here[i], self.there[i]):
            param.requires_grad_(not param.requires_grad)
            param.grad = None

    def add(self) -> None:
        new = [self._parameter() for _ in range(self._random.randint(1, 2))]
        lr = self._random.choice((1e-3, 1e-2))
        for opt, params in ((self.first, new), (self.second, self._device.parameters(new))):
            opt.add_param_group({"params": params, "lr": lr})
            (self.here if opt is self.first else self.there).extend(params)

    def rate(self) -> None:
        lr = self._random.choice((1e-3, 3e-3, 1e-2))
        for opt in (self.first, self.second):
            for group in opt.param_groups:
                group["lr"] = lr

    def away(self) -> None:
        try:
            self.second.offload()
        except ValueError as error:  # what is on the device has no room in the host's budget: all stays where it is
            assert "wanted at least" in str(error)
        if self._random.random() < 0.5:
            self.second.onload()

    def file(self) -> None:
        """Both continue from the device's file, which a save may have written beside a step."""
        path, weights = self._folder / "file", [param.detach().clone() for param in self.here]
        if self._random.random() < 0.5:
            self.second.save(path)
        else:
            handle = self.second.save(path, asynchronous=True)
            self.step()
            handle.wait()
            self._device.synchronize()
            with torch.no_grad():
                for params in (self.here, self.there):
                    for param, weight in zip(params, weights, strict=True):
                        param.copy_(weight)
        self._anew()
        for opt in (self.first, self.second):
            opt.load(path)

    def dict(self) -> None:
        saved = self.second.state_dict()
        self._anew()
        for opt in (self.first, self.second):
            opt.load_state_dict(saved)

    def _anew(self) -> None:
        self.first, self.second = self._again(self.first, None), self._again(self.second, self._memory())

    def _again(self, old: Any, memory: lowtide.Memory | None) -> Any:
        groups = [{**{k: v for k, v in group.items() if k == "lr"}, "params": group["params"]} for group in old.param_groups]
        return self._make(groups, memory)

    def check(self, whole: bool) -> None:
        self._device.synchronize()
        self.second.synchronize()
        self._device.synchronize()
        try:
            self.compare(self.here, self.there)
            if whole:
                self._compare_state()
        except AssertionError as error:
            raise AssertionError((self.rule, self.state, self.done)) from error

    def _compare_state(self) -> None:
        """Under a budget, state that was never stepped may not exist yet."""
        mine, theirs = (opt.state_dict()["state"] for opt in (self.first, self.second))
        for i in {*mine, *theirs}:
            stepped = [entry.get(i, {}).get("step", 0) for entry in (mine, theirs)]
            assert stepped[0] == stepped[1], (i, stepped, self.rule, self.done)
            if stepped[0]:
                for name, value in mine[i].items():
                    self._count(bits(value), bits(theirs[i][name]), name)


def test_random_operations(device: StandIn, tmp_path: Path, seed: int, share: float, figure: Callable[[str], None]) -> None:
    random = Random(seed)
    torch.manual_seed(seed)
    runs, refused, operations, compared = max(round(60 * share), 5), 0, 0, 0
    for _ in range(runs):
        pair = Pair(device, tmp_path, random)
        ways = [pair.step] * 6 + [pair.clip, pair.write, pair.freeze, pair.add, pair.rate, pair.away, pair.file, pair.dict]
        try:
            for _ in range(20):
                way = random.choice(ways)
                pair.done.append(way.__name__)
                way()
                pair.check(whole=random.random() < 0.2)
                operations += 1
        except ValueError as error:  # a group for which there is no room any more
            assert "give at least" in str(error), pair.done
            refused += 1
        device.synchronize()
        compared += pair.compared
        del pair, ways, way
        gc.collect()
    assert 2 * refused <= runs
    figure(f"{runs} optimizers, {operations} operations, {refused} ended for want of room: {compared} bytes alike, 0 differ")
