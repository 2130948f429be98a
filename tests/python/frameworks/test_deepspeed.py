"""lowtide.AdamW as the client optimizer of DeepSpeed's ZeRO, on two CPU ranks, compared with torch.optim.AdamW."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from unittest.mock import patch

import lowtide
import pytest
import torch
from distributed_support import Ranks
from support import bits, parameter, random_gradients, take_steps

WIDTH, ACCUMULATED, CLIP, STEPS, CUT = 96, 2, 0.05, 8, 4
# ZeRO-3 makes a sub-group of each matrix; both have partitions of one size on 2 ranks.
SUB_GROUP = WIDTH * WIDTH // 2


class Case(NamedTuple):
    """One way to train. optimizer: "torch", or the state format of lowtide.AdamW. universal: loads the checkpoint through
    DeepSpeed's converter, for any number of ranks."""

    stage: int
    optimizer: str
    dtype: torch.dtype = torch.bfloat16
    offload: bool = False
    budget: bool = False
    universal: bool = False


class Run(NamedTuple):
    """The end of a run on one rank. clipped: the number of steps that clipped the gradient."""

    losses: list[float]
    weights: list[bytes]
    state: list[dict[str, bytes]]
    shapes: list[int]
    report: dict[str, Any]
    clipped: int


def configuration(case: Case, load: bool = False) -> dict[str, Any]:
    """The configuration of docs/frameworks.md for this case, with sizes that make ZeRO cut the small model."""
    page = (Path(__file__).parents[3] / "docs/frameworks.md").read_text()
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
    """This rank's flat float32 weights in DeepSpeed's wrapper of an optimizer."""
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


def train_job(case: Case, folder: str, load: bool = False) -> Run:
    """Takes all steps, with a checkpoint on the way, or those after that checkpoint."""
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
    """Converts the last checkpoint to a universal one."""
    from deepspeed.checkpoint import ds_to_universal

    last = Path(folder) / (Path(folder) / "latest").read_text()
    command = ["", "--input_folder", str(last), "--output_folder", f"{folder}/universal", "--inject_missing_state",
               "--num_extract_workers", "1", "--num_merge_workers", "1"]  # fmt: skip
    with patch.object(sys, "argv", command):
        ds_to_universal.main(ds_to_universal.parse_arguments())


@contextmanager
def deepspeed() -> Iterator[Any]:
    """DeepSpeed on the CPU, in the existing process group, without its shared-memory collective, which takes a compiler and
    half a minute to build."""
    os.environ.update(DS_ACCELERATOR="cpu", LOCAL_SIZE="0")
    import deepspeed as ds

    ds.utils.logger.setLevel("ERROR")
    ds.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    ds.init_distributed("gloo", verbose=False)
    try:
        yield ds
    finally:
        ds.comm.destroy_process_group()


@contextmanager
def one_process_state() -> Iterator[None]:
    """Accelerate's state of the process, which does not stay. It would look for more threads and another rank's address."""
    os.environ.update(OMP_NUM_THREADS="1", MASTER_ADDR="127.0.0.1")
    from accelerate.state import AcceleratorState, GradientState

    try:
        yield
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()


def accelerate(case: Case, folder: str, load: bool = False) -> Run:
    """Like `train_job`, with Accelerate's plugin, which on the CPU gives every rank all data."""
    with deepspeed(), one_process_state():
        from accelerate import Accelerator, DeepSpeedPlugin

        accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=configuration(case)))
        model = model_of(case, seed=int(load))
        opt = optimizer_of(case, model, Path(folder))
        schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: 1 / (1 + 0.1 * step))
        data = torch.utils.data.TensorDataset(torch.randn(4 * ACCUMULATED, 96, generator=torch.Generator().manual_seed(2)))
        loader = torch.utils.data.DataLoader(data, batch_size=4, generator=torch.Generator())
        model, opt, loader, schedule = accelerator.prepare(model, opt, loader, schedule)
        if load:
            accelerator.load_state(folder)
        losses = []
        for step in range(CUT if load else 0, STEPS):
            for (inputs,) in loader:
                with accelerator.accumulate(model):
                    loss = torch.nn.functional.mse_loss(model(inputs.to(case.dtype)).float(), inputs[:, :8].sin())
                    accelerator.backward(loss)
                    opt.step()
                    schedule.step()
                    opt.zero_grad()
                losses.append(loss.item())
            if step + 1 == CUT and not load:
                accelerator.save_state(folder)
        found = at_end(opt.optimizer, losses)
        model.destroy()
        return found


