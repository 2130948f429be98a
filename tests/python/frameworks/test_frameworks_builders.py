"""Frameworks that build an optimizer from a name: what their own code builds by the hooks of docs/frameworks.md trains
as Lowtide's class does, to the bit. Each test runs the real package; where that pins another torch, its modules that
take an optimizer."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import lowtide
import pytest
import torch
from frameworks_support import blocks, matrices, train, weights, without_start

yaml = pytest.importorskip("yaml")
STEPS, CUT = range(6), 3


def direct(seed: int, **options: Any) -> dict[str, bytes]:
    """The weights that Lowtide's class makes of the same model."""
    model = matrices(seed)
    return train(model, lowtide.AdamW(model.parameters(), **options).step, STEPS)


def check_built(optimizer: torch.optim.Optimizer, model: torch.nn.Module, seed: int, shown: Any, **options: Any) -> None:
    assert type(optimizer) is lowtide.AdamW and weights(model) == weights(matrices(seed))
    got, wanted = train(model, optimizer.step, STEPS), direct(seed, **options)
    assert got != weights(matrices(seed))
    wrong = [name for name in wanted if got[name] != wanted[name]]
    shown(f"{len(wanted) - len(wrong)} of {len(wanted)} tensors as by lowtide.AdamW after {len(STEPS)} steps")
    assert not wrong


def test_torchtune(seed: int, figure: Any) -> None:
    """Its `__init__` wants a torchao before 0.18; its reader of components does not."""
    omegaconf = pytest.importorskip("omegaconf")
    pytest.importorskip("torchao")
    (block,) = blocks("torchtune")
    with without_start("torchtune", "torchtune.utils"):
        from torchtune import config

        model = matrices(seed)
        built = config.instantiate(omegaconf.OmegaConf.create(block).optimizer, model.parameters())
        check_built(built, model, seed, figure, lr=2e-5, betas=(0.9, 0.95), state="dynamic8")


def test_verl(seed: int, figure: Any) -> None:
    """Its `__init__` wants ray; what builds an optimizer does not."""
    omegaconf = pytest.importorskip("omegaconf")
    (block,) = blocks("verl")
    with without_start("verl", "verl.workers", "verl.workers.config"):
        from verl.workers.config.optimizer import FSDPOptimizerConfig, build_optimizer

        model, given = matrices(seed), omegaconf.OmegaConf.create(block).optim
        for options in (given, yaml.safe_load(block)["optim"]):  # verl has both kinds of dict in its configurations
            built = build_optimizer(model.parameters(), FSDPOptimizerConfig(**options))
        check_built(built, model, seed, figure, lr=1e-6, weight_decay=0.1, state="dynamic8")


def test_nemo_automodel(seed: int, figure: Any) -> None:
    pytest.importorskip("nemo_automodel")
    from nemo_automodel.components.config.loader import ConfigNode
    from nemo_automodel.recipes._typed_config import RecipeConfig

    (block,) = blocks("NeMo Automodel")
    model = matrices(seed)
    (built,) = RecipeConfig(ConfigNode(yaml.safe_load(block))).optimizer.build(model)
    check_built(built, model, seed, figure, lr=1e-5, betas=(0.9, 0.95), weight_decay=0.1, state="dynamic8")


