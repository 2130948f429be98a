"""Parts that several Python tests share: every rule by name, bit-for-bit snapshots, trained optimizers, spoilt dicts."""

import copy
import io
import pickle
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lowtide
import pytest
import torch
from lowtide import _core
from lowtide.optimizers.classes import CLASSES
from lowtide.state.elsewhere import Elsewhere

# Options that make a rule do more than its defaults do.
_OPTIONS: dict[str, dict[str, Any]] = {
    "sgd": {"momentum": 0.9},
    "adagrad": {"lr_decay": 0.01, "initial_accumulator_value": 0.1},
    "rmsprop": {"momentum": 0.9, "centered": True},
    "ademamix": {"t_alpha": 10, "t_beta3": 20},
    "schedulefree": {"warmup_steps": 3},
    "prodigy": {"d0": 1e-3, "use_bias_correction": True},
}
# name → class, options: every rule of the core, and variants
RULES: dict[str, tuple[type[lowtide.Optimizer], dict[str, Any]]] = {
    **{rule: (CLASSES[rule], _OPTIONS.get(rule, {})) for rule in _core.rule_names()},
    "sgd_plain": (lowtide.SGD, {}),
    "adamw_amsgrad": (lowtide.AdamW, {"amsgrad": True}),
    "nadam": (lowtide.NAdam, {}),
}
RULE_OF = {"sgd_plain": "sgd", "adamw_amsgrad": "adamw", "nadam": "adam"}  # the others are called as the core's rule
CODECS = ("dynamic8", "float8", "bf16", "fp32")  # for every rule
FOUR_BITS = ("dynamic4",)  # for averages of 0.9 at most
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def make(rule: str, params: Any, **options: Any) -> lowtide.Optimizer:
    cls, fixed = RULES[rule]
    return cls(params, **{**fixed, **options})


def _takes_four_bits(rule: str) -> bool:
    try:
        make(rule, [torch.nn.Parameter(torch.zeros(64, 256))], state=FOUR_BITS[0])
    except ValueError:
        return False
    return True


# They step single parameters; the others' classes refuse that, because a step needs the gradients of all.
SINGLE_STEPS = [rule for rule in RULES if rule not in _core.rules_with_sums()]
LONG_AVERAGES = [rule for rule in RULES if not _takes_four_bits(rule)]


def parameter(*shape: int, dtype: torch.dtype = torch.float32) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.randn(shape).to(dtype))


def random_gradients(params: Sequence[torch.Tensor]) -> None:
    for param in params:
        param.grad = torch.randn(param.shape).to(param)


def take_steps(params: Sequence[torch.Tensor], opt: torch.optim.Optimizer, count: int = 1) -> None:
    """Each step has new random gradients of these parameters."""
    for _ in range(count):
        random_gradients(params)
        opt.step()


def copies_of(params: Sequence[torch.Tensor]) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(param.detach().clone()) for param in params]


def step_alike(*made: tuple[Sequence[torch.Tensor], torch.optim.Optimizer]) -> None:
    """Steps each optimizer with its parameters on the same random gradients."""
    random_gradients(made[0][0])
    for params, _ in made[1:]:  # before any of them steps, which may write to gradients
        for param, first in zip(params, made[0][0], strict=True):
            param.grad = None if first.grad is None else first.grad.clone()
    for _, opt in made:
        opt.step()


def bits(tensor: torch.Tensor) -> bytes:
    """The elements of a tensor on any device in row-major order, as bytes."""
    flat = tensor.detach().cpu().clone(memory_format=torch.contiguous_format).reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


