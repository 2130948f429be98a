"""The figures that the CUDA backend must reach, and how they judge rows."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Figure:
    id: str  # id of the rows that give its value
    what: str
    must: float
    at_most: bool
    unit: str = ""

    @property
    def wanted(self) -> str:
        return f"{'≤' if self.at_most else '≥'} {self.must:g}{' ' + self.unit if self.unit else ''}"

    def reached(self, value: float) -> bool:
        compare: Callable[[float, float], bool] = operator.le if self.at_most else operator.ge
        return compare(value, self.must)


def _most(id: str, what: str, must: float, unit: str = "") -> Figure:
    return Figure(id, what, must, True, unit)


def _least(id: str, what: str, must: float) -> Figure:
    return Figure(id, what, must, False)


FIGURES = (
    _most("smoke", "one step of each kind of kernel against the CPU: differing bytes", 0, "bytes"),
    _most("same_bits", "rules, formats and places of state against the CPU: differing bytes", 0, "bytes"),
    _most("mantissas", "exact steps from all mantissas against the CPU: differing values", 0),
    _most("fast_error", "fast steps from all mantissas: largest error / its bound", 1),
    _least("resident_default", "default AdamW, bf16, dynamic8 / device copy bandwidth", 0.93),
    _least("resident_nearest", "the same, rounded to nearest / device copy bandwidth", 0.93),
    _least("resident_fp32", "AdamW, bf16, fp32 state / device copy bandwidth", 0.92),
    _most("fits_overhead", "everything fits: Memory(...) / none", 1.01),
    _least("bnb_resident", "7B shape, bf16: bitsandbytes AdamW8bit / Lowtide", 9),
    _least("torch_resident", "7B shape, fp32: torch fused AdamW / Lowtide", 1.7),
    _most("norms", "LAMB, LARS: time / the default step's", 2),
    _most("odd_rows", "rows of 1001 elements, misaligned views: time / the default step's", 1.4),
    _most("bytes_say", "master residual16: time / what its bytes say", 1.1),
    _most("call", "call of a step of 291 tensors, with the check for non-finite gradients", 100, "us"),
    _least("paged_dynamic8", "all state on the host, 8-bit: effective rate / probed link rate", 0.85),
    _least("paged_fp32", "all state on the host, fp32: effective rate / probed link rate", 0.85),
    _least("bnb_paged", "paged round trip: bitsandbytes PagedAdamW8bit / Lowtide", 2.7),
    _most("overlap_short", "step or prefetch in backward, 1 Ki tokens: time added / link's time", 0.65),
    _most("overlap_long", "step or prefetch in backward, 16 Ki tokens: time added / link's time", 0.15),
    _least("whole", "whole training steps, bf16: tokens per second, Lowtide / bitsandbytes AdamW8bit", 1),
    _most("fork", "fork of a process with 512 MiB of pinned state: time more", 5, "ms"),
    _most("capture_calls", "calls of CUDA in a capture that fail or succeed otherwise than on the H100", 0),
    _most("replays_noticed", "replays of a graph: prepared ones refused, unprepared ones unnoticed", 0),
)


def judge(figure: Figure, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """An entry for each row that has the figure, or a single entry "not measured"."""
    found = [row for row in rows if row.get("figure") == figure.id]
    values = [row for row in found if "value" in row]
    if not values:
        reason = found[0]["absent"] if found else "its measurement did not run or did not get there"
        return [{"what": figure.what, "must": figure.wanted, "got": None, "reached": None, "reason": reason}]
    return [{"what": figure.what, "must": figure.wanted, "got": row["value"], "reached": figure.reached(row["value"]),
             "reason": row["label"] if len(values) > 1 else ""} for row in values]  # fmt: skip
