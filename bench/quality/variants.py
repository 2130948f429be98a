"""The compared variants, one per line. A variant that this installation cannot make is left out, with the reason."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from common import contenders

Maker = Callable[..., torch.optim.Optimizer]  # (params, lr=, betas=, eps=, weight_decay=)


@dataclass(frozen=True)
class Variant:
    id: str
    label: str
    make: Maker
    weights: torch.dtype = torch.float32
    init_change: float = 0.0  # relative random change of every weight before the first step
    draw: int = 0  # number of that change
    seeds: int = 3
    noise: bool = False  # exact, but perturbed: differences of such runs are the noise of any run
    moments: Callable[[torch.optim.Optimizer, torch.Tensor], torch.Tensor] | None = field(default=None, compare=False)
    """The second moment of a parameter, decoded; None: not watched."""
    rule: str = "AdamW"  # gaps and noise are to float32 runs of the same rule
    lr: float = 1.0  # factor on the settings' lr
    device: str | None = None  # the only torch device type that it runs on, if any


def lowtide(**options: Any) -> Maker:
    def make(params: Iterable[torch.Tensor], **hyper: Any) -> torch.optim.Optimizer:
        from lowtide import AdamW

        return AdamW(params, **hyper, **options)

    return make


def torchao_4bit(params: Iterable[torch.Tensor], **hyper: Any) -> torch.optim.Optimizer:
    """torchao's AdamW4bit with an uncompiled step: the same operations without the C++ compiler that torch.compile needs on a
    CPU. The learning rate may be a number, as in training loops; torchao itself takes only a tensor."""
    made: torch.optim.Optimizer = contenders.torchao(params, bits=4, **hyper)
    compiled = made.step

    def step(closure: Any = None) -> Any:
        for group in made.param_groups:
            group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32)
        with torch.compiler.set_stance("force_eager"):
            return compiled(closure)

    made.step = step  # type: ignore[method-assign]
    return made


def _torch_moment(optimizer: torch.optim.Optimizer, param: torch.Tensor) -> torch.Tensor:
    moment: torch.Tensor = optimizer.state[param]["exp_avg_sq"]
    return moment


def _lowtide_moment(optimizer: Any, param: torch.Tensor) -> torch.Tensor:
    place = [id(one) for group in optimizer.param_groups for one in group["params"]].index(id(param))
    moment: torch.Tensor = optimizer.torch_state_dict()["state"][place]["exp_avg_sq"]
    return moment


def _torchao_moment(optimizer: Any, param: torch.Tensor) -> torch.Tensor:
    moment: torch.Tensor = optimizer.state[param]["exp_avg_sq"]
    return moment if type(moment) is torch.Tensor else moment.dequantize()  # small tensors have float32 state


def _cpu_moment(optimizer: Any, param: torch.Tensor) -> torch.Tensor:
    from bitsandbytes import functional

    state = optimizer.state[param]
    decode = functional.dequantize_blockwise
    moment: torch.Tensor = decode(state["state2"], absmax=state["absmax2"], code=state["qmap2"], blocksize=256)
    return moment.view_as(param)


def _ours(id: str, label: str, seeds: int = 3, **options: Any) -> Variant:
    return Variant(id, label, lowtide(**options), seeds=seeds, moments=_lowtide_moment)


def _weights(id: str, label: str, **options: Any) -> Variant:
    return Variant(id, label, lowtide(**options), weights=torch.bfloat16, seeds=5)


def _muon(id: str, label: str, state: str | None = None, rows: bool = False, rounding: str = "auto", **options: Any) -> Variant:
    """Lowtide's Muon with that state, with rows scaled if `rows`; None: torch's."""

    def make(params: Iterable[torch.Tensor], **hyper: Any) -> torch.optim.Optimizer:
        from quality.muon import NORMUON, Pair  # torch before 2.9 has no Muon

        return Pair(state and {"state": state, "rounding": rounding, **(NORMUON if rows else {})}, params, **hyper)

    rule = "NorMuon" if rows else "Muon"
    return Variant(id, f"{rule}, {label}", make, seeds=3 if rows else MANY, rule=rule, **options)


def _prodigy(id: str, label: str, state: str | None = None, **options: Any) -> Variant:
    """Lowtide's Prodigy with that state; None: the package prodigyopt's."""

    def make(params: Iterable[torch.Tensor], **hyper: Any) -> torch.optim.Optimizer:
        if state is None:
            from prodigyopt import Prodigy as Theirs

            return Theirs(params, use_bias_correction=True, safeguard_warmup=True, **hyper)
        from lowtide import Prodigy

        return Prodigy(params, use_bias_correction=True, safeguard_warmup=True, state=state, **hyper)

    return Variant(id, f"Prodigy, {label}", make, rule="Prodigy", **options)


def _schedule_free(id: str, label: str, package: bool = False, noise: bool = False, init_change: float = 0.0, **options: Any) -> Variant:
    """Schedule-Free, with only a warm-up as schedule: from the package schedulefree, or Lowtide's with these options."""

    def make(params: Iterable[torch.Tensor], **hyper: Any) -> torch.optim.Optimizer:
        if package:
            from schedulefree import AdamWScheduleFree as Theirs

            theirs = Theirs(params, **hyper)
            theirs.train()
            return theirs
        from lowtide import AdamWScheduleFree

        return AdamWScheduleFree(params, **hyper, **options)

    return Variant(
        id, f"Schedule-Free, {label}", make, seeds=6, rule="Schedule-Free", noise=noise, init_change=init_change, draw=3 if init_change else 0,
        lr=SCHEDULE_FREE_LR,
    )  # fmt: skip


