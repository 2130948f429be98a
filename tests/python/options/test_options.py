"""Options of the wrong type or range name themselves and their group; copies keep counters and share nothing."""

import copy
import math
import pickle
import warnings
from collections import defaultdict

import lowtide
import pytest
import torch

from support import RULES, bits, make, parameter, random_gradients, refused, state_bits

OPTIONS = [
    ("min_quantized_numel", "4k", TypeError, ["'4k'", "integer"]),
    ("min_quantized_numel", 1.5, TypeError, ["1.5", "integer"]),
    ("min_quantized_numel", None, TypeError, ["None", "integer"]),
    ("min_quantized_numel", True, TypeError, ["True", "integer"]),
    ("min_quantized_numel", 2**70, ValueError, [str(2**70), "2^63"]),
    ("min_quantized_numel", -1, ValueError, ["-1", "integer from 0"]),
    ("state", None, TypeError, ["None", "str"]),
    ("fused", "x", TypeError, ["'x'", "bool or None"]),
    ("foreach", 1, TypeError, ["1", "bool or None"]),
    ("decoupled_weight_decay", True, ValueError, ["True", "False or None", "AdamW"]),
]
WHOLE = [
    ("nonfinite", 5, TypeError, ["5", "'skip', 'raise' or 'propagate'"]),
    ("cpu_target", None, TypeError, ["None", "str"]),
    ("amp_scaling", "maybe", TypeError, ["'maybe'", "bool"]),
]


@pytest.mark.parametrize(("name", "value", "kind", "words"), OPTIONS + WHOLE)
def test_options_of_the_wrong_kind(name, value, kind, words):
    with pytest.raises(kind) as caught:
        lowtide.Adam([parameter(3)], **{name: value})
    assert all(word in str(caught.value) for word in (name, "got", "wanted", *words)), caught.value


@pytest.mark.parametrize(("name", "value", "kind", "words"), OPTIONS)
def test_options_of_a_group_name_the_group(name, value, kind, words):
    opt = lowtide.Adam([parameter(3)])
    with refused(opt, "parameter group 1", name, "got", "wanted", *words, kind=kind):
        opt.add_param_group({"params": [parameter(3)], name: value})


@pytest.mark.parametrize(
    ("rule", "name", "value"),
    [
        ("adam", "lr", math.nan),
        ("adamw", "weight_decay", -1.0),
        ("lion", "betas", (0.9, 1.5)),
        ("sgd", "momentum", -1.0),
        ("adamw", "eps", "tiny"),
        ("adamw", "betas", 0.9),
        ("adamw", "state", "int3"),
    ],
)
def test_ranges_name_the_group(rule, name, value):
    """In the constructor, in add_param_group and, for what may change later, in step()."""
    params = [parameter(3), parameter(3)]
    with pytest.raises((ValueError, TypeError), match="parameter group 1: .*got "):
        make(rule, [{"params": params[:1]}, {"params": params[1:], name: value}])
    opt = make(rule, [{"params": params[:1]}, {"params": params[1:]}])
    with refused(opt, "parameter group 2", kind=(ValueError, TypeError)):
        opt.add_param_group({"params": [parameter(3)], name: value})
    if name != "state":
        opt.param_groups[1][name] = value
        with refused(opt, "parameter group 1", kind=(ValueError, TypeError)):
            opt.step()


def test_harmless_values_are_accepted():
    for value in (False, None):
        lowtide.Adam([parameter(3)], decoupled_weight_decay=value, fused=value, foreach=value)
    lowtide.Adam([parameter(3)], min_quantized_numel=2**63 - 1)


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
    """Twice in a row, so that what takes note of a removal does so again; the other parameter goes on."""
    a = parameter(5000)
    opt = make(rule, [a])
    for _ in range(2):
        for _ in range(3):
            random_gradients([a])
            opt.step()
        b = torch.nn.Parameter(a.detach().clone())
        other = make(rule, [b])
        RESETS[how](opt, a)
        random_gradients([a])
        b.grad = a.grad.clone()
        opt.step()
        other.step()
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
    # Schedulers and frameworks put keys of their own into groups.
    of_others = {"initial_lr": 1.0, "max_lr": 1.0, "min_lr": 0.0, "base_momentum": 0.9, "max_momentum": 0.9, "name": "a"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lowtide.AdamW([{"params": [param], **of_others}])
        lowtide.SGD([{"params": [param], **of_others}], momentum=0.9)
