"""Weights in host memory for layers that compute on a device: torch's `fully_shard` with `CPUOffloadPolicy`, on a one-device
mesh.

Torch copies a layer to the device when it computes, and its gradients to host memory. The parameters are DTensors whose local
part is the whole, so the CPU steps them like any others. State dicts look like those of the original model.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from lowtide.checks.values import expect
from lowtide.devices.sharding import STREAMED, is_dtensor, local_of
from lowtide.optimizers.optimizer import Optimizer
from lowtide.planning.units import Division, Layout
from lowtide.streaming.weights import Placed, StreamedWeights, StreamingReport, no_bytes, put_back

_PLACED = "hf_device_map"  # tells transformers' Trainer to leave the model where it is
_OF_TORCH = "torch.distributed.fsdp"
_ITS_ENTRIES = ("__composable_api", "_fsdp_use_orig_params", "_is_fsdp_managed_module")  # prefixes of what torch adds to modules
_SINCE_HOOKS_WAIT = (2, 13)  # from this torch on, hooks wait until gradients are in pinned memory

_users = 0  # models that use the process group made here


def accelerator() -> torch.device:
    """The device of this process. Raises ValueError if there is none, or with several processes."""
    found = torch.accelerator.current_accelerator() if hasattr(torch, "accelerator") and torch.accelerator.is_available() else None
    if found is None:
        raise ValueError("stream: memory: got device=, and no accelerator in torch, wanted host= and disk= alone: the CPU trains then")
    group = torch.distributed
    expect(group.is_available(), "stream", "a torch without torch.distributed", "one with it: fully_shard streams the weights")
    size = group.get_world_size() if group.is_initialized() else 1
    expect(size == 1, "stream", f"a process group of {size} processes", "one: call fully_shard(layer, offload_policy=...) itself for more")
    return torch.device(found.type, torch.accelerator.current_device_index())


def check_shardable(model: nn.Module) -> None:
    """Raises ValueError for parameters that torch does not shard, or whose gradients it would lose."""
    for name, param in model.named_parameters():
        where = f"stream: {name}"
        expect(param.ndim > 0, where, "a single number", "a shape such as (1,) beside device=: torch shards no others")
        expect(param.is_contiguous(), where, f"strides {param.stride()}", "contiguous weights beside device=")
        expect(param.grad is None, where, "a gradient", "none beside device=: optimizer.zero_grad() before")


def may_pin(in_backward: bool) -> bool:
    """True if gradients are sure to have arrived in pinned memory when they are stepped."""
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    return not in_backward or version >= _SINCE_HOOKS_WAIT


class DeviceWeights:
    """The weights of one model, streamed by `fully_shard`."""

    def __init__(
        self,
        model: nn.Module,
        layout: Layout,
        found: Division,
        device: torch.device,
        file: StreamedWeights | None = None,
        but: Sequence[Placed] = (),
    ) -> None:
        """Shards the model. Undoes that if it raises. file: takes the units from host memory. but: parameters from meta."""
        try:
            from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
        except ImportError:
            raise NotImplementedError(f"stream: got torch {torch.__version__}, wanted 2.6 or newer: it has fully_shard") from None
        self._model, self._layout, self._found, self._file = weakref.ref(model), layout, found, file
        self._handles: list[Any] = []
        self._placed: Any = None
        self._optimizer: weakref.ref[Optimizer] | None = None
        self._before = dict(model.named_parameters(remove_duplicate=False))
        self._leave = _join(model, device)
        try:
            torch.empty(0, device=device)  # otherwise the mesh chooses a device for the process
            options: dict[str, Any] = {
                "mesh": torch.distributed.init_device_mesh(device.type, (1,), mesh_dim_names=(STREAMED,)),
                "offload_policy": CPUOffloadPolicy(pin_memory=found.pinned is not None),
            }
            empty = {id(each.now) for each in but}
            names = {id(param): name for name, param in model.named_parameters()}
            for number, unit in enumerate(layout.units):
                shards: Any = fully_shard(model.get_submodule(unit.name), **options)
                if file:
                    params = {id(param): model.get_parameter(names[id(param)]) for param in unit.params}
                    file.units[number] = unit._replace(params=list(params.values()), looked_up=False)  # torch copies all rows
                    file.take(number, [param for of, param in params.items() if of in empty])
                    shards._apply(lambda tensor: tensor)  # makes torch drop its own references to what was there before
                for param in unit.params:  # torch has moved them to the device
                    param.data = local_of(model.get_parameter(names[id(param)])).detach()
            fully_shard(model, **options)
            for name, param in model.named_parameters(remove_duplicate=False):
                vars(param).update(vars(self._before[name]))  # overrides, and attributes of others
        except BaseException:
            self.move_back(but)
            raise
        self._placed = vars(model).get(_PLACED)
        setattr(model, _PLACED, {"": device})
        self._handles.append(model.register_forward_pre_hook(_begin_afresh, prepend=True))
        self._handles.append(model.register_forward_hook(_reshard_without_backward, always_call=True))
        for module in model.modules():
            hooked: Any = module  # its methods are not annotated
            self._handles.append(hooked.register_state_dict_post_hook(_with_plain_tensors))
            self._handles.append(hooked.register_load_state_dict_pre_hook(_into_shards))

    def watch(self, model: nn.Module, optimizer: Optimizer, in_backward: bool) -> None:
        """Follows the optimizer of the model: its dicts have plain tensors, and at the end it gets the original parameters
        back. in_backward: it steps in backward passes, which leave no copies of weights on the device."""
        self._optimizer, of = weakref.ref(optimizer), self._model
        if self._file:
            self._file.watch(model, optimizer, in_backward)
        self._handles.append(optimizer.register_state_dict_post_hook(_plain_state))
        if not in_backward:
            self._handles.append(optimizer.register_step_pre_hook(lambda *_: _reshard(of())))

    def report(self) -> StreamingReport:
        """Waits for the disk. Raises like `StreamedWeights.turn`."""
        layout, divided = self._layout, self._found
        found = self._file.report() if self._file else no_bytes()
        if not self._file:
            found["memory_bytes"] = layout.nbytes
        found["weight_bytes"], found["device_bytes"] = layout.nbytes, divided.weights.device + divided.gradients.device
        found["to_device_bytes"], found["to_host_bytes"] = divided.moved.device - layout.gradient_bytes, layout.gradient_bytes
        return found

    def move_back(self, but: Sequence[Placed] = ()) -> None:
        """Undoes `fully_shard`, which torch cannot: the parameters from before are back, in host memory, in the optimizer, too. Those
        that came from meta (`but`) go back there. Raises like `StreamedWeights.move_back`."""
        model = _alive(self._model)
        if self._file:
            self._file.move_back(but)
        for handle in self._handles:
            handle.remove()
        vars(model).pop(_PLACED, None)
        if self._placed is not None:
            setattr(model, _PLACED, self._placed)
        _reshard(model)
        sharded = [(name, param) for name, param in model.named_parameters(remove_duplicate=False) if is_dtensor(param)]
        plain = {id(param): _given_back(self._before[name], param) for name, param in sharded}
        for module in model.modules():
            for name, param in module._parameters.items():
                module._parameters[name] = plain.get(id(param), param)
            for buffer in module.buffers(recurse=False):
                if not buffer.is_meta:
                    buffer.data = buffer.cpu()
            _take_off(module)
        put_back(but)
        if self._optimizer and (optimizer := self._optimizer()):
            for group in optimizer.param_groups:
                group["params"] = [plain.get(id(param), param) for param in group["params"]]
            optimizer.reset([])  # adopts the new parameters while a mesh can give it the old ones' state
        self._leave()


def _join(model: nn.Module, device: torch.device) -> Callable[[], object]:
    """Makes a process group, unless there is one. Returns a function that ends it after its last model; the end of that model
    does, too."""
    global _users
    group = torch.distributed
    if not group.is_initialized():
        backend = group.get_default_backend_for_device(device)
        backend = backend if getattr(group, f"is_{backend}_available", bool)() else "gloo"
        group.init_process_group(f"cpu:gloo,{device.type}:{backend}", store=group.HashStore(), rank=0, world_size=1)
        _users = 0  # earlier users had another group
    elif not _users:
        return lambda: None
    _users += 1
    return weakref.finalize(model, _leave)


def _leave() -> None:
    global _users
    _users -= 1
    if not _users and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _reshard(model: nn.Module | None) -> None:
    """Drops the device's copies of weights, which a forward pass without backward leaves and a step would outdate."""
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules() if model else ():
        if isinstance(module, FSDPModule):
            module.reshard()


