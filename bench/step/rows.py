"""The measurements: groups of lines that run in turn over the same parameters and gradients, and their targets."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from step.ceiling import Widths

NEAREST = "formats-dynamic8-nearest"  # stochastic rounding is compared with this line
FUSED_BF16 = "torch-fused-bf16"
FUSED = "torch-fused"  # every group has this line, with which all others are compared


@dataclass(frozen=True)
class Target:
    figure: str  # a name of FIGURES
    wanted: float
    threads: int | None = None  # only with this number of threads

    @property
    def at_most(self) -> bool:
        return self.figure in AT_MOST

    def reached(self, got: float) -> bool:
        return got <= self.wanted if self.at_most else got >= self.wanted


FIGURES = {
    "x_fused": "× torch fused",
    "x_bitsandbytes": "× bitsandbytes",
    "ceiling": "of the ceiling",
    "scaling": "× its 1 thread",
    "us_per_tensor": "µs per tensor",
    "state_bytes": "B of state per parameter",
    "x_fused_bf16": "× torch fused in bf16",
    "x_nearest": "of the time to nearest",
}
AT_MOST = ("us_per_tensor", "state_bytes", "x_nearest")


@dataclass(frozen=True)
class Line:
    id: str
    label: str
    contender: str  # a key of CONTENDERS
    widths: Widths  # bytes per element of p, g and the states
    rule: str = "adamw"
    options: dict[str, Any] = field(default_factory=dict)
    dtype: str = "float32"  # of parameters and gradients
    targets: tuple[Target, ...] = ()
    clips: bool = False  # whether the line is clip + step + zero_grad, not only the step

    @property
    def checks_gradients(self) -> bool:
        """True if it reads the gradients once before it stores anything, to skip a step with a non-finite one."""
        if self.clips:  # the norm finds them
            return False
        if self.contender == "lowtide_bnb":
            return True
        return self.contender == "lowtide" and self.options.get("nonfinite", "skip") != "propagate"

    @property
    def passes(self) -> list[Widths]:
        """The unavoidable passes of this step over memory."""
        g = self.widths[1]
        read: list[Widths] = [(0, g, 0, 0)] if self.checks_gradients or self.clips else []
        if self.rule == "prodigy":  # its sums read two of the four states, and find such gradients
            read = [(0, g + self.widths[2], 0, 0)]
        scaled: list[Widths] = [(g, 0, 0, 0)] if self.clips and self.contender != "lowtide" else []
        return [*read, *scaled, self.widths]


@dataclass(frozen=True)
class Group:
    id: str
    title: str
    lines: tuple[Line, ...]
    shape: tuple[int, ...] = (16384, 4096)  # of one tensor
    quick_shape: tuple[int, ...] = (1024, 4096)
    tensors: int = 1
    quick_tensors: int = 1
    clean: int = 15  # wanted samples of each line at each number of threads
    limit: int = 40  # the most rounds
    ceiling: bool = True


def _fused(dtype: str = "float32") -> Line:
    if dtype == "float32":
        return Line(FUSED, "torch AdamW(fused)", "torch", (4, 4, 4, 4))
    return Line(FUSED_BF16, "torch AdamW(fused), bf16 p, g, state", "torch", (2, 2, 2, 2), dtype=dtype)


def _widths(state: str, rule: str, dtype: str, master: str | None) -> Widths:
    """Widths in bytes. Two half-byte states count as one of a byte, and a residual widens the states."""
    p = 4 if dtype == "float32" else 2
    if rule == "lion" or state == "dynamic4":
        return p, p, 1, 0
    each = {"fp32": 4, "bf16": 2}.get(state, 1) + (1 if master == "residual16" else 0)
    each *= 2 if rule == "prodigy" else 1  # four states
    return p, p, each, each


def _lowtide(
    id: str, label: str, state: str, *targets: Target, rule: str = "adamw", dtype: str = "float32",
    unchecked: tuple[Target, ...] = (), **options: Any,
) -> list[Line]:
    """Two lines: without the check for non-finite gradients, as in torch, and with it, as by default. unchecked: further
    targets of the first."""
    widths = _widths(state, rule, dtype, options.get("master"))
    both = []
    for suffix, name, policy in (("", "", "propagate"), ("+check", " + check", "skip")):
        all_options = {"rule": rule, "state": state, "nonfinite": policy, **options}
        wanted = targets if suffix else (*targets, *unchecked)
        both.append(Line(id + suffix, f"lowtide {label}{name}", "lowtide", widths, rule, all_options, dtype, wanted))
    return both  # fmt: skip


def _format(id: str, label: str, state: str, *targets: Target, dtype: str = "float32", **options: Any) -> list[Line]:
    """Only the line without the check for non-finite gradients."""
    return _lowtide(f"formats-{id}", f"AdamW {label}", state, *targets, dtype=dtype, **options)[:1]


def _clipped(line: Line, *targets: Target) -> Line:
    return replace(line, clips=True, targets=targets)


def _clipping(dtype: str, *targets: Target) -> tuple[Line, ...]:
    """clip + step + zero_grad of Lowtide and its peers, each with its default options."""
    p = 4 if dtype == "float32" else 2
    suffix = "" if p == 4 else "-bf16"
    theirs = (
        Line("deepspeed", "DeepSpeedCPUAdam", "deepspeed", (p, p, 4, 4)),
        Line("torchao-8bit", "torchao AdamW8bit", "torchao", (p, p, 1, 1), options={"bits": 8}),
        Line("torchao-4bit", "torchao AdamW4bit", "torchao", (p, p, 1, 0), options={"bits": 4}),
        Line("bitsandbytes", "bitsandbytes AdamW8bit", "bitsandbytes", (p, p, 1, 1)),
        Line("flashoptim-plain", "FlashAdamW, unquantized and unfused", "flashoptim-plain", (p, p, p, p)),
    )
    ours = (
        Line("dynamic8", "lowtide AdamW dynamic8", "lowtide", (p, p, 1, 1)),
        Line("float8", "lowtide AdamW float8", "lowtide", (p, p, 1, 1), options={"state": "float8"}),
        Line("bf16-state", "lowtide AdamW bf16 state", "lowtide", (p, p, 2, 2), options={"state": "bf16"}),
    )
    fused = (_fused(),) if p == 4 else (_fused(), _fused(dtype))
    named = [replace(line, id=f"clip-{line.id}{suffix}", dtype=dtype) for line in (*ours, *theirs)]
    return (*map(_clipped, fused), *(_clipped(line, *(targets if line is named[0] else ())) for line in named))


def _reads(dtype: str) -> tuple[Line, ...]:
    """Passes that only read gradients. Their ceiling is a plain read."""
    p = 4 if dtype == "float32" else 2
    calls = (("check", "lowtide's check", 0.9), ("norm", "lowtide's norm", 0.9), ("torch", "torch's norm", None))
    return (
        _fused(),
        *(
            Line(
                f"read-{call}-{dtype}", f"{label}, {dtype}", "gradient_reads", (0, p, 0, 0), options={"call": call},
                dtype=dtype, targets=(Target("ceiling", wanted),) if wanted else (),
            )
            for call, label, wanted in calls
        ),
    )  # fmt: skip


_TINY: dict[str, Any] = {"shape": (1024,), "quick_shape": (1024,), "tensors": 10000, "quick_tensors": 1000, "ceiling": False}
_NEAR_BF16 = Target("x_fused_bf16", 0.95, threads=2)
_STATE = Target("state_bytes", 2.04)  # two 1-byte codes, and two 4-byte scales per 256: 2.03125

GROUPS = (
    Group(
        "fp32", "fp32 parameters and gradients",
        (
            _fused(),
            *_lowtide("fp32", "AdamW fp32", "fp32", Target("x_fused", 1.0), Target("ceiling", 0.95)),
            *_lowtide(
                "dynamic8", "AdamW dynamic8", "dynamic8", Target("x_fused", 0.65, threads=1), Target("x_fused", 1.0, threads=2),
                Target("scaling", 1.85, threads=2), _STATE, unchecked=(Target("x_fused", 1.15, threads=2),),
            ),
            *_lowtide("dynamic8-avx2", "AdamW dynamic8, AVX2 path", "dynamic8", Target("x_fused", 0.8, threads=2), cpu_target="avx2"),
            *_lowtide("bf16-state", "AdamW bf16 state", "bf16"),
            *_lowtide("lion-dynamic8", "Lion dynamic8", "dynamic8", Target("x_fused", 1.5, threads=2), rule="lion"),
        ),
    ),
    Group(
        "bf16", "bf16 parameters and gradients",
        (
            _fused(),
            _fused("bfloat16"),
            *_lowtide("bf16-dynamic8", "AdamW dynamic8, bf16 p, g", "dynamic8", dtype="bfloat16"),
            *_lowtide("bf16-fp32", "AdamW fp32 state, bf16 p, g", "fp32", dtype="bfloat16"),
        ),
    ),
    Group(
        "formats", "state formats, fp32 parameters and gradients",
        (
            _fused(),
            *_format("float8", "float8", "float8", Target("x_fused", 1.45, threads=2)),
            *_format("dynamic8-nearest", "dynamic8, nearest", "dynamic8", rounding="nearest"),
            *_format("dynamic8", "dynamic8 (default)", "dynamic8", Target("x_nearest", 1.05), Target("x_fused", 0.9, threads=2)),
            *_format("dynamic4", "dynamic4", "dynamic4", Target("x_fused", 1.6, threads=2)),
            *_format("float8-avx2", "float8, AVX2 path", "float8", cpu_target="avx2"),
            *_format("dynamic8-avx2", "dynamic8 (default), AVX2 path", "dynamic8", cpu_target="avx2"),
        ),
        limit=24,
    ),
    Group(
        "formats-bf16", "state formats, bf16 parameters and gradients",
        (
            _fused(),
            _fused("bfloat16"),
            *_format("float8-bf16", "float8", "float8", Target("x_fused", 1.9, threads=2), dtype="bfloat16"),
            *_format("dynamic8-nearest-bf16", "dynamic8, nearest", "dynamic8", _NEAR_BF16, dtype="bfloat16", rounding="nearest"),
            *_format("dynamic8-bf16", "dynamic8 (default)", "dynamic8", _NEAR_BF16, dtype="bfloat16"),
            *_format(
                "residual16", "dynamic8, master residual16", "dynamic8", Target("x_fused_bf16", 0.75, threads=2), dtype="bfloat16",
                master="residual16",
            ),
        ),
        limit=24,
    ),
    *(
        Group(f"prodigy{suffix}", f"Prodigy beside AdamW, {dtype} parameters and gradients", (_fused(), *(
            line for state in ("fp32", "dynamic8")
            for rule, name, options in (("adamw", "AdamW", {}), ("prodigy", "Prodigy", {"growth_rate": 1.02}))
            for line in _lowtide(f"{rule}-{state}{suffix}", f"{name} {state}", state, rule=rule, dtype=dtype, **options)
        )), ceiling=False)
        for suffix, dtype in (("", "float32"), ("-bf16", "bfloat16"))
    ),
    Group(
        "rivals", "other optimizers",
        (
            _fused(),
            *_lowtide("rivals-dynamic8", "AdamW dynamic8", "dynamic8", Target("x_bitsandbytes", 25.0)),
            *_lowtide("rivals-fp32", "AdamW fp32", "fp32"),
            Line("bitsandbytes", "bitsandbytes AdamW8bit", "bitsandbytes", (4, 4, 1, 1)),
            Line(
                "bnb-library", "liblowtide_bnb, adam in 8 bits", "lowtide_bnb", (4, 4, 1, 1),
                targets=(Target("x_bitsandbytes", 15.0),),
            ),
            Line(
                "bnb-library-map", "liblowtide_bnb, other maps", "lowtide_bnb", (4, 4, 1, 1), options={"map": "other"},
                targets=(Target("x_bitsandbytes", 1.0),),
            ),
            Line("deepspeed", "DeepSpeedCPUAdam", "deepspeed", (4, 4, 4, 4)),
        ),
        shape=(4096, 4096), quick_shape=(256, 4096), clean=9, limit=20,
    ),
    *(
        Group(
            id, f"clip + step + zero_grad, {dtype} parameters and gradients", _clipping(dtype, target),
            clean=9, limit=20, ceiling=False,
        )
        for id, dtype, target in (
            ("clipping", "float32", Target("x_fused", 1.5, threads=2)),
            ("clipping-bf16", "bfloat16", Target("x_fused_bf16", 1.2, threads=2)),
        )
    ),
    *(Group(f"reads-{dtype}", f"reading {dtype} gradients", _reads(dtype)) for dtype in ("float32", "bfloat16", "float16")),
    Group(
        "tiny", "many small tensors, the whole Python step()",
        (
            _fused(),
            *_lowtide("tiny-fp32", "AdamW fp32", "fp32", Target("us_per_tensor", 1.0), Target("x_fused", 6.0)),
            *_lowtide("tiny-dynamic8", "AdamW dynamic8", "dynamic8", min_quantized_numel=1),
        ),
        **_TINY,
    ),
    Group(
        "tiny-clipping", "many small tensors, clip + step + zero_grad",
        (_clipped(_fused()), _clipped(Line("tiny-clip", "lowtide AdamW", "lowtide", (4, 4, 4, 4)), Target("x_fused", 6.0))),
        **_TINY,
    ),
)  # fmt: skip
