"""Accelerate's DDP (MULTI_CPU) and FSDP2 on two ranks, with Accelerate's own code from `Accelerator.prepare` to checkpoints. It
never chooses FSDP for CPU processes, so its state is set to it; it chooses DDP itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lowtide
import pytest
import torch
from distributed_jobs import whole
from distributed_support import differing, shared_ranks, size
from support import bits

pytest.importorskip("accelerate")
WORLD, STEPS, CUT = 2, 20, 8
DDP_STEPS, DDP_CUT = 6, 3
CLASSES: dict[str, Callable[..., Any]] = {
    "torch": torch.optim.AdamW,
    "fp32": lambda params, **options: lowtide.AdamW(params, state="fp32", **options),
    "dynamic8": lambda params, **options: lowtide.AdamW(params, state="dynamic8", **options),
}


class Net(torch.nn.Module):
    """Rows that two ranks cut evenly, a single row, and a row that stays frozen."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up = torch.nn.Linear(64, 256)
        self.frozen = torch.nn.Linear(256, 256).requires_grad_(False)
        self.down = torch.nn.Linear(256, 33)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down(torch.tanh(self.frozen(torch.tanh(self.up(x)))))
        return out


@contextmanager
def accelerator_of(fsdp2: bool) -> Iterator[Any]:
    from accelerate import Accelerator, FullyShardedDataParallelPlugin
    from accelerate.state import AcceleratorState, GradientState
    from accelerate.utils import DistributedType

    AcceleratorState._reset_state(reset_partial_state=True)
    before = dict(os.environ)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", OMP_NUM_THREADS="1")  # asked for; the group is there already
    try:
        accelerator = Accelerator(cpu=True)
        if fsdp2:
            accelerator.state.distributed_type = DistributedType.FSDP
            accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(
                fsdp_version=2, cpu_ram_efficient_loading=False, auto_wrap_policy="size_based_wrap", min_num_params=10000
            )
        yield accelerator
    finally:
        os.environ.clear()
        os.environ.update(before)
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()


def train(
    which: str, steps: int, prepare_at: int = 0, save_at: int = -1, folder: str = "", resume: bool = False
) -> tuple[list[float], dict[str, bytes]]:
    """The losses of each step, and everything at the end. All ranks have the same data, so that their mean gradient is exactly
    each one's own, on any number of ranks."""
    from accelerate.utils import load_fsdp_model, load_fsdp_optimizer, save_fsdp_model, save_fsdp_optimizer

    with accelerator_of(prepare_at >= 0) as accelerator:
        model: Any = Net()
        opt: Any = CLASSES[which](model.parameters(), lr=0.01, weight_decay=0.1)
        schedule = torch.optim.lr_scheduler.ExponentialLR(opt, 0.97)
        losses = []
        for step in range(steps):
            if step == prepare_at:
                model, opt = accelerator.prepare(model, opt)
            plugin = getattr(accelerator.state, "fsdp_plugin", None)
            if resume and step < save_at:
                continue
            if step == save_at and resume:
                load_fsdp_model(plugin, accelerator, model, folder)
                load_fsdp_optimizer(plugin, accelerator, opt, model, folder)
                schedule.last_epoch = step
            elif step == save_at:
                save_fsdp_model(plugin, accelerator, model, folder)
                save_fsdp_optimizer(plugin, accelerator, opt, model, folder)
            generator = torch.Generator().manual_seed(step % 2)
            x, y = (torch.randn(16, n, generator=generator) for n in (64, 33))
            opt.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            opt.step()
            schedule.step()
            losses.append(float(loss.detach()))
        found = {name: whole(param.detach()) for name, param in model.named_parameters()}
        for number, entry in opt.state_dict()["state"].items():
            found |= {f"{number}.{key}": whole(value) for key, value in entry.items()}
        return losses, found


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2 * step + rank)
    return torch.randn(16, 64, generator=generator), torch.randn(16, 33, generator=generator)


def all_of(model: torch.nn.Module, opt: Any) -> dict[str, bytes]:
    found = {name: bits(param) for name, param in model.named_parameters()}
    for number, entry in opt.state_dict()["state"].items():
        found |= {f"{number}.{key}": bits(value) for key, value in entry.items()}
    return found