SCHEDULE_FREE_LR = 2.0  # of 1, 2, 4, 8, with the package on one seed; 4 is 9 mN better at a beta2 of 0.95, 6 worse at 0.999
MANY = 12  # seeds of the variants that are compared most closely

# In the order of running and showing.
VARIANTS = (
    Variant("fp32", "fp32 (torch)", contenders.torch_fused, noise=True, seeds=MANY, moments=_torch_moment),
    Variant("fp32_c", "fp32, init changed by 1e-3", contenders.torch_fused, init_change=1e-3, draw=3, noise=True, seeds=MANY),
    Variant("fp32_d", "fp32, init changed by 1e-3, 2nd draw", contenders.torch_fused, init_change=1e-3, draw=4, noise=True),
    Variant("fp32_e", "fp32, init changed by 1e-3, 3rd draw", contenders.torch_fused, init_change=1e-3, draw=5, noise=True),
    _ours("dynamic8", "dynamic8, auto (default)", MANY, state="dynamic8", rounding="auto"),
    _ours("dynamic8_nearest", "dynamic8, nearest", MANY, state="dynamic8", rounding="nearest"),
    _ours("float8", "float8, auto", MANY, state="float8", rounding="auto"),
    _ours("dynamic4", "dynamic4, auto", MANY, state="dynamic4", rounding="auto"),
    _weights("bf16_nearest", "bf16 weights, nearest", state="fp32", master=None),
    _weights("bf16_stochastic", "bf16 weights, stochastic", state="fp32", master="stochastic"),
    _weights("bf16_residual8", "bf16 weights, residual8", state="fp32", master="residual8"),
    _weights("bf16_residual16", "bf16 weights, residual16", state="fp32", master="residual16"),
    _weights("bf16_dynamic8", "bf16 weights, stochastic; dynamic8", state="dynamic8", master="stochastic"),
    _weights("bf16_residual8_dynamic8", "bf16 weights, residual8; dynamic8", state="dynamic8", master="residual8"),
    _weights("bf16_residual16_dynamic8", "bf16 weights, residual16; dynamic8", state="dynamic8", master="residual16"),
    _ours("bf16_states", "bf16 state, auto", state="bf16", rounding="auto"),
    _ours("bf16_states_stochastic", "bf16 state, stochastic", state="bf16", rounding="stochastic"),
    _ours("bf16_states_nearest", "bf16 state, nearest", state="bf16", rounding="nearest"),
    Variant("bnb_cpu", "bitsandbytes AdamW8bit on the CPU", contenders.bitsandbytes, moments=_cpu_moment, device="cpu"),
    Variant("bnb_cuda", "bitsandbytes AdamW8bit on CUDA", contenders.bitsandbytes, device="cuda"),
    _ours("fp32_ours", "fp32 (Lowtide)", state="fp32"),
    Variant("torchao4", "torchao AdamW4bit", torchao_4bit, seeds=6, moments=_torchao_moment),
    # master_weight_bits: precision of bfloat16 weights with the error that FlashOptim keeps beside them; None: without it
    Variant("flashoptim_cuda", "FlashOptim FlashAdamW", partial(contenders.flashoptim, master_weight_bits=None), device="cuda"),
    Variant(
        "flashoptim_24", "FlashOptim FlashAdamW, bf16 weights of 24 bits", partial(contenders.flashoptim, master_weight_bits=24),
        weights=torch.bfloat16, device="cuda",
    ),
    _muon("muon_fp32", "fp32 (torch)", noise=True),
    _muon("muon_fp32_c", "fp32, init changed by 1e-3", noise=True, init_change=1e-3, draw=3),
    _muon("muon_fp32_d", "fp32, init changed by 1e-3, 2nd draw", noise=True, init_change=1e-3, draw=4),
    _muon("muon_fp32_ours", "fp32 (Lowtide)", "fp32"),
    _muon("muon_dynamic8", "dynamic8", "dynamic8"),
    _muon("muon_dynamic8_nearest", "dynamic8, nearest", "dynamic8", rounding="nearest"),
    _muon("muon_bf16", "bf16 state", "bf16"),
    _muon("normuon_fp32", "fp32", "fp32", rows=True, noise=True),
    _muon("normuon_fp32_c", "fp32, init changed by 1e-3", "fp32", rows=True, noise=True, init_change=1e-3, draw=3),
    _muon("normuon_fp32_d", "fp32, init changed by 1e-3, 2nd draw", "fp32", rows=True, noise=True, init_change=1e-3, draw=4),
    _muon("normuon_dynamic8", "dynamic8", "dynamic8", rows=True),
    _prodigy("prodigy_fp32", "fp32", "fp32", noise=True),
    _prodigy("prodigy_fp32_c", "fp32, init changed by 1e-3", "fp32", noise=True, init_change=1e-3, draw=3),
    _prodigy("prodigy_fp32_d", "fp32, init changed by 1e-3, 2nd draw", "fp32", noise=True, init_change=1e-3, draw=4),
    _prodigy("prodigy_package", "the package, fp32"),
    _prodigy("prodigy_dynamic8", "dynamic8", "dynamic8"),
    _schedule_free("sf_package", "the package, fp32", package=True, noise=True),
    _schedule_free("sf_package_c", "the package, init changed by 1e-3", package=True, noise=True, init_change=1e-3),
    _schedule_free("sf_fp32", "fp32", state="fp32"),
    _schedule_free("sf_dynamic8", "dynamic8", state="dynamic8"),
    _schedule_free("sf_dynamic8_nearest", "dynamic8, nearest", state="dynamic8", rounding="nearest"),
    _schedule_free("sf_float8", "float8", state="float8"),
    _schedule_free("sf_bf16", "bf16 state", state="bf16"),
)  # fmt: skip


