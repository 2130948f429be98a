"""`lowtide.forecast` says before a run what `report()` says after its first step, for whatever describes the model, wherever it is."""

from __future__ import annotations

import dataclasses
import math
import random
import resource
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import lowtide
import pytest
import torch
from lowtide import _core
from lowtide.engine import host_steps
from lowtide.engine.host_steps import Speeds
from stand_in import StandIn
from support import CODECS, FOUR_BITS, RULES, RULE_OF, SINGLE_STEPS, make, parameter, random_gradients, take_steps

MIB = 1 << 20


def reported(opt):
    take_steps([p for group in opt.param_groups for p in group["params"]], opt)
    return opt.report()


def compare(plan, report):
    """The largest deviation, in bytes or counts."""
    pairs = {
        "params": plan.params,
        "elements": plan.elements,
        "state_bytes": plan.state_bytes,
        "allocated_bytes": plan.host_bytes,
        "disk_bytes": plan.disk_bytes,
        "chunks": plan.chunks,
        "moved_per_step": plan.moved_per_step,
    }
    return max(abs(planned - report[name]) for name, planned in pairs.items())


# Options that turn a class into another rule, or change its number of passes over state.
VARIANTS = {
    lowtide.Adam: ({}, {"amsgrad": True}),
    lowtide.AdamW: ({}, {"amsgrad": True}),
    lowtide.SGD: ({}, {"momentum": 0.9}),
    lowtide.RMSprop: ({}, {"momentum": 0.9}, {"centered": True}, {"momentum": 0.9, "centered": True}),
    lowtide.LAMB: ({}, {"max_unorm": 0.1}),
    lowtide.LARS: ({}, {"max_unorm": 0.1}, {"momentum": 0.0}, {"momentum": 0.0, "max_unorm": 0.1}),
}


@pytest.mark.parametrize("cls", VARIANTS)
def test_every_variant_of_a_rule_is_planned(cls, tmp_path, figure):
    memory = lowtide.Memory(host="300KiB", disk=tmp_path, chunk="32KiB")
    found = {}
    for options in VARIANTS[cls]:
        planned = lowtide.forecast([(600, 1024)], cls.__name__.lower(), memory=memory, **options)
        report = reported(cls([torch.nn.Parameter(torch.zeros(600, 1024))], memory=memory, **options))
        assert compare(planned, report) == 0, options
        found[str(options)] = (planned.state_bytes, planned.moved_per_step)
    assert len(set(found.values())) >= (1 if cls is lowtide.LAMB else 2), found
    figure(f"{cls.__name__}: state and bytes moved a step: {found}")


# Options that decide on averages of 4 bits, by class: some averages are short enough, others are not.
AVERAGES = [
    (lowtide.AdamW, {}),
    (lowtide.AdamW, {"betas": (0.95, 0.999)}),
    (lowtide.Adam, {"betas": (0.9, 0.95)}),
    (lowtide.Lion, {}),
    (lowtide.Lion, {"betas": (0.5, 0.5)}),
    (lowtide.SGD, {"momentum": 0.9}),
    (lowtide.SGD, {"momentum": 0.95}),
    (lowtide.RMSprop, {}),
    (lowtide.RMSprop, {"centered": True}),
    (lowtide.RMSprop, {"centered": True, "alpha": 0.9}),
    (lowtide.AdEMAMix, {}),
    (lowtide.AdEMAMix, {"betas": (0.9, 0.999, 0.9)}),
    (lowtide.LAMB, {"betas": (0.91, 0.999)}),
    (lowtide.Muon, {}),
    (lowtide.Muon, {"momentum": 0.9}),
    (lowtide.Muon, {"momentum": 0.9, "betas": (0.95, 0.95)}),
    (lowtide.AdamW, {"betas": (0.9, 0.999, 0.9)}),
    (lowtide.AdamW, {"betas": 0.9}),
    (lowtide.AdamW, {"betas": (1.0, 0.999)}),
    (lowtide.RMSprop, {"alpha": 1.0}),
]


