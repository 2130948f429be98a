"""The options of optimizers and parameter groups: their names, types and meanings."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from types import NoneType
from typing import Any

from typing_extensions import TypedDict, Unpack

from lowtide import _core
from lowtide.checks.hints import format_hint, hint
from lowtide.checks.values import expect
from lowtide.memory.budgets import Memory
from lowtide.options import MASTERS
from lowtide.report.log import warn

# Arguments of torch.optim that change the meaning of a step. They are unsupported, so they are refused by name, not ignored.
REFUSED = {
    "capturable": "a step needs no option to be captured: see Optimizer.prepare_replay",
    "differentiable": "steps are not recorded by autograd",
    "decoupled_weight_decay": "the class decides how weights decay: use AdamW, or NAdam(decoupled_weight_decay=True)",
}
# Options of a parameter group that are fixed when it is added, by the core's list.
FIXED = tuple(name for name, _, fixed in _core.group_options() if fixed)
# Options that need the norm of all gradients before the step.
BY_NORM = ("max_grad_norm", "max_grad_spike")
# Options that are accepted without effect.
IGNORED = ("foreach", "fused")
# Every option except refused ones: its default, its types, and their name in messages. The core knows which strings are valid.
# tools/docs_site.py reads the defaults.
OPTIONS: dict[str, tuple[Any, tuple[type, ...], str]] = {
    "state": ("dynamic8", (str,), "a str"),
    "master": ("auto", (str, NoneType), f"{', '.join(map(repr, MASTERS))} or None"),
    "memory": (
        None, (Memory, Mapping, str, NoneType), "a lowtide.Memory, a mapping of its fields, 'host=8GiB,disk=/scratch', or None"
    ),
    "max_grad_norm": (None, (int, float, NoneType), "a number of 0 or more, or None"),
    "max_grad_spike": (None, (int, float, NoneType), "a number above 1, or None"),
    "rounding": ("auto", (str,), "'auto', 'nearest' or 'stochastic'"),
    "seed": (0, (Integral,), "an integer from 0 to 2^63 - 1"),
    "nonfinite": ("skip", (str,), "'skip', 'raise' or 'propagate'"),
    "min_quantized_numel": (4096, (Integral,), "an integer from 0 to 2^63 - 1"),
    "maximize": (False, (bool, int), "a bool"),
    "amp_scaling": (False, (bool,), "a bool"),
    "prefetch_in_backward": (False, (bool, int, str), "a bool or bytes as an int or '2GiB'"),
    "step_in_backward": (False, (bool, int, str), "a bool or bytes as an int or '64MiB'"),
    "offload_in_backward": (False, (bool,), "a bool"),
    "arithmetic": ("exact", (str,), "'exact' or 'fast'"),
    "cpu_target": ("", (str,), "a str"),
    "foreach": (None, (bool, NoneType), "a bool or None"),
    "fused": (None, (bool, NoneType), "a bool or None"),
}
DEFAULTS = {name: default for name, (default, _, _) in OPTIONS.items()}
AUTO = DEFAULTS["master"]  # the rule decides (`Family.core_options`); C and C++ have no master by default
# The options of a parameter group, by the core's list.
GROUP_OPTIONS = {name: DEFAULTS[name] for name, _, _ in _core.group_options()}
# Options of the whole optimizer, which a parameter group cannot set.
WHOLE_OPTIMIZER = tuple(name for name in OPTIONS if name not in ("memory", "maximize", *GROUP_OPTIONS, *IGNORED))
# Arguments of other libraries, and their equivalents here.
_ELSEWHERE = {
    "optim_bits": 'state="dynamic8" for 8 bits, state="fp32" for 32',
    "bits": 'state="dynamic8" for 8 bits, state="fp32" for 32',
    "min_8bit_size": "min_quantized_numel",
    "is_paged": 'memory=lowtide.Memory(device="auto")',
    "learning_rate": "lr",
    "beta1": "betas=(beta1, beta2)",
    "beta2": "betas=(beta1, beta2)",
}


class Options(TypedDict, total=False):
    """Keyword options of every optimizer. Options marked (group) can also be set per parameter group.

    Attributes:
        state: (group) how state is stored. "dynamic8" (the default), "float8": 1 byte per value and 4 per block of 256; "bf16":
            2 bytes; "fp32": 4 bytes; "dynamic4" (experimental): half a byte and 4 per block of 128. With 4 bits, the beta of a
            signed average must not exceed 0.9 (ValueError).
        master: (group) how bfloat16 and float16 weights take updates below half of their last bit: "stochastic" (rounded up or
            down at random, right on average), "residual16" (float32 precision, 2 bytes per parameter), "residual8" (1 byte),
            None (lost, as in torch.optim), or "auto", the default, which means "stochastic". Float32 weights need none.
        memory: (group: a separate budget) where state may live, as a `Memory`, a mapping of its fields, or text such as
            "host=8GiB,disk=/scratch"; None: no limit (docs/offload.md).
        max_grad_norm: clips the gradients of all groups together to this norm in every step, as `clip_grad_norm_` would; None,
            the default: no clipping.
        max_grad_spike: skips a step if the norm of its gradients exceeds this many times the median norm of recent steps
            (docs/python-api.md); None, the default: skips none. After torch's own clipping no norm is a spike.
        rounding: (group) how state is rounded to its format: "nearest", "stochastic", or "auto", the default: stochastic for
            averages and sums, so that they stay unbiased ("bf16": only if their beta is 0.995 or more).
        seed: seed of stochastic rounding, 0 by default: the same seed and steps give the same bits.
        nonfinite: what a NaN, an infinity or a magnitude of 2^62 or more does: "skip" skips the step and counts it (the
            default), "raise" raises, "propagate" lets it spread.
        min_quantized_numel: (group) parameters with fewer elements keep float32 state; 4096 by default.
        maximize: (group) steps along the gradient instead of against it.
        amp_scaling: GradScaler passes its scale and its verdict to the step, which unscales gradients and does not check them
            again.
        prefetch_in_backward: reads streaming state during backward, into at most this many bytes.
        step_in_backward: steps and frees gradients during backward, as soon as there are this many bytes.
        offload_in_backward: moves gradients of parameters on a device that the CPU steps (`Memory(step=)`) to host memory
            during backward and sums them there until the step, so that they take no device memory.
        arithmetic: on devices with a choice (CUDA): "exact", with the same bits as the CPU (the default), or "fast".
        cpu_target: instruction set, such as "avx2", for comparisons; only changes speed. "", the default: the best one.
        foreach: ignored, accepted for code written for torch.optim: a step is always one fused call.
        fused: likewise.
        capturable: must be False.
        differentiable: must be False.
        decoupled_weight_decay: must be False: use the class AdamW, or the argument of NAdam.
    """

    state: str
    master: str | None
    memory: Memory | Mapping[str, Any] | str | None
    max_grad_norm: float | None
    max_grad_spike: float | None
    rounding: str
    seed: int
    nonfinite: str
    min_quantized_numel: int
    maximize: bool
    amp_scaling: bool
    prefetch_in_backward: bool | int | str
    step_in_backward: bool | int | str
    offload_in_backward: bool
    arithmetic: str
    cpu_target: str
    foreach: bool | None
    fused: bool | None
    capturable: bool
    differentiable: bool
    decoupled_weight_decay: bool


@dataclass
class Settings:
    """Options of the whole optimizer."""

    nonfinite: str = DEFAULTS["nonfinite"]
    seed: int = DEFAULTS["seed"]
    amp_scaling: bool = DEFAULTS["amp_scaling"]
    max_grad_norm: float | None = DEFAULTS["max_grad_norm"]
    max_grad_spike: float | None = DEFAULTS["max_grad_spike"]
    cpu_target: str = DEFAULTS["cpu_target"]
    memory: Memory | None = DEFAULTS["memory"]
    arithmetic: str = DEFAULTS["arithmetic"]

    @classmethod
    def of(cls, options: Options) -> "Settings":
        given: Mapping[str, Any] = options
        settings = cls(**{name: given[name] for name in cls.__annotations__ if name in given})
        settings.seed = int(settings.seed)
        if settings.memory is not None:
            settings.memory = Memory.of(settings.memory)
        return settings


def check_options(
    options: Mapping[str, Any], where: str, others: Sequence[str], without: Sequence[str] = ()
) -> None:
    """Raises TypeError for an unknown option, and ValueError for an unsupported one. others: further valid arguments. without:
    options that the class lacks."""
    every = dict.fromkeys([*others, *(key for key in Options.__annotations__ if key not in REFUSED)])
    known = [key for key in every if key not in without]
    for key in options:
        if key in known or key in REFUSED:
            continue
        if key in _ELSEWHERE:
            wanted = f", wanted {_ELSEWHERE[key]}"
        elif wanted := hint(key, known):
            wanted += f": help({where}) lists all arguments"
        else:
            wanted = f", wanted one of {', '.join(known)}"
        raise TypeError(f"{where}: got unknown argument {key!r}{wanted}")
    check_kinds(options, where)


def warn_of_misspelt(group: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    """Warns of keys in a parameter group that resemble names of options. Other keys may belong to schedulers."""
    for key in group:
        if key not in known and (words := hint(key, known, likeness=0.85)):
            warn(f"{where}: got {key!r}, which is no option and changes nothing{words}")


def check_kinds(options: Mapping[str, Any], where: str) -> None:
    """Raises TypeError for an option of the wrong type, and ValueError for an option that must not be ignored."""
    for name, reason in REFUSED.items():
        expect(not options.get(name), f"{where}: {name}", repr(options.get(name)), f"False or None: {reason}")
    for name, (_, kinds, wanted) in OPTIONS.items():
        if name not in options:
            continue
        value = options[name]
        likely = format_hint(value, _core.codec_names()) if name == "state" else ""
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise TypeError(f"{where}: {name}: got {value!r} ({type(value).__name__}), wanted {wanted}{likely}")
        if likely:
            raise ValueError(f"{where}: got state {value!r}{likely}, wanted one of: {', '.join(_core.codec_names())}")
        if name == "master" and value not in (*MASTERS, None):
            likely = " (did you mean None?)" if str(value).lower() in ("none", "fp32", "") else hint(value, MASTERS)
            raise ValueError(f"{where}: got master {value!r}{likely}, wanted {wanted}")
        least = not isinstance(value, (int, float)) or (value > 1 if name == "max_grad_spike" else value >= 0)  # false for NaN
        if bool not in kinds and (not least or isinstance(value, Integral) and int(value) >= 2**63):
            raise ValueError(f"{where}: {name}: got {value!r}, wanted {wanted}")


def show_options(init: Callable[..., None], without: Sequence[str] = ()) -> None:
    """Makes `inspect.signature` and `help` of a constructor that takes `**options: Unpack[Options]` list the options and their
    defaults. without: options that the class refuses."""
    signature = inspect.signature(init)
    if any(one.annotation in (Unpack[Options], "Unpack[Options]") for one in signature.parameters.values()):
        init.__signature__ = with_options(signature, without)  # type: ignore[attr-defined]


def with_options(signature: inspect.Signature, without: Sequence[str] = (), **defaults: Any) -> inspect.Signature:
    """The signature, with keyword arguments for options in place of its last parameter, except options that it already has.
    defaults: defaults that differ."""
    kinds, keyword = Options.__annotations__, inspect.Parameter.KEYWORD_ONLY
    without = [*without, *signature.parameters]
    shown = [
        inspect.Parameter(name, keyword, default=default, annotation=kinds.get(name, type(default)))
        for name, default in {**DEFAULTS, **defaults}.items() if name not in without
    ]  # fmt: skip
    return signature.replace(parameters=[*list(signature.parameters.values())[:-1], *shown])
