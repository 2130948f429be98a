"""A state_dict that does not fit is refused as a whole, with words that say what was found and what is wanted."""

import copy
import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support import CODECS, drop, put, random_gradients, refused, snapshot, state_bits, trained

# name → (what is done to a saved state_dict, words that the message must have)
MALFORMED = {
    "no state": (drop("state"), ["state"]),
    "no groups": (drop("param_groups"), ["param_groups"]),
    "state is a list": (put(["state"], []), ["list", "dict"]),
    "groups is a dict": (put(["param_groups"], {}), ["dict", "list"]),
    "one group less": (drop("param_groups", 1), ["1 groups", "2"]),
    "one group more": (put(["param_groups"], lambda g: g + g[:1]), ["3 groups", "2"]),
    "group is none": (put(["param_groups", 0], None), ["NoneType", "dict"]),
    "group without params": (drop("param_groups", 0, "params"), ["params"]),
    "one parameter less": (put(["param_groups", 0, "params"], [0]), ["1 parameters", "2"]),
    "one parameter more": (put(["param_groups", 0, "params"], [0, 1, 9]), ["3 parameters", "2"]),
    "parameter twice": (put(["param_groups", 0, "params"], [0, 0]), ["distinct"]),
    "parameter id unhashable": (put(["param_groups", 0, "params"], [[], 1]), ["distinct"]),
    "format newer": (put(["param_groups", 0, "lowtide_format"], 2), ["2", "1", "newer"]),
    "format 0": (put(["param_groups", 0, "lowtide_format"], 0), ["0", "1"]),
    "format garbage": (put(["param_groups", 0, "lowtide_format"], "1"), ["'1'", "1"]),
    "format missing in one group": (drop("param_groups", 1, "lowtide_format"), ["None", "1"]),
    "rule of another class": (put(["param_groups", 0, "lowtide_rule"], "lion"), ["'lion'", "'adamw'"]),
    "rule missing": (drop("param_groups", 0, "lowtide_rule"), ["None", "'adamw'"]),
    "lr missing": (drop("param_groups", 0, "lr"), ["lr"]),
    "lr nan": (put(["param_groups", 1, "lr"], math.nan), ["param_groups[1]", "nan"]),
    "lr garbage": (put(["param_groups", 1, "lr"], "fast"), ["'fast'", "number"]),
    "betas too short": (put(["param_groups", 0, "betas"], (0.9,)), ["betas", "2 numbers"]),
    "beta of 1": (put(["param_groups", 0, "betas"], (0.9, 1.0)), ["beta2", "1"]),
    "eps negative": (put(["param_groups", 0, "eps"], -1.0), ["eps", "-1"]),
    "maximize garbage": (put(["param_groups", 0, "maximize"], "no"), ["maximize", "'no'"]),
    "entry missing": (drop("state", 1), ["parameter 1", "no entry"]),
    "entry of nobody": (put(["state"], lambda s: {**s, 77: s[1]}), ["77"]),
    "entry is a tensor": (put(["state", 1], torch.zeros(3)), ["Tensor", "dict"]),
    "step missing": (drop("state", 1, "step"), ["step"]),
    "step negative": (put(["state", 1, "step"], torch.tensor(-1)), ["step", "-1"]),
    "step broken": (put(["state", 1, "step"], 1.5), ["step", "1.5"]),
    "step nan": (put(["state", 1, "step"], torch.tensor(math.nan)), ["step", "nan"]),
    "step many": (put(["state", 1, "step"], torch.zeros(2)), ["step", "(2,)"]),
    "step none": (put(["state", 1, "step"], None), ["step", "None"]),
    "step meta": (put(["state", 1, "step"], torch.zeros((), device="meta")), ["step"]),
    "moment missing": (drop("state", 0, "exp_avg_codes"), ["exp_avg"]),
    "moment unknown": (put(["state", 0], lambda e: {**e, "exp_avg_cube": e["exp_avg_codes"]}), ["exp_avg_cube"]),
    "moment is a list": (put(["state", 0, "exp_avg_codes"], [1, 2]), ["list", "tensor"]),
    "moment of another shape": (put(["state", 0, "exp_avg_codes"], lambda t: t[:-1]), ["(31, 256)", "(32, 256)"]),
    "moment transposed": (put(["state", 0, "exp_avg_codes"], lambda t: t.t()), ["(256, 32)", "(32, 256)"]),
    "moment sparse": (put(["state", 2, "exp_avg"], lambda t: t.to_sparse()), ["sparse"]),
    "moment meta": (put(["state", 0, "exp_avg_codes"], lambda t: t.to("meta")), ["meta"]),
    "codes in bfloat16": (put(["state", 0, "exp_avg_codes"], lambda t: t.bfloat16()), ["bfloat16", "dynamic8"]),
    "codes in int32": (put(["state", 0, "exp_avg_codes"], lambda t: t.int()), ["int32", "dynamic8"]),
    "scale missing": (drop("state", 0, "exp_avg_scale"), ["exp_avg_codes", "exp_avg_scale"]),
    "scale of another shape": (put(["state", 0, "exp_avg_scale"], lambda t: t[:-1]), ["(31, 1)", "(32, 1)"]),
    "scale in float64": (put(["state", 0, "exp_avg_scale"], lambda t: t.double()), ["float64", "float32"]),
    "scale nan": (put(["state", 0, "exp_avg_scale"], lambda t: t * math.nan), ["nan"]),
    "scale infinite": (put(["state", 0, "exp_avg_scale"], lambda t: t + math.inf), ["inf"]),
    "scale negative": (put(["state", 0, "exp_avg_sq_scale"], lambda t: -1 - t), ["below 0"]),
    "small moment in float16": (put(["state", 2, "exp_avg"], lambda t: t.half()), ["float16", "fp32"]),
    "small second moment negative": (put(["state", 2, "exp_avg_sq"], lambda t: -1 - t), ["below 0"]),
    "last parameter garbled": (put(["state", 3, "exp_avg_sq"], None), ["parameter 3", "NoneType"]),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_state_dicts_are_refused_whole(name, seed):
    change, words = MALFORMED[name]
    _, other = trained(steps=2)
    saved = copy.deepcopy(other.state_dict())
    change(saved)
    _, opt = trained()
    with refused(opt, *words):
        opt.load_state_dict(saved)


@pytest.mark.parametrize("garbage", [None, 3, [], "x", torch.zeros(2)])
def test_what_is_no_dict_is_refused(garbage, seed):
    _, opt = trained()
    with refused(opt, "dict"):
        opt.load_state_dict(garbage)


@pytest.mark.parametrize("live", CODECS)
@pytest.mark.parametrize("held", CODECS)
def test_codecs_are_never_converted_in_silence(live, held, seed):
    _, other = trained(state=held)
    _, opt = trained(state=live)
    if held == live:
        opt.load_state_dict(other.state_dict())
        assert state_bits(opt) == state_bits(other)
    else:
        with refused(opt, held, live, "min_quantized_numel"):
            opt.load_state_dict(other.state_dict())


def _leaves(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from _leaves(inner, (*path, key))


GARBAGE = st.one_of(
    st.none(),
    st.integers(),
    st.floats(),
    st.text(max_size=3),
    st.just([]),
    st.just({}),
    st.booleans(),
    st.builds(torch.zeros, st.lists(st.integers(0, 4), max_size=3)),
    st.builds(lambda n: torch.full((n,), math.nan), st.integers(0, 3)),
)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(data=st.data())
def test_garbage_anywhere_is_refused_or_harmless(data):
    """Any node of a state_dict replaced by garbage: ValueError with nothing changed, or a load that works."""
    torch.manual_seed(0)
    _, other = trained()
    saved = copy.deepcopy(other.state_dict())
    path = data.draw(st.sampled_from([path for path in _leaves(saved) if path]))
    put(path, data.draw(GARBAGE))(saved)
    params, opt = trained(steps=1)
    before = snapshot(opt)
    try:
        opt.load_state_dict(saved)
    except ValueError:
        assert snapshot(opt) == before
    else:
        random_gradients(params)
        opt.step()
        assert all(bool(torch.isfinite(p).all()) for p in params)