def trainer(case: Case, folder: str, load: bool = False) -> Run:
    """Like `train_job`, with transformers' Trainer and `lowtide.hf.optimizer`."""
    with deepspeed(), one_process_state():
        from lora_support import LENGTH, TOKENS, Sequences
        from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

        torch.manual_seed(int(load))
        config = LlamaConfig(
            vocab_size=TOKENS, hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=LENGTH,
        )  # fmt: skip
        auto = dict.fromkeys(["train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"], "auto")
        args = TrainingArguments(
            folder, deepspeed={**configuration(case), **auto}, use_cpu=True, bf16=case.dtype == torch.bfloat16, report_to=[],
            disable_tqdm=True, seed=7, max_steps=STEPS, save_steps=CUT, logging_steps=1, learning_rate=5e-3,
            per_device_train_batch_size=2, gradient_accumulation_steps=ACCUMULATED, max_grad_norm=CLIP, log_level="error",
        )  # fmt: skip
        chosen = lowtide.hf.optimizer("adamw_8bit", args, state=case.optimizer)
        made = Trainer(LlamaForCausalLM(config), args, train_dataset=Sequences(), optimizer_cls_and_kwargs=chosen)
        made.train(resume_from_checkpoint=str(Path(folder) / f"checkpoint-{CUT}") if load else None)
        found = at_end(made.model_wrapped.optimizer, [log["loss"] for log in made.state.log_history if "loss" in log])
        made.model_wrapped.destroy()
        return found


FRAMEWORKS: dict[str, Any] = {"Accelerate": accelerate, "Trainer": trainer}

WORLD = 2
ROUNDING = 2.0**-24  # of float32, relative
Train: TypeAlias = Callable[..., list[Run]]
OFFLOADS = [(1, False), (2, False), (3, False), (2, True), (3, True)]
ids = [f"stage{stage}{'-offload' if offload else ''}" for stage, offload in OFFLOADS]
ways = pytest.mark.parametrize(("stage", "offload"), OFFLOADS, ids=ids)


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Train]:
    """Computes the run of a case on every rank once. On separate ranks, because DeepSpeed keeps much in globals."""
    ranks = Ranks(WORLD)

    @functools.cache
    def folder(case: Case, job: Callable[..., Run]) -> str:
        return str(tmp_path_factory.mktemp("zero"))

    @functools.cache
    def run(case: Case, load: bool = False, job: Callable[..., Run] = train_job) -> list[Run]:
        if load:
            run(case, job=job)
        return ranks.run(WORLD, job, case, folder(case, job), load)

    yield run
    ranks.close()


def floats(found: list[Run]) -> torch.Tensor:
    """All weights of all ranks."""
    return torch.cat([torch.frombuffer(bytearray(part), dtype=torch.float32) for run in found for part in run.weights])


