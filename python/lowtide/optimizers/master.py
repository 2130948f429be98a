"""Exports the float32 weights of a run with 16-bit weights and a master."""

from pathlib import Path

import torch
from torch import Tensor

from lowtide import _core
from lowtide.checks.values import expect
from lowtide.devices.sharding import local_of
from lowtide.engine.cores import RESIDUAL
from lowtide.optimizers.optimizer import Optimizer
from lowtide.state.format import residual_words
from lowtide.state.views import local_state

_NAMES = {torch.bfloat16: "bfloat16", torch.float16: "float16"}


def join(weight: Tensor, residual: Tensor | None) -> Tensor:
    """Joins a bfloat16 or float16 weight and its residual to float32 weights, a new CPU tensor. residual: int16 or int8 in the
    weight's shape, or as in a state_dict, on any tier; None: only converts the weight. For DTensors, joins the local part.
    Raises ValueError for other tensors."""
    weight = local_of(weight)
    if residual is None:
        return weight.detach().to("cpu", torch.float32)
    residual = residual_words(local_of(residual).clone())  # cloning reads a residual that streams
    kinds = {torch.int16: "residual16", torch.int8: "residual8"}
    fits = weight.dtype in _NAMES and residual.dtype in kinds and residual.shape == weight.shape
    shapes = [tuple(each.shape) for each in (residual, weight)]
    got = f"{residual.dtype} of shape {shapes[0]} for a weight of {weight.dtype} and shape {shapes[1]}"
    expect(fits, "residual", got, "int16 or int8 of the shape of a bfloat16 or float16 weight")
    half, rest = weight.detach().cpu().contiguous(), residual.detach().cpu().contiguous()
    out = torch.empty(half.shape, dtype=torch.float32)
    _core.join_master(
        kinds[residual.dtype], _NAMES[half.dtype], half.data_ptr(), rest.data_ptr(), half.numel(), out.data_ptr()
    )
    return out


def split(values: Tensor, dtype: torch.dtype, master: str) -> tuple[Tensor, Tensor | None]:
    """Splits the float32 CPU tensor `values` into a weight of `dtype` and its residual (None for "stochastic"), which together
    equal it. To start a run with `master` from float32 weights, set `optimizer.state[p] = {"residual": residual}` before the
    first step."""
    fits = dtype in _NAMES and values.dtype == torch.float32 and values.device.type == "cpu"
    got = f"{values.dtype} on {values.device} for weights of {dtype}"
    expect(fits, "values", got, "float32 on the CPU for bfloat16 or float16")
    values = values.detach().contiguous()
    half = torch.empty(values.shape, dtype=dtype)
    rest = {"residual16": torch.int16, "residual8": torch.int8}.get(master)
    residual = None if rest is None else torch.empty(values.shape, dtype=rest)
    address = 0 if residual is None else residual.data_ptr()
    _core.split_master(master, _NAMES[dtype], values.data_ptr(), values.numel(), half.data_ptr(), address)
    return half, residual


def export_fp32(
    model: torch.nn.Module, optimizer: Optimizer, path: str | Path | None = None
) -> dict[str, Tensor]:
    """Returns the float32 weights of a model that `optimizer` trains, by the names of `model.state_dict()`. Joins weights with
    their residuals, converts all other floating-point tensors to float32, and keeps buffers of other types.

    Args:
        model: the model; parameters that the optimizer lacks are only converted. For DTensors, the local part.
        optimizer: any Lowtide optimizer, with state on any tier.
        path: where to write them, too, as safetensors (needs the package `safetensors`); shared tensors are written once.

    Returns:
        New CPU tensors, one per name; names that share a parameter share the tensor.

    Raises:
        TypeError: not a Lowtide optimizer. ImportError: no safetensors. OSError: the file cannot be written.
    """
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer: got {type(optimizer).__name__}, wanted one of Lowtide's")
    numbers = {id(param): number for number, param in enumerate(optimizer.engine.tensors)}
    made: dict[int, Tensor] = {}
    names: dict[str, Tensor] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if not isinstance(tensor, Tensor):
            continue
        if id(tensor) not in made:
            number = numbers.get(id(tensor))
            local = local_of(tensor)
            residual = None if number is None else local_state(optimizer.engine, number).get(RESIDUAL)
            made[id(tensor)] = join(local, residual) if local.is_floating_point() else local.detach().cpu().clone()
        names[name] = made[id(tensor)]
    if path is not None:
        from safetensors.torch import save_file

        once = {id(tensor): name for name, tensor in reversed(names.items())}
        save_file({name: names[name].contiguous() for name in once.values()}, path, {"format": "pt"})
    return names
