"""`lowtide.plan` says what a whole training takes: as much as a real run, with the optimizer's own bytes of state."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import lowtide
import pytest
import torch
from lowtide import _core
from lowtide.planning.models import DECODERS, Decoder, elements, model_of
from lowtide.planning.rates import weights_rates
from lowtide.planning.schedule import Schedule, Together, Work
from lowtide.report.text import size_text

SMALL = {
    "vocab_size": 4096, "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 4, "tie_word_embeddings": False,
}  # fmt: skip
CASE = {
    "config": SMALL, "weights": "fp32", "master": None, "batch": 1, "seq": 128, "checkpointing": False, "step_in_backward": False,
    "host": 0,
}  # fmt: skip
RUNS = {
    "activations": {"batch": 2, "seq": 384},
    "checkpointing": {"batch": 2, "seq": 384, "checkpointing": True},
    "bf16": {"weights": "bf16", "master": "residual16", "seq": 16},  # a CPU without bfloat16 computes 1 GFLOP/s
    "step in backward": {"checkpointing": True, "step_in_backward": 1 << 20},
    "state on disk": {"host": 16 << 20},
    "tied": {"config": {**SMALL, "vocab_size": 32000, "tie_word_embeddings": True}},
}


def config_file(folder: Path, config: dict[str, object], kind: str = "llama") -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({"model_type": kind, **config}))
    return path


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="needs Linux to forget the peak of a process")
def test_the_total_is_the_peak_of_a_run(tmp_path, figure):
    """VmHWM of two steps, less VmRSS before the model was made, on the CPU. The plan is to be 0.9 to 1.1 of it."""
    pytest.importorskip("transformers")
    cases = [{**CASE, **changes} for changes in RUNS.values()]
    # Blocks of 64 KiB and more go back to the system when they are freed: what is there at once counts, not the allocator's habits.
    # On processors with instructions for products of bfloat16, oneDNN keeps packed copies that the plan does not know: 0.89 of the
    # peak with bfloat16 weights, measured on an EPYC. Without these instructions 0.97.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}
    command = [sys.executable, Path(__file__).with_name("peaks.py"), json.dumps(cases)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr
    found, processes = {}, []
    for name, case, line in zip(RUNS, cases, done.stdout.splitlines(), strict=True):
        before, peak = json.loads(line)
        processes.append(before)
        options = {key: value for key, value in case.items() if key not in ("config", "host")}
        model = config_file(tmp_path, case["config"])
        plan = lowtide.plan(model, **options)
        if case["host"]:
            room = plan.total.host - plan.lines["state"].host + case["host"]
            plan = lowtide.plan(model, ram=room, disk="1TB", **options)
            assert plan.fits and plan.total.disk and plan.optimizer["memory"].startswith(f"host={case['host']},")
        found[name] = (plan.total.host - plan.lines["process"].host) / peak
    ratios = ", ".join(f"{name} {ratio:.3f}" for name, ratio in found.items())
    figure(f"plan / peak of a run: {ratios}; the process before: {max(processes) / 1e6:.0f} MB")
    assert all(0.9 <= ratio <= 1.1 for ratio in found.values()), found


@pytest.mark.parametrize("rule", [*_core.rule_names(), "muon"])
@pytest.mark.parametrize("weights", ["fp32", "bf16"])
def test_state_is_that_of_the_forecast(rule, weights):
    shapes, dtype = [(700, 1030), (5000,), (7,)], {"fp32": torch.float32, "bf16": torch.bfloat16}[weights]
    known = {name for name, _ in _core.hyper_parameters(rule)} if rule != "muon" else {"momentum"}
    variants = [{}, *({name: value} for name, value in (("momentum", 0.9), ("amsgrad", True), ("centered", True)) if name in known)]
    for hyper, state in itertools.product(variants, ("dynamic8", "fp32")):
        master = "residual8" if weights == "bf16" and rule != "muon" else None
        plan = lowtide.plan(shapes, rule=rule, state=state, weights=weights, master=master, **hyper)
        wanted = lowtide.forecast(shapes, rule, state, master=master, dtype=dtype, **hyper)
        bytes_of = {name: plan.lines[name].host for name in ("state", "masters") if name in plan.lines}
        assert sum(bytes_of.values()) == wanted.state_bytes, (hyper, state)
        assert bytes_of.get("masters", 0) == (0 if master is None else wanted.state_bytes - bytes_of.get("state", 0))


COUNTS = {
    "Llama-2-7B": 6_738_415_616, "Llama-2-13B": 13_015_864_320, "Llama-2-70B": 68_976_648_192, "Llama-3.1-8B": 8_030_261_248,
    "Llama-3.1-70B": 70_553_706_496, "Llama-3.1-405B": 405_853_388_800, "Llama-3.2-1B": 1_235_814_400, "Llama-3.2-3B": 3_212_749_824,
    "Mistral-7B-v0.1": 7_241_732_096, "Mistral-7B-v0.3": 7_248_023_552, "Mistral-Nemo-2407": 12_247_782_400,
    "Mistral-Small-24B-2501": 23_572_403_200, "Qwen2.5-0.5B": 494_032_768, "Qwen2.5-1.5B": 1_543_714_304, "Qwen2.5-3B": 3_085_938_688,
    "Qwen2.5-7B": 7_615_616_512, "Qwen2.5-14B": 14_770_033_664, "Qwen2.5-32B": 32_763_876_352, "Qwen2.5-72B": 72_706_203_648,
    "Qwen3-0.6B": 596_049_920, "Qwen3-1.7B": 1_720_574_976, "Qwen3-4B": 4_022_468_096, "Qwen3-8B": 8_190_735_360,
    "Qwen3-14B": 14_768_307_200, "Qwen3-32B": 32_762_123_264,
}  # fmt: skip


def test_published_models_have_their_parameters(figure):
    same = {"Llama-3-8B": "Llama-3.1-8B", "Llama-3-70B": "Llama-3.1-70B", "Llama-3.3-70B": "Llama-3.1-70B"}
    assert {name: elements(of.shapes()) for name, of in DECODERS.items() if name not in same} == COUNTS
    assert all(DECODERS[name] == DECODERS[other] for name, other in same.items())
    for name in ("qwen3-8b", "Qwen/Qwen2.5-7B-Instruct", "meta-llama/Meta-Llama-3-8B", "meta-llama/Llama-2-7b-chat-hf"):
        assert model_of(name).decoder
    figure(f"{len(DECODERS)} published models, {len(COUNTS)} numbers of parameters")


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("more", [{}, {"tie_word_embeddings": True, "head_dim": 32}, {"attention_bias": True}])
def test_shapes_of_a_configuration_are_those_of_transformers(tmp_path, kind, more):
    transformers = pytest.importorskip("transformers")
    config = {**SMALL, **({"head_dim": 128} if kind == "qwen3" else {}), **more, "use_sliding_window": False}
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(kind, **config))
    wanted = sorted(tuple(param.shape) for param in model.parameters())
    found = model_of(config_file(tmp_path, config, kind))
    assert found.decoder and sorted(found.shapes) == wanted
    there = lowtide.plan(model, gpu="1GB")  # the module's own float32
    assert there.lines == lowtide.plan(tmp_path, gpu="1GB", weights="fp32").lines


def test_other_models_have_no_activations(tmp_path):
    pytest.importorskip("transformers")
    gpt2 = config_file(tmp_path, {"n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 100}, "gpt2")
    for model in (gpt2, 10**9, 7e9, "7e9", [(64, 64)], torch.nn.Linear(64, 64)):
        plan = lowtide.plan(model, gpu="1TB")
        assert plan.fits and "activations" not in plan.lines and plan.unknown and "not counted" in str(plan)
        with pytest.raises(ValueError, match="wanted known layers"):
            lowtide.plan(model, gpu="1TB", stream=True)


def test_a_model_in_the_local_cache_of_hugging_face(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ValueError, match="got 'some/model', wanted a folder"):
        lowtide.plan("some/model")
    snapshot = tmp_path / "models--some--model" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (tmp_path / "models--some--model" / "refs").mkdir()
    (tmp_path / "models--some--model" / "refs" / "main").write_text("abc")
    config_file(snapshot, SMALL)
    plan = lowtide.plan("some/model")
    assert plan.model == "some/model" and plan.elements == elements(Decoder(4, 512, 1408, 8, 4, 4096).shapes())


def test_bytes_of_host_memory_when_weights_stream(figure):
    """Weights and gradients of 2 bytes and state of 2.03; gradients go as they come, and state goes to a disk. Page-locked weights take
    powers of two, if there is room for them."""
    layer = 2 * elements([*DECODERS["Llama-2-7B"].layer().values()])
    unit = layer + (64 << 20)  # a layer's gradients, and those that wait

    def each(**more):
        plan = lowtide.plan("Llama-2-7B", gpu="12GB", checkpointing=True, stream=True, master="stochastic", **more)
        assert plan.fits and "CPUOffloadPolicy" in plan.streams
        locked = plan.lines.get("page locking", (0, 0))[1]
        return (plan.total.host - plan.lines["process"].host - locked) / plan.elements, locked, plan

    whole, locked, plan = each()
    assert plan.lines["weights"].device == layer + 2 * 4096  # and the last norm
    inner = 32 * 3 * 2 * (16384 - 11008) * 4096  # of 32 layers
    tables = 2 * 2 * (32768 - 32000) * 4096
    assert locked == inner + tables
    stepped, _, plan = each(step_in_backward=True)
    on_disk, unlocked, plan = each(step_in_backward=True, ram=plan.total.host - plan.lines["state"].host - locked + (256 << 20), disk="1TB")
    assert whole == pytest.approx(6.03, abs=0.005)
    assert stepped == pytest.approx(4.03 + unit / plan.elements, abs=0.005)
    assert on_disk == pytest.approx(2 + (unit + (256 << 20)) / plan.elements, abs=0.005) and not unlocked
    figure(f"bytes of host memory a parameter: {whole:.3f}, stepped in backward {stepped:.3f}, state on disk {on_disk:.3f}; {locked} for page locking")


@pytest.mark.parametrize(
    ("model", "given", "change"),
    [
        ("Llama-3.1-8B", {"gpu": "80GB", "ram": "64GB"}, {}),
        ("Llama-3.1-8B", {"gpu": "24GB", "ram": "64GB"}, {"checkpointing": True, "step_in_backward": True}),
        ("Llama-3.1-8B", {"gpu": "40GB", "ram": "64GB", "accumulate": True}, {"checkpointing": True}),
        ("Llama-3.2-1B", {"gpu": "13GB", "ram": "64GB", "weights": "fp32"}, {"checkpointing": True}),
        (
            "Llama-3.1-8B", {"gpu": "24GB", "ram": "25GB", "master": "residual16"},
            {"checkpointing": True, "step_in_backward": True, "master": "auto"},
        ),
        ("Llama-3.1-8B", {"gpu": "12GB", "ram": "64GB"}, {"checkpointing": True, "stream": True}),
        ("Qwen2.5-32B", {"gpu": "24GB", "ram": "180GB"}, {"checkpointing": True, "step_in_backward": True, "stream": True}),
        ("7e9", {"gpu": "24GB", "ram": "64GB"}, {"step_in_backward": True}),
        ("Llama-3.1-8B", {"gpu": "28GB", "ram": "200GB", "rule": "prodigy"}, {"stream": True}),
    ],
)
def test_the_smallest_change_that_fits(model, given, change):
    plan = lowtide.plan(model, **given)
    assert plan.change == change and plan.fits == (not change)
    if change:
        changed = lowtide.plan(model, **{**given, **change})
        assert changed.fits and changed == plan.changed and "smallest change" in str(plan)
        for fewer in itertools.chain.from_iterable(itertools.combinations(change, n) for n in range(1, len(change))):
            assert not lowtide.plan(model, **{**given, **{name: change[name] for name in fewer}}).fits, fewer


def test_a_disk_and_the_cpu_are_the_last_resorts():
    plan = lowtide.plan("Llama-3.1-8B", gpu="24GB", ram="10GB")
    assert {"disk": plan.change["disk"], "step_in_backward": True}.items() <= plan.change.items()
    assert plan.changed and plan.changed.fits and 0 <= plan.changed.given[2] - plan.changed.total.disk < 1e9
    assert lowtide.plan("Llama-3.1-8B", gpu="24GB", ram="10GB", **plan.change).fits
    large = lowtide.plan("Llama-3.1-70B", gpu="24GB", ram="16GB")
    assert lowtide.plan("Llama-3.1-70B", **{"gpu": "24GB", "ram": "16GB", **large.change}).fits, "as it is spelled"
    there = lowtide.plan("Llama-3.1-70B", gpu="24GB", ram="32GB", disk="1TB")
    assert "gpu" not in there.change and there.changed and there.changed.fits and "lowtide.stream" in str(there)
    assert there.changed.lines["weights"].disk == pytest.approx(2 * there.elements, rel=1e-4)  # but for the norms
    assert there.changed.lines["weights"].device < 3e9 and there.changed.total.host <= 32e9
    small = lowtide.plan("Llama-3.1-70B", gpu="8GB", ram="32GB", disk="1TB")  # without room for activations of its loss
    assert small.change["gpu"] is None and small.changed and small.changed.fits and small.changed.lines["weights"].disk
    nowhere = lowtide.plan("Llama-3.1-70B", gpu="24GB", ram="2GB", disk="1TB")
    assert not nowhere.fits and nowhere.changed and not nowhere.changed.fits and "Still too little" in str(nowhere)


def test_a_disk_and_computation_slow_each_other_down(figure):
    """Behind long computation, a second of the disk takes 1 / disk seconds, in which computation loses 1 - compute; without computation,
    the disk has its own speed."""
    count, together, whole = 8, {"reading": Together(0.5, 0.75), "writing": Together(0.8, 0.6)}, 1.0
    schedule, units, io = Schedule([1] * count, 4), [1] * count, {"read": 1.0, "write": 0.5}
    found = schedule.step(units, bucket=0, work=Work([100.0] * count, [200.0] * count, **io, **together))
    lost = found.read * 1.0 / 0.5 * (whole - 0.75) + found.written * 0.5 / 0.8 * (whole - 0.6)
    assert found.read == 8 and found.written > 0 and found.seconds == pytest.approx(300 * count + lost, rel=1e-12)
    idle = [schedule.step(units, bucket=0, work=Work(**io, **each)).seconds for each in ({}, together)]
    assert idle[0] == idle[1] == found.read * 1.0 + found.written * 0.5
    for compute in (0.1, 0.5, 1.0, 2.0):
        alone, both = (schedule.step(units, bucket=0, work=Work([compute] * count, [2 * compute] * count, **io, **each)).seconds for each in ({}, together))
        assert alone < both < alone / 0.5, "each is slowed to no less than its share"
    figure(f"{found.read} units read and {found.written} written behind computation: {lost:.2f} s lost")


def test_rates_of_weights_are_measured(tmp_path, figure):
    """Alone and beside products, within what any machine can do: 1 TB/s."""
    found = weights_rates(str(tmp_path), 1 << 20, model_of("Llama-3.2-1B").decoder, torch.bfloat16, 4, 8 << 20)
    shares = [found.pop(name) for name in ("compute_reading", "compute_writing")]
    assert set(found) == {f"{act}_{when}" for act in ("read", "write") for when in ("weights", "beside")} | {"change_weights"}
    assert all(0 < rate < 1e12 for rate in found.values()) and all(0 < share <= 1 for share in shares)
    figure(", ".join(f"{name} {rate / 1e9:.2f} GB/s" for name, rate in found.items()) + f"; computation keeps {shares}")


def test_seconds_follow_the_rates(figure):
    """In memory, a step computes and steps; from a disk, it takes at least what each of its parts takes, and at most all of them."""
    one = {"step": 1e9, "layers": 1e12, "head": 1e12, "read": 2e9, "write": 1e9, "read_weights": 2e9, "write_weights": 1e9, "change_weights": 4e9}
    given = {"seq": 512, "step_in_backward": True, "rates": lowtide.Rates(**one)}
    whole = lowtide.plan("Llama-3.2-1B", **given)
    products = 6 * 512 * (whole.elements + 512 * 16 * 2048) / 1e12  # with a table that is also the head, and half of all pairs of 16 layers
    assert whole.seconds_of["forward and backward"] == pytest.approx(products, rel=1e-3)
    assert whole.seconds == pytest.approx(products + whole.lines["state"].host / 1e9, rel=1e-3)
    again = lowtide.plan("Llama-3.2-1B", checkpointing=True, **given)
    assert products < again.seconds_of["forward and backward"] < 4 / 3 * products
    for layers in (1e12, 1e14):
        fast = {**given, "rates": lowtide.Rates(**{**one, "layers": layers, "head": layers})}
        streamed = lowtide.plan("Llama-3.2-1B", ram=whole.total.host - 2 * 10**9, disk="1TB", stream=True, **fast)
        parts = streamed.seconds_of
        disk = parts["weights on the disk"] + parts["state on the disk"]
        assert max(disk, parts["forward and backward"]) <= 1.001 * streamed.seconds
        assert streamed.seconds <= sum(parts.values()) + 2 * streamed.elements / 4e9
        assert f"Seconds a step: {streamed.seconds:.3g}" in str(streamed)
    figure(f"from a disk {streamed.seconds:.2f} s, of which {parts}")
    for more, why in (
        ({"gpu": "80GB"}, "only there its rates can be measured"), ({"rule": "muon"}, "not counted"),
        ({"model": "1e9"}, "says nothing about layers"), ({"state": "fp32", "rates": lowtide.Rates({"bf16": 1.0})}, "layers, head, step of fp32"),
    ):  # fmt: skip
        plan = lowtide.plan(**{"model": "Llama-3.2-1B", **given, **more})
        assert plan.fits and not plan.seconds and why in plan.unknown_seconds and "Seconds are unknown" in str(plan)


def decoder(container):
    """A module with a decoder's configuration, whose layers are in `container`."""
    transformers = pytest.importorskip("transformers")
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL))
    model.model.layers = container(model.model.layers)
    return model