@contextmanager
def disk_that_refuses() -> Iterator[None]:
    """Writes beyond the first page of any file fail, as on a disk that has gone bad."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def state_bits(opt: torch.optim.Optimizer) -> list[dict[str, bytes]]:
    """The live state of every parameter that can be seen, in order."""
    entries = [opt.state.get(param, {}) for group in opt.param_groups for param in group["params"]]
    return [{name: bits(one) for name, one in entry.items() if not isinstance(one, Elsewhere)} for entry in entries]


def snapshot(opt: torch.optim.Optimizer) -> list[Any]:
    """Everything a failed call must leave as it was, comparable with ==."""
    groups = [{k: repr(v) for k, v in group.items() if k != "params"} for group in opt.param_groups]
    members = [[(id(p), bits(p), p.dtype) for p in group["params"]] for group in opt.param_groups]
    return [groups, members, state_bits(opt)]


@contextmanager
def refused(opt: torch.optim.Optimizer, *words: str, kind: Any = ValueError) -> Iterator[None]:
    """The block raises `kind`, its message has all `words`, and nothing of the optimizer has changed."""
    before = snapshot(opt)
    with pytest.raises(kind) as caught:
        yield
    for word in words:
        assert word in str(caught.value), f"{word!r} is not in the message: {caught.value}"
    assert snapshot(opt) == before, f"changed by a call that failed with: {caught.value}"


def raised(call: Callable[[], Any]) -> tuple[str, str]:
    """The name and text of what `call` raises; "nothing" and ""."""
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error)
    return "nothing", ""


def trained(
    rule: str = "adamw", steps: int = 3, dtype: torch.dtype = torch.float32, **options: Any
) -> tuple[list[torch.nn.Parameter], lowtide.Optimizer]:
    """Parameters of several shapes after some steps: large, ragged rows, small (float32 state), 0-d."""
    params = [parameter(*shape, dtype=dtype) for shape in ((32, 256), (70, 100), (9,), ())]
    opt = make(rule, [{"params": params[:2]}, {"params": params[2:], "lr": 0.01}], **options)
    take_steps(params, opt, steps)
    return params, opt


def fresh(
    params: Sequence[torch.Tensor], opt: torch.optim.Optimizer, **options: Any
) -> tuple[list[torch.nn.Parameter], lowtide.Optimizer]:
    """A new optimizer of the same kind over copies of the parameters."""
    copies = [torch.nn.Parameter(p.detach().clone()) for p in params]
    options = {"state": opt.param_groups[0]["state"], **options}
    return copies, type(opt)([{"params": copies[:2]}, {"params": copies[2:]}], **options)


def through_file(saved: Any) -> Any:
    """The object that torch.load(weights_only=True) makes of a saved one."""
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


WAYS = ("state_dict", "file", "pickle", "copy")


def carried(way: str, params: Any, opt: Any, folder: Path, **options: Any) -> tuple[Any, Any]:
    """Copies of the parameters, and an optimizer of theirs that has the state of `opt` by one of WAYS. The first two make a new one,
    with these options."""
    if way in ("pickle", "copy"):
        made: tuple[Any, Any] = copy.deepcopy((params, opt)) if way == "copy" else pickle.loads(pickle.dumps((params, opt)))
        return made
    again = copies_of(params)
    other = type(opt)(again, **options)
    if way == "state_dict":
        other.load_state_dict(through_file(opt.state_dict()))
    else:
        opt.save(folder / "carried.lowtide")
        other.load(folder / "carried.lowtide")
    return again, other


def put(path: list[Any], value: Any) -> Callable[[Any], None]:
    """A change of a nested dict: the node at `path` becomes `value`, or `value(node)` if `value` is callable."""

    def change(saved: Any) -> None:
        for key in path[:-1]:
            saved = saved[key]
        saved[path[-1]] = value(saved[path[-1]]) if callable(value) else value

    return change


def drop(*path: Any) -> Callable[[Any], None]:
    """A change of a nested dict: the node at `path` is deleted."""

    def change(saved: Any) -> None:
        for key in path[:-1]:
            saved = saved[key]
        del saved[path[-1]]

    return change


def run_and_list(*arguments: str, cwd: Path | None = None) -> tuple[subprocess.CompletedProcess[str], set[str]]:
    """Runs a Python process; returns it, ended, and the modules that it imported."""
    command = [sys.executable, "-X", "importtime", *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    assert len(lines) > 20, done.stderr
    return done, {line.rpartition("|")[2].strip() for line in lines}
