"""Fuzzes state dicts of bitsandbytes, torchao, FlashOptim and torch.optim, as load_state_dict() checks them.

The input spoils a right dict: 1 byte says which one; then each 2 bytes are a place in it and what is put there, a value
of a fixed list, or that the place goes, or gets another key. Whatever stands there,
the checks refuse it by ValueError or
give state that is finite and not negative where it must not be, in bounded memory.

Wants atheris. tools/fuzz.py runs it; alone it takes the arguments of libFuzzer.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import atheris

with atheris.instrument_imports(include=["lowtide.state", "lowtide.checks"]):
    import lowtide
    from lowtide.state import dicts, restore
    from lowtide.state.groups import READERS, read_groups

import torch

torch.set_num_threads(1)
NUMEL = 512


def codes(dtype: torch.dtype = torch.uint8, numel: int = NUMEL) -> torch.Tensor:
    return torch.arange(numel).remainder(100).to(dtype)


def scales(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full((count,), 0.5, dtype=dtype)


def book(low: float, size: int = 256) -> torch.Tensor:
    return torch.linspace(low, 1, size)


GROUP = {"lr": 1e-3, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.01, "params": [0]}
BNB = {"step": 3, "state1": codes(), "qmap1": book(-1), "absmax1": scales(2),
       "state2": codes(), "qmap2": book(0), "absmax2": scales(2)}  # fmt: skip


def low_bit(low: float, bits: int) -> dict[str, torch.Tensor]:
    if bits == 16:
        return {"codes": codes().float().to(torch.float8_e4m3fn), "scale": scales(2)}
    return {"codes": codes(numel=NUMEL * bits // 8), "scale": scales(4), "qmap": book(low, 1 << bits)}


def flash() -> dict[str, Any]:
    entry: dict[str, Any] = {"step": torch.tensor(2)}
    for name, dtype in (("exp_avg", torch.int8), ("exp_avg_sq", torch.uint8)):
        entry |= {f"{name}::quantized": codes(dtype), f"{name}::scales": scales(NUMEL // 32, torch.float16)}
    return entry


def moments(bits: int) -> dict[str, Any]:
    return {"step": torch.tensor(4.0), "exp_avg": low_bit(-1, bits), "exp_avg_sq": low_bit(0, bits)}


RIGHT: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    (BNB, GROUP),
    ({"step": 3, "__bnb_optimizer_quant_state__": {key: value for key, value in BNB.items() if key != "step"}}, GROUP),
    ({"step": 3, "state1": torch.ones(NUMEL), "state2": torch.ones(NUMEL)}, GROUP),
    *((moments(bits), {**GROUP, "amsgrad": False}) for bits in (8, 4, 16)),
    (flash(), {**GROUP, "master_bytewidth": 4, "quantize": True}),
    ({"step": torch.tensor(2.0), "exp_avg": torch.ones(NUMEL), "exp_avg_sq": torch.ones(NUMEL)},
     {**GROUP, "amsgrad": False, "maximize": False, "foreach": None, "capturable": False,
      "differentiable": False, "fused": None, "decoupled_weight_decay": True}),
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63, 2**70, 0.0, 0.5, -0.5, 1e300, math.inf, math.nan, 1j,
    "", "x", b"x", (), [], {}, (0.9, 0.99), (0.9,), (0.9, 0.99, 0.999), (0.9, "x"), [[]], {"step": 1},
    {"codes": 1, "scale": 2}, object(), int,
    torch.tensor(3), torch.tensor(3.5), torch.tensor(math.nan), torch.tensor(-1), torch.zeros(0), torch.zeros(2),
    codes(), codes(torch.int8), codes(torch.int64), codes(numel=NUMEL // 2), codes(numel=NUMEL + 1), codes().view(2, -1),
    codes().float().to(torch.float8_e4m3fn), torch.full((NUMEL,), math.nan), torch.full((NUMEL,), -1.0),
    torch.full((NUMEL,), 1e300, dtype=torch.float64), torch.ones(NUMEL, dtype=torch.float16),
    torch.ones(NUMEL, dtype=torch.bfloat16), torch.zeros(NUMEL, dtype=torch.complex64), torch.zeros(NUMEL).to_sparse(),
    scales(1), scales(2), scales(4), scales(16), scales(NUMEL), -scales(2), scales(2) * math.inf, scales(2) * 1e-45,
    scales(2, torch.float16), scales(2, torch.float64), scales(2).reshape(1, 2),
    book(-1), book(0), book(-1, 16), book(0, 16), book(-1).flip(0), book(-1) * math.nan, book(0, 255),
    torch.empty(2**40, device="meta"), torch.zeros(1).expand(2**40), torch.zeros((), dtype=torch.uint8).expand(2**40),
    torch.ones(NUMEL * 2)[::2], torch.nn.Parameter(torch.ones(NUMEL)), torch.zeros(NUMEL, requires_grad=True) * 2,
    torch.quantize_per_tensor(torch.zeros(NUMEL), 0.1, 0, torch.quint8),
)  # fmt: skip
KEYS = (0, 1, "step", "state1", "exp_avg", "exp_avg_sq", "codes", "lr", "betas", "params", "lowtide_format", None)
GONE, RENAMED = 254, 255


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if not isinstance(node, dict):
        return [path]
    return [path] * bool(path) + [each for key, inner in node.items() for each in places(inner, (*path, key))]


WHOLE = tuple({"state": {0: entry}, "param_groups": {0: group}} for entry, group in RIGHT)
PLACES = tuple(places(whole) for whole in WHOLE)
PARAM = torch.nn.Parameter(torch.zeros(NUMEL))
OPTIMIZER = lowtide.AdamW([PARAM], lr=1e-3, min_quantized_numel=0)


def copied(node: Any) -> Any:
    return {key: copied(inner) for key, inner in node.items()} if isinstance(node, dict) else node


def spoil(root: dict[Any, Any], path: tuple[Any, ...], value: int) -> None:
    node: Any = root
    for key in path[:-1]:
        node = node.get(key) if isinstance(node, dict) else None
    if not isinstance(node, dict):
        return
    if value == GONE:
        node.pop(path[-1], None)
    elif value == RENAMED:
        node[KEYS[len(path) + len(str(path[-1])) % 8]] = node.pop(path[-1], None)
    else:
        node[path[-1]] = VALUES[value % len(VALUES)]


def one_input(data: bytes) -> None:
    if not data:
        return
    which = data[0] % len(WHOLE)
    whole = copied(WHOLE[which])
    for at in range(1, len(data) - 1, 2):
        spoil(whole, PLACES[which][data[at] % len(PLACES[which])], data[at + 1])
    groups = whole.get("param_groups")
    if isinstance(groups, dict):
        whole["param_groups"] = list(groups.values())
    check(whole)


def check(whole: dict[str, Any]) -> None:
    """Does as dicts.load() before that changes anything."""
    try:
        with dicts.refusals():
            state, groups = whole["state"], whole["param_groups"]
            reader = next((each for each in READERS if each.recognizes(state, groups)), None)
            found = read_groups(OPTIMIZER.engine, OPTIMIZER.param_groups, whole, reader)
            entries = {found.numbers[key]: entry for key, entry in state.items()}
            plan = restore.plan(OPTIMIZER.engine, entries, found, reader)
    except ValueError:
        return
    for entry in plan.values():
        assert entry.step >= 0
        for name, tensor in entry.tensors.items():
            if tensor.is_floating_point():
                assert bool(tensor.isfinite().all()) and (name == "exp_avg" or bool((tensor >= 0).all())), name


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