def test_activations_of_a_module_without_a_list_of_layers_are_unknown():
    plan = lowtide.plan(decoder(lambda layers: torch.nn.Sequential(*layers)), rates=lowtide.Rates())
    assert "Fits without activations." in str(plan) and "like LLaMA" in plan.unknown and "like LLaMA" in plan.unknown_seconds


def test_weights_that_torch_cannot_move_suggest_no_streaming_to_a_device():
    def shared(layers):
        layers[1].mlp.down_proj.weight = layers[0].mlp.down_proj.weight
        return layers

    plan = lowtide.plan(decoder(shared), gpu="601MB", ram="4GB")
    assert not plan.fits and plan.change == {"gpu": None} and plan.changed and plan.changed.fits
    with pytest.raises(ValueError, match="a parameter that other modules share"):
        lowtide.plan(decoder(shared), gpu="601MB", ram="4GB", stream=True)


@pytest.mark.parametrize("stream", [False, True])
def test_host_memory_that_the_process_alone_exceeds_is_named(stream):
    """Weights and gradients fit on the device, and part of the state is on the disk."""
    plan = lowtide.plan("Llama-3.1-8B", gpu="80GB", ram="1GB", disk="1TB", state="fp32", seq=1, stream=stream)
    assert plan.problem.startswith("host lacks 5") and plan.total.device <= 80e9 and plan.total.disk > 10e9


