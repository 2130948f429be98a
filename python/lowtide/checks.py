"""Options, and checks of what users hand over. None runs once per parameter in a step."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from types import NoneType
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from typing_extensions import TypedDict

from lowtide import _core, devices
from lowtide.memory import Memory

PARAMETER_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Arguments of torch.optim that change what a step means, and are not offered: refused by name instead of ignored.
REFUSED = {
    "capturable": "a step needs no option to be captured: see Optimizer.prepare_replay",
    "differentiable": "steps are not recorded by autograd",
    "decoupled_weight_decay": "the class decides how weights decay: use AdamW, or NAdam(decoupled_weight_decay=True)",
}
# Options of the whole optimizer, which a parameter group cannot set for itself.
WHOLE_OPTIMIZER = (
    "nonfinite", "seed", "amp_scaling", "cpu_target", "arithmetic", "prefetch_in_backward", "step_in_backward",
)  # fmt: skip
# Options that are accepted and mean nothing.
IGNORED = ("foreach", "fused")
# Hyper-parameters of the core that are one tuple, "betas", here, and those that are bools.
BETAS = ("beta1", "beta2", "beta3")
FLAGS = ("maximize", "nesterov", "amsgrad", "centered")
SCHEDULES = ("t_alpha", "t_beta3")  # steps, or None for none
_LARGEST_STEP = 2**53
# What options may be, in types and in words. What a string may be, the core knows.
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "state": ((str,), "a str"),
    "memory": ((Memory, NoneType), "a lowtide.Memory or None"),
    "min_quantized_numel": ((Integral,), "an integer from 0 to 2^63 - 1"),
    "rounding": ((str,), "'auto', 'nearest' or 'stochastic'"),
    "master": ((str, NoneType), "'residual16', 'residual8', 'stochastic' or None"),
    "seed": ((Integral,), "an integer from 0 to 2^63 - 1"),
    "nonfinite": ((str,), "'skip', 'raise' or 'propagate'"),
    "cpu_target": ((str,), "a str"),
    "amp_scaling": ((bool,), "a bool"),
    "arithmetic": ((str,), "'exact' or 'fast'"),
    "prefetch_in_backward": ((bool, int, str), "a bool or bytes as an int or '2GiB'"),
    "step_in_backward": ((bool, int, str), "a bool or bytes as an int or '64MiB'"),
    "foreach": ((bool, NoneType), "a bool or None"),
    "fused": ((bool, NoneType), "a bool or None"),
}


class Options(TypedDict, total=False):
    """Keyword options of every optimizer. Those marked (group) may also be set per parameter group."""

    # (group) "dynamic8", "float8": 1 byte per value and 4 per block of 256; "bf16": 2 bytes; "fp32": 4 bytes; "dynamic4":
    # half a byte and 4 per block of 128; "mixed12": first moments as dynamic4, second as dynamic8. 4 bits take no betas
    # above 0.9 in averages of both signs (ValueError)
    state: str
    master: str | None  # (group) of bf16 and fp16 weights: "residual16" (float32 in all), "residual8", "stochastic"; None
    rounding: str  # (group) of states to their format: "nearest", "stochastic", or "auto": stochastic for long averages
    min_quantized_numel: int  # (group) parameters with fewer elements keep float32 state (default 4096)
    maximize: bool  # (group) step along the gradient instead of against it
    seed: int  # of stochastic rounding (default 0): the same seed and steps give the same bits
    nonfinite: str  # for a NaN, infinity or magnitude >= 2^62: "skip" the step and count it, "raise", or "propagate"
    amp_scaling: bool  # GradScaler hands over its scale and its verdict: the step unscales, and checks nothing itself
    cpu_target: str  # instruction set, e.g. "avx2", for comparisons: changes speed only (default "": the best there is)
    memory: Memory | None  # (group: a budget of its own) where state may live; None: no limit (docs/devices.md)
    arithmetic: str  # on devices that have a choice (CUDA): "exact", the bits of the CPU (default), or "fast"
    prefetch_in_backward: bool | int | str  # read streaming state during backward, into at most that many bytes
    step_in_backward: bool | int | str  # step and free gradients during backward, whenever there are that many bytes
    foreach: bool | None  # accepted for code written for torch.optim and ignored: a step is always one fused call
    fused: bool | None  # likewise
    capturable: bool  # must be False
    differentiable: bool  # must be False
    decoupled_weight_decay: bool  # must be False: AdamW is the class for it, and NAdam has an argument


def of_class(error: Exception, rules: Iterable[str], name: str) -> Exception:
    """The same kind of error, with the name of a class where the core says one of `rules`, which nobody asked for by its
    own name; "" is none."""
    text = str(error)
    for rule in filter(None, rules):
        text = text.replace(f" for {rule} ", f" for {name} ")
    return type(error)(text)


def check_options(
    options: Mapping[str, Any], where: str, others: Sequence[str], without: Sequence[str] = ()
) -> None:
    """Raises TypeError for an option that there is none of, ValueError for one that cannot be had. `others`: the
    arguments that there are besides; `without`: the options that there are not."""
    every = dict.fromkeys([*others, *(key for key in Options.__annotations__ if key not in REFUSED)])
    known = [key for key in every if key not in without]
    for key in options:
        if key in known or key in REFUSED:
            continue
        close = difflib.get_close_matches(key, known, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise TypeError(f"{where}: got unknown argument {key!r}{hint}, wanted one of {', '.join(known)}")
    check_kinds(options, where)


def check_kinds(options: Mapping[str, Any], where: str) -> None:
    """Raises TypeError for an option of the wrong type, ValueError for one that would be wrong to ignore."""
    for name, reason in REFUSED.items():
        if options.get(name):
            raise ValueError(f"{where}: {name}: got {options[name]!r}, wanted False or None: {reason}")
    for name, (kinds, wanted) in _KINDS.items():
        if name not in options:
            continue
        value = options[name]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise TypeError(f"{where}: {name}: got {value!r} ({type(value).__name__}), wanted {wanted}")
        if isinstance(value, Integral) and bool not in kinds and not 0 <= int(value) < 2**63:
            raise ValueError(f"{where}: {name}: got {value!r}, wanted {wanted}")


def with_context(where: str, error: Exception) -> Exception:
    """The same kind of error, with `where` before its message."""
    kinds = (TypeError, NotImplementedError, ValueError)
    return next(kind for kind in kinds if isinstance(error, kind))(f"{where}: {error}")


def number(name: str, value: object) -> float:
    """`value` as a float: a real number or a tensor of one element. TypeError or, for other tensors, ValueError."""
    if type(value) is float:
        return value
    if isinstance(value, torch.Tensor):
        if value.numel() != 1 or value.is_complex():
            raise ValueError(
                f"{name}: got a {value.dtype} tensor of shape {tuple(value.shape)}, wanted one real element"
            )
        return float(value)
    if isinstance(value, Real):
        return float(value)
    raise TypeError(f"{name}: got {value!r} ({type(value).__name__}), wanted a number or a tensor of one element")


def hyper_values(keys: Sequence[str], group: Mapping[str, Any]) -> tuple[float, ...]:
    """The values of the core's hyper-parameters `keys` in a parameter group. Ranges are the core's business."""
    values: list[float] = []
    try:
        for key in keys:
            if key in BETAS:
                betas, count = group["betas"], sum(beta in keys for beta in BETAS)
                if not isinstance(betas, (tuple, list)) or len(betas) != count:
                    raise TypeError(f"betas: got {betas!r}, wanted a tuple of {count} numbers")
                place = BETAS.index(key)
                values.append(number(f"betas[{place}]", betas[place]))
            elif key in FLAGS:
                if not isinstance(group[key], (bool, int)):
                    raise TypeError(f"{key}: got {group[key]!r} ({type(group[key]).__name__}), wanted a bool")
                values.append(bool(group[key]))
            elif key in SCHEDULES and group[key] is None:
                values.append(0.0)
            else:
                values.append(number(key, group[key]))
    except KeyError as error:
        raise ValueError(
            f"got no {error}, wanted all of {sorted({group_key(key) for key in keys})}"
        ) from None
    return tuple(values)


def hyper_keys(rule: str, given: Mapping[str, Any]) -> tuple[str, ...]:
    """The core's hyper-parameters that `given`, a group's options, sets. Only AdEMAMix has a third beta."""
    return tuple(
        key for key in _core.default_hyper(rule) if group_key(key) in given and (key != "beta3" or rule == "ademamix")
    )


def group_key(key: str) -> str:
    """The name, in a parameter group, of the core's hyper-parameter `key`."""
    return "betas" if key in BETAS else key