@pytest.mark.parametrize("state", [*CODECS, *FOUR_BITS])
@pytest.mark.parametrize(("cls", "options"), AVERAGES)
def test_what_an_optimizer_refuses_for_its_averages_is_not_planned(cls, options, state, figure):
    """Arguments, group options and overrides are all refused, in the optimizer's words except for the place."""
    layer = torch.nn.Linear(300, 300, bias=False)
    words = refusal(lambda: cls(layer.parameters(), state=state, lr=0.1, **options))
    rule = cls.__name__.lower()
    planned = (
        lambda: lowtide.forecast([(300, 300)], rule, state, **options),
        lambda: lowtide.forecast([{"params": [(300, 300)], **options}], rule, state),
        lambda: lowtide.forecast([{"params": [(300, 300)], "state": state}], rule, **options),
    )
    assert [refusal(plan) for plan in planned] == [words] * 3
    assert words is None or state in FOUR_BITS or "4 bits" not in words
    figure(words or "both accept")
    if options:
        lowtide.override(layer, "weight", **options)
        of_override = refusal(lambda: cls(layer.parameters(), state=state, lr=0.1))
        assert refusal(lambda: lowtide.forecast(layer, rule, state)) == of_override


def refusal(call):
    """The refusal of a call, without its place; None if it is not refused."""
    try:
        call()
    except (TypeError, ValueError) as error:
        text = str(error)
        return text[text.index("got ") :]
    return None