def _begin_afresh(model: nn.Module, *_: Any) -> None:
    """Drops what an earlier pass has left: copies of the root's weights after a pass without backward, and the marks of a pass that an
    exception ended, with which torch would never again give gradients to parameters."""
    if torch._C._current_graph_task_id() != -1:  # layers are recomputed
        return
    state: Any = model._get_fsdp_state()  # type: ignore[operator]
    if state._is_root and (state._state_ctx.post_backward_final_callback_queued or state._state_ctx.iter_forward_root is not None):
        if not hasattr(state, "_reset_iter_state"):
            got = f"a model of which an exception ended a pass, and torch {torch.__version__}"
            raise RuntimeError(f"stream: got {got}, wanted unstream(model) and stream again: this torch cannot go on")
        state._reset_iter_state()
    _reshard(model)


def _reshard_without_backward(model: nn.Module, *_: Any) -> None:
    if not torch.is_grad_enabled():
        _reshard(model)


def _alive(of: weakref.ref[nn.Module]) -> nn.Module:
    model = of()
    assert model is not None
    return model


def _given_back(before: nn.Parameter, param: Any) -> nn.Parameter:
    before.data = local_of(param).detach()
    before.requires_grad_(param.requires_grad).grad = None if param.grad is None else local_of(param.grad)
    vars(before).update(vars(param))
    return before


