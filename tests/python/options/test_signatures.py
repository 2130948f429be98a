"""Signatures show every option with its default; an error names each mistake once and what to write instead; printed text is short."""

from __future__ import annotations

import inspect
import io
import json
import pydoc
import traceback
from collections.abc import Callable
from typing import Any

import lowtide
import lowtide.distributed
import pytest
import torch
from lowtide import _core
from lowtide.compat.bitsandbytes import optim
from lowtide.optimizers.classes import CLASSES
from lowtide.options.options import DEFAULTS, GROUP_OPTIONS, OPTIONS, REFUSED, WHOLE_OPTIMIZER, Options
from support import parameter
from typing_extensions import Unpack

OWN = {cls.__name__: cls for cls in (*CLASSES.values(), lowtide.NAdam)}
VOTING = {cls.__name__: cls for cls in (lowtide.distributed.DistributedLion, lowtide.distributed.Signum)}
BITSANDBYTES = {name: getattr(optim, name) for name in optim.__all__ if name != "GlobalOptimManager"}


def shown(cls: type) -> dict[str, Any]:
    """The options of a class in its signature, by name, with their defaults."""
    parameters = inspect.signature(cls).parameters
    assert not any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    found = {name: one for name, one in parameters.items() if name in OPTIONS}
    assert all(one.kind is one.KEYWORD_ONLY for one in found.values())
    return {name: one.default for name, one in found.items()}


def test_one_table_has_all_options():
    assert set(Options.__annotations__) == set(OPTIONS) | set(REFUSED) and set(WHOLE_OPTIMIZER) < set(OPTIONS)
    assert {name: default for name, default, _ in _core.group_options()} | {"master": "auto"} == GROUP_OPTIONS


def test_a_subclass_may_fix_options_of_its_own():
    class Exact(lowtide.AdamW):
        def __init__(self, params: Any, *, state: str = "fp32", **options: Unpack[Options]) -> None:
            super().__init__(params, state=state, **options)

    assert shown(Exact) == {**DEFAULTS, "state": "fp32"} and Exact([parameter(9)]).param_groups[0]["state"] == "fp32"


@pytest.mark.parametrize("name", OWN)
def test_each_class_shows_its_options_with_true_defaults(name):
    cls = OWN[name]
    defaults = shown(cls)
    assert defaults == DEFAULTS
    opt, spelled = cls([parameter(8, 8)]), cls([parameter(8, 8)], **defaults)
    assert {key: value for key, value in opt.param_groups[0].items() if key in defaults} == {
        key: value for key, value in defaults.items() if key in opt.param_groups[0]
    }
    assert opt.engine.settings == spelled.engine.settings and opt.defaults == spelled.defaults
    assert spelled.in_backward is opt.in_backward is None
    hyper = {key: one.default for key, one in inspect.signature(cls).parameters.items() if key not in ("params", *defaults)}
    assert repr(cls([parameter(8, 8)], **hyper)) == repr(opt) and hyper["lr"] == opt.defaults["lr"]


def test_other_classes_show_what_they_take():
    for cls in VOTING.values():
        assert shown(cls).keys() == OPTIONS.keys() - set(cls.REFUSES)
    for name, cls in BITSANDBYTES.items():
        defaults = shown(cls)
        assert defaults.keys() == OPTIONS.keys() - {"state", "min_quantized_numel"}
        opt = cls([parameter(8, 8)], lr=0.1)
        assert {key: opt.param_groups[0].get(key, value) for key, value in defaults.items()} == defaults, name
        assert opt.engine.settings.memory == defaults["memory"] and inspect.signature(cls).parameters["synchronous"].default is False


def test_help_and_subclasses_show_them():
    text = pydoc.plain(pydoc.render_doc(lowtide.AdamW))
    assert text.count("state: str = 'dynamic8', master: str | None =") == 2  # the class, and its constructor

    class Mine(lowtide.AdamW):
        def __init__(self, params: Any, **more: Any) -> None:
            super().__init__(params, lr=0.5, **more)

    class Same(lowtide.AdamW):
        pass

    assert list(inspect.signature(Mine).parameters) == ["params", "more"]
    assert inspect.signature(Same) == inspect.signature(lowtide.AdamW)


def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 4))


def stepped_sparse() -> None:
    layer = torch.nn.Embedding(100, 64, sparse=True)
    layer(torch.tensor([1])).sum().backward()
    lowtide.AdamW(layer.parameters()).step()


def changed(**options: Any) -> None:
    param = parameter(8, 8)
    param.grad = torch.ones_like(param)
    opt = lowtide.AdamW([param])
    opt.param_groups[0].update(options)
    opt.step()


def loaded(change: Callable[[dict[str, Any]], object]) -> None:
    param = parameter(8, 8)
    param.grad = torch.ones_like(param)
    opt = lowtide.AdamW([param])
    opt.step()
    saved = opt.state_dict()
    change(saved)
    opt.load_state_dict(saved)


