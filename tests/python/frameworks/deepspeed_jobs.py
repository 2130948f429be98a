"""The ranks' jobs in the tests of DeepSpeed: a small model under ZeRO, with clipping, accumulation and a schedule."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import lowtide
import torch
from support import bits

WIDTH, ACCUMULATED, CLIP, STEPS, CUT = 96, 2, 0.05, 8, 4
# ZeRO-3 makes a sub-group of each matrix; both have partitions of one size on 2 ranks.
SUB_GROUP = WIDTH * WIDTH // 2


class Case(NamedTuple):
    """One way to train. optimizer: "torch", or the state format of lowtide.AdamW. universal: it loads the checkpoint after
    DeepSpeed's converter, as one for any number of ranks."""

    stage: int
    optimizer: str
    dtype: torch.dtype = torch.bfloat16
    offload: bool = False
    budget: bool = False
    universal: bool = False


class Run(NamedTuple):
    """The end of a run on one rank; clipped: its steps that clipped the gradient."""

    losses: list[float]
    weights: list[bytes]
    state: list[dict[str, bytes]]
    shapes: list[int]
    report: dict[str, Any]
    clipped: int


def configuration(case: Case, load: bool = False) -> dict[str, Any]:
    """That of docs/deepspeed.md, for this case, with sizes that make ZeRO cut the small model."""
    page = (Path(__file__).parents[3] / "docs/deepspeed.md").read_text()
    found: dict[str, Any] = json.loads(page.partition("```json\n")[2].partition("```")[0])
    zero = found["zero_optimization"]
    zero |= {"stage": case.stage, "sub_group_size": SUB_GROUP, "reduce_bucket_size": WIDTH * WIDTH}
    zero["stage3_param_persistence_threshold"] = 0
    if not case.offload:
        del zero["offload_optimizer"]
    found["bf16"] = dict.fromkeys(found["bf16"], case.dtype == torch.bfloat16)
    sizes = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": ACCUMULATED}
    return {**found, **sizes, "gradient_clipping": CLIP, "checkpoint": {"load_universal": case.universal and load}}


def model_of(case: Case, seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(),
        torch.nn.Linear(WIDTH, 8),
    ).to(case.dtype)  # fmt: skip


def optimizer_of(case: Case, model: torch.nn.Module, folder: Path) -> torch.optim.Optimizer:
    matrices = [param for param in model.parameters() if param.ndim > 1]
    vectors = [param for param in model.parameters() if param.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    if case.optimizer == "torch":
        return torch.optim.AdamW(groups, lr=3e-3)
    memory = lowtide.Memory(host="16KiB", disk=folder, chunk="4KiB") if case.budget else None
    return lowtide.AdamW(groups, lr=3e-3, state=case.optimizer, memory=memory)


def partitions_of(zero: Any) -> list[torch.Tensor]:
    """The flat float32 weights of this rank, of DeepSpeed's wrapper of an optimizer."""
    for name in ("fp32_partitioned_groups_flat", "single_partition_of_fp32_groups"):  # of stage 3, and of 1 and 2
        if hasattr(zero, name):
            return list(getattr(zero, name))
    raise AssertionError(f"{type(zero).__name__} has no partitions")


def at_end(zero: Any, losses: list[float], clipped: int = 0) -> Run:
    """A run, by DeepSpeed's wrapper of its optimizer."""
    weights = partitions_of(zero)
    state = [{key: bits(value) for key, value in zero.optimizer.state[weight].items()} for weight in weights]
    report = dict(zero.optimizer.report()) if isinstance(zero.optimizer, lowtide.Optimizer) else {}
    return Run(losses, [bits(weight) for weight in weights], state, [w.numel() for w in weights], report, clipped)


def train(case: Case, folder: str, load: bool = False) -> Run:
    """All steps, with a checkpoint on the way, or those after that checkpoint."""
    with deepspeed() as ds:
        rank = torch.distributed.get_rank()
        model = model_of(case, seed=int(load))  # the checkpoint has to bring the weights
        own = Path(folder) / f"state{rank}"
        own.mkdir(exist_ok=True)
        opt = optimizer_of(case, model, own)
        schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: 1 / (1 + 0.1 * step))
        engine, zero, _, schedule = ds.initialize(
            model=model, optimizer=opt, lr_scheduler=schedule, config=configuration(case, load)
        )
        done, losses, clipped = 0, [], 0
        if load:
            if case.universal and rank == 0:
                convert(folder)
            torch.distributed.barrier()
            path, _ = engine.load_checkpoint(folder, tag="universal" if case.universal else None)
            assert path is not None
            zero.optimizer.param_groups[1]["weight_decay"] = 0.0  # universal checkpoints have options of the first group
            done = CUT
        for step in range(done, STEPS):
            for part in range(ACCUMULATED):
                random = torch.Generator().manual_seed(10 * part + rank)
                inputs = torch.randn(4, WIDTH, generator=random).to(case.dtype)
                outputs = engine(inputs).float()
                loss = torch.nn.functional.mse_loss(outputs, inputs[:, :8].float().sin())
                engine.backward(loss)
                engine.step()
                losses.append(loss.item())
            clipped += float(engine.get_global_grad_norm()) > CLIP
            if step + 1 == CUT and not load:
                engine.save_checkpoint(folder)
        found = at_end(zero, losses, clipped)
        engine.destroy()
        return found


def convert(folder: str) -> None:
    """Makes the universal checkpoint of the last one."""
    from deepspeed.checkpoint import ds_to_universal

    last = Path(folder) / (Path(folder) / "latest").read_text()
    command = ["", "--input_folder", str(last), "--output_folder", f"{folder}/universal", "--inject_missing_state",
               "--num_extract_workers", "1", "--num_merge_workers", "1"]  # fmt: skip
    with patch.object(sys, "argv", command):
        ds_to_universal.main(ds_to_universal.parse_arguments())


@contextmanager
def deepspeed() -> Iterator[Any]:
    """DeepSpeed on the CPU, in the process group that is there, without its shared-memory collective: building that
    takes a compiler and half a minute."""
    os.environ.update(DS_ACCELERATOR="cpu", LOCAL_SIZE="0")
    import deepspeed as ds

    ds.utils.logger.setLevel("ERROR")
    ds.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    ds.init_distributed("gloo", verbose=False)
    try:
        yield ds
    finally:
        ds.comm.destroy_process_group()
