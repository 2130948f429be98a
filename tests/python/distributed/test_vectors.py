"""Long vectors: one process stores them in the optimizer's format, FSDP2 in float32. Dicts and checkpoints go both ways."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lowtide
import pytest
import torch
import torch.distributed.checkpoint as dcp
from distributed_support import alike, on_ranks
from support import bits, make, raised
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

LONG = ("0.weight", "0.bias", "1.bias")
Net, Opt = torch.nn.Module, lowtide.Optimizer
MASTERS = {"adamw": None, "lion": None, "adamw with residuals": "residual16"}


def build(kind: str, cut: bool, state: str = "dynamic8", seed: int = 0) -> tuple[Net, Opt]:
    """A model of width 4096 with vectors of 4096 and 8192 elements; in 16 bits if it has a residual."""
    torch.manual_seed(seed)
    master = MASTERS[kind]
    net: Net = torch.nn.Sequential(torch.nn.LayerNorm(4096), torch.nn.Linear(4, 8192))
    if master:
        net = net.bfloat16()
    if cut:
        net = fully_shard(net, mesh=init_device_mesh("cpu", (torch.distributed.get_world_size(),)))
    return net, make(kind.split()[0], [*net.named_parameters()], lr=1e-2, state=state, master=master)


def train(net: Net, opt: Opt, steps: range) -> None:
    """Trains with the same gradients in one process and on every rank."""
    for step in steps:
        for i, param in enumerate(net.parameters()):
            whole = torch.randn(param.shape, generator=torch.Generator().manual_seed(100 * step + i)).to(param.dtype)
            param.grad = torch.distributed.tensor.distribute_tensor(
                whole, param.device_mesh, param.placements, src_data_rank=None
            ) if isinstance(param, DTensor) else whole  # fmt: skip
        opt.step()
        opt.zero_grad()


def values(net: Net, opt: Opt) -> dict[str, bytes]:
    """All weights and residuals, and all moments as numbers, whole."""
    found = {}
    for i, (name, param) in enumerate(net.named_parameters()):
        of, core = opt.engine.params[i].sharding, opt.engine.core_of(i)
        there = {key: core.export_state(i, k) for k, (key, _) in enumerate(core.states_of(i))}
        there |= {key: value.view(param.dtype) for key, value in core.read_state(i).items() if key == "residual"}
        there |= {"weight": param.detach().to_local() if isinstance(param, DTensor) else param.detach()}
        for key, value in there.items():
            whole = of.whole_of("", value).full_tensor() if of else value
            found[f"{name}.{key}"] = bits(whole)
        found[f"{name}.step"] = bytes([core.step_count(i)])
    return alike(found)


def rounded(net: Net, opt: Opt, of: dict[str, bytes], kind: str) -> dict[str, bytes]:
    """`values` after moments of long vectors have gone through dynamic8, as the core encodes them."""
    _, other = build(kind, cut=False)
    found = dict(of)
    for i, (name, _) in enumerate(net.named_parameters()):
        for k, (key, _) in enumerate(other.engine.core_of(i).states_of(i)):
            if name in LONG:
                other.engine.core_of(i).allocate_state(i)
                there = torch.frombuffer(bytearray(of[f"{name}.{key}"]), dtype=torch.float32)
                other.engine.core_of(i).import_state(i, k, there)
                found[f"{name}.{key}"] = bits(other.engine.core_of(i).export_state(i, k))
    return found


def through_full(a: tuple[Net, Opt], b: tuple[Net, Opt], path: str, broadcast: bool = False) -> None:
    gather = StateDictOptions(full_state_dict=True, cpu_offload=broadcast)
    hand_out = StateDictOptions(full_state_dict=True, broadcast_from_rank0=broadcast)
    set_model_state_dict(b[0], get_model_state_dict(a[0], options=gather), options=hand_out)
    set_optimizer_state_dict(*b, get_optimizer_state_dict(*a, options=gather), options=hand_out)


def from_rank_0(a: tuple[Net, Opt], b: tuple[Net, Opt], path: str) -> None:
    through_full(a, b, path, broadcast=True)


def through_files(a: tuple[Net, Opt], b: tuple[Net, Opt], path: str) -> None:
    dcp.save({"net": get_model_state_dict(a[0]), "opt": get_optimizer_state_dict(*a)}, checkpoint_id=path)
    both: dict[str, Any] = {"net": get_model_state_dict(b[0]), "opt": get_optimizer_state_dict(*b)}
    dcp.load(both, checkpoint_id=path)
    set_model_state_dict(b[0], both["net"])
    set_optimizer_state_dict(*b, both["opt"])


def through_plain_dicts(a: tuple[Net, Opt], b: tuple[Net, Opt], path: str) -> None:
    """`load_state_dict` with a full dict's tensors on every rank."""
    gather = StateDictOptions(full_state_dict=True)
    set_model_state_dict(b[0], get_model_state_dict(a[0], options=gather), options=gather)
    saved = get_optimizer_state_dict(*a, options=gather)
    numbers = {name: number for number, (name, _) in enumerate(a[0].named_parameters())}
    groups = [{**group, "params": [numbers[name] for name in group["params"]]} for group in saved["param_groups"]]
    b[1].load_state_dict({"state": {numbers[name]: entry for name, entry in saved["state"].items()}, "param_groups": groups})


