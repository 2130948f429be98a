"""Overrides of modules hold for the DTensors that fully_shard puts in the place of their parameters."""

from __future__ import annotations

from typing import Any

import lowtide
import pytest
import torch
from distributed_support import shared_ranks
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


def overridden(when: str) -> tuple[dict[str, str], dict[str, str], list[bytes], list[bytes]]:
    """A model with overrides made before it is sharded, or after steps: formats of the parameters whose elements are
    many, and parameters after all steps, beside those of a model that is not sharded."""
    results = []
    world = torch.distributed.get_world_size()
    for sharded in (True, False):
        model = _model()

        def override(of: torch.nn.Module = model) -> None:
            lowtide.override(of[1], "weight", state="fp32", lr=0.01)

        if when == "early":
            override()
        if sharded:
            mesh = init_device_mesh("cpu", (world,))
            for layer in model:
                fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
        opt = lowtide.AdamW(model.parameters(), min_quantized_numel=1000)
        _train(model, opt, 2)
        if when == "late":
            override()
        _train(model, opt, 2)
        whole = [param.full_tensor() if sharded else param for param in model.parameters()]
        results.append((_codecs(model, opt), [bits(param) for param in whole]))
    (codecs, values), (of_plain, plain) = results
    return codecs, of_plain, values, plain


def muon_of_shards() -> list[list[str]]:
    """Names of Muon's state of a sharded model, and of its state where AdamW steps matrices."""
    found = []
    for use_muon in (True, False):
        model = _model()
        fully_shard(model, mesh=init_device_mesh("cpu", (torch.distributed.get_world_size(),)))
        opt = lowtide.Muon([{"params": model.parameters(), "use_muon": use_muon}])
        _train(model, opt, 1)
        found.append(sorted({name for state in opt.state.values() for name in state}))
    return found


@pytest.mark.parametrize("when", ["early", "late"])
def test_overrides_survive_fully_shard(when: str, figure) -> None:
    answers = shared_ranks().run(2, overridden, when)
    compared = 0
    for codecs, of_plain, values, plain in answers:
        big = {name: codec for name, codec in codecs.items() if name.endswith("weight") and "norm" not in name}
        assert big == {"0.weight": "fp32", "1.weight": "fp32", "2.weight": "dynamic8"}
        assert codecs == of_plain
        # Every rank has the same samples, so averaging over two ranks changes no bit of a gradient.
        assert values == plain
        compared += sum(map(len, values))
    figure(f"2 ranks: {compared} bytes of parameters as without shards")


def test_muon_leaves_sharded_matrices_to_adamw_where_told(figure) -> None:
    for names, of_adamw in shared_ranks().run(2, muon_of_shards):
        assert "momentum_buffer" in names and "exp_avg_sq" in names, "vectors"
        assert "exp_avg_sq" in of_adamw and "momentum_buffer" not in of_adamw
    figure("2 ranks: momentum of matrices, moments with use_muon=False")