def check_on_host(keys: Sequence[str], group: Mapping[str, Any], where: str) -> None:
    """ValueError for a hyper-parameter that has to be fetched from a device."""
    for name in dict.fromkeys(map(group_key, keys)):
        values = group.get(name)
        for value in values if name == "betas" and isinstance(values, (tuple, list)) else (values,):
            if isinstance(value, torch.Tensor) and (device := devices.device_of(value)).type != "cpu":
                raise ValueError(
                    f"{where}: got {name} as a tensor on {device} while a graph is captured, wanted a number or a "
                    "tensor on the CPU: prepare_replay() gives each replay the value of then"
                )


def check_parameter(param: torch.Tensor, where: str, anywhere: bool = False) -> None:
    """Raises for a (local) tensor that cannot be stepped: a wrapper of others, a device without a backend (unless
    `anywhere`), a layout or an element type."""
    if is_traceable_wrapper_subclass(param) or "DTensor" in type(param).__name__:
        raise TypeError(
            f"{where}: got a {type(param).__name__}, wanted a plain tensor, a torch.nn.Parameter or a DTensor of one"
        )
    if torch.nn.parameter.is_lazy(param):
        raise ValueError(f"{where}: got an uninitialized parameter, wanted one with a shape: run the lazy module first")
    if not anywhere:
        devices.place_of(param, where)
    if param.layout != torch.strided:
        raise ValueError(f"{where}: got layout {param.layout}, wanted torch.strided")
    if param.dtype not in PARAMETER_DTYPES:
        wanted = ", ".join(str(dtype) for dtype in PARAMETER_DTYPES)
        raise ValueError(f"{where}: got {param.dtype}, wanted one of {wanted}")