def train_ddp(which: str, steps: int, save_at: int, folder: str, resume: bool) -> dict[str, bytes]:
    """This rank's weights and state at the end. Every rank has its own data, and Accelerate's DDP the mean gradient."""
    from accelerate.utils import DistributedType

    with accelerator_of(False) as accelerator:
        assert accelerator.distributed_type == DistributedType.MULTI_CPU
        model: Any = Net()
        opt: Any = CLASSES[which](model.parameters(), lr=0.01, weight_decay=0.1)
        schedule: Any = torch.optim.lr_scheduler.ExponentialLR(opt, 0.97)
        model, opt = accelerator.prepare(model, opt)
        accelerator.register_for_checkpointing(schedule)
        assert isinstance(model, torch.nn.parallel.DistributedDataParallel)
        if resume:
            with torch.no_grad():
                for param in model.parameters():
                    param.zero_()
            accelerator.load_state(folder)
        for step in range(save_at if resume else 0, steps):
            if step == save_at and not resume:
                accelerator.save_state(folder)
                accelerator.wait_for_everyone()
            x, y = batch(step, accelerator.process_index)
            accelerator.backward(torch.nn.functional.mse_loss(model(x), y))
            accelerator.clip_grad_norm_(model.parameters(), 0.1)
            opt.step()
            schedule.step()
            opt.zero_grad()
        return all_of(accelerator.unwrap_model(model), opt)


def train_alone(which: str, steps: int, world: int) -> dict[str, bytes]:
    """Like `train_ddp`, in one process without Accelerate: gradients of all ranks' data, and their mean."""
    model = Net()
    opt = CLASSES[which](model.parameters(), lr=0.01, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(opt, 0.97)
    for step in range(steps):
        for rank in range(world):
            x, y = batch(step, rank)
            (torch.nn.functional.mse_loss(model(x), y) / world).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        opt.step()
        schedule.step()
        opt.zero_grad()
    return all_of(model, opt)


@pytest.mark.parametrize("which", ["fp32", "dynamic8"])
def test_ranks_train_as_one_process_and_resume(which: str, tmp_path: Path, figure: Callable[[str], None]) -> None:
    """Halves of two gradients add up to their mean exactly, on any rank and in one process."""
    wanted = shared_ranks().run(1, train_alone, which, DDP_STEPS, WORLD)[0]
    compared = 0
    for resume in (False, True):
        for found in shared_ranks().run(WORLD, train_ddp, which, DDP_STEPS, DDP_CUT, str(tmp_path), resume):
            assert differing(wanted, found) == [], f"resumed: {resume}"
            compared += size(found)
    figure(f"{which}: {compared} bytes of {WORLD} ranks, trained and resumed, 0 differ from one process")


def test_losses_are_those_of_torch(figure):
    """Float32 state on two ranks. Both compute in float32 in different orders, which changes the last bits of a loss in a step;
    over 20 steps rounding errors add up to less than 1e-4 of it."""
    ranks = shared_ranks()
    (theirs, _), _ = ranks.run(2, train, "torch", STEPS)
    (ours, _), _ = ranks.run(2, train, "fp32", STEPS)
    assert theirs[0] > 1.5 * theirs[-1] or theirs[-1] < theirs[0]
    worst = max(abs(a - b) / b for a, b in zip(ours, theirs, strict=True))
    assert worst < 1e-4
    figure(f"{STEPS} steps, loss {theirs[0]:.4f} to {theirs[-1]:.4f}; at most {worst:.1e} of it from torch.optim.AdamW")


@pytest.mark.parametrize("which", ["fp32", "dynamic8"])
def test_a_checkpoint_of_two_ranks_goes_on_with_one(which, tmp_path, figure):
    """Accelerate saves and loads it. All weights and state have the bits of the uninterrupted run."""
    ranks = shared_ranks()
    (losses, expected), other = ranks.run(2, train, which, STEPS, 0, CUT, str(tmp_path))
    assert differing(expected, other[1]) == []
    for world in (1, 2):
        resumed, found = ranks.run(world, train, which, STEPS, 0, CUT, str(tmp_path), True)[0]
        assert resumed == losses[CUT:] and differing(found, expected) == []
    figure(f"{which}: {size(expected)} bytes on 1 and 2 ranks, 0 differ; {STEPS - CUT} equal losses")


def test_prepared_in_the_middle_of_training(figure):
    """State of earlier steps moves along: the bits of a run on whole parameters without a wrapper."""
    ranks = shared_ranks()
    losses, expected = ranks.run(1, train, "fp32", 12, -1)[0]
    for found in ranks.run(2, train, "fp32", 12, 5):
        assert found[0] == losses and differing(found[1], expected) == []
    figure(f"{size(expected)} bytes, 0 differ")
