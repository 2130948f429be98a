"""FSDP1 (FullyShardedDataParallel) gathers, cuts and hands out the state of every format without changing anything."""

from __future__ import annotations

from pathlib import Path

import fsdp1_jobs as jobs
import lowtide
import pytest
import torch
from distributed_support import differing, of_all, on_ranks, same, shared_ranks
from fsdp1_jobs import FSDP, Case, as_kind, build, local_bits, train, whole_weights
from support import bits, raised
from torch.distributed.fsdp import OptimStateKeyType

ORIGINAL = pytest.mark.parametrize("original", [True, False], ids=["original", "flat"])


@ORIGINAL
@on_ranks(3)
def test_steps_are_those_of_torch(original: bool) -> str:
    """fp32 state: our steps and torch's differ by rounding, at most 1e-2 of lr after ten steps."""
    case = Case(original, options={"state": "fp32"})
    weights = []
    for kind in ("torch", "ours"):
        net, opt = build(case, kind)
        train(case, net, opt, range(10))
        weights.append(whole_weights(net))
    worst = max(float((value - weights[1][name]).abs().max()) for name, value in weights[0].items())
    assert worst <= 1e-4
    return f"largest difference of a weight after 10 steps of lr 0.01: {worst:.3g}"


@pytest.mark.parametrize(
    ("original", "kind"),
    # Not original parameters, offloaded: torch 2.15 gathers all states into one buffer, and .cpu() copies it on devices
    # only, so that every moment would be the last one, torch's own as well.
    [(True, "full"), (True, "rank 0"), (True, "sharded")]
    + [(False, "full"), (False, "rank 0"), (False, "sharded"), (False, "offloaded")],
)
@pytest.mark.share
@on_ranks(3)
def test_state_comes_back_bit_for_bit(original: bool, kind: str) -> str:
    found = [
        jobs.round_trip(case, kind)
        for case in (
            Case(original, options={"state": "dynamic8"}),
            Case(original, options={"state": "fp32"}),
            Case(original, dtype=torch.bfloat16, options={"state": "bf16", "master": "residual16"}),
            Case(original, dtype=torch.bfloat16, options={"state": "dynamic8", "master": "residual8"}),
            Case(original, options={"state": "dynamic4", "min_quantized_numel": 0}),
            Case(original, options={"state": "float8", "rounding": "stochastic"}),
            Case(original, options={"state": "dynamic8"}, rule="schedulefree"),
        )
    ]
    compared, empty = (sum(of_all(sum(each[i] for each in found))) for i in range(2))
    assert bool(empty) == original
    return f"{compared} bytes compared, 0 differ; {empty} empty parameters on ranks"


@on_ranks(2)
def test_frozen_parameters_are_left_out() -> str:
    compared, _ = jobs.round_trip(Case(frozen=True, options={"state": "dynamic8"}), "full")
    return f"{compared} bytes compared, 0 differ"


@pytest.mark.parametrize("state", ["fp32", "bf16", "dynamic8"])
@pytest.mark.share
def test_state_goes_to_other_numbers_of_ranks(state: str, tmp_path: Path, figure) -> None:
    """State without scales, and state whose blocks end at the cuts, is the same on any number of ranks. If shards cut blocks
    elsewhere, values are rounded again, to nearest: they move by at most half the widest gap of the signed map, or from -1 to
    its lowest entry, 0.00703 of the largest in their block."""
    exact = 0
    worst = 0.0
    for n, (source, target, aligned) in enumerate(
        [(2, 3, False), (3, 1, False), (2, 4, True), (4, 1, True)]
    ):
        if state != "dynamic8" and aligned:
            continue
        path = str(tmp_path / str(n))
        case = Case(aligned=aligned, tiny=False, options={"state": state})
        wanted = shared_ranks().run(source, jobs.saved, case, path)[0]
        for found in shared_ranks().run(target, jobs.loaded, case, path):
            for name, value in wanted.items():
                got = found[name]
                if aligned or state != "dynamic8" or name.count(".") == 1 or name.endswith("step"):
                    assert torch.equal(got, value), name
                    exact += value.numel()
                elif not name.endswith("_scale"):
                    reach = float(wanted[f"{name}_scale"].max()) or float("inf")
                    worst = max(worst, float((got - value).abs().max()) / reach)
    figure(f"{exact} values exact; others moved by {worst:.4f} of the largest scale at most")
    assert worst <= 0.00704


