"""Lowtide's optimizers in Hugging Face's Trainer, under the names that `TrainingArguments(optim=)` has for others.

    args = TrainingArguments(output_dir, learning_rate=2e-4, weight_decay=0.01)
    Trainer(model, args, ..., optimizer_cls_and_kwargs=lowtide.hf.optimizer("paged_adamw_8bit", args))

No package of Hugging Face is needed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterable, Mapping
from types import NoneType
from typing import Any, NamedTuple, Protocol, get_args

import torch

from lowtide.checks.values import expect
from lowtide.devices.flattened import first_flattened
from lowtide.memory.budgets import Memory
from lowtide.optimizers.adam import AdamW, AdEMAMix
from lowtide.optimizers.optimizer import Optimizer
from lowtide.optimizers.registry import hyper_of
from lowtide.optimizers.rules import SGD, Adagrad, Lion, RMSprop
from lowtide.optimizers.schedule_free import AdamWScheduleFree
from lowtide.options.hyper import BETAS
from lowtide.options.options import REFUSED, Options
from lowtide.options.overrides import override
from lowtide.report.log import warn


class Recipe(NamedTuple):
    """The optimizer and state format that a name selects."""

    optimizer: type[Optimizer]
    state: str = "fp32"
    paged: bool = False


# "32bit" means float32 state, "8bit" the dynamic map, "4bit" dynamic4, whichever library the name belongs to.
RECIPES: Mapping[str, Recipe] = {
    "adamw_torch": Recipe(AdamW),
    "adamw_torch_fused": Recipe(AdamW),
    "adamw_torch_4bit": Recipe(AdamW, "dynamic4"),
    "adamw_torch_8bit": Recipe(AdamW, "dynamic8"),
    "adamw_bnb_8bit": Recipe(AdamW, "dynamic8"),
    "adamw_8bit": Recipe(AdamW, "dynamic8"),
    "paged_adamw_32bit": Recipe(AdamW, paged=True),
    "paged_adamw_8bit": Recipe(AdamW, "dynamic8", paged=True),
    "ademamix": Recipe(AdEMAMix),
    "ademamix_8bit": Recipe(AdEMAMix, "dynamic8"),
    "paged_ademamix_32bit": Recipe(AdEMAMix, paged=True),
    "paged_ademamix_8bit": Recipe(AdEMAMix, "dynamic8", paged=True),
    "lion_32bit": Recipe(Lion),
    "lion_8bit": Recipe(Lion, "dynamic8"),
    "paged_lion_32bit": Recipe(Lion, paged=True),
    "paged_lion_8bit": Recipe(Lion, "dynamic8", paged=True),
    "rmsprop": Recipe(RMSprop),
    "rmsprop_bnb": Recipe(RMSprop),
    "rmsprop_bnb_8bit": Recipe(RMSprop, "dynamic8"),
    "rmsprop_bnb_32bit": Recipe(RMSprop),
    "schedule_free_adamw": Recipe(AdamWScheduleFree),
    "sgd": Recipe(SGD),
    "adagrad": Recipe(Adagrad),
}


class Arguments(Protocol):
    """The fields of `transformers.TrainingArguments` that are read. The defaults are the same, except those of the last three,
    which assume nothing about the training."""

    learning_rate: float = 5e-5
    weight_decay: float = 0.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    warmup_steps: float = 0  # values below 1: a share of max_steps
    max_steps: int = -1  # -1: determined by the epochs
    optim_args: str | None = None
    max_grad_norm: float = 0.0
    gradient_accumulation_steps: int = 1
    lr_scheduler_type: Any = "constant"  # an enum of strings


class _Defaults(Arguments):
    """Stands in for missing arguments."""


def optimizer(
    name: str,
    args: Arguments | None = None,
    *,
    optim_args: str | None = None,
    memory: Memory | None = None,
    model: torch.nn.Module | None = None,
    embeddings_fp32: bool = False,
    **options: Any,
) -> tuple[type[Optimizer], dict[str, Any]]:
    """Returns the value of `Trainer(optimizer_cls_and_kwargs=)`: a class, and the arguments that the Trainer would choose for
    `optim=name`. The Trainer itself separates groups with and without weight decay. Elsewhere: `cls(params, **kwargs)`.

    Args:
        name: one of `RECIPES`, such as "adamw_8bit" or `args.optim`.
        args: the TrainingArguments. They give learning rate, betas, epsilon, weight decay, `optim_args` unless given here and,
            for "schedule_free_adamw", the warm-up (in steps, or below 1 as a share of max_steps). None: their defaults.
        optim_args: "key=value,key=value". Keys are the hyper-parameters of the class (for betas: beta1, beta2, beta3), options
            of `lowtide.Options`, and fields of `Memory`: "beta2=0.95,host=8GiB,disk=/scratch".
        memory: where state may live, for any name. None: for names with "paged", Memory(device="auto"), which keeps state on
            the device as far as it fits and the rest in host memory. If the state of CPU parameters does not fit into RAM, give
            Memory(host=BYTES, disk=DIRECTORY). It changes no bit of a result.
        model: for `embeddings_fp32`.
        embeddings_fp32: gives the parameters of the model's torch.nn.Embedding modules fp32 state (`lowtide.override`), as the
            Trainer does for 8-bit optimizers of bitsandbytes. There it keeps second moments of rare rows from rounding to zero.
            Here a positive moment never rounds to zero, and fp32 state of embeddings changed the loss of a small model by less
            than its noise (one seed), so it is off by default.
        options: hyper-parameters and options of the class, by keyword; they override all others.

    Raises ValueError for an unknown name, unusable keys and values of `optim_args`, and arguments that would have no effect in
    the Trainer.
    """
    recipe = RECIPES.get(name)
    if recipe is None:
        raise ValueError(f"optimizer: got {str(name)!r}, wanted one of {', '.join(RECIPES)}")
    cls = recipe.optimizer
    given: Arguments = _Defaults() if args is None else args
    kwargs: dict[str, Any] = {"lr": given.learning_rate, "weight_decay": given.weight_decay}
    defaults = hyper_of(cls)
    if "betas" in defaults:  # to other classes the Trainer passes neither betas nor eps
        kwargs["betas"] = (given.adam_beta1, given.adam_beta2, *defaults["betas"][2:])
        if "eps" in defaults:
            kwargs["eps"] = given.adam_epsilon
    kwargs["state"] = recipe.state
    text = given.optim_args if optim_args is None else optim_args
    if text:
        _apply_text(text, cls, kwargs)
    kwargs.update(options)
    if "warmup_steps" in defaults and "warmup_steps" not in kwargs:
        kwargs["warmup_steps"] = _warmup_steps(given)
    if memory is not None:
        kwargs["memory"] = memory
    elif recipe.paged:
        kwargs.setdefault("memory", Memory(device="auto"))
    if args is not None:
        _check_effects(cls, kwargs, args)
    if embeddings_fp32:
        if model is None:
            raise ValueError("embeddings_fp32: got no model, wanted model=, the model with the embeddings")
        for module in model.modules():
            if isinstance(module, torch.nn.Embedding):
                override(module, state="fp32")
    return cls, kwargs


def _apply_text(text: str, cls: type[Optimizer], kwargs: dict[str, Any]) -> None:
    """Adds the settings in `optim_args` to `kwargs`."""
    hyper = hyper_of(cls)
    del hyper["lr"]  # the Trainer sets it
    betas = dict(zip(BETAS, kwargs.get("betas", ()), strict=False))
    kinds = {key: kind for key, kind in Options.__annotations__.items() if key not in REFUSED and key != "memory"}
    budgets = [field.name for field in dataclasses.fields(Memory)]
    known = [*betas, *(key for key in hyper if key != "betas"), *kinds, *budgets]
    seen, budget = set(), []
    for item in text.replace(" ", "").split(","):
        key, equals, value = item.partition("=")
        if not equals or key not in known or key in seen:
            again = " again" if key in seen else ""
            raise ValueError(f"optim_args: got {item!r}{again} for {cls.__name__}, wanted KEY=VALUE with each KEY at most "
                             f"once, and KEY one of {', '.join(known)}")  # fmt: skip
        seen.add(key)
        if key in betas:
            betas[key] = _value(key, value, (float,))
            kwargs["betas"] = tuple(betas.values())
        elif key in hyper:
            kwargs[key] = _value(key, value, (bool if isinstance(hyper[key], bool) else float,))
        elif key in budgets:
            budget.append(item)
        else:
            kwargs[key] = _value(key, value, get_args(kinds[key]) or (kinds[key],))
    if budget:
        kwargs["memory"] = Memory.of(",".join(budget))


def _value(key: str, text: str, kinds: tuple[type, ...]) -> bool | float | str | None:
    """Reads `text` as one of `kinds`; "none" is None."""
    if NoneType in kinds and text.lower() == "none":
        return None
    words = {"true": True, "yes": True, "false": False, "no": False}
    if bool in kinds:
        words |= {"1": True, "0": False} if kinds == (bool,) else {}
        if text.lower() in words:
            return words[text.lower()]
    for kind in (int, float):
        if kind in kinds or float in kinds:
            with contextlib.suppress(ValueError):
                return kind(text)
    if str in kinds:
        return text
    wanted = "true or false" if bool in kinds else "an integer" if float not in kinds else "a number"
    raise ValueError(f"optim_args: {key}: got {text!r}, wanted {wanted}")


def _warmup_steps(args: Arguments) -> int:
    """The number of warm-up steps. Raises ValueError for a share of an unknown number of steps."""
    if not 0 < args.warmup_steps < 1:
        return int(args.warmup_steps)
    got = f"{args.warmup_steps}, a share of all steps, without max_steps in the TrainingArguments"
    expect(args.max_steps > 0, "warmup_steps", got, "a number of steps, or max_steps: the optimizer is made before the Trainer counts")
    return math.ceil(args.max_steps * args.warmup_steps)  # as in the Trainer


def _check_effects(cls: type[Optimizer], kwargs: Mapping[str, Any], args: Arguments) -> None:
    """Raises ValueError for arguments that the Trainer would overrule, for gradients that are freed before the Trainer reads
    them, and for a learning-rate schedule of a rule that must have none."""
    wanted = f"the {args.weight_decay} of the TrainingArguments: the Trainer gives it to every group that decays"
    expect(kwargs["weight_decay"] == args.weight_decay, "weight_decay", kwargs["weight_decay"], wanted)
    if kwargs.get("step_in_backward"):
        for key, none in (("max_grad_norm", 0), ("gradient_accumulation_steps", 1)):
            value = getattr(args, key)
            wanted = f"{none}: gradients are stepped and freed before the Trainer sees them"
            got = f"{key}={value} in the TrainingArguments"
            expect(value is None or value <= none, "step_in_backward", got, wanted)
    if kwargs.get("max_grad_spike") is not None and getattr(args, "max_grad_norm", None):
        warn("max_grad_spike: the Trainer clips before the step, after which no norm is a spike: call lowtide.hf.clip_in_step(trainer)")
    if cls is AdamWScheduleFree:
        kind = getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)
        wanted = f"'constant': {cls.__name__} takes no schedule, and warms up by itself (warmup_steps= of the TrainingArguments)"
        expect(kind == "constant", "lr_scheduler_type", repr(kind), wanted)


def clip_in_step(trainer: Any) -> None:
    """Makes a `transformers.Trainer` or an `accelerate.Accelerator` clip with `Optimizer.clip_grad_norm_` for its lifetime.
    Call it once, before training. `max_grad_norm`, the norms in logs and code that calls `accelerator.clip_grad_norm_` need no
    change:

        trainer = Trainer(model, args, optimizer_cls_and_kwargs=lowtide.hf.optimizer("adamw_8bit", args), ...)
        lowtide.hf.clip_in_step(trainer)

    Gradients are read once for the norm, and the step scales them; `.grad` is not clipped. A call works as before if its
    parameters are not exactly the ones with gradients in one Lowtide optimizer, or under DeepSpeed and FSDP1, which clip
    themselves. Raises ValueError for anything but a Trainer or an Accelerator."""
    accelerator = getattr(trainer, "accelerator", trainer)
    known = hasattr(accelerator, "clip_grad_norm_") and hasattr(accelerator, "unscale_gradients")
    expect(known, "clip_in_step", type(trainer).__name__, "a transformers.Trainer or an accelerate.Accelerator")
    if getattr(accelerator.clip_grad_norm_, "in_step", False):
        return
    before = accelerator.clip_grad_norm_

    def clip_grad_norm_(parameters: torch.Tensor | Iterable[torch.Tensor], max_norm: float, norm_type: float = 2) -> Any:
        params = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        optimizer = _optimizer_of(accelerator, params)
        if optimizer is None:
            return before(params, max_norm, norm_type)
        accelerator.unscale_gradients()
        return optimizer.clip_grad_norm_(max_norm, norm_type)

    clip_grad_norm_.in_step = True  # type: ignore[attr-defined]
    accelerator.clip_grad_norm_ = clip_grad_norm_


def _optimizer_of(accelerator: Any, params: list[torch.Tensor]) -> Optimizer | None:
    """The prepared optimizer whose parameters with gradients are exactly these."""
    wanted = {id(param) for param in params if param.grad is not None}
    for prepared in accelerator._optimizers:
        optimizer = prepared
        while isinstance(optimizer, torch.optim.Optimizer) and not isinstance(optimizer, Optimizer):
            optimizer = getattr(optimizer, "optimizer", None)
        if isinstance(optimizer, Optimizer):
            own = [param for group in optimizer.param_groups for param in group["params"]]
            if wanted == {id(param) for param in own if param.grad is not None} and first_flattened(own) is None:
                return optimizer
    return None
