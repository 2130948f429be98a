"""Jobs of the ranks in tests of FSDP1 (FullyShardedDataParallel): a model whose parameters are cut anywhere, and one that is
only cut at blocks. FSDP1's own functions gather, cut and hand out the state."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from distributed_jobs import load, save
from distributed_support import same
from support import bits, make
from torch.distributed.fsdp import FullStateDictConfig, ShardedStateDictConfig
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.api import FullOptimStateDictConfig, ShardedOptimStateDictConfig, StateDictType


class Case(NamedTuple):
    """A model and an optimizer."""

    original: bool = True  # use_orig_params
    aligned: bool = False  # shards end with blocks, and rows are whole blocks
    dtype: torch.dtype = torch.float32
    frozen: bool = False
    tiny: bool = True  # some parameters have fewer rows than ranks: DCP loads no ShardedTensor without part on a rank
    options: dict[str, Any] = {}  # of the optimizer
    rule: str = "adamw"

    def __str__(self) -> str:
        return " ".join(["original" if self.original else "flat", *map(str, self.options.values())])


def net_of(case: Case) -> torch.nn.Sequential:
    torch.manual_seed(0)
    linear = torch.nn.Linear
    if case.aligned:
        net = torch.nn.Sequential(linear(256, 256, bias=False), torch.nn.Tanh(), linear(256, 128, bias=False))
    else:  # a large matrix, parameters below min_quantized_numel, and some that are on one rank only
        few = (5, 1) if case.tiny else (8, 12)
        layers = linear(90, 210), torch.nn.Tanh(), linear(210, 37, bias=False), linear(37, few[0]), linear(*few)
        net = torch.nn.Sequential(*layers)
    if case.frozen:
        net[2].requires_grad_(False)
    return net.to(case.dtype)


def build(case: Case, kind: str = "ours", sharded: bool = True) -> tuple[torch.nn.Module, Any]:
    warnings.filterwarnings("ignore", module="torch.distributed")  # of deprecated functions of its own
    net: torch.nn.Module = net_of(case)
    if sharded:
        net[0] = FSDP(net[0], use_orig_params=case.original, device_id=torch.device("cpu"))
        net = FSDP(net, use_orig_params=case.original, device_id=torch.device("cpu"))
    params = [param for param in net.parameters() if param.requires_grad or case.original]
    if kind == "torch":
        return net, torch.optim.AdamW(params, lr=1e-2)
    return net, make(case.rule, params, lr=1e-2, **case.options)


def train(case: Case, net: torch.nn.Module, opt: torch.optim.Optimizer, steps: range) -> None:
    """Trains on the same data on every rank, so that the mean of the gradients equals each of them."""
    wide = 256 if case.aligned else 90
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        inputs = torch.randn(8, wide, generator=generator).to(case.dtype)
        net(inputs).float().square().mean().backward()
        opt.step()
        opt.zero_grad()


def local_bits(net: torch.nn.Module, opt: Any) -> dict[str, bytes]:
    """This rank's part of weights and state."""
    found = {}
    for number, param in enumerate(opt.engine.tensors):
        found[f"{number}"] = bits(param)
        found |= {f"{number}.{name}": bits(value) for name, value in opt.state[param].items()}
    return found


def whole_weights(net: torch.nn.Module) -> dict[str, torch.Tensor]:
    if not isinstance(net, FSDP):
        return {name: param.detach().clone() for name, param in net.named_parameters()}
    with FSDP.summon_full_params(net, writeback=False):
        return {
            name.replace("_fsdp_wrapped_module.", ""): param.detach().clone() for name, param in net.named_parameters()
        }


def as_kind(net: torch.nn.Module, kind: str) -> Any:
    """kind: "full", "rank 0" (full, only there), "offloaded" (full) or "sharded"."""
    if kind == "sharded":
        configs: Any = ShardedStateDictConfig(), ShardedOptimStateDictConfig(offload_to_cpu=False)
        return FSDP.state_dict_type(net, StateDictType.SHARDED_STATE_DICT, *configs)
    offloaded, alone = kind == "offloaded", kind == "rank 0"
    configs = FullStateDictConfig(offloaded, alone), FullOptimStateDictConfig(offloaded, alone)
    return FSDP.state_dict_type(net, StateDictType.FULL_STATE_DICT, *configs)