@ORIGINAL
@pytest.mark.parametrize("world", [2, 4])
def test_shards_of_whole_blocks_have_the_bits_of_one_process(original: bool, world: int, figure) -> None:
    """State without scales has no blocks. A FlatParameter has another number than its parameters, so other random bits: it has
    the bits of one process only when rounding to nearest."""
    compared = 0
    nearest = {} if original else {"rounding": "nearest"}
    cases = [
        Case(original, aligned=True, options={"state": "dynamic8", **nearest}),
        Case(original, options={"state": "fp32"}),
    ]
    if original:  # 16-bit state below min_quantized_numel is float32: by the whole parameter, as in one process
        cases.append(Case(aligned=True, options={"state": "float8"}))
        cases.append(Case(dtype=torch.bfloat16, aligned=True, options={"state": "dynamic8", "master": "residual16"}))
    for case in cases:
        wanted = shared_ranks().run(1, jobs.as_whole, case, False)[0]
        for found in shared_ranks().run(world, jobs.as_whole, case, True):
            compared += same(wanted, found, case)
    figure(f"{compared} bytes compared, 0 differ")


def test_flat_parameters_are_rounded_alike_on_any_number_of_ranks(figure) -> None:
    """Random bits follow an element's place in the whole FlatParameter, which does not depend on ranks."""
    compared = 0
    for options in ({"state": "dynamic8", "rounding": "stochastic"}, {"state": "float8"}, {"state": "bf16", "seed": 5}):
        case = Case(False, aligned=True, options=options)
        wanted = shared_ranks().run(1, jobs.as_whole, case, True)[0]
        other = shared_ranks().run(1, jobs.as_whole, case._replace(options={**options, "seed": 9}), True)[0]
        assert differing(wanted, other), "control: random bits matter"
        for world in (2, 4):
            for found in shared_ranks().run(world, jobs.as_whole, case, True):
                compared += same(wanted, found, (options, world))
    figure(f"{compared} bytes of 1, 2 and 4 ranks compared, 0 differ")


@pytest.mark.parametrize("aligned", [False, True])
@ORIGINAL
@on_ranks(2)
def test_gathered_state_goes_to_one_process(original: bool, aligned: bool) -> str:
    """An optimizer of a plain model loads the same values, decoded."""
    case = Case(original, aligned=aligned, options={"state": "dynamic8" if aligned else "fp32"})
    net, opt = build(case)
    train(case, net, opt, range(3))
    with as_kind(net, "full"):
        gathered = FSDP.optim_state_dict(net, opt)
    plain, other = build(case, sharded=False)
    other.load_state_dict(FSDP.rekey_optim_state_dict(gathered, OptimStateKeyType.PARAM_ID, plain))
    wanted, found = {}, {}
    for number, (name, _) in enumerate(plain.named_parameters()):
        wanted |= {f"{name}.{key}": bits(gathered["state"][name][key]) for key in ("exp_avg", "exp_avg_sq", "step")}
        for k, (key, _) in enumerate(other.engine.core.states_of(number)):
            found[f"{name}.{key}"] = bits(other.engine.core.export_state(number, k))
        found[f"{name}.step"] = bits(other.state[other.engine.tensors[number]]["step"])
    return f"{same(wanted, found)} bytes compared, 0 differ"


@on_ranks(2)
def test_what_does_not_fit_is_refused_by_name() -> str:
    net, opt = build(Case(options={"state": "dynamic8"}))
    train(Case(options={"state": "dynamic8"}), net, opt, range(2))
    good = opt.state_dict()
    first = good["state"][0]
    average = first["exp_avg"]
    entries = [
        ({name: value for name, value in first.items() if name != "exp_avg"}, "exp_avg"),
        ({**first, "strange": average}, "strange"),
        ({**first, "exp_avg": average[1:]}, ""),  # of another shape
        ({**first, "exp_avg": average.to(torch.uint8)}, "floating-point"),
        ({**first, "exp_avg": average + float("inf")}, "finite"),
        ({**first, "exp_avg_sq": first["exp_avg_sq"] - 1}, "below 0"),
        ({**first, "residual": torch.ones_like(average)}, "master"),
        (None, "no entry"),
    ]
    for entry, words in entries:
        state = {number: of for number, of in {**good["state"], 0: entry}.items() if of is not None}
        before = local_bits(net, opt)
        kind, text = raised(lambda: opt.load_state_dict({**good, "state": state}))
        assert kind == "ValueError" and "parameter 0" in text and words in text, text
        assert local_bits(net, opt) == before, words
    kind, text = raised(lambda: lowtide.LAMB(net.parameters()))
    assert kind == "ValueError" and "parameter 0" in text and "norms of whole parameters" in text, text
    return f"{len(entries) + 1} dicts refused, nothing changed"
