"""The compiled core (nanobind). Private: use the classes of `lowtide`."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

# This file stands below all others: names of their types are in comments.
Budget = tuple[int, str, int, int, int, bool, str, bool]  # lowtide.memory.budgets.Budget
Allocator = tuple[Callable[[int], int], Callable[[int], None]]  # lowtide.devices.places.Allocator

__version__: str

class DeviceLostError(RuntimeError): ...

def rule_names() -> list[str]: ...
def codec_names() -> list[str]: ...
def state_names(rule: str) -> list[str]:
    """e.g. ["exp_avg", "exp_avg_sq"]: of the rule without options that add to them"""

def cpu_targets() -> list[str]:
    """Instruction-set paths this CPU can run, best first."""

def backends() -> dict[str, Any]: ...  # of lowtide.Backend
def default_hyper(rule: str) -> dict[str, float | bool]:
    """Hyper-parameters of `rule` with their defaults; the keys are those `Optimizer.set_hyper` takes."""

def report_fields() -> list[tuple[str, str, str]]: ...  # (name, unit, meaning)
def same_objects(a: Sequence[object], b: Sequence[object]) -> bool: ...  # the very same, in the same order
class HyperParameter:
    """One line of the core's table, for one rule or in general."""

    name: str  # as the core takes it
    default: float | bool  # of the rule
    flag: bool  # a bool
    range: str  # in words; "" for flags
    rules: list[str]  # that read it

def hyper_parameters(rule: str = "") -> list[HyperParameter]:
    """All; with a rule, those that it reads, with its defaults."""

class StateLayout:
    rule: str  # that steps it: of the catalog
    codec: str
    states: list[tuple[str, bool]]  # name, and whether it takes both signs
    tensors: list[tuple[str, str, tuple[int, ...]]]  # key, dtype and shape, as `Optimizer.state` has them but for "step"
    bytes: int  # codes and scales

# Functions from options to answers; no optimizer is built. ValueError, with the texts of `Optimizer`.
def check_group(
    rule: str, hyper: dict[str, float | bool], state: str, min_quantized_numel: int, rounding: str = "auto",
    master: str = "", present: dict[str, float | bool] | None = None, codecs: Sequence[str] = (),
) -> None:  # fmt: skip
    """Raises where `Optimizer.add_group` refuses the group. With `present`, the hyper-parameters of a group whose parameters
    have these codecs, raises where `set_hyper` refuses the change."""

def state_layout(
    rule: str, hyper: dict[str, float | bool], state: str, min_quantized_numel: int, rounding: str, master: str,
    sizes: Sequence[int], dtype: str, whole: tuple[list[int], bool, list[int]] | None = None, fullest: bool = True,
) -> StateLayout:  # fmt: skip
    """State of a parameter of such a group. fullest: all states that it can have; else those of its hyper-parameters."""

# Addresses of contiguous host memory: float32 values [rows, row_length], codes, and scales (0: the codec has none).
def code_sizes(codec: str, signed: bool, rows: int, row_length: int) -> tuple[str, tuple[int, int], tuple[int, int] | None]:
    """The dtype of codes, their shape and that of scales."""

def encode(
    codec: str, signed: bool, values: int, rows: int, row_length: int, codes: int, scales: int
) -> None: ...
def decode(
    codec: str, signed: bool, codes: int, scales: int, rows: int, row_length: int, values: int
) -> None: ...
def checkpoint_metadata(path: str) -> str: ...
def describe_checkpoint(path: str) -> dict[str, Any]:
    """{"rule", "metadata", "params", "elements", "states": {format: {"params", "bytes"}}, "fewest_steps",
    "most_steps"}. ValueError, OSError."""

def parse_bytes(text: str) -> int:
    """"2GiB" -> 2147483648. ValueError."""

def format_bytes(bytes: int) -> str:
    """1610612736 -> "1.50 GiB"."""

