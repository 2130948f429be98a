"""The core's options are what param_groups say, whatever happened since the last step. Removed state starts afresh."""

import copy
import inspect
import math
import pickle
import re
import warnings
from collections import defaultdict
from pathlib import Path

import lowtide
import pytest
import torch
from lowtide import _core
from lowtide.engine.family import Family
from lowtide.options.hyper import group_key, hyper_keys
from lowtide.options.options import Options
from lowtide.report.fields import CoreReport, Report
from support import CODECS, FOUR_BITS, RULES, bits, make, parameter, random_gradients, state_bits, step_alike, take_steps


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda opt: pickle.loads(pickle.dumps(opt))])
def test_copies_keep_counters_and_share_no_groups(duplicate, seed):
    p = parameter(5000)
    opt = lowtide.AdamW([p], lr=0.1)
    for value in (1.0, math.inf, 2.0, math.nan, math.inf):
        p.grad = torch.full((5000,), value)
        opt.step()
    other = duplicate(duplicate(opt))
    assert other.skipped_steps == 3 and other.report() == opt.report()
    other.param_groups[0]["lr"] = 7.0
    other.param_groups[0]["params"].append(None)
    assert opt.param_groups[0]["lr"] == 0.1 and opt.defaults["lr"] == 0.1 and len(opt.param_groups[0]["params"]) == 1
    other.param_groups[0]["params"].pop()
    other.param_groups[0]["params"][0].grad = torch.ones(5000)
    other.step()
    assert other.report()["steps"] == 3 and opt.report()["steps"] == 2 and int(opt.state[p]["step"]) == 2


def recreate(opt, p):
    del opt.state[p]
    assert opt.state[p] == {}


