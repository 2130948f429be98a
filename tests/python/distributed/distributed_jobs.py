"""The ranks' jobs in the tests of distributed training: parameters of awkward shapes on a mesh, gradients that every
mesh computes alike, checkpoints on the way."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any, NamedTuple

from lowtide.state.elsewhere import as_core
import lowtide
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from support import bits, make
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

# name -> shape, dtype. Rows that no number of ranks divides, fewer rows than ranks, rows of one element, whole
# parameters above the threshold whose shards are below it, one row, bfloat16, parameters without gradient.
SHAPES: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
    "uneven": ((37, 300), torch.float32),
    "few": ((2, 3000), torch.float32),
    "bfloat": ((41, 160), torch.bfloat16),
    "edge": ((16, 300), torch.float32),
    "cube": ((5, 7, 200), torch.float32),
    "thin": ((5000, 1), torch.float32),
    "row": ((5000,), torch.float32),
    "small": ((60,), torch.float32),
    "frozen": ((20, 256), torch.float32),
    "idle": ((30, 256), torch.float32),
}


class Layout(NamedTuple):
    """Where parameters go. kind: "plain", "rows" (Shard(0)), "columns" (Shard(1)) or "replicas"; with a mesh of two
    dimensions the first one replicates ("rows") or cuts rows ("columns")."""

    kind: str
    mesh: tuple[int, ...] = (1,)

    @property
    def world(self) -> int:
        return int(torch.tensor(self.mesh).prod())

    def __str__(self) -> str:
        return f"{self.kind} {'x'.join(map(str, self.mesh))}"


class Net(torch.nn.Module):
    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.mesh = None if layout.kind == "plain" else init_device_mesh("cpu", layout.mesh)
        for name, (shape, dtype) in SHAPES.items():
            value = random_tensor(name, -1).to(dtype)
            if self.mesh is not None:
                value = distribute_tensor(value, self.mesh, placements(layout, shape))
            self.register_parameter(name, torch.nn.Parameter(value, requires_grad=name != "frozen"))

    def set_gradients(self, step: int) -> None:
        """The same whole gradients on every mesh."""
        for name, param in self.named_parameters():
            if name in ("frozen", "idle"):
                continue
            grad = random_tensor(name, step).to(param.dtype)
            if isinstance(param, DTensor):
                grad = distribute_tensor(grad, param.device_mesh, param.placements, src_data_rank=None)
            param.grad = grad


def random_tensor(name: str, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()) + step)
    return torch.randn(SHAPES[name][0], generator=generator) * 10 ** (step % 5 - 4 if step >= 0 else 0)


def placements(layout: Layout, shape: tuple[int, ...]) -> list[Any]:
    last = {
        "rows": Shard(0),
        "columns": Shard(1) if len(shape) > 1 else Shard(0),
        "replicas": Replicate(),
    }[layout.kind]
    if len(layout.mesh) == 1:
        return [last]
    return [Replicate() if layout.kind != "columns" else Shard(0), last]


def build(
    layout: Layout, rule: str, state: str, disk: str | None = None, master: str | None = None
) -> tuple[Net, lowtide.Optimizer]:
    """disk: a directory where every rank has one of its own, with a budget that state does not fit into."""
    net = Net(layout)
    memory = None
    if disk is not None:
        own = Path(disk) / f"rank{dist.get_rank()}"
        own.mkdir(exist_ok=True)
        # A rank of many has little state; the smallest ring of chunks takes the rest of the budget.
        memory = lowtide.Memory(host="24KiB", disk=own, chunk="4KiB")
    named = list(net.named_parameters())
    groups = [{"params": named[::2]}, {"params": named[1::2], "lr": 3e-3, "weight_decay": 0.1}]
    return net, make(rule, groups, lr=1e-2, state=state, memory=memory, master=master)


def train(net: Net, opt: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        net.set_gradients(step)
        opt.step()
        opt.zero_grad()


def switch(opt: lowtide.Optimizer, mode: str) -> None:
    """"eval" or "train", of rules that evaluate other weights than they train."""
    if isinstance(opt, lowtide.AdamWScheduleFree):
        getattr(opt, mode)()


def whole(tensor: torch.Tensor) -> bytes:
    return bits(tensor.full_tensor() if isinstance(tensor, DTensor) else tensor)


def snapshot(net: torch.nn.Module, opt: lowtide.Optimizer) -> dict[str, bytes]:
    """All weights and all state, whole, by name."""
    found = {name: whole(param.detach()) for name, param in net.named_parameters()}
    saved = opt.state_dict()
    names = [name for group in opt.param_groups for name in group["param_names"]]
    for number, name in enumerate(names):
        for key, value in saved["state"].get(number, {}).items():
            found[f"{name}.{key}"] = whole(value)
    return found


def save(net: torch.nn.Module, opt: Any, path: str) -> None:
    weights, state = get_state_dict(net, opt)
    dcp.save({"net": weights, "opt": state}, checkpoint_id=path)


def load(net: torch.nn.Module, opt: Any, path: str) -> None:
    weights, state = get_state_dict(net, opt)
    both = {"net": weights, "opt": state}
    dcp.load(both, checkpoint_id=path)
    set_state_dict(net, opt, model_state_dict=both["net"], optim_state_dict=both["opt"])


def uninterrupted(
    layout: Layout, rule: str, state: str, path: str | None = None, disk: str | None = None
) -> dict[str, bytes]:
    """Six steps; with a path, a checkpoint after three. Both are of weights to evaluate where the rule has such."""
    net, opt = build(layout, rule, state, disk)
    train(net, opt, range(3))
    switch(opt, "eval")
    if path is not None:
        save(net, opt, path)
    switch(opt, "train")
    train(net, opt, range(3, 6))
    switch(opt, "eval")
    return snapshot(net, opt)


def planned(layout: Layout, state: str, disk: str | None) -> tuple[dict[str, int], dict[str, int]]:
    """lowtide.forecast of this rank's part, and report() after a step."""
    memory = None
    if disk is not None:
        own = Path(disk) / f"rank{dist.get_rank()}"
        own.mkdir(exist_ok=True)
        memory = lowtide.Memory(host="24KiB", disk=own, chunk="4KiB")
    params = [param for param in Net(layout).parameters() if param.requires_grad]
    plan = lowtide.forecast(params, "adamw", state, memory)
    opt = lowtide.AdamW(params, state=state, memory=memory)
    for param in params:
        param.grad = torch.zeros_like(param)
    opt.step()
    report = opt.report()
    got = {"state": plan.state_bytes, "ram": plan.host_bytes, "disk": plan.disk_bytes, "moved": plan.moved_per_step}
    wanted = {"state": report["state_bytes"], "ram": report["allocated_bytes"], "disk": report["disk_bytes"],
              "moved": report["moved_per_step"]}  # fmt: skip
    return got, wanted