def test_row_moments_have_their_place_in_budgets(seed, tmp_path, figure):
    """Muon's budgets hold them beside state, the optimizer's and a group's own: forecasts and plans have the bytes that are there. What
    does not fit names both."""
    rng, worst, streamed, refusals = random.Random(seed), 0, 0, 0
    for case in range(24):
        shapes = [(rng.randint(1, 300), rng.randint(1, 300)) for _ in range(3)] + [(rng.randint(2000, 9000), 16), (rng.randint(1, 99),)]
        memory = own = None
        if case % 4:
            disk, most = (tmp_path, 150_000) if case % 4 > 1 else (None, 300_000)
            memory = lowtide.Memory(host=rng.randint(30_000, most), disk=disk, chunk=4096)
        if case % 3 == 1:
            own = lowtide.Memory(host="192KiB", disk=tmp_path, chunk=4096)
        groups = [{"params": shapes[1:], "row_beta2": 0.9}, {"params": shapes[:1], "memory": own}]
        given = {"rule": "muon", "memory": memory, "row_beta2": rng.choice([None, 0.5]), "min_quantized_numel": 0}
        plan = lowtide.forecast(groups, **given)
        real = [{**g, "params": [parameter(*s) for s in g["params"]]} for g in groups]
        opt = lowtide.Muon(real, **{name: value for name, value in given.items() if name != "rule"})
        rows = 4 * (sum(rows for rows, _ in shapes[1:-1]) + (shapes[0][0] if given["row_beta2"] else 0))
        if not plan.fits:
            with pytest.raises(ValueError) as real_problem:
                reported(opt)
            needed = int(plan.problem.split("at least ")[1].split()[0])
            beside = int(plan.problem.split("beside ")[1].split()[0])
            if not own:
                assert plan.problem in str(real_problem.value)
                enough = {**given, "memory": dataclasses.replace(memory, host=needed + beside)}
                assert lowtide.forecast(groups, **enough).fits
            refusals += 1
            continue
        report = reported(opt)
        if memory is None:  # without a limit, state comes as it is stepped: vectors before matrices
            assert abs(report["allocated_bytes"] - plan.host_bytes) <= max(65536, plan.host_bytes // 16)
            report["allocated_bytes"] = plan.host_bytes
        worst, streamed = max(worst, compare(plan, report)), streamed + (report["disk_bytes"] > 0)
        assert not memory or own or report["allocated_bytes"] <= memory.host
        there = [state["row_moment"] for state in opt.state.values() if "row_moment" in state]
        assert sum(moment.nbytes for moment in there) == rows
        if not own and not given["row_beta2"] and not memory:
            whole = lowtide.plan(shapes, rule="muon", weights="fp32", row_beta2=0.9, min_quantized_numel=0)
            assert whole.lines["state"].host == report["state_bytes"] + 4 * shapes[0][0]
    figure(f"planned against reported: {24 - refusals} optimizers, {streamed} with state on disk, off by {worst}; {refusals} refused")
    assert worst == 0 and streamed >= 4 and refusals
    on_device: dict[str, Any] = {"rule": "muon", "on": "cuda", "min_quantized_numel": 0}
    there = lowtide.forecast([(2000, 64)], memory=lowtide.Memory(device="100KiB"), row_beta2=0.9, **on_device)
    beside = lowtide.forecast([(2000, 64)], memory=lowtide.Memory(device=100 * 1024 - 8000), **on_device)
    assert (there.device_bytes, there.state_bytes) == (beside.device_bytes + 8000, beside.state_bytes + 8000)
    assert there.device_bytes <= 100 * 1024 and there.host_bytes == beside.host_bytes > 0
    with pytest.raises(ValueError, match="row_beta2: got 0.9, wanted None: adamw has no row moments"):
        lowtide.forecast([(8, 8)], row_beta2=0.9)


def test_every_description_of_a_model_gives_the_same_plan():
    model = torch.nn.Sequential(torch.nn.Linear(300, 500), torch.nn.Linear(500, 7))
    with torch.device("meta"):
        meta = torch.nn.Sequential(torch.nn.Linear(300, 500), torch.nn.Linear(500, 7))
    shapes = [tuple(p.shape) for p in model.parameters()]
    described = [
        model,
        meta,
        model.parameters(),
        list(meta.named_parameters()),
        [{"params": model.parameters()}],
        [{"params": list(meta.parameters())[:2]}, {"params": list(meta.parameters())[2:], "lr": 1.0}],
        [torch.empty(shape, device="meta", dtype=torch.bfloat16) for shape in shapes],
        shapes,
        [list(shape) for shape in shapes],
        [torch.Size(shape) for shape in shapes],
        iter(shapes),
    ]
    plans = {dataclasses.replace(lowtide.forecast(source), rates=lowtide.Rates()) for source in described}
    assert len(plans) == 1
    assert compare(plans.pop(), reported(lowtide.AdamW(model.parameters()))) == 0


def test_frozen_parameters_take_nothing():
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    model[0].requires_grad_(False)
    assert lowtide.forecast(model).params == 2
    assert lowtide.forecast(model).state_bytes == lowtide.forecast([(64, 64), (64,)]).state_bytes


def test_a_large_model_is_not_materialized(tmp_path, figure):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with torch.device("meta"):
        model = torch.nn.Sequential(*[torch.nn.Linear(32768, 32768) for _ in range(100)])
    plan = lowtide.forecast(model, memory=lowtide.Memory(host="32GiB", disk=tmp_path))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    figure(f"{plan.elements:,} elements planned ({plan.state_bytes:,} bytes of state); the process grew by {grown:,}")
    assert plan.state_bytes > 200e9 and grown < 200e6


def test_what_does_not_fit_says_how_much_is_needed():
    plan = lowtide.forecast([(1000, 1000)], memory=lowtide.Memory(host="1MiB"))
    assert not plan.fits and plan.host_bytes == 0 and plan.state_bytes > MIB
    needed = int(plan.problem.split("at least ")[1].split()[0])
    assert lowtide.forecast([(1000, 1000)], memory=lowtide.Memory(host=needed)).fits
    with pytest.raises(ValueError) as real:
        reported(lowtide.AdamW([torch.zeros(1000, 1000, requires_grad=True)], memory=lowtide.Memory(host="1MiB")))
    assert plan.problem in str(real.value)
    assert plan.problem in str(plan) and "does not fit" in str(plan)


def test_what_it_takes_is_enough_whatever_was_given(seed, figure):
    """Chunks, and so what fills their pages, follow the budget: the figure of the message holds for itself."""
    rng, most = random.Random(seed), 0.0
    for _ in range(200):
        shapes = [(rng.randint(1, 3000), rng.randint(1, 6000)) for _ in range(rng.randint(1, 4))]
        state = rng.choice(["fp32", "dynamic8", "float8"])
        given = int(2 ** rng.uniform(10, 26))
        refused = lowtide.forecast(shapes, state=state, memory=lowtide.Memory(host=given))
        if refused.fits:
            continue
        needed = int(refused.problem.split("at least ")[1].split()[0])
        assert lowtide.forecast(shapes, state=state, memory=lowtide.Memory(host=needed)).fits, (shapes, state, given)
        most = max(most, needed / refused.state_bytes)
    figure(f"200 budgets: the one asked for fits, and is at most {most:.2f} times the state")
    assert most > 1


def test_seconds_follow_the_rates(tmp_path):
    shapes, memory = [(4096, 4096)] * 4, lowtide.Memory(host="64MiB", disk=tmp_path)
    unknown = lowtide.forecast(shapes, memory=memory)
    assert unknown.seconds == unknown.step_seconds == unknown.disk_seconds == 0 and "unknown" in str(unknown)
    rates = lowtide.Rates({"dynamic8": 1e9, "fp32": 4e9}, 2e9, 1e9)
    plan = lowtide.forecast(shapes, memory=memory, rates=rates)
    assert plan.disk_seconds == pytest.approx(plan.disk_bytes * (1 / 2e9 + 1 / 1e9))
    assert plan.step_seconds == pytest.approx(plan.state_bytes / 1e9, rel=0.02)
    assert plan.seconds == max(plan.step_seconds, plan.disk_seconds)
    in_ram = lowtide.forecast(shapes, state="fp32", rates=rates)
    assert in_ram.seconds == pytest.approx(in_ram.state_bytes / 4e9, rel=1e-3)
    assert lowtide.forecast(shapes, state="bf16", rates=rates).seconds == 0  # not among the rates
    assert lowtide.forecast(shapes, state="bf16", rates=lowtide.Rates(1e9)).seconds > 0


def test_rates_are_measured(tmp_path, figure):
    rates = lowtide.measure_rates(tmp_path, states=["bf16"], elements=1 << 16, disk_bytes="16MiB", seconds=0.01)
    assert set(rates.step) == {"bf16"} and min(rates.step["bf16"], rates.read, rates.write) > 1e5
    assert rates.engine in ("io_uring", "threads")
    assert [path.name for path in tmp_path.iterdir()] == [".lowtide.lock"]
    memory = lowtide.Memory(host="1MiB", disk=tmp_path)
    plan = lowtide.forecast([(1024, 1024)], memory=memory, rates="measure")
    assert plan.seconds > 0 and plan.rates.read > 0 and list(plan.rates.step) == ["dynamic8"]
    figure(f"{plan.rates}")


def test_rates_of_what_is_refused_elsewhere_are_unknown():
    """Rows of odd length have no 4 bits and so take any beta; the measured rows have 4 bits."""
    for rule, options in (("lion", {}), ("adam", {"betas": (0.95, 0.999)})):
        found = lowtide.forecast([(64, 257)], rule=rule, state="dynamic4", rates="measure", **options)
        assert found.fits and found.state_bytes > 0


@pytest.mark.parametrize(
    ("arguments", "kind", "part"),
    [
        ({"rule": "adamax"}, ValueError, "adamax"),
        ({"rule": None}, TypeError, "rule"),
        ({"state": "int3"}, ValueError, "int3"),
        ({"state": 8}, TypeError, "state"),
        ({"memory": "8GiB"}, ValueError, "some of device, host"),
        ({"memory": "host=2GB ?"}, ValueError, "2GB ?"),
        ({"memory": "host=1MiB,chunk=5"}, ValueError, "4096"),
        ({"memory": "disk=/tmp"}, ValueError, "host"),
        ({"min_quantized_numel": -1}, ValueError, "min_quantized_numel"),
        ({"rates": "fast"}, TypeError, "rates"),
        ({"rates": lowtide.Rates(math.nan)}, ValueError, "nan"),
        ({"rates": lowtide.Rates(1.0, read=-1.0)}, ValueError, "read_rate=-1"),
        ({"rates": lowtide.Rates(1.0, write=math.inf)}, ValueError, "write_rate=inf"),
        ({"rates": lowtide.Rates("fast")}, TypeError, "fast"),
        ({"momentum": math.nan}, ValueError, "momentum"),
        ({"on": 3}, TypeError, "on: got 3"),
        ({"on": "gpu"}, ValueError, "on: got 'gpu'"),
        ({"on": "meta"}, ValueError, "on: got 'meta'"),
        ({"on": "cuda"}, ValueError, "device=None, wanted bytes"),
        ({"on": "cuda", "memory": lowtide.Memory(device="auto")}, ValueError, "device='auto', wanted bytes"),
        ({"on": "xpu", "memory": lowtide.Memory(device="25%")}, ValueError, "device='25%', wanted bytes"),
        ({"on": "cuda", "memory": lowtide.Memory(managed=True)}, ValueError, "managed"),
        ({"on": "mps", "memory": lowtide.Memory(device=4096)}, ValueError, "no kernels"),
        ({"on": "cuda", "memory": lowtide.Memory(device=0, step="device")}, ValueError, "device=0 with step='device'"),
        ({"on": "cuda", "memory": lowtide.Memory(device=4096), "rates": "measure"}, ValueError, "rates='measure' on cuda"),
        ({"on": "cuda", "memory": lowtide.Memory(device=4096), "rates": lowtide.Rates(link=math.nan)}, ValueError, "nan"),
        ({"on": "cuda", "memory": lowtide.Memory(device="256B", step="auto")}, ValueError, "rates: link: got 0"),
        ({"on": "cuda", "memory": lowtide.Memory(device="256B", host=4096, disk="/tmp"), "rates": lowtide.Rates(1, link=1)}, ValueError, "read and"),
        ({"on": "cuda", "memory": lowtide.Memory(device=4096), "model_or_params": [{"params": [(8,)], "memory": lowtide.Memory(device=8192)}]},
         NotImplementedError, "one for all"),
        ({"model_or_params": True}, TypeError, "bool"),
        ({"model_or_params": 7.5}, TypeError, "float"),
        ({"model_or_params": math.inf}, TypeError, "float"),
        ({"model_or_params": 0}, ValueError, "got 0 parameters"),
        ({"model_or_params": torch.zeros(3)}, TypeError, "Tensor"),
        ({"model_or_params": "model"}, TypeError, "str"),
        ({"model_or_params": [4096, 4096]}, TypeError, "4096"),
        ({"model_or_params": [(4.5, 2)]}, TypeError, "4.5"),
        ({"model_or_params": [(-1, 2)]}, ValueError, "-1"),
        ({"model_or_params": [(2**63, 2)]}, ValueError, "2^63"),
        ({"model_or_params": [(2**40, 2**40)]}, ValueError, "2^62"),
        ({"model_or_params": [(2**52,), (1,)]}, ValueError, "2^52"),
        ({"model_or_params": [{"lr": 1.0}]}, TypeError, "params"),
        ({"model_or_params": [{"params": [(2, 2)], "state": "int3"}]}, ValueError, "int3"),
        ({"model_or_params": [{"params": [(2, 2)], "amsgrad": "yes"}]}, TypeError, "amsgrad"),
        ({"model_or_params": [torch.zeros(2, dtype=torch.int64)]}, ValueError, "int64"),
        ({"model_or_params": [torch.nn.LazyLinear(3).weight]}, ValueError, "uninitialized"),
    ],
)
def test_bad_arguments_are_refused(arguments, kind, part):
    with pytest.raises(kind) as caught:
        lowtide.forecast(**{"model_or_params": [(8, 8)], **arguments})
    assert part in str(caught.value)


def test_a_number_of_parameters_is_enough():
    """`plan` takes a number, too, and forecasts the same state."""
    found = lowtide.forecast(7e9)
    assert found == lowtide.forecast(7_000_000_000) and found.elements == 7e9
    assert found.state_bytes == lowtide.plan(7e9, master=None).lines["state"].host
    assert lowtide.forecast(7e9, on="cuda", memory=lowtide.Memory(device="1GB"), rates=lowtide.Rates(link=1e9)).state_bytes == found.state_bytes


def test_a_parameter_twice_is_refused():
    param = torch.nn.Parameter(torch.zeros(3))
    with pytest.raises(ValueError, match="more than once"):
        lowtide.forecast([param, param])


def test_nothing_is_a_plan_too():
    for empty in ([], [(0, 5)], [(0,)], torch.nn.Identity()):
        plan = lowtide.forecast(empty, memory=lowtide.Memory(host=0))
        assert plan.fits and plan.host_bytes == plan.state_bytes == plan.params == 0
        there = lowtide.forecast(empty, memory=lowtide.Memory(device=0), on="cuda", rates=lowtide.Rates(link=1e9))
        assert there.fits and there.host_bytes == there.state_bytes == there.seconds == 0 and str(there)


def test_bad_directories_are_refused(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    for name in ("missing", "file", "link"):
        with pytest.raises(ValueError, match=name):
            lowtide.measure_rates(tmp_path / name)
    with pytest.raises(OSError):
        lowtide.measure_rates("/proc")  # even root can create nothing there
    with pytest.raises(ValueError, match="seconds"):
        lowtide.measure_rates(states=["fp32"], seconds=math.nan)


def test_rates_of_every_format_are_asked_for_by_default():
    rates = lowtide.measure_rates(elements=4096, seconds=0.001)
    assert set(rates.step) == set(_core.codec_names()) and rates.read == rates.write == 0


def test_a_gigabyte_that_leaves_a_device_takes_an_eighth_of_a_second_of_sixteen_lanes(figure):
    """The rule of thumb for PCIe 3.0 with 16 lanes: 16 GB/s, and half of that where both ways take turns."""
    gigabyte = [(15259, 16384)]  # 2 GB of 32-bit state
    plan = lowtide.forecast(gigabyte, state="fp32", memory=lowtide.Memory(device="1GB"), on="cuda", rates=lowtide.Rates(link=16e9))
    seconds = plan.streamed_per_step / 16e9
    assert seconds == pytest.approx(0.125, rel=0.08)  # beside a gigabyte are buffers of three or four chunks of 16 MiB
    assert plan.seconds == seconds / 2
    figure(f"{plan.host_bytes / 1e9:.3f} GB beyond the device: {seconds * 1e3:.0f} ms one way after the other, {plan.seconds * 1e3:.0f} ms at once")


def test_a_plan_of_a_device_is_a_table(figure):
    rates = lowtide.Rates(step=4e9, read=1e9, write=1e9, link=25e9)
    memory = lowtide.Memory(device="8GiB", host="2GiB", disk="/tmp")
    plan = lowtide.forecast([(4096, 4096)] * 400, memory=memory, on="cuda", dtype=torch.bfloat16, rates=rates)
    by_host = len(plan.by_host)
    assert plan.fits and 0 < by_host == plan.host_params < 400 and plan.by_host == tuple(range(400 - by_host, 400))
    assert plan.copy_bytes == 4 * plan.host_elements and plan.gradients_per_step == plan.weights_per_step == 2 * plan.host_elements
    assert plan.link_per_step == plan.streamed_per_step + 6 * plan.host_elements
    copies = 4 * plan.host_elements / 25e9
    assert plan.device_seconds == pytest.approx(plan.streamed_per_step / 50e9 + copies)
    assert plan.host_seconds >= 1.5 * copies + plan.disk_per_step / 1e9
    assert plan.seconds == max(plan.device_seconds, plan.host_seconds)
    lines = str(plan).splitlines()
    assert len(lines) == 14 and "400 parameters" in lines[0] and len({len(line) for line in lines[1:]}) == 1
    figure(str(plan))


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
        rule, codec = random.choice(SINGLE_STEPS), random.choice(CODECS)
        variant = {key: RULES[rule][1][key] for key in FIXED if key in RULES[rule][1]}
        plan = lowtide.forecast(
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
        except ValueError as error:  # too little room: the words differ only in the shares of two cores
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