# Mistakes, and words of the error that each gets.
MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "lr as text": (lambda: lowtide.AdamW([parameter(3)], lr="3e-4"), "wanted a number"),
    "lr below 0": (lambda: lowtide.AdamW([parameter(3)], lr=-1.0), "lr=-1"),
    "one beta": (lambda: lowtide.AdamW([parameter(3)], betas=0.9), "wanted a tuple of 2 numbers"),
    "beta above 1": (lambda: lowtide.AdamW([parameter(3)], betas=(0.9, 1.5)), "beta2=1.5"),
    "eps of 0": (lambda: lowtide.AdamW([parameter(3)], eps=0.0), "eps=0"),
    "state int8": (lambda: lowtide.AdamW([parameter(3)], state="int8"), "did you mean 'dynamic8'?"),
    "state 8bit": (lambda: lowtide.AdamW([parameter(3)], state="8bit"), "did you mean 'dynamic8'?"),
    "state 8": (lambda: lowtide.AdamW([parameter(3)], state=8), "did you mean 'dynamic8'?"),
    "state float32": (lambda: lowtide.AdamW([parameter(3)], state="float32"), "did you mean 'fp32'?"),
    "state 4 in a group": (lambda: lowtide.AdamW([{"params": [parameter(3)], "state": "int4"}]), "did you mean 'dynamic4'?"),
    "another state": (lambda: lowtide.AdamW([parameter(3)], state="small"), "wanted one of: fp32"),
    "master": (lambda: lowtide.AdamW([parameter(3)], master="x"), "wanted 'auto', 'residual16'"),
    "rounding": (lambda: lowtide.AdamW([parameter(3)], rounding="up"), "rounding"),
    "a misspelt option": (lambda: lowtide.AdamW([parameter(3)], weigth_decay=0.1), "did you mean 'weight_decay'?): help(AdamW)"),
    "a name of bitsandbytes": (lambda: lowtide.AdamW([parameter(3)], optim_bits=8), 'wanted state="dynamic8" for 8 bits'),
    "a name of others": (lambda: lowtide.AdamW([parameter(3)], learning_rate=0.1), "wanted lr"),
    "an unknown option": (lambda: lowtide.AdamW([parameter(3)], zzz=1), "wanted one of lr, betas"),
    "a bad value in a group": (lambda: lowtide.AdamW([{"params": [parameter(3)], "lr": "x"}]), "parameter group 0: lr"),
    "an option of the whole": (lambda: lowtide.AdamW([{"params": [parameter(3)], "seed": 1}]), "options of the whole optimizer"),
    "a changed group": (lambda: changed(lr="x"), "lr: got 'x'"),
    "a changed range": (lambda: changed(lr=-2.0), "lr=-2"),
    "a model": (lambda: lowtide.AdamW(model()), "pass model.parameters()"),
    "a model in a group": (lambda: lowtide.AdamW([{"params": model()}]), "pass model.parameters()"),
    "another dtype": (lambda: lowtide.AdamW([parameter(3, dtype=torch.float64)]), "wanted one of torch.float32"),
    "a sparse gradient": (stepped_sparse, "sparse=False"),
    "a bad override": (lambda: lowtide.override(torch.nn.Linear(2, 2), "wieght", lr=1.0), "did you mean 'weight'?"),
    "a budget without a size": (lambda: lowtide.AdamW([parameter(3)], memory="host=8 gigs"), "8 gigs"),
    "a budget of another type": (lambda: lowtide.AdamW([parameter(3)], memory=8), "lowtide.Memory"),
    "a dict without a key": (lambda: loaded(lambda saved: saved.pop("state")), "state"),
    "a dict with a bad option": (lambda: loaded(lambda saved: saved["param_groups"][0].update(lr="x")), "lr: got 'x'"),
    "a dict with a bad step": (lambda: loaded(lambda saved: saved["state"][0].update(step="x")), "step: got 'x'"),
    "a forecast's format": (lambda: lowtide.forecast([(8, 8)], state="int3"), "int3"),
    "a forecast's device": (lambda: lowtide.forecast([(8, 8)], on="gpu"), "on: got 'gpu'"),
    "torch's room": (lambda: lowtide.optim, "such as lowtide.AdamW"),
    "a misspelt class": (lambda: lowtide.Adamw, "did you mean 'AdamW'?"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_once(mistake):
    call, words = MISTAKES[mistake]
    with pytest.raises((TypeError, ValueError, NotImplementedError, OSError, AttributeError)) as caught:
        call()
    said, whole = str(caught.value), "".join(traceback.format_exception(caught.value))
    assert words in said and whole.count(said) == 1, whole
    assert "Traceback" not in whole.partition("Traceback")[2] and "Did you mean" not in whole, whole


def test_dir_shows_the_public_names():
    for package in (lowtide, lowtide.distributed, optim):
        assert dir(package) == sorted(package.__all__)
    assert lowtide.distributed.Signum


def trained(**options: Any) -> lowtide.AdamW:
    large, small = parameter(64, 256), parameter(10)
    opt = lowtide.AdamW([{"params": [large], "weight_decay": 0.5}, {"params": [small], "state": "fp32"}], **options)
    large.grad, small.grad = torch.ones_like(large), torch.ones_like(small)
    opt.step()
    return opt


def test_an_optimizer_prints_a_line_for_each_group(seed):
    head, *groups = repr(trained(lr=0.25, max_grad_norm=1.0)).splitlines()
    assert head.startswith(f"AdamW(lowtide {lowtide.__version__}, ") and head.endswith(", max_grad_norm=1.0)")
    assert groups == [
        "  group 0: 1 tensor, 33.3 kB of state, lr=0.25, weight_decay=0.5",  # 2 * (64 * 256 + 64 * 4)
        "  group 1: 1 tensor, 0.08 kB of state, lr=0.25, state='fp32'",
    ]
    assert repr(lowtide.SGD([parameter(3)])).endswith("group 0: 1 tensor, no state, lr=0.001")


def test_a_report_is_a_dict_that_prints_as_a_table(seed):
    report = trained().report()
    text = str(report)
    rows = dict(line.split(maxsplit=1) for line in text.splitlines())
    assert rows["steps"] == "1" and rows["elements"] == "16,394" and rows["state_bytes"] == "33.4 kB", text
    assert rows.keys() == {name for name, value in report.items() if value}
    assert isinstance(report, dict) and json.loads(json.dumps(report)) == report == eval(repr(report))
    buffer = io.BytesIO()
    torch.save(report, buffer)
    buffer.seek(0)
    assert torch.load(buffer, weights_only=True) == report