@ways
@pytest.mark.share
def test_fp32_state_trains_as_torch_does(stage: int, offload: bool, train: Train, figure: Callable[[str], None]) -> None:
    runs = [train(Case(stage, optimizer, torch.float32, offload)) for optimizer in ("torch", "fp32")]
    (ours, theirs) = ([torch.tensor(run.losses) for run in found] for found in reversed(runs))
    loss = max(float(((a - b) / b).abs().max()) for a, b in zip(ours, theirs, strict=True))
    weight = float((floats(runs[1]) - floats(runs[0])).abs().max())
    assert runs[1][0].clipped == STEPS and runs[1][0].losses[-1] < 0.7 * runs[1][0].losses[0]
    # A step rounds the weights, which are below 1, and the update that they get: half a unit each, of each optimizer.
    # This reaches a loss as the roundings of its own sums of WIDTH products in three layers do.
    figure(f"weights: {weight:.2e} of {2 * STEPS * ROUNDING:.2e}; losses: {loss:.2e} of {3 * WIDTH * ROUNDING:.2e}")
    assert weight <= 2 * STEPS * ROUNDING
    assert loss <= 3 * WIDTH * ROUNDING


@ways
@pytest.mark.share
def test_eight_bit_state_trains_and_resumes_to_the_bit(
    stage: int, offload: bool, train: Train, figure: Callable[[str], None]
) -> None:
    case = Case(stage, "dynamic8", offload=offload)
    whole, resumed, theirs = train(case), train(case, load=True), train(case._replace(optimizer="torch"))
    for run, again in zip(whole, resumed, strict=True):
        assert again.weights == run.weights
        assert again.state == run.state
        assert again.losses == run.losses[CUT * ACCUMULATED :]
    codes = [entry for run in whole for entry in run.state if "exp_avg_scale" in entry]
    assert codes, "no partition has 8-bit state"
    ours, torchs = whole[0].losses[-1], theirs[0].losses[-1]
    held, elements = whole[0].report["state_bytes"], sum(whole[0].shapes)
    figure(f"loss {whole[0].losses[0]:.3f} -> {ours:.4f} (torch: {torchs:.4f}), {held / elements:.2f} bytes a weight")
    # In a run of this length torch's loss falls by more than half; 8 bits may cost a twentieth of that.
    assert torchs < 0.5 * whole[0].losses[0]
    assert abs(ours - torchs) < 0.05 * (whole[0].losses[0] - torchs)


@pytest.mark.parametrize("stage", [1, 3])
def test_state_on_a_disk_changes_no_bit(stage: int, train: Train, figure: Callable[[str], None]) -> None:
    in_ram, on_disk = (train(Case(stage, "dynamic8", budget=budget)) for budget in (False, True))
    moved = [run.report["moved_per_step"] for run in on_disk]
    figure(f"{moved[0]} bytes move per step")
    assert min(moved) > 0 and max(run.report["moved_per_step"] for run in in_ram) == 0
    assert [run.weights for run in on_disk] == [run.weights for run in in_ram]


@pytest.mark.share
@pytest.mark.parametrize("stage", [2, 3])
def test_state_goes_through_universal_checkpoints_if_it_has_no_codes(
    stage: int, train: Train, figure: Callable[[str], None]
) -> None:
    case = Case(stage, "fp32", universal=True)
    for run, again in zip(train(case), train(case, load=True), strict=True):
        assert again.weights == run.weights
        assert again.state == run.state
    figure(f"{len(run.state)} partitions: the same bits")
    with pytest.raises(AssertionError, match="KeyError: 'exp_avg'"):
        train(case._replace(optimizer="dynamic8"), load=True)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_frameworks_train_and_resume_to_the_bit_under_zero_3(name: str, train: Train, figure: Callable[[str], None]) -> None:
    case = Case(3, "dynamic8")
    whole, resumed = train(case, job=FRAMEWORKS[name]), train(case, load=True, job=FRAMEWORKS[name])
    for run, again in zip(whole, resumed, strict=True):
        assert again.weights == run.weights
        assert again.state == run.state
        assert again.losses[-1] == run.losses[-1]
        assert any("exp_avg_scale" in entry for entry in run.state), "no partition has 8-bit state"
    figure(f"{name}: loss {whole[0].losses[0]:.3f} -> {whole[0].losses[-1]:.3f}; resumed: the same bits")
    assert whole[0].losses[-1] < 0.9 * whole[0].losses[0]


