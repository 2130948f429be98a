"""Loops of other projects that move an optimizer's state between its device and the host: each project's own functions, cut out
of its package so that nothing else runs at import, and their common parts."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import lowtide
import pytest
import torch
from lowtide.state.elsewhere import Elsewhere
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from twins import Twins

Move = Callable[[torch.optim.Optimizer, torch.device], object]
SHAPES = [(40, 256), (16, 600), (9,)]


class Mover(NamedTuple):
    offload: Move
    load: Move


def cut(package: str, path: str, *names: str, **given: Any) -> list[Any]:
    """Cuts functions, or methods of the first class that has them, out of a file in an installed package. given: their globals.
    Skips the test, with the reason, if they are missing."""
    spec = importlib.util.find_spec(package)
    folders = spec.submodule_search_locations if spec else None
    file = next((Path(folder, path) for folder in folders or () if Path(folder, path).is_file()), None)
    if file is None:
        pytest.skip(f"{package} is not installed, or has no {path}")
    found: dict[str, ast.stmt] = {}
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name in names:
            found.setdefault(node.name, node)
    if missing := set(names) - set(found):
        pytest.skip(f"{package}'s {path} has no {', '.join(sorted(missing))}")
    future = ast.ImportFrom("__future__", [ast.alias("annotations")], 0)
    scope: dict[str, Any] = {"torch": torch, **given}
    exec(compile(ast.fix_missing_locations(ast.Module([future, *found.values()], [])), str(file), "exec"), scope)
    return [scope[name] for name in names]


def verl() -> Mover:
    return Mover(*_without_device(*cut("verl", "utils/fsdp_utils.py", "offload_fsdp_optimizer", "load_fsdp_optimizer")))


def verl_megatron() -> Mover:
    return _megatron("verl", "utils/megatron_utils.py", "get_device_id")


def skyrl() -> Mover:
    path = "backends/skyrl_train/distributed/fsdp_utils.py"
    return Mover(*_without_device(*cut("skyrl", path, "offload_fsdp_optimizer", "load_fsdp_optimizer")))


def veomni() -> Mover:
    names = "offload_optimizer", "load_optimizer", "_iter_inner_optimizers"
    return Mover(*_without_device(*cut("veomni", "distributed/offloading.py", *names)[:2]))


def megatron() -> Mover:
    """Its methods also move parameters by `.data`, which no stand-in for a device supports, so it only gets the state."""
    given = {"log_single_rank": lambda *_: None, "logger": None, "logging": logging}
    offload, load = cut("megatron", "core/optimizer/optimizer.py", "offload_to_cpu", "restore_from_cpu", **given)

    def only_state(opt: Any) -> SimpleNamespace:
        return SimpleNamespace(optimizer=SimpleNamespace(param_groups=[], state=opt.state))

    return Mover(lambda opt, _: offload(only_state(opt)), lambda opt, _: load(only_state(opt)))


def swift() -> Mover:
    return _swift(deepspeed=False)


def swift_deepspeed() -> Mover:
    return _swift(deepspeed=True)


def _swift(deepspeed: bool) -> Mover:
    given: dict[str, Any] = {"is_deepspeed_enabled": lambda: deepspeed, "logger": logging.getLogger()}
    return _wrapped("swift", "rlhf_trainers/rollout_mixin.py", "get_current_device", "offload_optimizer", "load_optimizer", **given)


def swift_megatron() -> Mover:
    return _megatron("swift", "megatron/trainers/utils.py", "get_current_device")


def _megatron(package: str, path: str, device_name: str) -> Mover:
    """Loops over the state that Megatron's Adam has."""
    nothing = SimpleNamespace(empty_cache=lambda: None, collect=lambda: None, buffer={})
    given = {
        "ChainedOptimizer": type("ChainedOptimizer", (), {}), "get_torch_device": lambda: nothing, "gc": nothing,
        "get_global_memory_buffer": lambda: nothing, "empty_cache": lambda: None,
    }  # fmt: skip
    names = "offload_megatron_optimizer", "load_megatron_optimizer", "offload_megatron_copy_params", "load_megatron_copy_params"
    return _wrapped(package, path, device_name, *names, **given)


def _wrapped(package: str, path: str, device_name: str, *names: str, **given: Any) -> Mover:
    """Functions of an object that holds the optimizer, which ask `device_name` for the current device."""
    current: list[torch.device] = []
    offload, load, *_ = cut(package, path, *names, **{**given, device_name: lambda: current[-1]})

    def to_device(opt: Any, device: torch.device) -> None:
        current.append(device)
        load(SimpleNamespace(optimizer=opt))

    return Mover(lambda opt, _: offload(SimpleNamespace(optimizer=opt)), to_device)


def deepspeed() -> Mover:
    return _deepspeed("optimizer", pin_memory=False)


def deepspeed_pinned() -> Mover:
    return _deepspeed("optimizer", pin_memory=True)