def of_rule(rule: str) -> list[Variant]:
    return [variant for variant in VARIANTS if variant.rule == rule]


def makeable(variants: Sequence[Variant], device: str = "cpu") -> list[Variant]:
    """The variants that this installation can make. Prints which it cannot."""
    reasons = [(variant, why_not(variant, device)) for variant in variants]
    for variant, reason in reasons:
        if reason:
            print(f"{variant.id}: left out: {reason}", file=sys.stderr)
    return [variant for variant, reason in reasons if not reason]


def by_seed(variants: Sequence[Variant]) -> Iterator[tuple[int, Variant]]:
    """All variants of one seed before the next, so that an early stop leaves as many runs of each."""
    for seed in range(max((variant.seeds for variant in variants), default=0)):
        yield from ((seed, variant) for variant in variants if seed < variant.seeds)


def why_not(variant: Variant, device: str = "cpu") -> str | None:
    """Why this installation cannot make a variant (its exception), or None."""
    if variant.device not in (None, device):
        return f"it is for parameters on {variant.device}"
    refusals = (ImportError, TypeError, ValueError) if device == "cpu" else (ImportError, TypeError, ValueError, RuntimeError)
    try:
        param = torch.nn.Parameter(torch.zeros(32, 256, dtype=variant.weights, device=device))
        param.grad = torch.ones_like(param)
        variant.make([param], lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0).step()
    except refusals as error:
        return str(error).partition("\n")[0]
    return None
