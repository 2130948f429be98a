"""Frameworks over transformers' Trainer, by the hooks of docs/frameworks.md. A small LLaMA of random weights trains; with
fp32 state its losses are those of torch's AdamW under the same framework."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import lowtide
import pytest
import torch
from frameworks_support import blocks, without_start
from lora_support import LENGTH, TOKENS, Sequences, adapted, one_thread  # noqa: F401
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

STEPS = 6
# Relative, between losses of two AdamW in float32 that differ in rounding alone (2^-24 each operation): over these few
# steps of a model of 0.1 M weights, 100 times that and more.
CLOSE = 1e-4


def model_of(seed: int) -> Any:
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=TOKENS, hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4,
                    max_position_embeddings=LENGTH, tie_word_embeddings=False)
    )  # fmt: skip


def arguments(out: Path, kind: Any = TrainingArguments, **more: Any) -> Any:
    given = {"optim": "adamw_torch", "learning_rate": 2e-3, "weight_decay": 0.1, **more}
    return kind(
        str(out), use_cpu=True, report_to=[], disable_tqdm=True, seed=7, max_steps=STEPS, logging_steps=1,
        save_strategy="no", per_device_train_batch_size=4, **given,
    )  # fmt: skip


def losses(trainer: Any) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def lowtide_of(trainer: Any) -> Any:
    """The optimizer inside of Accelerate's wrapper."""
    optimizer = trainer.optimizer.optimizer
    assert isinstance(optimizer, lowtide.Optimizer) and optimizer.report()["steps"] == STEPS
    return optimizer


def check_as_torch(trainer: Any, wanted: list[float], shown: Any) -> None:
    got = losses(trainer)
    worst = max(abs(a / b - 1) for a, b in zip(got, wanted, strict=True))
    assert type(lowtide_of(trainer)) is lowtide.AdamW
    shown(f"loss {got[0]:.3f} → {got[-1]:.3f}, at most {worst:.1e} (allowed {CLOSE}) from torch's, relative")
    assert worst < CLOSE and got[-1] < got[0]


def by_torch(out: Path, model: Any) -> list[float]:
    trainer = Trainer(model, arguments(out), train_dataset=Sequences())
    trainer.train()
    assert type(trainer.optimizer.optimizer) is torch.optim.AdamW
    return losses(trainer)


def test_trl(seed: int, tmp_path: Path, figure: Any) -> None:
    """The real package: SFTTrainer with a tuple, and with a factory."""
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    rows = Sequences()
    names: dict[str, Any] = {
        "tokenizer": PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer(models.WordLevel({str(i): i for i in range(TOKENS)}, unk_token="0")),
            eos_token="1", pad_token="2",
        ),
        "data": datasets.Dataset.from_list([{"input_ids": rows[i]["input_ids"].tolist()} for i in range(len(rows))]),
    }  # fmt: skip
    tuple_form, factory_form = blocks("TRL")

    args = arguments(tmp_path, trl.SFTConfig, max_length=LENGTH, bf16=False)

    def run(block: str) -> Any:
        names.update(model=model_of(seed), args=args)
        exec(block, names)
        return names["trainer"]

    wanted = run(re.sub("    optimizer_cls_and_kwargs=.*\n", "", tuple_form))
    assert type(wanted.optimizer.optimizer) is torch.optim.AdamW
    check_as_torch(run(tuple_form.replace("adamw_8bit", "adamw_torch")), losses(wanted), figure)
    eight = run(tuple_form)
    assert lowtide_of(eight).param_groups[0]["state"] == "dynamic8" and losses(eight)[-1] < losses(eight)[0]
    muon = run(factory_form)
    inner, outer = lowtide_of(muon).param_groups
    assert type(lowtide_of(muon)) is lowtide.Muon and (inner["use_muon"], outer["use_muon"]) == (True, False)
    assert len(outer["params"]) == 2 and losses(muon)[-1] < losses(muon)[0]
    figure(f"TRL's loss with 8 bits {losses(eight)[-1]:.3f}, with a factory of Muon {losses(muon)[-1]:.3f}")


def test_axolotl(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figure: Any) -> None:
    """The real plugin interface and manager. The trainer is transformers': Axolotl's inherits it, and reads the same
    attribute."""
    base = pytest.importorskip("axolotl.integrations.base")
    mine = ModuleType("my_module")
    monkeypatch.setitem(sys.modules, "my_module", mine)
    exec(blocks("Axolotl")[0], vars(mine))
    manager = base.PluginManager()
    manager.register("my_module.LowtidePlugin")
    try:
        trainer = Trainer(model_of(seed), arguments(tmp_path), train_dataset=Sequences())
        manager.post_trainer_create(None, trainer)
    finally:
        manager.plugins.clear()  # the manager is one for the process
    trainer.train()
    check_as_torch(trainer, by_torch(tmp_path, model_of(seed)), figure)


def test_llama_factory(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figure: Any) -> None:
    """A stand-in: LLaMA-Factory 0.9.5 cannot be imported beside today's trl. Its trainer makes an optimizer of its own
    for GaLore and the like, and else leaves it to transformers', as this one does."""
    made: list[Any] = []

    def create_custom_optimizer(model: Any, *args: Any) -> torch.optim.Optimizer | None:
        return None  # neither GaLore nor another one was asked for

    class SftTrainer(Trainer):
        def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
            if self.optimizer is None:
                self.optimizer = create_custom_optimizer(self.model, self.args)
            return super().create_optimizer(*args, **kwargs)

    def run_exp() -> None:
        made.append(SftTrainer(model_of(seed), arguments(tmp_path), train_dataset=Sequences()))
        made[0].train()

    wanted = by_torch(tmp_path, model_of(seed))
    for name in ("llamafactory", "llamafactory.train", "llamafactory.train.tuner"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules["llamafactory.train.tuner"], "run_exp", run_exp, raising=False)
    monkeypatch.setattr(Trainer, "get_optimizer_cls_and_kwargs", Trainer.get_optimizer_cls_and_kwargs)  # restored after
    exec(blocks("LLaMA-Factory")[0], {})
    check_as_torch(made[0], wanted, figure)


def test_ms_swift(seed: int, tmp_path: Path, figure: Any) -> None:
    """The real callback class; the table of callbacks and the trainer that asks it are stand-ins. That trainer, too,
    drops groups without parameters: LoRA trains none of those that do not decay."""
    with without_start("swift", "swift.optimizers") as packages:
        from swift.optimizers.base import OptimizerCallback

        table: dict[str, Any] = {"default": OptimizerCallback}
        vars(packages["swift"]).update(OptimizerCallback=OptimizerCallback, optimizers_map=table)
        exec(blocks("ms-swift")[0], {})

        class SwiftTrainer(Trainer):
            def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
                self.optimizer: Any = table[self.callback](self.args, self).create_optimizer(model=model)
                self.optimizer.param_groups = [group for group in self.optimizer.param_groups if group["params"]]
                return self.optimizer

        runs = []
        for SwiftTrainer.callback in ("default", "lowtide"):
            args = arguments(tmp_path, learning_rate=2e-2)
            runs.append(SwiftTrainer(adapted(seed, dropout=0), args, train_dataset=Sequences()))
            runs[-1].train()
    check_as_torch(runs[1], losses(runs[0]), figure)
    assert len(lowtide_of(runs[1]).param_groups) == 1