def test_lines_add_up():
    """On every tier and for every request, lines add up; where a plan fits, nothing exceeds the given memory."""
    for gpu, ram, disk, stream, checkpointing, accumulate in itertools.product(
        (None, "8GB", "24GB", "80GB"), (None, "16GB", "256GB"), (None, "1TB"), (False, True), (False, True), (False, True)
    ):
        if stream and gpu is None and None in (disk, ram):
            continue
        plan = lowtide.plan("Llama-2-7B", gpu=gpu, ram=ram, disk=disk, stream=stream, checkpointing=checkpointing, accumulate=accumulate)
        for each in filter(None, (plan, plan.changed)):
            assert all(size >= 0 for name, line in each.lines.items() for size in line if name != "never at once")
            over = [size is not None and total > size for total, size in zip(each.total, each.given, strict=True)]
            assert not (each.fits and any(over)) and (each.fits or each.problem)
        json.dumps(plan.as_dict())


@pytest.mark.parametrize(
    ("arguments", "kind", "part"),
    [
        ({"weights": "int8"}, ValueError, "weights: got 'int8', wanted one of fp32, bf16, fp16"),
        ({"gpu": "24 gigs"}, ValueError, "gpu: got"),
        ({"ram": -1}, ValueError, "ram: got -1, wanted bytes"),
        ({"disk": "nowhere"}, ValueError, "or a directory"),
        ({"seq": 0}, ValueError, "seq: got 0, wanted a whole number of 1 or more"),
        ({"batch": 1.5}, ValueError, "batch"),
        ({"stream": 1}, TypeError, "stream: got 1, wanted a bool"),
        ({"stream": True}, ValueError, "stream: got no gpu and no limit of ram"),
        ({"stream": True, "ram": "16GB"}, ValueError, "stream: got no gpu and no disk"),
        ({"model": None}, TypeError, "got None (NoneType), wanted a name"),
        ({"model": "/dev/zero"}, ValueError, "wanted a config.json"),
        ({"accumulate": True, "step_in_backward": True}, ValueError, "each backward pass would be a step"),
        ({"rule": "adamax"}, ValueError, "rule: got 'adamax' (did you mean 'adam'?)"),
        ({"rule": lowtide.AdamW}, TypeError, "AdamW'> (type), wanted one of"),
        ({"state": "int3"}, ValueError, "int3"),
        ({"state": "int8"}, ValueError, "state: got 'int8' (did you mean 'dynamic8'?)"),
        ({"gpu": 24}, ValueError, "gpu: got 24, wanted bytes; did you mean '24GB'?"),
        ({"vram": "24GB"}, ValueError, "(did you mean 'gpu'?)"),
        ({"checkpoint": True}, ValueError, "(did you mean 'checkpointing'?)"),
        ({"master": "residual7"}, ValueError, "residual7"),
        ({"state": "dynamic4", "betas": (0.95, 0.999)}, ValueError, "a beta of 0.95 for its exp_avg"),
        ({"betas": (0.9,)}, ValueError, "betas: got (0.9,), wanted two numbers: beta1, beta2"),
        ({"momentum": 0.9}, ValueError, "adamw has no such option"),
        ({"rule": "muon", "row_betta2": 0.95}, ValueError, "row_betta2: got 0.95, wanted none: muon has no such option"),
        ({"rule": "prodigy", "step_in_backward": True}, ValueError, "step_in_backward: got True, wanted False: a step of prodigy"),
        ({"rates": "measured"}, TypeError, "rates: got 'measured', wanted lowtide.Rates(...), 'measure' or None"),
        ({"rates": 1e9, "ram": "1GB"}, TypeError, "rates: got 1000000000.0, wanted lowtide.Rates"),
        ({"rates": lowtide.Rates(layers=-1.0)}, ValueError, "rates: layers: got -1.0, wanted a finite number, 0 or more"),
        ({"rates": lowtide.Rates(1e9, layers=1e12, head=float("nan"))}, ValueError, "rates: head: got nan"),
        ({"model": "no-such-model"}, ValueError, "got 'no-such-model', wanted a folder"),
        ({"model": 0}, ValueError, "got 0 parameters"),
        ({"model": float("inf")}, ValueError, "model: got inf, wanted a whole number"),
        ({"model": float("nan")}, ValueError, "model: got nan, wanted a whole number"),
        ({"model": [(2, -1)]}, ValueError, "-1"),
        ({"model": torch.nn.Linear(4, 4).double()}, ValueError, "float64"),
    ],
)
def test_bad_arguments_are_refused(arguments, kind, part):
    with pytest.raises(kind) as caught:
        lowtide.plan(**{"model": "Llama-2-7B", **arguments})
    assert part in str(caught.value)


