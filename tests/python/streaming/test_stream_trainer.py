"""Weights that stream under transformers' Trainer, from a disk and to a device: full fine-tunes, LoRA and QLoRA, resumed, with the bits of
runs in memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lora_support import LENGTH, TOKENS, Sequences, differing, one_thread, trained_bits
from peft import LoraConfig, get_peft_model
from support import bits
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, training_args

import lowtide
from lowtide.streaming import stream as streaming
from lowtide.planning import units as planning
from lowtide.planning.layers import layers_of, units_of

__all__ = ["one_thread"]
LAYERS, WIDTH, ROOM = 8, 128, 3


def _full(seed: int) -> Any:
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=TOKENS, hidden_size=WIDTH, intermediate_size=4 * WIDTH, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=LENGTH,
    ))  # fmt: skip


def _lora(seed: int, base: Any = None) -> Any:
    return get_peft_model(base or _full(seed), LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))


def _qlora(seed: int) -> Any:
    bitsandbytes = pytest.importorskip("bitsandbytes")
    base = _full(seed)
    for layer in base.model.layers:
        for name, linear in [(name, part) for name, part in layer.named_modules() if isinstance(part, nn.Linear)]:
            coded = bitsandbytes.nn.Linear4bit(linear.in_features, linear.out_features, bias=False, compute_dtype=torch.float32, quant_type="nf4")
            coded.weight = bitsandbytes.nn.Params4bit(linear.weight.detach(), requires_grad=False, quant_type="nf4")
            layer.set_submodule(name, coded.to("cpu"))  # which encodes it
    base.requires_grad_(False)
    base.is_loaded_in_4bit = True  # for peft
    return _lora(seed, base)


def _train(
    model: Any, folder: Path | str | None, out: Path, options: dict[str, Any], arguments: dict[str, Any], resume: bool = False
) -> Trainer:
    """folder: from where weights stream; "device": to torch's accelerator; None: in memory."""
    options = {"lr": 1e-2, "step_in_backward": True, **options}
    if folder is None:
        opt: lowtide.Optimizer = lowtide.AdamW(model.parameters(), **options)
    elif folder == "device":
        _, opt = lowtide.stream(model, {"device": sum(param.nbytes for param in model.parameters())}, **options)
        assert model in streaming._STREAMED
    else:
        layout = units_of(model, layers_of(model, None))
        gradients = layout.gradients(streaming.bucket_of(options["step_in_backward"]), layout.tied)
        host = gradients + layout.kept.bytes + planning.STREAMED_STATE + ROOM * layout.sizes[0]
        _, opt = lowtide.stream(model, lowtide.Memory(host=host, disk=folder), **options)
        assert model in streaming._STREAMED
    args = TrainingArguments(
        output_dir=str(out), max_steps=4, save_steps=2, per_device_train_batch_size=4, report_to=[], disable_tqdm=True,
        logging_steps=1, **{"use_cpu": True, "max_grad_norm": 0.0, **arguments},
    )  # fmt: skip
    trainer = Trainer(model, args, train_dataset=Sequences(), optimizers=(opt, None))
    trainer.train(resume_from_checkpoint=str(out / "checkpoint-2") if resume else None)
    return trainer


def _losses(trainer: Trainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize(("make", "options", "arguments"), [
    (_full, {}, {}),
    (_full, {}, {"gradient_checkpointing": True}),
    (_full, {"step_in_backward": False}, {"max_grad_norm": 0.5, "gradient_accumulation_steps": 2}),
    (_lora, {}, {}),
    (_qlora, {}, {"gradient_checkpointing": True}),
], ids=["full", "checkpointed", "clipped", "lora", "qlora"])  # fmt: skip
def test_a_disk_changes_no_bit_of_a_trainer(
    make: Callable[[int], Any], options: dict[str, Any], arguments: dict[str, Any], tmp_path: Path, seed: int,
    monkeypatch: pytest.MonkeyPatch, figure: Callable[[str], None],
) -> None:  # fmt: skip
    monkeypatch.setattr(planning, "STREAMED_STATE", 256 << 10)
    monkeypatch.setattr(streaming, "GRADIENT_BUCKET", 4096)
    wanted = _train(make(seed), None, tmp_path / "memory", options, arguments)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    found = _train(make(seed), scratch, tmp_path / "disk", options, arguments)
    resumed = _train(make(seed), scratch, tmp_path / "disk", options, arguments, resume=True)
    assert _losses(found) == _losses(resumed) == _losses(wanted)
    wrong, of = differing(*(trained_bits(run.model, run.optimizer) for run in (wanted, found, resumed)))
    assert wrong == 0
    moved = lowtide.streaming_report(found.model)
    frozen = sum(param.nbytes for param in found.model.parameters() if not param.requires_grad)
    assert moved["read_bytes"] > 0 and (frozen == 0 or moved["planned_written_bytes"] < frozen / 8), "frozen weights are never written"
    figure(f"Trainer, {make.__name__[1:]}, {arguments}: resumed and not, {wrong} of {of} bytes differ; {moved['read_bytes']} read")


@pytest.mark.share
@pytest.mark.parametrize(("make", "options", "arguments"), [
    (_full, {"step_in_backward": False}, {"max_grad_norm": 0.5, "gradient_accumulation_steps": 2, "gradient_checkpointing": True}),
    (_lora, {}, {}),
], ids=["clipped", "lora"])  # fmt: skip
def test_a_device_changes_no_bit_of_a_trainer(
    xpu: Any, make: Callable[[int], Any], options: dict[str, Any], arguments: dict[str, Any], tmp_path: Path, seed: int,
    monkeypatch: pytest.MonkeyPatch, figure: Callable[[str], None],
) -> None:  # fmt: skip
    """The trainer leaves the model in host memory; a checkpoint goes on with weights on either side, and loads as a plain one."""
    monkeypatch.setitem(globals(), "LAYERS", 4)
    monkeypatch.setattr(training_args, "is_torch_xpu_available", lambda: True)  # which remembers that there was none
    arguments = {"use_cpu": False, **arguments}
    runs = []
    for source, goes_on in (None, False), ("device", False), ("device", True), (None, True):
        runs.append(_train(make(seed), source, tmp_path / str(source if not goes_on else "device"), options, arguments, goes_on))
        if source:
            lowtide.unstream(runs[-1].model)
        xpu.synchronize()
    assert all(_losses(run) == _losses(runs[0]) for run in runs)
    wrong, of = differing(*(trained_bits(run.model, run.optimizer) for run in runs))
    assert wrong == 0
    if make is _full:
        saved = LlamaForCausalLM.from_pretrained(tmp_path / "device" / "checkpoint-4")
        assert {name: bits(param) for name, param in saved.named_parameters()}.items() <= trained_bits(runs[0].model, runs[0].optimizer).items()
    figure(f"Trainer on {runs[1].args.device}, {make.__name__[1:]}: streamed, and resumed on either side, {wrong} of {of} bytes differ")