def _take_off(module: nn.Module) -> None:
    """Removes hooks, state and the class of `fully_shard` from a module."""
    from torch.distributed._composable_state import _module_state_mapping
    from torch.distributed.fsdp import FSDPModule

    entries = vars(module)
    hooks = [each for name, each in entries.items() if "_hooks" in name and isinstance(each, dict)]
    gone = {key for each in hooks for key, hook in each.items() if getattr(hook, "__module__", "").startswith(_OF_TORCH)}
    for each in hooks:
        for key in gone & each.keys():
            del each[key]
    for name in [name for name in entries if name.startswith(_ITS_ENTRIES)]:
        del entries[name]
    _module_state_mapping.pop(module, None)
    if isinstance(module, FSDPModule):
        module.__class__ = type(module).__mro__[2]


def _with_plain_tensors(module: nn.Module, state_dict: dict[str, Any], prefix: str, metadata: Any) -> None:
    del module, prefix, metadata
    for name, value in state_dict.items():
        state_dict[name] = local_of(value)


def _into_shards(module: nn.Module, state_dict: dict[str, Any], prefix: str, metadata: Mapping[str, Any], *of_load: Any) -> None:
    """Loads whole tensors into DTensors of the same shapes. Torch's own loading would want DTensors."""
    del of_load
    expect(not metadata.get("assign_to_params_buffers"), "load_state_dict", "assign=True", "values for the parameters that stream")
    _reshard(module)
    for name, param in module.named_parameters(remove_duplicate=False):
        value = state_dict.get(prefix + name)
        if is_dtensor(param) and isinstance(value, torch.Tensor) and not is_dtensor(value) and value.shape == param.shape:
            with torch.no_grad():
                local_of(param).copy_(value)
            state_dict[prefix + name] = param.detach()


def _plain_state(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    del optimizer
    state: Mapping[Any, Mapping[str, Any]] = state_dict["state"]
    return {**state_dict, "state": {number: {name: local_of(value) for name, value in entry.items()} for number, entry in state.items()}}
