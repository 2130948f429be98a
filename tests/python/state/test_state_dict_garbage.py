"""Garbage at every place of every kind of state dict: a ValueError that leaves the optimizer as it was, or finite state."""

import copy
import math

import lowtide
import pytest
import torch

from support import put, snapshot

SHAPES = ((8, 256), (9,))


class Odd:
    """Neither a number nor a tensor."""


def values():
    """name → what is put there: values of the wrong kind, size, type, layout, and tensors that hold what they cannot."""
    huge = 2**40
    return {
        "none": None, "text": "x", "list": [[]], "dict": {"step": 1}, "object": Odd(), "complex number": 1j,
        "large number": 2**70, "infinity": math.inf, "NaN": math.nan, "below 0": -1,
        "no elements": torch.zeros(0), "two elements": torch.zeros(2), "complex": torch.zeros((), dtype=torch.complex64),
        "no complex elements": torch.zeros(0, dtype=torch.complex64), "meta": torch.empty(huge, device="meta"),
        "expanded": torch.zeros(1).expand(huge), "codes, expanded": torch.zeros((), dtype=torch.uint8).expand(huge),
        "sparse": torch.zeros(8, 256).to_sparse(), "float8": torch.zeros(8, 256).to(torch.float8_e5m2),
        "nested": torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),
        "quantized": torch.quantize_per_tensor(torch.zeros(8, 256), 0.1, 0, torch.quint8),
        "above float32": torch.full((8, 256), 1e300, dtype=torch.float64),
        "rounds to infinity": torch.full((9,), 2.0**128 * (1 - 2**-25), dtype=torch.float64),
        "subclass": torch.nn.Parameter(torch.full((8, 256), math.inf)), "not a leaf": torch.zeros(1, requires_grad=True) * 2,
    }  # fmt: skip


def stepped(opt, params):
    for p in params:
        p.grad = torch.randn_like(p)
    opt.step()
    return opt


def parameters():
    return [torch.nn.Parameter(torch.randn(shape)) for shape in SHAPES]


def own():
    params = parameters()
    return stepped(lowtide.AdamW(params), params).state_dict()


def of_bitsandbytes():
    params = parameters()
    return stepped(lowtide.AdamW(params), params).bitsandbytes_state_dict()


def of_torch(cls, **options):
    params = parameters()
    return stepped(getattr(torch.optim, cls)(params, lr=1e-3, **options), params).state_dict()


def of_torchao():
    saved = of_torch("AdamW")
    for name, low in (("exp_avg", -1), ("exp_avg_sq", 0)):
        codes = torch.randint(0, 256, (8, 256), dtype=torch.uint8)
        saved["state"][0][name] = {"codes": codes, "scale": torch.rand(8), "qmap": torch.linspace(low, 1, 256)}
    return saved


def of_flashoptim():
    entries = {}
    for i, shape in enumerate(SHAPES):
        numel = math.prod(shape)
        entries[i] = {"step": torch.tensor(2)}
        for name, dtype in (("exp_avg", torch.int8), ("exp_avg_sq", torch.uint8)):
            entries[i][f"{name}::quantized"] = torch.randint(0, 100, shape).to(dtype)
            entries[i][f"{name}::scales"] = torch.rand(-(-numel // 32)).half()
    group = {"lr": 1e-3, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.01, "master_bytewidth": 4, "quantize": True}
    return {"state": entries, "param_groups": [{**group, "params": [0, 1]}]}


SOURCES = {
    "own": (own, lowtide.AdamW, {}),
    "own, Muon": (lambda: stepped(lowtide.Muon(p := parameters(), row_beta2=0.9), p).state_dict(), lowtide.Muon, {}),
    "bitsandbytes": (of_bitsandbytes, lowtide.AdamW, {}),
    "torch, AdamW": (lambda: of_torch("AdamW"), lowtide.AdamW, {"state": "fp32"}),
    "torch, NAdam": (lambda: of_torch("NAdam"), lowtide.NAdam, {}),
    "torch, SGD": (lambda: of_torch("SGD", momentum=0.9), lowtide.SGD, {"momentum": 0.9}),
    "torchao": (of_torchao, lowtide.AdamW, {}),
    "FlashOptim": (of_flashoptim, lowtide.AdamW, {}),
}


def paths(node, path=()):
    """Every place of a dict, except places behind `params`, which are many and alike."""
    if path:
        yield path
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, inner in items:
        if key != "params":
            yield from paths(inner, (*path, key))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SOURCES)
def test_garbage_at_every_place_is_a_ValueError_or_harmless(name, seed, figure):
    torch.set_num_threads(1)
    source, cls, options = SOURCES[name]
    saved, params = source(), parameters()
    opt = stepped(cls(params, **options), params)
    refused = taken = 0
    for path in paths(saved):
        for what, value in values().items():
            spoilt = copy.deepcopy(saved)
            put(list(path), lambda _, value=value: value)(spoilt)
            before = snapshot(opt)
            try:
                opt.load_state_dict(spoilt)
            except ValueError:
                assert snapshot(opt) == before, (path, what)
                refused += 1
                continue
            taken += 1
            for p in params:
                for key, tensor in opt.state[p].items():
                    assert not tensor.is_floating_point() or bool(tensor.isfinite().all()), (path, what, key)
            opt = stepped(cls(params, **options), params)
    figure(f"{name}: {refused} refused, {taken} taken, all finite")
    assert refused > 3 * taken
