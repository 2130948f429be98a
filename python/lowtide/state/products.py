"""NAdam's products of μ, torch.optim's "mu_product", in dicts and files: they stand there where β1 and ψ have changed on the
way. Else they follow from the options, and dicts are as they were."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from lowtide import _core
from lowtide.checks.values import check_tensor, expect
from lowtide.engine.engine import Engine
from lowtide.options.hyper import hyper_values

PRODUCT = "mu_product"
_LEAST = 2.0**-126  # torch's, in float32, becomes 0; the core's does not
_product = lru_cache(maxsize=64)(_core.mu_product)  # a loop over steps; most parameters share its arguments


def product_as_now(options: Mapping[str, Any], step: int) -> float:
    """The product after so many steps with these options."""
    beta, decay = hyper_values(("beta1", "momentum_decay"), {**options, "betas": tuple(options["betas"])[:1]})
    return _product(beta, decay, step)


def own_products(engine: Engine, groups: Sequence[dict[str, Any]]) -> dict[int, float]:
    """The products of the parameters, by number, whose options of now would have given another, with their overrides or
    without: who reads them may have none."""
    core, found = engine.core, dict[int, float]()
    for each in engine.groups:
        both: list[Mapping[str, Any]] = [each.options(groups), groups[each.of]]
        options = [own for own in both if own.get("nesterov")]
        for i in (i for i in each.params if options and core.mu_product(i) > 0):
            product, steps = core.mu_product(i), core.step_count(i)
            as_now = (product_as_now(own, steps) for own in options)
            if any(product != one and max(product, one) > _core.NO_MU_PRODUCT for one in as_now):
                found[i] = product
    return found


def read_product(saved: Any, where: str) -> float:
    """ValueError for what is no product."""
    where = f"{where}, {PRODUCT}"
    check_tensor(saved, where)
    one = saved.numel() == 1 and not saved.is_complex()
    expect(one, where, f"a {saved.dtype} tensor of shape {tuple(saved.shape)}", "one real element")
    return checked(float(saved), where)


def checked(product: Any, where: str) -> float:
    valid = isinstance(product, float) and math.isfinite(product) and 0 <= product <= 1
    expect(valid, where, repr(product), "a number from 0 to 1")
    return max(float(product), _LEAST)


def as_tensor(product: float) -> torch.Tensor:
    return torch.tensor(product, dtype=torch.float64)
