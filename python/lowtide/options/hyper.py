"""Hyper-parameters: translates the keys of a parameter group to those of the core. Nothing here runs per parameter in a
step."""

from collections.abc import Container, Mapping, Sequence
from math import isfinite
from typing import Any

import torch

from lowtide import _core
from lowtide.checks.values import expect, number
from lowtide.devices import places

# The core's hyper-parameters that form the tuple "betas" here, and those that are bools.
BETAS = ("beta1", "beta2", "beta3")
FLAGS = [name for name, flag in _core.hyper_parameters() if flag]
RENAMED = {"d_beta": "beta3"}  # Prodigy's, as in the package; AdEMAMix's beta3 is one of its betas
OPTIONAL = ("t_alpha", "t_beta3", "d_beta")  # None: 0, which means no schedule, or the root of β2
COUNTS = ("warmup_steps",)  # whole numbers: elsewhere a value below 1 is a share of all steps, which would mean no warm-up here


def hyper_values(keys: Sequence[str], group: Mapping[str, Any]) -> tuple[float, ...]:
    """The values of the core's hyper-parameters `keys` in a parameter group. The core checks ranges. Raises ValueError or
    TypeError for unusable values."""
    values: list[float] = []
    try:
        for key in keys:
            if key in BETAS:
                betas, count = group["betas"], len({*BETAS} & {*keys})
                if not isinstance(betas, (tuple, list)) or len(betas) != count:
                    raise TypeError(f"betas: got {betas!r}, wanted a tuple of {count} numbers")
                place = BETAS.index(key)
                values.append(number(f"betas[{place}]", betas[place]))
                continue
            if key in FLAGS:
                if not isinstance(group[key], (bool, int)):
                    raise TypeError(f"{key}: got {group[key]!r} ({type(group[key]).__name__}), wanted a bool")
                values.append(bool(group[key]))
                continue
            name = RENAMED.get(key, key)
            if key in OPTIONAL and group[name] is None:
                values.append(0.0)
            else:
                values.append(number(name, group[name]))
                whole = key not in COUNTS or not isfinite(values[-1]) or values[-1].is_integer()
                expect(whole, key, group[name], "a whole number of steps")
    except KeyError as error:
        raise ValueError(
            f"got no {error}, wanted all of {sorted({group_key(key) for key in keys})}"
        ) from None
    return tuple(values)


def plain_betas(group: dict[str, Any]) -> dict[str, Any]:
    """The group, with betas from another kind of sequence, such as omegaconf's, as a tuple, because checkpoints hold plain
    values."""
    betas = group["betas"]
    return {**group, "betas": tuple(betas)} if isinstance(betas, Sequence) and not isinstance(betas, str) else group


def hyper_keys(rule: str, given: Container[str]) -> tuple[str, ...]:
    """The core's hyper-parameters that the rule reads and that the options `given` in a group set."""
    return tuple([name for name, _ in _core.hyper_parameters(rule) if group_key(name) in given])


def group_key(key: str) -> str:
    """The name of the core's hyper-parameter `key` in a parameter group."""
    return "betas" if key in BETAS else RENAMED.get(key, key)


def check_on_host(keys: Sequence[str], group: Mapping[str, Any], where: str) -> None:
    """Raises ValueError for a hyper-parameter that would have to be fetched from a device."""
    for name in dict.fromkeys(map(group_key, keys)):
        values = group.get(name)
        for value in values if name == "betas" and isinstance(values, (tuple, list)) else (values,):
            if isinstance(value, torch.Tensor) and (device := places.device_of(value)).type != "cpu":
                raise ValueError(
                    f"{where}: got {name} as a tensor on {device} while a graph is captured, wanted a number or a tensor on "
                    "the CPU: prepare_replay() gives each replay the current value"
                )
