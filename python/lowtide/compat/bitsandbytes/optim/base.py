"""What bitsandbytes' optimizer classes have in common here: how their arguments become options of Lowtide's."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar, cast

from torch.optim.optimizer import ParamsT

from lowtide.checks.values import expect
from lowtide.memory.budgets import Memory
from lowtide.optimizers.optimizer import Optimizer
from lowtide.options.options import Options

# How 8-bit state is rounded: as bitsandbytes rounds it.
ROUNDING = "nearest"
# What a paged optimizer's state may take: of a device as much as nothing else needs, and of host memory the rest. For
# parameters on the CPU this is no limit.
PAGED = Memory(device="auto")
# What argument lists had before 0.50. They have no effect: 8-bit state is always block-wise, and there is no clipping.
_REMOVED = {
    "percentile_clipping": "gradients are not clipped: use torch.nn.utils.clip_grad_norm_",
    "block_wise": "8-bit state always has a scale per block",
}
_ARGS = ("optim_bits", "min_8bit_size", "max_unorm", "skip_zeros")
STATES = {32: "fp32", 8: "dynamic8"}


class BitsandbytesOptimizer(Optimizer):
    """Base class. Beside bitsandbytes' arguments all take options of `lowtide.Options` by name, but state and
    min_quantized_numel, which optim_bits and min_8bit_size decide. `state_dict` is Lowtide's, which resumes bit for
    bit; `bitsandbytes_state_dict` is bitsandbytes', and `load_state_dict` takes both."""

    _bits: ClassVar[int | None] = None  # of a class that has always 8 or 32
    _paged: ClassVar[bool] = False
    _family: ClassVar[type[BitsandbytesOptimizer] | None] = None  # of a variant: the class that it is one of

    def _begin(
        self,
        params: ParamsT,
        rule: str,
        hyper: dict[str, Any],
        optim_bits: int,
        args: Any,
        min_8bit_size: int,
        is_paged: bool,
        options: dict[str, Any],
        max_unorm: float = 0.0,
    ) -> None:
        """Checks and translates the arguments that most classes have, and builds the optimizer."""
        name = type(self).__name__
        for key, reason in _REMOVED.items():
            if key in options:
                options.pop(key)
                warnings.warn(f"{name}: {key} has no effect: {reason}", stacklevel=4 if self._family else 3)
        for key, instead in (("state", "optim_bits"), ("min_quantized_numel", "min_8bit_size")):
            if key in options:
                raise TypeError(f"{name}: got {key!r}, wanted {instead!r}")
        allowed = (self._bits, *STATES) if self._bits == 8 else (self._bits or 32, self._bits or 8)
        expect(optim_bits in allowed, f"{name}: optim_bits", repr(optim_bits), f"one of {sorted(set(allowed))}")
        bits = self._bits or optim_bits
        if args is not None:
            missing = [key for key in _ARGS if not hasattr(args, key)]
            expect(not missing, f"{name}: args", f"an object without {missing}", f"one with all of {_ARGS}")
            bits, min_8bit_size, max_unorm, skip_zeros = (getattr(args, key) for key in _ARGS)
            expect(bits in STATES, f"{name}: args.optim_bits", repr(bits), "8 or 32")
            decayed = "False: elements without gradient decay, too"
            expect(not skip_zeros, f"{name}: args.skip_zeros", skip_zeros, decayed)
        if "max_unorm" in hyper:
            without = "more than 0: without a limit it is the optimizer without norms, AdamW or SGD"
            expect(max_unorm > 0, f"{name}: max_unorm", max_unorm, without)
            hyper["max_unorm"] = max_unorm
        else:
            expect(not max_unorm, f"{name}: max_unorm", max_unorm, "0: LAMB and LARS have it")
        options |= {"state": STATES[bits], "min_quantized_numel": min_8bit_size}
        if "rounding" in Options.__annotations__:
            options.setdefault("rounding", ROUNDING)
        if self._paged or is_paged:
            options.setdefault("memory", PAGED)
        super().__init__(params, rule, hyper, cast("Options", options))

    def load_state_dict(self, state_dict: dict[str, Any], move_to_device: bool = True) -> None:
        """As `Optimizer.load_state_dict`. move_to_device has no effect: state goes where `memory` says, so that paged
        state stays paged."""
        del move_to_device
        super().load_state_dict(state_dict)


_Class = TypeVar("_Class", bound=type[BitsandbytesOptimizer])


def variant(
    base: _Class,
    name: str,
    bits: int | None = None,
    paged: bool = False,
    without: Sequence[str] = (),
    **defaults: Any,
) -> _Class:
    """The class `name`: `base` with state of always so many bits, or paged, less the arguments `without` and with
    other `defaults`."""
    family = base._family or base
    full = inspect.signature(base.__init__)
    kept = [
        parameter.replace(default=defaults.get(key, parameter.default))
        for key, parameter in full.parameters.items()
        if key not in without
    ]
    signature = full.replace(parameters=kept)

    def __init__(self: BitsandbytesOptimizer, *args: Any, **kwargs: Any) -> None:
        try:
            bound = signature.bind(self, *args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{name}: {error}") from None
        bound.apply_defaults()
        given = dict(bound.arguments)
        del given["self"]
        options = given.pop("options")
        for key in without:
            if key in options:
                raise TypeError(f"{name}: got unknown argument {key!r}")
        family.__init__(self, **options, **given)

    __init__.__signature__ = signature  # type: ignore[attr-defined]
    kind = " ".join([*(["paged"] if paged else []), *([f"{bits}-bit"] if bits else [])])
    body = {
        "__init__": __init__,
        "__doc__": f"`{base.__name__}` with {kind} state.",
        "__module__": base.__module__,
        "_bits": bits,
        "_paged": paged,
        "_family": family,
    }
    return cast("_Class", type(name, (base,), body))


def two_betas(betas: Any, where: str) -> Any:
    """`betas` as numbers, also where they are a text such as "(0.9, 0.95)"."""
    if not isinstance(betas, str):
        return betas
    try:
        return tuple(float(part) for part in betas.replace("(", "").replace(")", "").split(","))
    except ValueError:
        raise ValueError(f"{where}: betas: got {betas!r}, wanted numbers such as '(0.9, 0.999)'") from None
