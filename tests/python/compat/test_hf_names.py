"""`lowtide.hf.optimizer` chooses what transformers' Trainer would choose for the same name, and refuses other names."""

from __future__ import annotations

import importlib
import inspect
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lowtide
import pytest
import torch
from support import bits, take_steps
from torch import nn

pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")

import transformers.trainer_optimizer as theirs  # noqa: E402
from transformers import Trainer  # noqa: E402  (its modules ask for torchao, so they come before the stand-in)
from transformers.training_args import OptimizerNames, TrainingArguments  # noqa: E402

# The Trainer's arguments for how a step runs or state is stored. Lowtide's are `state` and `memory`.
THEIR_STORAGE = {"fused", "optim_bits", "is_paged", "block_size", "bf16_stochastic_round"}
OUR_STORAGE = {"state", "memory", "weight_decay"}  # the Trainer's groups have its weight_decay


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The Trainer finds bitsandbytes and torchao, whose classes have nothing but a name."""
    for package, names in (("bitsandbytes", "AdamW Lion RMSprop AdEMAMix"), ("torchao", "AdamW8bit AdamW4bit")):
        optim = types.ModuleType(f"{package}.optim")
        for name in names.split():
            setattr(optim, name, type(name, (), {}))
        module = types.ModuleType(package)
        module.optim = optim  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, package, module)
        monkeypatch.setitem(sys.modules, f"{package}.optim", optim)
        monkeypatch.setattr(theirs, f"is_{package}_available", lambda: True)
    monkeypatch.setattr(theirs.importlib.metadata, "version", lambda _: "9.0")
    yield


def arguments(name: str, out: Path, **more: Any) -> TrainingArguments:
    return TrainingArguments(str(out), use_cpu=True, report_to=[], optim=name, **more)


def test_every_name_is_ours_or_refused(figure: Any) -> None:
    names = {member.value for member in OptimizerNames}
    assert set(lowtide.hf.RECIPES) <= names
    for name in names - set(lowtide.hf.RECIPES):
        with pytest.raises(ValueError, match=f"got '{name}', wanted one of adamw_torch, .*paged_lion_8bit"):
            lowtide.hf.optimizer(name)
    figure(f"{len(lowtide.hf.RECIPES)} of {len(names)} names are ours, the others are refused")


@pytest.mark.parametrize("settings", [
    {},
    {"learning_rate": 3e-4, "adam_beta1": 0.8, "adam_beta2": 0.95, "adam_epsilon": 1e-6, "weight_decay": 0.1},
])  # fmt: skip
def test_arguments_are_those_of_the_trainer(settings: Any, installed: None, tmp_path: Path, figure: Any) -> None:
    texts = {"sgd": ["momentum=0.9, nesterov=True"], "adagrad": ["lr_decay=0.1,eps=1e-6"],
             "rmsprop": ["momentum=0.9,alpha=0.95,centered=yes,eps=1e-6"], "rmsprop_bnb_8bit": ["alpha=0.95"],
             "schedule_free_adamw": ["r=0.5,weight_lr_power=1.0"],
             "ademamix_8bit": ["beta1=0.8,beta3=0.999,alpha=8,t_alpha=100,t_beta3=200"]}  # fmt: skip
    compared = 0
    for name, recipe in lowtide.hf.RECIPES.items():
        for text in [None, *texts.get(name, [])]:
            args = arguments(name, tmp_path, optim_args=text, lr_scheduler_type="constant", **settings)
            their_class, wanted = Trainer.get_optimizer_cls_and_kwargs(args)
            cls, got = lowtide.hf.optimizer(args.optim, args)
            assert their_class.__name__.removesuffix("8bit").removesuffix("4bit") == cls.__name__, name
            eight_bits = wanted.get("optim_bits") == 8 or their_class.__name__.endswith("8bit")
            four_bits = their_class.__name__.endswith("4bit")
            assert got["state"] == ("dynamic8" if eight_bits else "dynamic4" if four_bits else "fp32")
            assert ("memory" in got) == wanted.get("is_paged", False) == recipe.paged
            wanted = {k: float(v) if isinstance(v, str) else v for k, v in wanted.items() if k not in THEIR_STORAGE}
            effective = {k: p.default for k, p in inspect.signature(cls).parameters.items()} | got
            assert set(got) - OUR_STORAGE <= set(wanted) and {k: effective[k] for k in wanted} == wanted, name
            assert got["weight_decay"] == args.weight_decay
            if not settings:  # without TrainingArguments their defaults hold
                assert lowtide.hf.optimizer(name, optim_args=text) == (cls, got)
            compared += 1
    figure(f"{compared} calls for {len(lowtide.hf.RECIPES)} names: class, hyper-parameters, bits, paging as there")


def test_every_name_steps_and_paging_changes_nothing(tmp_path: Path, seed: int, figure: Any) -> None:
    stored = {"fp32": torch.float32, "dynamic8": torch.uint8, "dynamic4": torch.uint8}
    for name, recipe in lowtide.hf.RECIPES.items():
        results = []
        for memory in (None, lowtide.Memory(host="20KiB", disk=tmp_path, chunk="4KiB")):
            torch.manual_seed(seed)
            params = [nn.Parameter(torch.randn(128, 256)), nn.Parameter(torch.randn(256))]
            text = "momentum=0.9" if name == "sgd" else None
            cls, kwargs = lowtide.hf.optimizer(name, optim_args=text, memory=memory, lr=1e-2)
            opt = cls(params, **kwargs)
            take_steps(params, opt, 3)
            state = opt.state_dict()["state"]
            moments = [key for key, value in state[0].items() if value.dim() and not key.endswith("_scale")]
            assert moments and all(state[0][key].dtype == stored[recipe.state] for key in moments), name
            few = [key.removesuffix("_codes") for key in moments]
            assert all(state[1][key].dtype == torch.float32 for key in few), "of few elements"
            assert (opt.report()["moved_per_step"] > 0) == (memory is not None), name
            results.append([bits(p) for p in params] + [bits(v) for entry in state.values() for v in entry.values()])
        assert results[0] == results[1], name
    figure(f"{len(lowtide.hf.RECIPES)} names: 0 bytes differ between state in RAM and on disk")


def test_options(tmp_path: Path) -> None:
    text = "beta2=0.95, eps=1e-6,min_quantized_numel=7,prefetch_in_backward=8MiB"
    cls, kwargs = lowtide.hf.optimizer("adamw_8bit", optim_args=text)
    assert cls is lowtide.AdamW
    assert kwargs == {"lr": 5e-5, "weight_decay": 0.0, "betas": (0.9, 0.95), "eps": 1e-6, "state": "dynamic8",
                      "min_quantized_numel": 7, "prefetch_in_backward": "8MiB"}  # fmt: skip
    args = arguments("paged_adamw_8bit", tmp_path, optim_args="nonfinite=raise", weight_decay=0.1)
    _, kwargs = lowtide.hf.optimizer(args.optim, args, state="bf16", maximize=True)
    wanted = {"nonfinite": "raise", "state": "bf16", "maximize": True, "weight_decay": 0.1}
    assert {key: kwargs[key] for key in wanted} == wanted
    assert kwargs["memory"] == lowtide.Memory(device="auto")
    for text, master in (("none", None), ("residual16", "residual16")):
        assert lowtide.hf.optimizer("adamw_8bit", optim_args=f"master={text}")[1]["master"] == master
    budget = f"host=1MiB,disk={tmp_path},eps=1e-6,disk_limit=2MiB"
    for name in ("adamw_8bit", "paged_adamw_8bit"):
        _, kwargs = lowtide.hf.optimizer(name, optim_args=budget)
        assert kwargs["memory"] == lowtide.Memory(host="1MiB", disk=str(tmp_path), disk_limit="2MiB") and kwargs["eps"] == 1e-6
    own = lowtide.Memory(host="1MiB", disk=tmp_path)
    assert lowtide.hf.optimizer(args.optim, args, memory=own, optim_args="")[1]["memory"] is own


@pytest.mark.parametrize(("name", "text", "words"), [
    ("adamw_8bit", "beta1", ("'beta1'", "KEY=VALUE")),
    ("adamw_8bit", "eps=1e-6,,", ("got ''", "KEY=VALUE")),
    ("adamw_8bit", "beta1=0.5,beta1=0.6", ("again", "beta1=0.6")),
    ("adamw_8bit", "momentum=0.9", ("'momentum=0.9' for AdamW", "beta1, beta2, eps")),
    ("lion_8bit", "eps=1e-6", ("'eps=1e-6' for Lion",)),
    ("adamw_8bit", "memory=1GiB", ("memory=1GiB",)),
    ("adamw_8bit", "host=1GiB,host=2GiB", ("again", "host=2GiB")),
    ("adamw_8bit", "lr=1", ("lr=1",)),
    ("adamw_8bit", "eps=small", ("eps: got 'small'", "a number")),
    ("sgd", "nesterov=maybe", ("nesterov: got 'maybe'", "true or false")),
    ("adamw_8bit", "min_quantized_numel=1.5", ("min_quantized_numel: got '1.5'", "an integer")),
])  # fmt: skip
def test_arguments_that_mean_nothing_are_refused(name: str, text: str, words: tuple[str, ...]) -> None:
    with pytest.raises(ValueError) as caught:
        lowtide.hf.optimizer(name, optim_args=text)
    for word in ("optim_args: ", *words):
        assert word in str(caught.value)


def test_arguments_without_effect_in_the_trainer_are_refused(tmp_path: Path) -> None:
    args = arguments("sgd", tmp_path, weight_decay=0.1, optim_args="weight_decay=0.2")
    with pytest.raises(ValueError, match="weight_decay: got 0.2, wanted the 0.1 of the TrainingArguments"):
        lowtide.hf.optimizer("sgd", args)
    args = arguments("adamw_8bit", tmp_path)
    with pytest.raises(ValueError, match="step_in_backward: got max_grad_norm=1.0 .*wanted 0"):
        lowtide.hf.optimizer("adamw_8bit", args, step_in_backward=True)
    args = arguments("adamw_8bit", tmp_path, max_grad_norm=0, gradient_accumulation_steps=4)
    with pytest.raises(ValueError, match="step_in_backward: got gradient_accumulation_steps=4 .*wanted 1"):
        lowtide.hf.optimizer("adamw_8bit", args, optim_args="step_in_backward=true")
    args = arguments("adamw_8bit", tmp_path, max_grad_norm=0)
    assert lowtide.hf.optimizer("adamw_8bit", args, step_in_backward="1MiB")[1]["step_in_backward"] == "1MiB"
    with pytest.warns(UserWarning, match="max_grad_spike: the Trainer clips before the step"):
        lowtide.hf.optimizer("adamw_8bit", arguments("adamw_8bit", tmp_path), optim_args="max_grad_spike=10")


def test_a_warmup_is_as_long_as_the_trainers(tmp_path: Path) -> None:
    def warmup(warmup_steps: float, **more: Any) -> tuple[int, int]:
        args = arguments("schedule_free_adamw", tmp_path, lr_scheduler_type="constant", warmup_steps=warmup_steps, **more)
        return lowtide.hf.optimizer(args.optim, args)[1]["warmup_steps"], args.get_warmup_steps(args.max_steps)

    for given, wanted in ((0, 0), (7, 7), (7.0, 7), (7.9, 7), (0.1, 11), (0.5, 51)):
        assert warmup(given, max_steps=101) == (wanted, wanted)
    assert warmup(7) == (7, 7)
    with pytest.raises(ValueError, match="warmup_steps: got 0.5, a share of all steps, without max_steps .*wanted a number of steps"):
        warmup(0.5)
    args = arguments("schedule_free_adamw", tmp_path, lr_scheduler_type="constant", warmup_steps=0.5, optim_args="warmup_steps=9")
    assert lowtide.hf.optimizer(args.optim, args)[1]["warmup_steps"] == 9
    assert lowtide.hf.optimizer(args.optim, args, warmup_steps=8)[1]["warmup_steps"] == 8


@pytest.mark.parametrize("kind", ["linear", "cosine", "constant_with_warmup"])
def test_a_schedule_for_schedule_free_is_refused(kind: str, tmp_path: Path) -> None:
    args = arguments("schedule_free_adamw", tmp_path, lr_scheduler_type=kind)
    with pytest.raises(ValueError, match=f"lr_scheduler_type: got '{kind}', wanted 'constant': .*warmup_steps= of the TrainingArg"):
        lowtide.hf.optimizer(args.optim, args)
    assert lowtide.hf.optimizer("adamw_8bit", args)[0] is lowtide.AdamW


@pytest.mark.parametrize("wanted", [False, True])
def test_embeddings_in_fp32(wanted: bool) -> None:
    model = nn.Sequential(nn.Embedding(64, 256), nn.Linear(256, 256), nn.Linear(256, 64, bias=False))
    model[2].weight = model[0].weight  # tied
    cls, kwargs = lowtide.hf.optimizer("paged_adamw_8bit", model=model, embeddings_fp32=wanted)
    opt = cls(model.parameters(), **kwargs)
    take_steps(list(model.parameters()), opt)
    assert ("exp_avg" in opt.state[model[0].weight]) == wanted and "exp_avg_codes" in opt.state[model[1].weight]
    with pytest.raises(ValueError, match="embeddings_fp32: got no model"):
        lowtide.hf.optimizer("adamw_8bit", embeddings_fp32=True)


def test_schedules_of_transformers_are_followed(figure: Any) -> None:
    """Schedules read defaults and groups, and set the same learning rates for each group as for torch's optimizer."""
    special = {"cosine_with_min_lr": {"min_lr": 1e-5}, "warmup_stable_decay": {"num_decay_steps": 4},
               "cosine_warmup_with_min_lr": {"min_lr": 1e-5}}  # fmt: skip
    seen = []
    for kind in transformers.SchedulerType:
        if "plateau" in kind.value or "greedy" in kind.value:  # wait for a metric: see below
            continue
        rates = []
        for cls, kwargs in (lowtide.hf.optimizer("adamw_8bit", lr=1e-3), (torch.optim.AdamW, {"lr": 1e-3})):
            params = [nn.Parameter(torch.ones(4)) for _ in range(2)]
            opt = cls([{"params": params[:1]}, {"params": params[1:], "lr": 1e-2}], **kwargs)
            schedule = transformers.get_scheduler(kind, opt, 3, 12, special.get(kind.value))
            rates.append([])
            for _ in range(12):
                take_steps(params, opt)
                schedule.step()
                rates[-1].append([group["lr"] for group in opt.param_groups])
        assert rates[0] == rates[1], kind
        seen.append(kind.value)
    figure(f"{len(seen)} schedules give torch's learning rates: {', '.join(seen)}")
    opt = lowtide.AdamW([nn.Parameter(torch.ones(4))], lr=1e-2)
    schedule = transformers.get_scheduler("reduce_lr_on_plateau", opt, scheduler_specific_kwargs={"patience": 0})
    for metric in (1.0, 2.0):
        schedule.step(metric)
    assert opt.param_groups[0]["lr"] == pytest.approx(1e-3)


def test_needs_no_package_of_hugging_face(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("transformers", "accelerate", "peft"):
        monkeypatch.setitem(sys.modules, name, None)
    importlib.reload(lowtide.hf).optimizer("paged_adamw_8bit")