def plan_memory(
    rule: str,
    memory: Budget | None,
    groups: Sequence[tuple[Sequence[Any], str, int, dict[str, float | bool], Budget | None, float, int, str, str]],
    read_rate: float = 0.0,
    write_rate: float = 0.0,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """groups: (shapes, state, min_quantized_numel, hyper-parameters that are not the defaults, own budget, bytes of state
    stepped per second, group whose budget it shares or -1, rule or "", master or "").
    shapes: (sizes, whole or None, element type). Returns the fields of `lowtide.planning.plan.BudgetPlan` in all and for each budget: the optimizer's, then each group's own."""

def measure_step_rate(
    rule: str,
    state: str,
    hyper: dict[str, float | bool] = ...,
    threads: int = 0,
    elements: int = 0,
    seconds: float = 0.5,
) -> float:
    """Bytes of state per second; 0 for a rule without state. Releases the GIL."""

def disk_info(directory: str) -> dict[str, Any]:
    """{"free_bytes": int, "engine": str, "direct": bool}. ValueError, OSError."""

def measure_disk_rates(directory: str, bytes: int = 268435456, seconds: float = 1.0) -> dict[str, Any]:
    """The fields of `disk_info`, "read" and "write" in bytes per second, and the "bytes" used. Releases the GIL."""

class Signer:
    """Where signs are computed: the CPU, or the device of a queue. Arrays are addresses with their bytes, contiguous
    and alive until the call returns (on a device: until what it queued is done); 0: none. stream: the queue."""

    def __init__(self, backend: str = "cpu", stream: int = 0, target: str = "") -> None: ...
    def pack(
        self, values: int, dtype: str, count: int, bits: int, bits_bytes: int, order: str, threads: int,
        stream: int = 0,
    ) -> None: ...  # fmt: skip
    def unpack(
        self, bits: int, bits_bytes: int, values: int, dtype: str, count: int, zeros: int, zeros_bytes: int,
        order: str, threads: int, stream: int = 0,
    ) -> None: ...  # fmt: skip
    def majority(
        self, ballots: Sequence[int], count: int, weights: Sequence[int] | None, ties: str, seed: int, step: int,
        offset: int, previous: int, result: int, result_bytes: int, zeros: int, zeros_bytes: int, order: str,
        threads: int, stream: int = 0,
    ) -> None: ...  # fmt: skip

SIGN_ALIGNMENT: int
"""Signs: those of a parameter begin at a multiple of it."""
SIGN_BLOCK: int
"""Signs of one presence bit."""
FEEDBACK_BLOCK: int
"""Signs of one scale of error feedback."""
STATE_BLOCK: int
"""Values of one scale of state."""

# Gradients: of each its address, its elements (contiguous, on the CPU) and the number of its first sign, a multiple of
# SIGN_ALIGNMENT. dtype: as str() of torch's. Other arguments that are ints and no counts are addresses, 0 for none,
# alive until the call returns. The GIL is released.
def pack_gradients(
    gradients: Sequence[tuple[int, int, int]], dtype: str, bits: int, presence: int, zero_is_plus: bool, threads: int
) -> bool:
    """Signs into `bits` and, unless 0, blocks that are not all zeros into `presence`. Whether a value is not finite."""

def unpack_gradients(
    gradients: Sequence[tuple[int, int, int]], dtype: str, bits: int, presence: int, zeros: int, scales: int,
    threads: int,
) -> None:  # fmt: skip
    """Writes +1 and -1, times bfloat16 `scales` (one for FEEDBACK_BLOCK signs) unless 0; and 0 where `zeros` has a 1 or
    `presence` a 0."""

def feed_back(
    gradients: Sequence[tuple[int, int, int]], dtype: str, value_scale: float, codec: str,
    residuals: Sequence[tuple[int, int]], bits: int, scales: int, threads: int,
) -> None:  # fmt: skip
    """Gradients times `value_scale`, plus their residuals (codes and scales of `codec`), as bits and scales; residuals
    become what these leave out."""

def convert_residual(encode: bool, values: int, codes: int, scales: int, count: int, codec: str) -> None:
    """float32 values into a signed state of one row, or out of it."""

def join_master(master: str, dtype: str, weights: int, residual: int, n: int, out: int) -> None: ...
def split_master(master: str, dtype: str, values: int, n: int, weights: int, residual: int) -> None: ...
def codec_bytes(codec: str) -> tuple[int, bool]:
    """Bytes of one code, and whether there are scales."""

class SignAccumulator:
    """See `lowtide::SignAccumulator`."""

    def __init__(self, count: int, most: int, threads: int) -> None: ...
    def add(self, values: int, dtype: str) -> bool:
        """Whether all values are finite; they are counted in any case. ValueError after `most` times."""

    def mean(self, out: int) -> None:
        """float32 [count]."""

    def added(self) -> int: ...
    def bytes(self) -> int: ...
    def reset(self) -> None: ...

class SignResidual:
    """See `lowtide::SignResidual`. Of the shard of `rank` among `size` workers of `count` signs."""

    def __init__(self, count: int, rank: int, size: int, state: str) -> None: ...
    def first(self) -> int:
        """Number of the shard's first sign."""

    def count(self) -> int:
        """Signs of the shard."""

    def bytes(self) -> int:
        """As stored."""

    def allocated_bytes(self) -> int:
        """In memory: with room for the next."""

    def read(self, out: int) -> None:
        """As stored: bytes() of them."""

    def replace(self, values: int, /) -> None: ...
    def read_values(self, out: int) -> None:
        """float32 [count()]."""

    def replace_values(self, values: int, /) -> None: ...

class SignCollective:
    """See `lowtide::SignCollective`. all_to_all, all_gather: (send, receive, bytes each), of addresses; what they raise
    comes out of the call that made them. Calls return the fields of `lowtide.distributed.Outcome`.
    """

    def __init__(
        self, rank: int, size: int, all_to_all: Callable[[int, int, int], None],
        all_gather: Callable[[int, int, int], None], *, ties: str, seed: int, algorithm: str, weight: int, threads: int,
        commit: bool = True,
    ) -> None: ...  # fmt: skip
    def vote(
        self, count: int, step: int, digest: int, nonfinite: bool, failed: bool, ready: Callable[[], bool], bits: int,
        presence: int, zeros: int, previous: int, /,
    ) -> dict[str, Any]:  # fmt: skip
        """bits and presence: the ballot, and the result in its place. ready: called when all workers have agreed to go
        on, before anything is read; whether this one can. What it raises comes out here. ValueError where workers differ,
        ConnectionError where messages came damaged or one was not `ready`; the same on all."""

    def mean(
        self, count: int, step: int, digest: int, nonfinite: bool, failed: bool, ready: Callable[[], bool], bits: int,
        scales: int, residual: SignResidual, /,
    ) -> dict[str, Any]: ...  # fmt: skip

class Optimizer:
    """A `lowtide::Optimizer` plus the parameters' tensors. Bad values raise ValueError and change nothing."""

    def __init__(
        self,
        rule: str,
        nonfinite: str = "skip",
        threads: int = 0,
        cpu_target: str = "",
        memory: Budget | None = None,
        backend: str = "cpu",
        stream: int = 0,
        device: str = "cpu",
        target: str = "",
        allocator: Allocator | None = None,
        seed: int = 0,
    ) -> None:
        """stream: address of a queue of the backend, whose device and context are those of all steps; 0: its own.
        device: of parameters and gradients, as str(tensor.device) has it. target: what the backend calls that device.
        allocator: where its memory is taken from; None: the driver. It is called by any method and when the optimizer
        and all views of its state are gone."""

    def add_group(
        self, hyper: dict[str, float | bool], state: str, min_quantized_numel: int, memory: Budget | None = None,
        rounding: str = "auto", master: str = "", budget_of: int = -1, rule: str = "",
    ) -> int:  # fmt: skip
        """budget_of: the group whose budget it shares; -1: the optimizer's. rule: another than the optimizer's."""

    def set_rounding(self, group: int, rounding: str) -> None: ...
    def set_seed(self, seed: int) -> None: ...
    def set_hyper(self, group: int, hyper: dict[str, float | bool]) -> None: ...
    def set_threads(self, threads: int) -> None: ...
    def set_nonfinite(self, nonfinite: str) -> None: ...
    def add_param(
        self, group: int, param: torch.Tensor, with_state: bool = True,
        whole: tuple[list[int], bool, list[int]] | None = None,
    ) -> int:  # fmt: skip
        """Registers a strided tensor of float32, bfloat16 or float16 on the device; returns its number (0, 1, ... over
        all groups). whole: of a DTensor, see `Sharding.shard`."""

    def place_states(self) -> None: ...
    def check(self, grad_scale: float = 1.0, stream: int = 0) -> int:
        """Returns the result that `step` would return, without stepping."""

    def step(
        self, grad_scale: float = 1.0, assume_finite: bool = False, stream: int = 0, free_bytes: int = -1,
        only: Sequence[int] | None = None, directions: Sequence[int] | None = None,
    ) -> int:  # fmt: skip
        """One step over every parameter whose `.grad` is not None. Returns -1 when applied or not known yet, else
        (skipped) the number of the first parameter with a non-finite gradient. Releases the GIL while computing.
        free_bytes: see `lowtide::StepOptions`. only: parameters with other numbers count as without a gradient.
        directions: of each parameter an address of contiguous float32, or 0: it gets what would be subtracted, without
        learning rate and weight decay, and the parameter stays."""

    def prepare_replay(self, grad_scale: float = 1.0, stream: int = 0) -> None:
        """See `lowtide::Optimizer`; so do the next three."""

    def prefetch(self, bytes: int, stream: int = 0) -> int: ...
    def demote(self, bytes: int) -> int: ...
    def synchronize(self) -> None: ...

    def sign_count(self) -> int:
        """Number of signs of all parameters, each padded to a multiple of SIGN_ALIGNMENT."""

    def ballots(
        self, bits: int, presence: int, zero_is_plus: bool, grad_scale: float, assume_finite: bool, stream: int, /
    ) -> int:
        """As `step`, but no parameter moves: addresses get the signs of what would be subtracted, and the blocks that
        are not all zeros. Both are written whole."""

    def apply_signs(self, bits: int, presence: int, zeros: int, stream: int, /) -> None:
        """Moves all parameters by signs at these addresses (zeros: 0 for none), with their groups' lr and weight_decay.
        Counts no step."""

    def has_state(self, param: int) -> bool: ...
    def state_count(self) -> int:
        """Parameters with state. Waits for nothing."""

    def allocate_state(self, param: int) -> None: ...
    def states_of(self, param: int) -> list[tuple[str, bool]]:
        """Name, and whether it takes both signs, of every state that the parameter has or can be given, in the order of
        `state`, `export_state` and `import_state`."""

    def state_codec(self, param: int) -> str:
        """Codec in use for this parameter (float32 for small ones)."""

    def state(self, param: int) -> dict[str, torch.Tensor]:
        """Views (no copies) of the live state: "step" int64 (), NAME with the parameter's sizes (float32, bfloat16 or
        uint8 codes) or, two codes to a byte, uint8 (rows, bytes of a row), and NAME_scale float32 (rows, ceil(row
        length / block)) where the codec has scales."""

    def is_paged(self, param: int) -> bool:
        """Whether the state streams from a disk or is on a device: `state` shows its step count only."""

    def read_state(self, param: int) -> dict[str, torch.Tensor]:
        """Copies of the tensors that `state` shows, wherever the state lives."""

    def write_state(self, param: int, tensors: dict[str, torch.Tensor]) -> None:
        """Takes back what `read_state` gave, but for the step count: contiguous tensors of those types and shapes."""

    def save(self, path: str, metadata: str) -> None: ...
    def load(self, path: str) -> str: ...
    def export_state(self, param: int, k: int) -> torch.Tensor:
        """State k decoded to float32, the parameter's sizes (a copy)."""

    def import_state(self, param: int, k: int, value: torch.Tensor) -> None:
        """Encodes a contiguous float32 CPU tensor of the parameter's sizes into state k."""

    def step_count(self, param: int) -> int: ...
    def set_step_count(self, param: int, step: int) -> None: ...
    def offload(self) -> None:
        """See `lowtide.Optimizer.offload`."""
    def onload(self) -> None:
        """See `lowtide.Optimizer.onload`."""
    def report(self) -> Any:
        """A lowtide.report.fields.CoreReport."""

    def cpu_target(self) -> str: ...