def resumed(
    layout: Layout, rule: str, state: str, path: str, disk: str | None = None
) -> tuple[dict[str, bytes], dict[str, Any]]:
    """The last three of the six steps, from the checkpoint, with other weights and options before."""
    net, opt = build(layout, rule, state, disk)
    opt.param_groups[0]["lr"] = 0.5
    with torch.no_grad():
        for param in net.parameters():
            param.add_(1)
    load(net, opt, path)
    switch(opt, "train")
    train(net, opt, range(3, 6))
    switch(opt, "eval")
    return snapshot(net, opt), opt.report()


FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)
FULL_FROM_0 = StateDictOptions(full_state_dict=True, cpu_offload=True, broadcast_from_rank0=True)


def through_full_state_dict(
    layout: Layout, codec: str, disk: str | None = None, master: str | None = None
) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Six steps in one go, and with the whole state gathered on rank 0 and handed to a new optimizer after three."""
    net, opt = build(layout, "adamw", codec, master=master)
    train(net, opt, range(3))
    weights, state = get_state_dict(net, opt, options=FULL)
    assert bool(state) == (dist.get_rank() == 0), "cpu_offload leaves the whole on rank 0 only"
    other_net, other = build(layout, "adamw", codec, disk, master)
    # Not set_state_dict: on ranks without weights of their own it takes no part in handing them out.
    set_model_state_dict(other_net, weights, options=FULL_FROM_0)
    set_optimizer_state_dict(other_net, other, state, options=FULL_FROM_0)
    for pair in ((net, opt), (other_net, other)):
        train(*pair, range(3, 6))
    return snapshot(net, opt), snapshot(other_net, other)


def shapes_alone_and_sharded(layout: Layout, codec: str) -> list[dict[str, dict[str, tuple[int, ...]]]]:
    """The shapes of all state of matrices, in a process alone and sharded by rows. Only the number of rows is another in
    this process, which may have none."""
    found = []
    for each in (Layout("plain"), layout):
        net, opt = build(each, "adamw", codec)
        train(net, opt, range(1))
        for number, param in enumerate(opt.engine.tensors):
            local = opt._core.state(number)
            assert all(local[name].shape[1:] == whole.shape[1:] for name, whole in as_core(opt.state[param]).items())
        found.append(
            {
                name: {key: tuple(value.shape) for key, value in opt.state[param].items()}
                for name, param in net.named_parameters()
                if param.ndim > 1
            }
        )
    return found


def untouched_by_asking(layout: Layout, disk: str | None = None) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """An optimizer whose state_dict is taken before the first step, and one without."""
    asked_net, asked = build(layout, "adamw", "dynamic8", disk)
    before = {name: whole(param.detach()) for name, param in asked_net.named_parameters()}
    _, state = get_state_dict(asked_net, asked)
    steps = {name: int(entry["step"]) for name, entry in state["state"].items() if entry}
    assert len(steps) == len(SHAPES) - 1, "all but the frozen one have state"
    assert set(steps.values()) == {0}
    assert all({"exp_avg", "exp_avg_codes"} & state["state"][name].keys() for name in steps), "a template for loading must be complete"
    assert before == {name: whole(param.detach()) for name, param in asked_net.named_parameters()}
    net, opt = build(layout, "adamw", "dynamic8")
    for pair in ((net, opt), (asked_net, asked)):
        train(*pair, range(3))
    return snapshot(net, opt), snapshot(asked_net, asked)


def plain_into_shards(layout: Layout, state: str) -> tuple[dict[str, bytes], dict[str, bytes]] | str:
    """A state_dict of a process alone, loaded into a sharded optimizer; or the error."""
    net, opt = build(Layout("plain"), "adamw", state)
    train(net, opt, range(3))
    saved = opt.state_dict()
    sharded, other = build(layout, "adamw", state)
    with torch.no_grad():
        for param, value in zip(sharded.parameters(), net.parameters(), strict=True):
            param.copy_(distribute_tensor(value.detach(), param.device_mesh, param.placements, src_data_rank=None))
    before = snapshot(sharded, other)
    try:
        other.load_state_dict(saved)
    except ValueError as error:
        assert snapshot(sharded, other) == before
        return str(error)
    for pair in ((net, opt), (sharded, other)):
        train(*pair, range(3, 6))
    return snapshot(net, opt), snapshot(sharded, other)


def torch_into_shards(layout: Layout) -> float:
    """The largest difference between fp32 state here and torch's after a state_dict of torch's, both ways."""
    net = Net(layout)
    theirs = torch.optim.AdamW(net.parameters(), lr=1e-2)
    train(net, theirs, range(2))
    ours = lowtide.AdamW(net.parameters(), lr=1e-2, state="fp32")
    ours.load_state_dict(theirs.state_dict())
    back = torch.optim.AdamW(net.parameters(), lr=1e-2)
    back.load_state_dict(ours.torch_state_dict())
    worst = 0.0
    for param, entry in theirs.state.items():
        assert back.state[param]["step"] == entry["step"]
        for name in ("exp_avg", "exp_avg_sq"):
            assert back.state[param][name].placements == param.placements
            far = back.state[param][name].full_tensor().float() - entry[name].full_tensor().float()
            worst = max(worst, float(far.abs().max()))
    return worst


def own_files(layout: Layout, folder: str) -> tuple[dict[str, bytes], dict[str, bytes], str]:
    """Each rank's own file, read back by the rank that wrote it; and the error of reading the next rank's."""
    net, opt = build(layout, "adamw", "dynamic8")
    train(net, opt, range(3))
    rank, world = dist.get_rank(), dist.get_world_size()
    opt.save(f"{folder}/{rank}.lowtide")
    dist.barrier()
    other_net, other = build(layout, "adamw", "dynamic8")
    other_net.load_state_dict(net.state_dict())
    other.load(f"{folder}/{rank}.lowtide")
    assert isinstance(other.state[other_net.uneven]["exp_avg_codes"], DTensor)
    for pair in ((net, opt), (other_net, other)):
        train(*pair, range(3, 6))
    after = snapshot(net, opt), snapshot(other_net, other)
    try:
        other.load(f"{folder}/{(rank + 1) % world}.lowtide")
    except ValueError as error:
        return *after, str(error)
    raise AssertionError("the next rank's file was taken")


def read_file(layout: Layout, path: str) -> str:
    _, opt = build(layout, "adamw", "dynamic8")
    try:
        opt.load(path)
    except ValueError as error:
        return str(error)
    raise AssertionError(f"{path} was taken on {layout}")