# The rest does by hand to groups as ZeRO does. It shows errors, and agreement with a reading of DeepSpeed only.


def flat(*params: torch.Tensor) -> torch.Tensor:
    return torch.cat([param.detach().flatten() for param in params]).requires_grad_()


def partition(first: int, last: int, *params: torch.Tensor) -> torch.Tensor:
    made = flat(*params)
    made.ds_id = f"{first}_{last}"  # type: ignore[attr-defined]
    return made


@pytest.mark.parametrize("cls", [lowtide.LAMB, lowtide.LARS, lowtide.Muon, lowtide.Prodigy])
def test_rules_of_whole_parameters_are_refused(cls: type[lowtide.Optimizer], seed: int) -> None:
    params = [parameter(8, 8), parameter(8, 8)]
    opt = cls(params)
    opt.param_groups[0]["params"] = [flat(*params)]
    with pytest.raises(ValueError, match=f"(?i){cls.__name__}.* whole"):
        opt.step()
    opt.param_groups[0]["params"] = params
    take_steps(params, opt)


def test_partitions_come_before_the_first_step(seed: int) -> None:
    params = [parameter(300), parameter(300)]
    opt = lowtide.AdamW(params)
    take_steps(params, opt)
    opt.param_groups[0]["params"] = [flat(*params)]
    with pytest.raises(ValueError, match="deepspeed.initialize first"):
        opt.step()


def test_partitions_come_in_the_order_of_the_groups(seed: int) -> None:
    params = [parameter(300), parameter(300)]
    opt = lowtide.AdamW([{"params": params[:1]}, {"params": params[1:]}])
    parts = [partition(n, n, params[n]) for n in (0, 1)]
    random_gradients(parts)
    opt.param_groups[0]["params"], opt.param_groups[1]["params"] = [], parts[1:]
    opt.step()
    before = bits(parts[1])
    opt.param_groups[0]["params"], opt.param_groups[1]["params"] = parts[:1], []
    with pytest.raises(ValueError, match="in the order of the groups"):
        opt.step()
    opt.param_groups[0]["params"], opt.param_groups[1]["params"] = [], parts[1:]
    opt.step()
    assert bits(parts[1]) != before


def test_only_the_groups_that_are_shown_are_stepped(seed: int) -> None:
    params = [parameter(300), parameter(300)]
    opt = lowtide.AdamW([{"params": params[:1]}, {"params": params[1:]}])
    random_gradients(params)
    groups, before = opt.param_groups, bits(params[0])
    opt.param_groups = groups[1:]
    opt.step()
    assert opt.param_groups == groups[1:]
    assert bits(params[0]) == before and params[0] not in opt.state and int(opt.state[params[1]]["step"]) == 1
    opt.param_groups = [{**groups[0], "lr": 1.0}]
    with pytest.raises(ValueError, match=r"param_groups\[0\], a copy.* other values of lr"):
        opt.step()
    opt.param_groups = groups
    opt.step()
    assert [int(opt.state[param]["step"]) for param in params] == [1, 2]


def test_overrides_do_not_reach_partitions_and_say_so(seed: int) -> None:
    params = [parameter(5000), parameter(5000)]
    lowtide.override(params[0], state="fp32")
    opt = lowtide.AdamW(params)
    opt.param_groups[0]["params"] = [flat(*params)]
    random_gradients(opt.param_groups[0]["params"])
    with pytest.warns(UserWarning, match="a group of their own"):
        opt.step()


def test_groups_without_parameters_are_dropped_with_their_budget(tmp_path: Path, seed: int) -> None:
    param = parameter(20000)
    opt = lowtide.AdamW([{"params": []}, {"params": [param], "memory": lowtide.Memory(host="16KiB", disk=tmp_path, chunk="4KiB")}])
    opt.param_groups[:] = opt.param_groups[1:]
    opt.param_groups[0]["params"] = [flat(param)]
    take_steps(opt.param_groups[0]["params"], opt)
    assert opt.report()["disk_bytes"] > 0
