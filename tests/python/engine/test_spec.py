"""The core's pure functions say what an optimizer of it does: refusals and codes, without one. (Layouts: param_spec_test.cpp.)"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from lowtide import _core


def refusal(call: Any) -> tuple[Any, str]:
    try:
        return call(), ""
    except ValueError as error:
        return None, str(error)


@pytest.mark.parametrize("codec", _core.codec_names())
@pytest.mark.parametrize(("rule", "signed"), [("sgd", True), ("adagrad", False)])
@pytest.mark.parametrize("sizes", [(1, 5000), (33, 302)])
def test_codes_are_those_of_an_optimizer(codec: str, rule: str, signed: bool, sizes: tuple[int, int]) -> None:
    values = torch.randn(sizes, generator=torch.Generator().manual_seed(5))
    values = values if signed else values.abs()
    core = _core.Optimizer(rule, threads=1)
    core.add_group({"momentum": 0.9} if rule == "sgd" else {}, {"state": codec, "min_quantized_numel": 0})
    core.add_param(0, torch.zeros(sizes), True)
    core.import_state(0, 0, values)
    _, codes, *scales = core.state(0).values()

    dtype, shape, of_scales = _core.code_sizes(codec, signed, *sizes)
    assert (dtype, shape) == (str(codes.dtype).removeprefix("torch."), tuple(codes.shape))
    assert of_scales == (tuple(scales[0].shape) if scales else None)
    mine = torch.empty(shape, dtype=codes.dtype)
    mine_scales = torch.empty(of_scales or (0,))
    _core.encode(codec, signed, values.data_ptr(), *sizes, mine.data_ptr(), mine_scales.data_ptr())
    assert torch.equal(mine.view(torch.uint8), codes.view(torch.uint8))
    assert not scales or torch.equal(mine_scales, scales[0])
    back = torch.empty(sizes)
    _core.decode(codec, signed, mine.data_ptr(), mine_scales.data_ptr(), *sizes, back.data_ptr())
    assert torch.equal(back, core.export_state(0, 0))


def test_what_cannot_be_encoded_is_refused() -> None:
    for rows, length, codec, part in [(1, 5, "dynamic4", "even"), (-1, 4, "fp32", "0 or more"), (1, 4, "int3", "int3")]:
        with pytest.raises(ValueError, match=part):
            _core.code_sizes(codec, True, rows, length)
    with pytest.raises(ValueError, match="no memory"):
        _core.encode("fp32", True, 0, 1, 4, 0, 0)


def test_a_group_changes_as_an_optimizer_lets_it() -> None:
    def of_optimizer(rule: str, options: dict[str, Any], present: Any, hyper: Any, params: bool) -> str:
        core = _core.Optimizer(rule, threads=1)
        core.add_group(present, options)
        if params:
            core.add_param(0, torch.zeros(16, 256), False)
        return refusal(lambda: core.set_hyper(0, hyper))[1]

    refused = 0
    changes: list[dict[str, float | bool]] = [{"momentum": 0.9}, {"amsgrad": True}, {"beta1": 0.95}, {"lr": -1.0}, {"eps": 0.0}]
    for rule, state, hyper, params in itertools.product(_core.rule_names(), ["dynamic8", "fp32"], changes, [False, True]):
        present, options = {"momentum": 0.0} if rule != "lars" else {}, {"state": state, "min_quantized_numel": 0}
        said = refusal(
            lambda: _core.check_group(rule, hyper, options, present=present, codecs=[state] if params else [])
        )[1]
        assert said == of_optimizer(rule, options, present, hyper, params)
        refused += bool(said)
    assert refused > 20


def test_hyper_parameters_are_those_that_rules_read() -> None:
    every, rules = dict(_core.hyper_parameters()), _core.rule_names()
    assert list(every) == list(_core.default_hyper("adam"))
    assert every["amsgrad"] and every["maximize"] and not every["beta1"]
    read = {rule: dict(_core.hyper_parameters(rule)) for rule in rules}
    assert all(own.items() <= every.items() and "lr" in own for own in read.values())
    for name, by in {"maximize": rules, "beta3": ["ademamix"], "amsgrad": ["adam", "adamw"]}.items():
        assert [rule for rule in rules if name in read[rule]] == by
