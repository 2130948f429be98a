"""The rows of the step benchmark: what is stepped, by whom, how many bytes it moves, and what is expected of it."""

from __future__ import annotations

from dataclasses import dataclass

BASELINE = "torch AdamW fused, fp32"


@dataclass(frozen=True)
class Row:
    """One contender on one kind of parameter."""

    name: str
    maker: str  # lowtide | torch | bitsandbytes | deepspeed
    options: dict[str, object]
    bytes_per_element: int  # read + written once, scales left out
    ceiling: str | None = None  # name of the traffic mix it is set against
    dtype: str = "float32"
    must: dict[int, float] | None = None  # threads -> ratio to the baseline


# Streams of a mix: (bytes per element, written back?)
MIXES: dict[str, list[tuple[int, bool]]] = {
    "28 B": [(4, True), (4, True), (4, True), (4, False)],  # fp32 p, m, v; g
    "16 B": [(4, True), (1, True), (1, True), (4, False)],  # fp32 p, 8-bit m, v; g
    "14 B": [(4, True), (1, True), (4, False)],  # fp32 p, 8-bit m; g
    "10 B": [(2, True), (1, True), (1, True), (2, False)],  # bf16 p, 8-bit m, v; g
}

PROPAGATE = {"nonfinite": "propagate"}

LARGE = [
    Row(BASELINE, "torch", {"fused": True}, 28, "28 B"),
    Row("Lowtide AdamW fp32", "lowtide", {"state": "fp32", **PROPAGATE}, 28, "28 B", must={1: 1.0, 2: 1.0}),
    Row("  the same, gradients checked (default)", "lowtide", {"state": "fp32"}, 32, "28 B"),
    Row("Lowtide AdamW dynamic8", "lowtide", {"state": "dynamic8", **PROPAGATE}, 16, "16 B", must={1: 0.65, 2: 1.0}),
    Row("  the same, gradients checked (default)", "lowtide", {"state": "dynamic8"}, 20, "16 B"),
    Row("  the same on AVX2", "lowtide", {"state": "dynamic8", "target": "avx2", **PROPAGATE}, 16, "16 B", must={2: 0.5}),
    Row("Lowtide AdamW dynamic8, bf16 p and g", "lowtide", {"state": "dynamic8", **PROPAGATE}, 10, "10 B", "bfloat16"),
    Row("Lowtide AdamW bf16 state", "lowtide", {"state": "bf16", **PROPAGATE}, 20),
    Row("Lowtide Lion dynamic8", "lowtide", {"rule": "Lion", "state": "dynamic8", **PROPAGATE}, 14, "14 B", must={2: 1.5}),
]  # fmt: skip

PEERS = [
    Row(BASELINE, "torch", {"fused": True}, 28),
    Row("torch AdamW foreach, fp32", "torch", {"foreach": True}, 28),
    Row("bitsandbytes AdamW8bit", "bitsandbytes", {}, 16),
    Row("DeepSpeedCPUAdam, fp32", "deepspeed", {}, 28),
    Row("Lowtide AdamW dynamic8", "lowtide", {"state": "dynamic8", **PROPAGATE}, 16),
    Row("  the same, gradients checked (default)", "lowtide", {"state": "dynamic8"}, 20),
]
BITSANDBYTES_MUST = 25.0

TINY_MUST_MICROSECONDS, TINY_MUST_RATIO = 1.5, 5.0
TINY = [
    Row(BASELINE, "torch", {"fused": True}, 28),
    Row("Lowtide AdamW fp32", "lowtide", {"state": "fp32", **PROPAGATE}, 28),
    Row("  the same, gradients checked (default)", "lowtide", {"state": "fp32"}, 32),
    Row("Lowtide AdamW dynamic8", "lowtide", {"state": "dynamic8", "min_quantized_numel": 0, **PROPAGATE}, 16),
]
