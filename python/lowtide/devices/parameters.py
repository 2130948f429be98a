"""Which tensors can be stepped."""

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from lowtide.checks.values import PARAMETER_DTYPES, expect
from lowtide.devices import places


def check_parameter(param: torch.Tensor, where: str, anywhere: bool = False) -> None:
    """Raises for a (local) tensor that cannot be stepped: a wrapper of others, a device without a backend (unless
    `anywhere`), a layout or an element type."""
    if is_traceable_wrapper_subclass(param) or "DTensor" in type(param).__name__:
        raise TypeError(
            f"{where}: got a {type(param).__name__}, wanted a plain tensor, a torch.nn.Parameter or a DTensor of one"
        )
    if torch.nn.parameter.is_lazy(param):
        raise ValueError(f"{where}: got an uninitialized parameter, wanted one with a shape: run the lazy module first")
    if not anywhere:
        places.place_of(param, where)
    expect(param.layout == torch.strided, where, f"layout {param.layout}", "torch.strided")
    if param.dtype not in PARAMETER_DTYPES:
        wanted = ", ".join(str(dtype) for dtype in PARAMETER_DTYPES)
        raise ValueError(f"{where}: got {param.dtype}, wanted one of {wanted}")
