"""Jobs of the ranks in tests of distributed training: parameters of awkward shapes on a mesh, gradients that are equal on every
mesh, and checkpoints on the way."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any, NamedTuple

import lowtide
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from support import bits, make
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

# name -> shape, dtype. Rows that no number of ranks divides, fewer rows than ranks, rows of one element, whole parameters above
# the threshold with shards below it, one row, bfloat16, and parameters without gradients.
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
    """Where parameters go. kind: "plain", "rows" (Shard(0)), "columns" (Shard(1)) or "replicas". On a mesh of two dimensions,
    the first replicates ("rows") or cuts rows ("columns")."""

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
        """Sets the same whole gradients on every mesh."""
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


def on_disk(folder: str | None) -> lowtide.Memory | None:
    """A budget too small for the state, with this rank's own directory in the folder; None without a folder."""
    if folder is None:
        return None
    own = Path(folder) / f"rank{dist.get_rank()}"
    own.mkdir(exist_ok=True)
    # With many ranks, each has little state. The smallest ring of chunks takes the rest of the budget.
    return lowtide.Memory(host="24KiB", disk=own, chunk="4KiB")


def build(
    layout: Layout, rule: str, state: str, disk: str | None = None, master: str | None = None
) -> tuple[Net, lowtide.Optimizer]:
    net = Net(layout)
    named = list(net.named_parameters())
    groups = [{"params": named[::2]}, {"params": named[1::2], "lr": 3e-3, "weight_decay": 0.1}]
    return net, make(rule, groups, lr=1e-2, state=state, memory=on_disk(disk), master=master)


def train(net: Net, opt: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        net.set_gradients(step)
        opt.step()
        opt.zero_grad()


def switch(opt: lowtide.Optimizer, mode: str) -> None:
    """Switches to "eval" or "train" if the rule evaluates other weights than it trains."""
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
    """Takes six steps. With a path, saves a checkpoint after three. Both have evaluation weights if the rule has them."""
    net, opt = build(layout, rule, state, disk)
    train(net, opt, range(3))
    switch(opt, "eval")
    if path is not None:
        save(net, opt, path)
    switch(opt, "train")
    train(net, opt, range(3, 6))
    switch(opt, "eval")
    return snapshot(net, opt)


def resumed(
    layout: Layout, rule: str, state: str, path: str, disk: str | None = None
) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Takes the last three of the six steps from the checkpoint, starting with other weights and options."""
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