WAYS: dict[str, Callable[..., None]] = {"full": through_full, "from rank 0": from_rank_0, "files": through_files, "plain": through_plain_dicts}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", MASTERS)
@on_ranks(2)
def test_long_vectors_go_from_one_process_to_shards_and_back(kind: str, way: str, tmp_path: Path) -> str:
    alone, cut, back, again = (build(kind, cut, seed=seed) for seed, cut in enumerate((False, True, False, True)))
    go = WAYS[way]
    train(*alone, range(2))
    go(alone, cut, str(tmp_path / "1"))
    first = values(*alone)
    assert values(*cut) == first, "decoding is exact"
    train(*cut, range(2, 4))
    go(cut, back, str(tmp_path / "2"))
    second = values(*cut)
    assert values(*back) == rounded(*cut, second, kind) != second
    go(back, again, str(tmp_path / "3"))
    assert values(*again) == values(*back)
    for each in (back, again):
        train(*each, range(4, 5))
    assert all(opt.engine.core_of(0).step_count(0) == 5 for _, opt in (back, again))
    return f"{kind}, {way}: {sum(map(len, first.values()))} bytes compared three times, 0 differ"


@on_ranks(2)
def test_another_format_of_a_long_vector_is_refused() -> str:
    """Explicitly chosen formats: nothing is converted, and nothing changes."""
    saved = {}
    for state, cut in (("dynamic8", False), ("float8", False), ("float8", True), ("fp32", False)):
        net, opt = build("adamw", cut, state)
        train(net, opt, range(1))
        saved[state, cut] = opt.state_dict()
    refused = 0
    for into, cut in (("dynamic8", False), ("dynamic8", True), ("fp32", False), ("float8", True)):
        net, opt = build("adamw", cut)
        if into != "dynamic8":
            for param in net[0].parameters():
                lowtide.override(param, state=into)
            net, opt = net, make("adamw", [*net.named_parameters()], lr=1e-2, state="dynamic8")
        train(net, opt, range(1))
        before = values(net, opt)
        for (state, was_cut), given in saved.items():
            if state == "dynamic8" and into == "dynamic8" or was_cut and not cut:
                continue
            kind, text = raised(lambda given=given: opt.load_state_dict(given))
            assert kind == "ValueError" and state in text and "build the optimizer with" in text, text
            refused += 1
        assert values(net, opt) == before
    flat = StateDictOptions(flatten_optimizer_state_dict=True)
    for was_cut, cut in ((False, False), (False, True), (True, True), (True, False)):
        source, target = build("adamw", was_cut), build("adamw", cut, seed=1)
        train(*source, range(1))
        train(*target, range(1))
        given = get_optimizer_state_dict(*source, options=flat)
        given = {key: value.full_tensor() if isinstance(value, DTensor) and not cut else value for key, value in given.items()}
        kind, text = raised(lambda: set_optimizer_state_dict(*target, given, options=flat))
        assert (kind == "ValueError" and "flatten" in text) if was_cut and not cut else kind == "nothing", text
    return f"{refused} loads refused, each with both formats"
