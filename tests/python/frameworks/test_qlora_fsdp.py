"""Linear4bit of bitsandbytes, PEFT's adapters, FSDP1 and FSDP2, and a paged class together: the usual way to fine-tune on
several devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

bitsandbytes = pytest.importorskip("bitsandbytes")

from distributed_support import of_all, on_ranks  # noqa: E402
from lora_support import Sequences, adapted, paging  # noqa: E402
from lowtide.compat.bitsandbytes import optim  # noqa: E402
from support import bits  # noqa: E402
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, fully_shard  # noqa: E402

STEPS = 6


def quantized(seed: int) -> Any:
    """The model of `lora_support` with a base in NF4, stored as float32, because FSDP1 flattens parameters of one type."""
    model = adapted(seed, dropout=0.0)
    for name, linear in [(name, one) for name, one in model.named_modules() if type(one) is torch.nn.Linear and "lora_" not in name]:
        four = bitsandbytes.nn.Linear4bit(
            linear.in_features, linear.out_features, bias=False, quant_type="nf4", compute_dtype=torch.float32,
            quant_storage=torch.float32,
        )  # fmt: skip
        four.load_state_dict(linear.state_dict())
        model.set_submodule(name, four.to("cpu"))
    return model


def sharded(seed: int, version: int) -> Any:
    model = quantized(seed)
    layers = model.base_model.model.model.layers
    if version == 2:
        mesh = init_device_mesh("cpu", (2,))
        for layer in layers:
            fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    for number, layer in enumerate(layers):
        layers[number] = FullyShardedDataParallel(layer, use_orig_params=True, device_id=torch.device("cpu"))
    return FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))


def trained(seed: int, version: int, make: Any) -> tuple[list[float], Any, Any]:
    """Losses of all ranks' batches, the model and its optimizer."""
    model, data = sharded(seed, version), Sequences()
    opt = make([param for param in model.parameters() if param.requires_grad])
    rank, losses = torch.distributed.get_rank(), list[float]()
    for step in range(STEPS):
        rows = [data[(4 * step + 2 * rank + i) % len(data)] for i in range(2)]
        loss = model(**{key: torch.stack([row[key] for row in rows]) for key in rows[0]}).loss
        loss.backward()
        opt.step()
        opt.zero_grad()
        losses.append(sum(of_all(loss.item())) / 2)
    return losses, model, opt


def local_bits(opt: torch.optim.Optimizer) -> list[bytes]:
    params = [param for group in opt.param_groups for param in group["params"]]
    return [bits(getattr(param, "_local_tensor", param)) for param in params]


@pytest.mark.parametrize("version", [1, 2])
@on_ranks(2)
def test_qlora_under_fsdp_with_paged_state(version: int, seed: int, tmp_path: Path) -> str:
    """Paged to disk or not: the same bits. With torch's AdamW, whose state is exact, the loss falls as far, or a twentieth
    farther."""
    own = tmp_path / str(torch.distributed.get_rank())
    own.mkdir()
    torchs, _, _ = trained(seed, version, lambda params: torch.optim.AdamW(params, lr=1e-2))
    plain, _, unpaged = trained(seed, version, lambda params: optim.AdamW8bit(params, lr=1e-2))
    losses, model, opt = trained(seed, version, lambda params: optim.PagedAdamW8bit(params, lr=1e-2, memory=paging(own)))
    assert isinstance(model, FSDPModule) == (version == 2) and opt.is_paged
    assert losses == plain and local_bits(opt) == local_bits(unpaged)
    report = opt.report()
    assert report["disk_bytes"] > 0
    assert torchs[0] == losses[0] and losses[0] - losses[-1] > 0.95 * (torchs[0] - torchs[-1]) > 0
    whole = get_optimizer_state_dict(model, opt, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    gathered = len(whole.get("state", ()))
    assert gathered == (len(opt.param_groups[0]["params"]) if torch.distributed.get_rank() == 0 else 0)
    return (
        f"FSDP{version}: loss {losses[0]:.4f} to {losses[-1]:.4f} (torch {torchs[-1]:.4f}), {report['disk_bytes']} bytes on disk, "
        f"{gathered} states gathered"
    )
