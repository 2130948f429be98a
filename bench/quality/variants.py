"""The compared variants, one line each. A variant that this installation cannot make is left out, with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from quality.studied import AdamW as StudiedAdamW
from quality.studied import Format, Rounding

Maker = Callable[..., torch.optim.Optimizer]  # (params, lr=, betas=, eps=, weight_decay=)


@dataclass(frozen=True)
class Variant:
    id: str
    label: str
    make: Maker
    weights: torch.dtype = torch.float32
    init_change: float = 0.0  # relative, random, of every weight before the first step
    draw: int = 0  # of that change
    seeds: int = 3
    noise: bool = False  # exact, on a way of its own from the start: what such runs differ by is the noise of any run
    moments: Callable[[torch.optim.Optimizer, torch.Tensor], torch.Tensor] | None = field(default=None, compare=False)
    """The second moment of a parameter, decoded; None: not watched."""
    studied: bool = False  # a format that Lowtide does not have


def torch_adamw(params: Iterable[torch.Tensor], **hyper: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, fused=True, **hyper)


def lowtide(**options: Any) -> Maker:
    def make(params: Iterable[torch.Tensor], **hyper: Any) -> torch.optim.Optimizer:
        from lowtide import AdamW

        return AdamW(params, **hyper, **options)

    return make


def bitsandbytes_rule(params: Iterable[torch.Tensor], **hyper: Any) -> torch.optim.Optimizer:
    from quality.bitsandbytes_rule import AdamW

    return AdamW(params, **hyper)


def bitsandbytes_cpu(params: Iterable[torch.Tensor], **hyper: Any) -> torch.optim.Optimizer:
    from bitsandbytes.optim import AdamW8bit

    return AdamW8bit(params, **hyper)


def _torch_moment(optimizer: torch.optim.Optimizer, param: torch.Tensor) -> torch.Tensor:
    moment: torch.Tensor = optimizer.state[param]["exp_avg_sq"]
    return moment


def _lowtide_moment(optimizer: Any, param: torch.Tensor) -> torch.Tensor:
    place = [id(one) for group in optimizer.param_groups for one in group["params"]].index(id(param))
    moment: torch.Tensor = optimizer.torch_state_dict()["state"][place]["exp_avg_sq"]
    return moment


def _rule_moment(optimizer: Any, param: torch.Tensor) -> torch.Tensor:
    moment: torch.Tensor = optimizer.moments(param)[1]
    return moment


def _cpu_moment(optimizer: Any, param: torch.Tensor) -> torch.Tensor:
    from bitsandbytes import functional

    state = optimizer.state[param]
    decode = functional.dequantize_blockwise
    moment: torch.Tensor = decode(state["state2"], absmax=state["absmax2"], code=state["qmap2"], blocksize=256)
    return moment.view_as(param)


def _ours(id: str, label: str, seeds: int = 3, **options: Any) -> Variant:
    return Variant(id, label, lowtide(**options), seeds=seeds, moments=_lowtide_moment)


def _weights(id: str, label: str, **options: Any) -> Variant:
    return Variant(id, label, lowtide(**options), weights=torch.bfloat16)


def _studied(id: str, label: str, first: Format, second: Format) -> Variant:
    def make(params: Iterable[torch.Tensor], **hyper: Any) -> torch.optim.Optimizer:
        return StudiedAdamW(params, first, second, **hyper)

    return Variant(id, label, make, seeds=6, moments=_rule_moment, studied=True)


def _error_to_momentum(params: Iterable[torch.Tensor], **hyper: Any) -> torch.optim.Optimizer:
    exact = Format("nearest", exact=True)
    return StudiedAdamW(params, exact, exact, error_to_momentum=True, **hyper)


def _four_bits(name: str, label: str, rounding: Rounding, **options: Any) -> Variant:
    """Uniform, second moments by their root."""
    formats = Format(rounding, **options), Format(rounding, power=0.5, **options)
    return _studied(name, label, *formats)


MANY = 12  # seeds, of what is compared most closely

# In the order in which they are run and shown.
VARIANTS = (
    Variant("fp32", "fp32 (torch)", torch_adamw, noise=True, seeds=MANY, moments=_torch_moment),
    Variant("fp32_c", "fp32, init changed by 1e-3", torch_adamw, init_change=1e-3, draw=3, noise=True, seeds=MANY),
    Variant("fp32_d", "fp32, init changed by 1e-3, 2nd draw", torch_adamw, init_change=1e-3, draw=4, noise=True),
    Variant("fp32_e", "fp32, init changed by 1e-3, 3rd draw", torch_adamw, init_change=1e-3, draw=5, noise=True),
    Variant("fp32_a", "fp32, init changed by 1e-6", torch_adamw, init_change=1e-6, draw=1),
    _ours("dynamic8", "dynamic8, auto (default)", MANY, state="dynamic8", rounding="auto"),
    Variant("bnb_rule", "bitsandbytes' CUDA rule", bitsandbytes_rule, seeds=MANY, moments=_rule_moment),
    _ours("dynamic8_nearest", "dynamic8, nearest", MANY, state="dynamic8", rounding="nearest"),
    _ours("dynamic8_stochastic", "dynamic8, stochastic", MANY, state="dynamic8", rounding="stochastic"),
    _ours("float8", "float8, auto", MANY, state="float8", rounding="auto"),
    _ours("mixed12", "mixed12, auto", MANY, state="mixed12", rounding="auto"),
    _ours("dynamic4", "dynamic4, auto", MANY, state="dynamic4", rounding="auto"),
    _weights("bf16_nearest", "bf16 weights, nearest", state="fp32"),
    _weights("bf16_stochastic", "bf16 weights, stochastic", state="fp32", master="stochastic"),
    _weights("bf16_residual8", "bf16 weights, residual8", state="fp32", master="residual8"),
    _weights("bf16_residual16", "bf16 weights, residual16", state="fp32", master="residual16"),
    _ours("bf16_states", "bf16 state, auto", state="bf16", rounding="auto"),
    _ours("bf16_states_nearest", "bf16 state, nearest", state="bf16", rounding="nearest"),
    Variant("bnb_cpu", "bitsandbytes AdamW8bit on the CPU", bitsandbytes_cpu, moments=_cpu_moment),
    _ours("fp32_ours", "fp32 (Lowtide)", state="fp32"),
    Variant("bf16_momentum", "bf16 weights, error to momentum", _error_to_momentum, weights=torch.bfloat16),
    _four_bits("dither4", "4 bits, dithered", "dither"),
    _four_bits("stochastic4", "4 bits, stochastic", "stochastic"),
    _four_bits("nearest4", "4 bits, nearest", "nearest"),
    _four_bits("dither4_32", "4 bits, dithered, blocks of 32", "dither", block=32),
    _four_bits("dither4_256", "4 bits, dithered, blocks of 256", "dither", block=256),
    _four_bits("dither4_two", "4 bits, dithered, scales of two", "dither", power_of_two=True),
    _studied("dither4_root", "4 bits, dithered in the root (2nd: 4th root)", Format("dither", 0.5), Format("dither", 0.25)),
    _studied("dither4_debiased", "4 bits, dithered, less the root's bias", Format("dither"), Format("dither", 0.5, debiased=True)),
    _studied("dither4_linear", "4 bits, dithered, 2nd moment linear", Format("dither"), Format("dither")),
    _studied("dither4_stochastic", "4 bits, 1st dithered, 2nd stochastic", Format("dither"), Format("stochastic", 0.5)),
    _studied("dither4_first", "4 bits, dithered, 2nd moment fp32", Format("dither"), Format("nearest", exact=True)),
    _studied("dither4_second", "4 bits, dithered, 1st moment fp32", Format("nearest", exact=True), Format("dither", 0.5)),
)


def why_not(variant: Variant) -> str | None:
    """The reason why this installation cannot make a variant (its exception), or None."""
    param = torch.nn.Parameter(torch.zeros(32, 256, dtype=variant.weights))
    param.grad = torch.ones_like(param)
    try:
        variant.make([param], lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0).step()
    except (ImportError, TypeError, ValueError) as error:
        return str(error).partition("\n")[0]
    return None