@pytest.mark.parametrize("paged", [False, True])
def test_torchtitan(paged: bool, seed: int, tmp_path: Path, figure: Any) -> None:
    """Its containers of optimizers and schedules save, load into fresh ones and go on."""
    pytest.importorskip("torchtitan")
    from torchtitan.components.optimizer import LRSchedulersContainer

    names: dict[str, Any] = {}
    exec(blocks("torchtitan")[0], names)
    if paged:
        memory = lowtide.Memory(host="16KiB", chunk="4KiB", disk=tmp_path)
        names["config"].optimizer_factory_kwargs_by_name = {"AdamW": {"memory": memory}}

    def made() -> tuple[Any, Any, Any]:
        model = matrices(seed)
        optimizers = names["LowtideOptimizers"](names["config"], model_parts=[model])
        schedule = LRSchedulersContainer.Config(warmup_steps=2, decay_type="cosine")
        return model, optimizers, schedule.build(optimizers=optimizers, training_steps=len(STEPS))

    def stepping(optimizers: Any, schedules: Any) -> Any:
        return lambda: (optimizers.step(), schedules.step())

    model, *containers = made()
    wanted = train(model, stepping(*containers), STEPS)
    model, *containers = made()
    at_cut = train(model, stepping(*containers), STEPS[:CUT])
    saved = [container.state_dict() for container in containers]
    resumed, *containers = made()
    resumed.load_state_dict(model.state_dict())
    assert containers[0].state_dict() and weights(resumed) == at_cut, "asking for state changes no weight"
    for container, state in zip(containers, saved, strict=True):
        container.load_state_dict(state)
    got = train(resumed, stepping(*containers), STEPS[CUT:])
    wrong = sum(got[name] != wanted[name] for name in wanted)
    figure(f"torchtitan: {len(saved[0])} entries saved; {wrong} of {len(wanted)} tensors differ after resuming")
    (optimizer,) = containers[0].optimizers
    assert wrong == 0 and type(optimizer) is lowtide.AdamW and (optimizer.report()["moved_per_step"] > 0) == paged


def test_megatron_core(seed: int, figure: Any) -> None:
    """`FP32Optimizer.__init__` puts a constant on a GPU; all other code of Megatron runs as it is."""
    pytest.importorskip("megatron.core")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Apex and Transformer Engine are not installed
        from megatron.core.dist_checkpointing.mapping import ShardedTensor
        from megatron.core.optimizer import OptimizerConfig
        from megatron.core.optimizer import optimizer as theirs
        from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

    class OnCpu(theirs.FP32Optimizer):  # type: ignore[misc, name-defined]
        def __init__(self, *args: Any) -> None:
            theirs.MegatronOptimizer.__init__(self, *args)
            self.is_stub_optimizer = False

    def made() -> tuple[Any, Any, Any]:
        model = matrices(seed)
        keys = {"lr_mult": 1.0, "is_expert_parallel": False, "is_decoupled_lr": False}
        groups = [
            {"params": [p for p in model.parameters() if (p.ndim > 1) == decays], "wd_mult": float(decays), **keys}
            for decays in (True, False)
        ]
        names = {"groups": groups, "config": OptimizerConfig(lr=1e-3, weight_decay=0.1, clip_grad=0.0)}
        (block,) = blocks("Megatron-core")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(theirs, "FP32Optimizer", OnCpu)
            exec(block, names)
        optimizer: Any = names["optimizer"]
        schedule = OptimizerParamScheduler(optimizer, 0.0, 1e-3, 1e-4, 2, len(STEPS), "cosine", 0.1, 0.1, 0, "constant")
        return model, optimizer, schedule

    def stepping(model: Any, optimizer: Any, schedule: Any) -> Any:
        def step() -> None:
            for param in model.parameters():
                param.main_grad, param.grad = param.grad, None
            assert optimizer.step() == (True, None, None)
            schedule.step(1)

        return step

    first = made()
    wanted = train(first[0], stepping(*first), STEPS)
    assert [group["weight_decay"] for group in first[1].optimizer.param_groups] == [0.1, 0.0]
    before = made()
    train(before[0], stepping(*before), STEPS[:CUT])
    shards = {name: ShardedTensor.from_rank_offsets(name, param) for name, param in before[0].named_parameters()}
    sharded = before[1].sharded_state_dict(shards)["state"]
    assert int(sharded.pop("common_step")) == CUT
    assert {type(value) for entry in sharded.values() for value in entry.values()} == {ShardedTensor}
    after = made()
    after[0].load_state_dict(before[0].state_dict())
    after[1].init_state_fn(after[1].optimizer, after[1].config)  # as Megatron does before it loads
    for old, new in zip(before[1:], after[1:], strict=True):
        new.load_state_dict(old.state_dict())
    got = train(after[0], stepping(*after), STEPS[CUT:])
    wrong = sum(got[name] != wanted[name] for name in wanted)
    figure(f"Megatron-core: {wrong} of {len(wanted)} tensors differ after resuming")
    assert wrong == 0 and wanted != weights(matrices(seed))