def expect(condition: bool, where: str, got: object, wanted: object) -> None:
    """Raises ValueError unless `condition` holds."""
    if not condition:
        raise ValueError(f"{where}: got {got}, wanted {wanted}")


def check_tensor(value: object, where: str) -> None:
    """Raises ValueError unless `value` is a dense tensor with data, of no special kind."""
    plain = isinstance(value, torch.Tensor) and not is_traceable_wrapper_subclass(value)
    expect(plain, where, type(value).__name__, "a plain tensor")
    assert isinstance(value, torch.Tensor)
    expect(
        value.layout == torch.strided and not value.is_meta,
        where,
        f"a {value.layout} tensor on {value.device}",
        "a dense one",
    )


def check_moment(tensor: torch.Tensor, where: str, nonfinite: str, positive: bool) -> None:
    """Raises ValueError for a garbled moment: it would spread through its block in silence."""
    if nonfinite == "propagate" or not tensor.is_floating_point() or tensor.numel() == 0:
        return
    low, high = (float(bound) for bound in torch.aminmax(tensor.detach()))
    expect(low > float("-inf") and high < float("inf"), where, f"values from {low} to {high}", "finite ones")
    expect(low >= 0 or not positive, where, f"values from {low} to {high}", "none below 0")


def read_step(entry: Mapping[str, Any], where: str) -> int:
    """The number of steps in a saved entry: a Python number or a tensor of one element."""
    step = entry.get("step")
    if isinstance(step, torch.Tensor):
        check_tensor(step, f"{where}, step")
    try:
        value = number("step", step)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}, {error}") from error
    expect(
        0 <= value <= _LARGEST_STEP and value == int(value),
        f"{where}, step",
        value,
        f"an integer from 0 to {_LARGEST_STEP}",
    )
    return int(value)
