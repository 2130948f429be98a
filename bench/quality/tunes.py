"""The variants that fine-tune (finetune.py), in the order in which they run: those that decide something come first."""

from __future__ import annotations

import dataclasses

from quality.grids import E4M3
from quality.studied import Weights
from quality.variants import VARIANTS, Variant, rounded

ORDERS = 3  # of the data, for each variant

_KNOWN = {variant.id: variant for variant in VARIANTS}


def _full(id: str) -> Variant:
    return dataclasses.replace(_KNOWN[id], seeds=ORDERS)


def _lora(id: str) -> Variant:
    known = _KNOWN[id]
    return dataclasses.replace(known, id=f"lora_{id}", label=f"LoRA, {known.label}", lora=True, seeds=ORDERS)


def _rounded(id: str, label: str, weights: Weights) -> Variant:
    return dataclasses.replace(rounded(id, label, weights), seeds=ORDERS)


TUNES = (
    _full("fp32"),
    _full("fp32_c"),
    _full("bf16_nearest"),
    _full("bf16_stochastic"),
    _full("bf16_momentum"),
    _rounded("e4m3_nearest", "E4M3 weights, nearest", Weights(E4M3)),
    _rounded("e4m3_stochastic", "E4M3 weights, stochastic", Weights(E4M3, stochastic=True)),
    _rounded("e4m3_momentum", "E4M3 weights, error to momentum", Weights(E4M3, error="momentum")),
    _rounded("e4m3_momentum_stochastic", "E4M3 weights, stochastic, error to momentum", Weights(E4M3, True, "momentum")),
    _full("dynamic8"),
    _full("fp32_d"),
    _lora("fp32"),
    _lora("dynamic8"),
    _lora("fp32_c"),
    _lora("fp32_d"),
    _rounded("e4m3_master", "E4M3 weights, fp32 master", Weights(E4M3, error="master")),
    _full("bf16_momentum_stochastic"),
    _full("float8"),
    _full("dynamic4"),
    _lora("float8"),
    _lora("dynamic4"),
    _full("bf16_residual8"),
    _full("bf16_residual16"),
    _full("bnb_rule"),
)