def round_trip(case: Case, kind: str) -> tuple[int, int]:
    """Takes six steps in one go, and again with another optimizer that takes the state FSDP1 gathered after three. Returns the
    bytes compared on this rank, and the number of parameters without a part here."""
    net, opt = build(case)
    opt.param_groups[0]["lr"] = 3e-3  # Schedule-Free remembers smaller rates
    train(case, net, opt, range(3))
    opt.param_groups[0]["lr"] = 1e-2
    with as_kind(net, kind):
        weights, state = net.state_dict(), FSDP.optim_state_dict(net, opt)
    assert bool(state) == (kind != "rank 0" or dist.get_rank() == 0)
    other_net, other = build(case)
    with torch.no_grad():
        for param in other_net.parameters():
            param.mul_(0.5)
    other.param_groups[0]["lr"] = 0.5
    with as_kind(other_net, kind):
        everywhere = [weights]
        if kind == "rank 0":  # weights are handed out by hand, state by FSDP1
            dist.broadcast_object_list(everywhere)
        other_net.load_state_dict(everywhere[0])
        other.load_state_dict(FSDP.optim_state_dict_to_load(other_net, other, state))
    same(local_bits(net, opt), local_bits(other_net, other), case)
    for pair in ((net, opt), (other_net, other)):
        train(case, *pair, range(3, 6))
    empty = sum(param.numel() == 0 for param in opt.engine.tensors)
    return same(local_bits(net, opt), local_bits(other_net, other), case), empty


def saved(case: Case, path: str) -> dict[str, torch.Tensor]:
    """Takes three steps and saves with torch.distributed.checkpoint. Returns the whole state and weights."""
    net, opt = build(case)
    train(case, net, opt, range(3))
    save(net, opt, path)
    return whole_state(net, opt)


def loaded(case: Case, path: str) -> dict[str, torch.Tensor]:
    """The whole state and weights of a new optimizer that has loaded them."""
    net, opt = build(case)
    with torch.no_grad():
        for param in net.parameters():
            param.mul_(0.5)
    load(net, opt, path)
    return whole_state(net, opt)


def whole_state(net: torch.nn.Module, opt: Any) -> dict[str, torch.Tensor]:
    found = whole_weights(net)
    with as_kind(net, "full"):
        state = FSDP.optim_state_dict(net, opt)["state"]
    for name, entry in state.items():
        found |= {f"{name}.{key}": value.clone() for key, value in entry.items()}
    return found


def as_whole(case: Case, sharded: bool) -> dict[str, bytes]:
    """Weights and state after five steps, sharded or in one process without FSDP1."""
    net, opt = build(case, sharded=sharded)
    train(case, net, opt, range(5))
    found = {name: bits(value) for name, value in whole_weights(net).items()}
    if sharded:
        with as_kind(net, "full"):
            state = FSDP.optim_state_dict(net, opt)["state"]
        return found | {f"{name}.{key}": bits(value) for name, entry in state.items() for key, value in entry.items()}
    names = dict(enumerate(name for name, _ in net.named_parameters()))
    for number, entry in opt.state_dict()["state"].items():
        param = opt.engine.tensors[number]
        for k, (key, _) in enumerate(opt.engine.core.states_of(number)):
            found[f"{names[number]}.{key}"] = bits(opt.engine.core.export_state(number, k))
            if f"{key}_scale" in entry:
                scale = entry[f"{key}_scale"].repeat_interleave(256, 1).reshape(param.shape)
                found[f"{names[number]}.{key}_scale"] = bits(scale)
        found[f"{names[number]}.step"] = bits(entry["step"])
        if "residual" in entry:
            found[f"{names[number]}.residual"] = bits(opt.state[param]["residual"].float())
    return found
