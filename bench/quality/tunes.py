"""The variants that fine-tune (finetune.py), in the order in which they run: those that decide something come first."""

from __future__ import annotations

import dataclasses

from quality.variants import VARIANTS, Variant

ORDERS = 3  # of the data, for each variant

_KNOWN = {variant.id: variant for variant in VARIANTS}


def _full(id: str) -> Variant:
    return dataclasses.replace(_KNOWN[id], seeds=ORDERS)


def _lora(id: str) -> Variant:
    known = _KNOWN[id]
    return dataclasses.replace(known, id=f"lora_{id}", label=f"LoRA, {known.label}", lora=True, seeds=ORDERS)


TUNES = (
    _full("fp32"),
    _full("fp32_c"),
    _full("bf16_nearest"),
    _full("bf16_stochastic"),
    _full("dynamic8"),
    _full("fp32_d"),
    _lora("fp32"),
    _lora("dynamic8"),
    _lora("fp32_c"),
    _lora("fp32_d"),
    _full("float8"),
    _full("dynamic4"),
    _lora("float8"),
    _lora("dynamic4"),
    _full("bf16_residual8"),
    _full("bf16_residual16"),
)