RESETS = {
    "del": lambda opt, p: opt.state.__delitem__(p),
    "del and look": recreate,
    "pop": lambda opt, p: opt.state.pop(p),
    "popitem": lambda opt, p: opt.state.popitem(),
    "clear": lambda opt, p: opt.state.clear(),
    "empty entry": lambda opt, p: opt.state.__setitem__(p, {}),
    "new defaultdict": lambda opt, p: setattr(opt, "state", defaultdict(dict)),
    "new one, looked at": lambda opt, p: setattr(opt, "state", defaultdict(dict, {p: {}})),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("how", RESETS)
def test_removed_state_starts_afresh_however_it_was_removed(how, rule, seed):
    """The test removes state twice in a row, so that a removal is noticed again. The other parameter continues."""
    a = parameter(5000)
    opt = make(rule, [a])
    for _ in range(2):
        take_steps([a], opt, 3)
        b = torch.nn.Parameter(a.detach().clone())
        other = make(rule, [b])
        RESETS[how](opt, a)
        step_alike(([a], opt), ([b], other))
        assert bits(a) == bits(b) and state_bits(opt) == state_bits(other)


def test_only_what_was_removed_starts_afresh(seed):
    params = [parameter(5000), parameter(9)]
    opt = lowtide.AdamW(params)
    for step in range(4):
        random_gradients(params)
        if step == 2:
            kept = opt.state.pop(params[1])
            recreate(opt, params[0])
            opt.state[params[1]] = kept
        opt.step()
    assert [int(opt.state[p]["step"]) for p in params] == [2, 4]


def test_a_key_of_a_group_that_is_almost_an_option_is_warned_of():
    param = torch.nn.Parameter(torch.zeros(3))
    wanted = r"parameter group 0: got 'weight_deacy', .*did you mean 'weight_decay'\?"
    with pytest.warns(UserWarning, match=wanted):
        lowtide.AdamW([{"params": [param], "weight_deacy": 0.1}])
    # Schedulers and frameworks put their own keys into groups.
    of_others = {"initial_lr": 1.0, "max_lr": 1.0, "min_lr": 0.0, "base_momentum": 0.9, "max_momentum": 0.9, "name": "a"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lowtide.AdamW([{"params": [param], **of_others}])
        lowtide.SGD([{"params": [param], **of_others}], momentum=0.9)


def pair(**options):
    params = [torch.nn.Parameter(torch.arange(1.0, 9.0)) for _ in range(2)]
    for param in params:
        param.grad = torch.ones(8)
    return params, [lowtide.SGD([param], lr=1.0, **options) for param in params]


def test_unchanged_options_are_not_derived(monkeypatch):
    derived = []
    hyper_of = Family.hyper_of
    monkeypatch.setattr(Family, "hyper_of", lambda *args: derived.append(args[1]) or hyper_of(*args))
    _, (opt, _) = pair()
    opt.step()
    derived.clear()
    for lr in (1.0, 0.5, 0.5, 1.0):
        opt.param_groups[0]["lr"] = lr
        opt.step()
    assert len(derived) == 2


@pytest.mark.parametrize("lr", [0.25, torch.tensor(0.25), torch.tensor([0.25])])
def test_values_that_change_in_place_are_seen(lr):
    (param, twin), (opt, other) = pair()
    for value in (lr, lr, 0.5):
        opt.param_groups[0]["lr"] = value
        other.param_groups[0]["lr"] = float(value)
        opt.step()
        other.step()
        if isinstance(lr, torch.Tensor):
            lr.mul_(2)
    assert torch.equal(param, twin)


def test_an_equal_tensor_in_place_of_a_number_is_another_value():
    (param, twin), (opt, other) = pair()
    opt.param_groups[0]["lr"] = 0.1
    opt.step()
    opt.param_groups[0]["lr"] = torch.tensor(0.1)  # 0.1 as float32: equal by ==, another number
    opt.step()
    for value in (0.1, float(torch.tensor(0.1))):
        other.param_groups[0]["lr"] = value
        other.step()
    assert torch.equal(param, twin)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("name", ["set_hyper", "set_rounding"])
def test_an_interrupt_leaves_no_options_behind(name, before):
    """Ctrl-C before or after the core has taken them: the next step has the options of param_groups, even the old ones."""
    (param, twin), (opt, other) = pair(momentum=0.9, state="bf16", min_quantized_numel=0)
    opt.step()
    other.step()
    engine, core = opt.engine, opt.engine.core

    class Interrupted:
        def __getattr__(self, attribute):
            real = getattr(core, attribute)
            if attribute != name:
                return real

            def call(*args):
                if not before:
                    real(*args)
                raise KeyboardInterrupt

            return call

    old = {key: opt.param_groups[0][key] for key in ("lr", "rounding")}
    opt.param_groups[0].update(lr=1e-3, rounding="stochastic")
    engine.core = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        opt.step()
    engine.core = core
    opt.param_groups[0].update(old)
    for _ in range(2):
        opt.step()
        other.step()
    assert torch.equal(param, twin)
    assert torch.equal(opt.state[param]["momentum_buffer"], other.state[twin]["momentum_buffer"])


DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "rules.md"
NOT_RULES = (lowtide.Optimizer, lowtide.NAdam, lowtide.Muon)  # NAdam is an option of Adam and AdamW, Muon made of two rules
CLASSES = {
    cls([parameter(2)], lr=1.0).engine.family.rule: cls
    for cls in (getattr(lowtide, name) for name in lowtide.__all__)
    if inspect.isclass(cls) and issubclass(cls, lowtide.Optimizer) and cls not in NOT_RULES
}


def table(first: str) -> list[list[str]]:
    """The rows of the table of docs/rules.md whose first column is headed `first`, without marks."""
    lines = DOCUMENT.read_text().splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(f"| {first} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip().strip("`") for cell in line.strip("|").split("|")])
    return rows


def test_every_rule_has_a_class_and_a_row():
    rows = table("rule")
    assert sorted(CLASSES) == sorted(_core.rule_names()) == sorted(row[0] for row in rows)
    for row in rows:
        assert CLASSES[row[0]].__name__ == row[1]
        moments = _core.state_names(row[0])
        assert row[3].split(", ") == moments
        bytes_of = [len(moments) * each for each in (4, 2, 1 + 4 / 256)]
        assert row[4].partition(";")[0] == "{:.0f} / {:.0f} / {:.2f}".format(*bytes_of)


def test_every_codec_has_a_row():
    names = list(_core.codec_names())
    assert sorted(names) == sorted(row[0] for row in table("state")) == sorted(CODECS + FOUR_BITS)
    assert lowtide.AdamW([parameter(2)]).param_groups[0]["state"] in names
    for codec in names:
        assert f'"{codec}"' in Path(lowtide.options.options.__file__).read_text(), f"options.Options does not describe {codec}"


def test_every_option_of_a_group_is_described_and_has_the_cores_default_but_for_masters():
    page = (DOCUMENT.parent / "python-api.md").read_text()
    group = lowtide.AdamW([parameter(2)]).param_groups[0]
    for name, default, _ in _core.group_options():
        assert group[name] == ("auto" if name == "master" else default) and name in Options.__annotations__
        assert f"{name}: (group)" in Options.__doc__ and f"\n| `{name}` |" in page


@pytest.mark.parametrize("rule", sorted(_core.rule_names()))
def test_defaults_and_options_are_those_of_the_core(rule):
    wanted = _core.default_hyper(rule)
    group = CLASSES[rule]([parameter(2)]).param_groups[0]
    reads = set(re.findall(r"[a-z_0-9]+", re.sub(r"\([^)]*\)", "", next(r[5] for r in table("rule") if r[0] == rule))))
    assert {group_key(name) for name in reads} <= set(group), "docs/rules.md names what the class does not have"
    for name, value in wanted.items():
        key = group_key(name)
        here = name in hyper_keys(rule, group)
        assert here == (name in reads or name == "maximize"), f"{name}: the class and docs/rules.md differ"
        if here:
            got = group[key][int(name[-1]) - 1] if key == "betas" else group[key]
            assert (got or 0) == value, name  # None of a schedule is 0 there
    assert reads <= set(wanted)


def test_the_report_has_the_fields_of_the_cores_list():
    fields = [name for name, unit, meaning in _core.report_fields()]
    assert list(CoreReport.__annotations__) == fields == list(lowtide.AdamW([parameter(2)])._core.report())
    assert all(name in Report.__doc__ and unit and meaning for name, unit, meaning in _core.report_fields())