def deepspeed_adam() -> Mover:
    return _deepspeed("adam", pin_memory=False)


def _deepspeed(kind: str, pin_memory: bool) -> Mover:
    """Without page-locked memory, which needs a device of torch's."""
    accelerator = SimpleNamespace(pin_empty_like=torch.empty_like, pin_memory=lambda tensor: tensor)
    names = f"offload_{kind}_states", f"reload_{kind}_states", "_make_offload_state_key"
    offload, load, _ = cut("deepspeed", "runtime/zero/offload_states.py", *names, get_accelerator=lambda: accelerator)
    return Mover(lambda opt, _: offload(opt, torch.device("cpu"), pin_memory=pin_memory), load)


def _without_device(offload: Callable[..., object], load: Move) -> tuple[Move, Move]:
    return lambda opt, _: offload(opt), load


MOVERS = {
    maker.__name__: maker
    for maker in (
        verl, verl_megatron, skyrl, veomni, megatron, swift, swift_deepspeed, swift_megatron, deepspeed, deepspeed_pinned,
        deepspeed_adam,
    )
}  # fmt: skip
# Loops that know state by torch's names, or by is_cuda.
BY_NAME = {"verl_megatron", "swift_megatron", "deepspeed_adam"}
BY_CUDA = {"megatron"}


def state_of(project: str) -> str:
    """The format of state that a project's loops find."""
    return "fp32" if project in BY_NAME else "dynamic8"


class Real:
    """Parameters on a device that torch has in this process."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def name(self) -> str:
        return self.kind if self.kind == "cpu" else f"{self.kind}:0"

    def parameters(self, like: Any) -> list[torch.nn.Parameter]:
        return [torch.nn.Parameter(param.detach().clone().to(self.kind)) for param in like]

    def give_gradients(self, params: Any, like: Any) -> None:
        for param, other in zip(params, like, strict=True):
            param.grad = other.grad.clone().to(self.kind)

    def synchronize(self) -> None:
        pass


@contextlib.contextmanager
def moves_of(device: Any, patch: Any) -> Iterator[None]:
    """Torch's `.to()` and `.cuda()` where torch takes the memory of `device` for the host's (stand_in.py)."""
    real = torch.Tensor.to
    there = torch.device(device.name())
    if torch.get_device_module(there).is_available():  # torch has it
        yield
        return

    def to(self: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        where = args[0] if args else options.get("device")
        where = torch.device(there.type, where) if isinstance(where, int) else where
        if not isinstance(where, (str, torch.device)) or torch.device(where).type != there.type:
            return real(self, *args, **options)
        if not isinstance(self, Elsewhere):
            return device.tensor(self)
        return self if self.device == there else torch.ops.aten._to_copy.default(self, device=there)

    patch.setattr(torch.Tensor, "to", to)
    patch.setattr(torch.Tensor, "cuda", lambda self: self.to(there))
    patch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)
    yield


def hand_over(device: Any, mover: Mover, memory: lowtide.Memory | None, **options: Any) -> str:
    """Trains while the functions move the state back and forth, beside an optimizer on the CPU that never moves. Nothing may
    differ, and moved state leaves the device."""
    where = torch.device(device.name())
    twins = Twins(device, SHAPES, memory=memory, lr=1e-2, **options)
    mine, other = twins.second, twins.first
    model = torch.nn.ParameterList(twins.there)

    def compare_saved() -> None:
        twins.compare_state()
        saved = get_optimizer_state_dict(model, mine)["state"]
        wanted = get_optimizer_state_dict(torch.nn.ParameterList(twins.here), other)["state"]
        for name, entry in wanted.items():
            assert entry.keys() == saved[name].keys()
            twins.compare([*entry.values()], [*saved[name].values()])

    for move in mover:  # before the first step
        move(mine, where)
        assert not mine.state and len(mine.state) == 0
    twins.step(2)
    held = mine.report()["device_bytes"]
    for turn in range(3):
        mover.offload(mine, where)
        assert mine.report()["device_bytes"] == 0, "state is still on the device"
        assert not any(one.device.type != "cpu" for entry in mine.state.values() for one in entry.values())
        compare_saved()
        assert mine.report()["device_bytes"] == 0, "a checkpoint brought the state back"
        if turn == 1:
            saved = mine.state_dict()
        if turn < 2:  # the last time, the step does it
            mover.load(mine, where)
            back = mine.report()
            assert back["device_bytes"] == held or back["moved_per_step"], "what streams has no memory there between steps"
        twins.step(1)
        compare_saved()
    again = Twins(device, twins.here, memory=memory, lr=1e-2, **options)
    again.first.load_state_dict(saved)
    again.second.load_state_dict(saved)
    again.compare_state()
    again.step(2)
    again.compare_state()
    return f"{held} bytes left the device 3 times; {twins.compared + again.compared} bytes alike, 0 differ"
