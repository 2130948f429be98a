"""`lowtide.plan(on=)` says of parameters on a device what `report()` says after a first step, and who steps them."""

from __future__ import annotations

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
from support import CODECS, RULE_OF, RULES, make, parameter, random_gradients

SPEEDS = Speeds(1e9, 4e9, 1e8)
RATES = lowtide.Rates(step=SPEEDS.step, read=SPEEDS.disk, write=SPEEDS.disk, link=SPEEDS.link)
FIXED = ("momentum", "amsgrad", "centered")


def test_random_plans(
    device: StandIn, tmp_path: Path, seed: int, share: float, monkeypatch: pytest.MonkeyPatch, figure: Callable[[str], None]
) -> None:
    monkeypatch.setattr(host_steps, "speeds_of", lambda *of: SPEEDS if of[-1] else SPEEDS._replace(disk=float("inf")))
    random = Random(seed)
    cases, refused, kinds = max(round(300 * share), 30), 0, {"device": 0, "CPU": 0, "both": 0, "disk": 0, "device's disk": 0}
    for case in range(cases):
        kib = {name: f"{random.randint(*of)}KiB" for name, of in {"device": (24, 300), "host": (48, 300)}.items()}
        budgets: list[dict[str, Any]] = [
            {**kib, "disk": tmp_path}, {"device": 0, "host": kib["host"], "disk": tmp_path}, {"device": "24KiB", "host": "48KiB", "disk": tmp_path},
            {"step": "host"}, {"device": kib["device"], "step": "auto"}, {"device": kib["device"]}, {**kib, "transfer": "copy"},
            {"device": "32KiB", "host": "48KiB", "disk": tmp_path, "step": "device"},
        ]  # fmt: skip
        budget = budgets[case % len(budgets)]
        memory = lowtide.Memory(chunk=random.choice((4096, 8192)), **budget)
        shapes = [(random.choice((1, 7, 32)), random.choice((1, 257, 300, 512, 1024))) for _ in range(random.randint(2, 9))]
        shapes += [(32, 1024)] * random.randint(0, 2)
        dtype = random.choice((torch.float32, torch.bfloat16))
        rule, codec = random.choice([*RULES]), random.choice(CODECS)
        variant = {key: RULES[rule][1][key] for key in FIXED if key in RULES[rule][1]}
        plan = lowtide.plan(
            shapes, RULE_OF.get(rule, rule), codec, memory, on=device.kind, dtype=dtype, rates=RATES, **variant
        )
        here = [parameter(*shape, dtype=dtype) for shape in shapes]
        there = device.parameters(here)
        optimizer = None
        try:
            optimizer = make(rule, there, state=codec, memory=memory)
            random_gradients(here)
            device.give_gradients(there, here)
            optimizer.step()
        except ValueError as error:  # too little room, in the same words but for the shares of two cores
            assert "give at least" in str(error)
            assert not plan.fits and plan.problem, (rule, codec, shapes, memory, str(error))
            refused += 1
            continue
        finally:
            device.synchronize()
        assert plan.fits, (plan, rule, codec, shapes, memory)
        report = optimizer.report()
        by_host = tuple(i for i, param in enumerate(optimizer.engine.params) if param.place.mirrored)
        assert plan.by_host == by_host, (rule, codec, shapes, memory)
        names = ("state_bytes", "device_bytes", "allocated_bytes", "disk_bytes", "moved_per_step", "disk_moved_per_step")
        got = {name: report[name] for name in names}
        moved = plan.streamed_per_step + (plan.disk_per_step if by_host else 0)
        wanted = (plan.state_bytes, plan.device_bytes, plan.host_bytes, plan.disk_bytes, moved, plan.disk_per_step)
        assert tuple(got.values()) == wanted, (got, plan, rule, codec, shapes, memory)
        weights = sum(here[i].numel() * here[i].element_size() for i in by_host)
        assert (plan.gradients_per_step, plan.weights_per_step, plan.copy_bytes) == (weights, weights, 2 * weights)
        kinds["device" if not by_host else "CPU" if len(by_host) == len(here) else "both"] += 1
        kinds["disk"] += plan.disk_bytes > 0
        kinds["device's disk"] += plan.disk_bytes > 0 and not by_host
    assert min(kinds.values()) > 0
    figure(f"{cases} budgets, {refused} refused by both: plan and report alike to the byte; stepped by {kinds}")
