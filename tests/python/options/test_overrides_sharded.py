"""Overrides of modules hold for the DTensors that fully_shard puts in place of their parameters."""

from __future__ import annotations

import functools
from typing import Any

import lowtide
import pytest
import torch
from distributed_support import on_ranks
from support import bits
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def _model() -> torch.nn.Sequential:
    torch.manual_seed(11)
    return torch.nn.Sequential(lowtide.StableEmbedding(64, 256), torch.nn.Linear(256, 64), torch.nn.Linear(64, 256))


def _train(model: torch.nn.Module, opt: torch.optim.Optimizer, steps: int) -> None:
    for step in range(steps):
        torch.manual_seed(step)
        opt.zero_grad()
        model(torch.randint(64, (4, 9))).square().mean().backward()
        opt.step()


def _codecs(model: torch.nn.Module, opt: Any) -> dict[str, str]:
    numbers = {id(param): i for i, param in enumerate(opt.engine.tensors)}
    return {name: opt._core.state_codec(numbers[id(param)]) for name, param in model.named_parameters()}


@pytest.mark.parametrize("when", ["early", "late"])
@on_ranks(2)
def test_overrides_survive_fully_shard(when: str) -> str:
    """Overrides made before sharding, or after steps, act as on a model that is not sharded."""
    results = []
    for sharded in (True, False):
        model = _model()
        override = functools.partial(lowtide.override, model[1], "weight", state="fp32", lr=0.01)
        if when == "early":
            override()
        if sharded:
            mesh = init_device_mesh("cpu", (2,))
            for layer in (*model, model):
                fully_shard(layer, mesh=mesh)
        opt = lowtide.AdamW(model.parameters(), min_quantized_numel=1000)
        _train(model, opt, 2)
        if when == "late":
            override()
        _train(model, opt, 2)
        whole = [param.full_tensor() if sharded else param for param in model.parameters()]
        results.append((_codecs(model, opt), [bits(param) for param in whole]))
    codecs = results[0][0]
    big = {name: codec for name, codec in codecs.items() if name.endswith("weight") and "norm" not in name}
    assert big == {"0.weight": "fp32", "1.weight": "fp32", "2.weight": "dynamic8"}
    # Every rank has the same samples, so averaging over two ranks changes no bit of a gradient.
    assert results[0] == results[1]
    return f"2 ranks: {sum(map(len, results[0][1]))} bytes of parameters as without shards"


@on_ranks(2)
def test_muon_leaves_sharded_matrices_to_adamw_where_told() -> str:
    for use_muon in (True, False):
        model = _model()
        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
        opt = lowtide.Muon([{"params": model.parameters(), "use_muon": use_muon}])
        _train(model, opt, 1)
        names = {name for state in opt.state.values() for name in state}
        assert "exp_avg_sq" in names and ("momentum_buffer" in names) == use_muon, "vectors, and matrices"
    return "2 ranks: momentum of matrices, moments with use_muon=False"