def test_sizes_have_three_digits():
    sizes = {0: "-", 999: "1.00 kB", 13_740_000_000: "13.7 GB", 999_600_000: "1.00 GB", 512_300_000: "512 MB", 2_000_000_000_000: "2.00 TB"}
    assert {size: size_text(size) for size in sizes} == sizes and size_text(-13_740_000_000) == "-13.7 GB"
    assert math.isclose(1.5e9, _core.parse_bytes("1.50GB"))


def test_the_chart_of_gigabytes(figure):
    """Bytes of a parameter of torch's AdamW and of bitsandbytes' are arithmetic: weight and gradient in bf16, an fp32 master, and two
    fp32 moments, or two codes with a float32 scale for each 256."""
    root = Path(__file__).parents[3]
    readme, chart = (root / "README.md").read_text(), (root / "docs/gigabytes.svg").read_text()
    plan = lowtide.plan("Llama-2-7B", gpu="80GB")
    in_backward = lowtide.plan("Llama-2-7B", gpu="80GB", checkpointing=True, step_in_backward=True)
    ours = sum(plan.lines[name].device for name in ("weights", "gradients", "state"))  # stochastic rounding has no masters
    state = plan.lines["state"].device
    wanted = {
        "torch AdamW, fp32 masters": 16 * plan.elements, "bitsandbytes AdamW8bit, fp32 masters": (8 + 2 + 8 / 256) * plan.elements,
        "bitsandbytes AdamW8bit, no masters": (4 + 2 + 8 / 256) * plan.elements,
        "lowtide.AdamW": ours,
        "lowtide.AdamW, step in backward, state in RAM": sum(in_backward.lines[name].device for name in ("weights", "gradients")),
    }  # fmt: skip
    drawn = re.findall(r'>([^<]+)</text><rect x="0" y="\d+" width="([\d.]+)"[^>]*><text [^>]+>(\d+)', chart)
    assert [label for label, _, _ in drawn] == list(wanted)
    for (label, width, number), size in zip(drawn, wanted.values()):
        assert round(size / 1e9) == int(number) and abs(float(width) / 300 - size / (16 * plan.elements)) < 1e-3, label
    told = re.search(r"!\[GB of GPU memory ([^\]]+)\]\(docs/gigabytes.svg\)", readme)[1]
    assert re.findall(r"(?<!\w)\d\d+\b", told) == [*(number for _, _, number in drawn), str(round(state / 1e9))]
    assert f"and {round(state / 1e9)} in RAM" in chart
    figure(", ".join(f"{label} {size / 1e9:.1f} GB" for label, size in wanted.items()))
