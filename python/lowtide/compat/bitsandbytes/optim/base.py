"""The base of bitsandbytes' optimizer classes. It turns their arguments into Lowtide's options."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, cast

import torch

from lowtide.checks.values import expect, with_context
from lowtide.compat.bitsandbytes.optim.entry import Entry
from lowtide.memory.budgets import Memory
from lowtide.optimizers.optimizer import Optimizer
from lowtide.options.options import Options, with_options

# Lowtide's options, set as bitsandbytes behaves: it rounds 8-bit state to nearest.
DEFAULTS = {"rounding": "nearest"}
# Options that arguments of bitsandbytes set.
_INSTEAD = {"state": "optim_bits", "min_quantized_numel": "min_8bit_size"}
# State of a paged optimizer takes the device memory that nothing else needs, and host memory for the rest. For parameters on
# the CPU this sets no limit.
PAGED = Memory(device="auto")
# Overrides PAGED, for scripts without an argument for it, such as those written for bitsandbytes.
PAGED_VARIABLE = "LOWTIDE_PAGED_MEMORY"
STATES = {32: "fp32", 8: "dynamic8"}
# max_unorm=0 clips nothing there but would select the trust ratio here; a limit that no update reaches clips nothing either.
NO_LIMIT = torch.finfo(torch.float32).max
_NAMES = {"adamw": "adam", "sgd": "momentum"}  # rules that bitsandbytes names differently


class Args(NamedTuple):
    """The `args` of an optimizer, as bitsandbytes names them."""

    optim_bits: int
    min_8bit_size: int
    max_unorm: float
    skip_zeros: bool


class Pages:
    """Stands in for bitsandbytes' page manager. `paged_tensors` is empty, because state moves in chunks, which are not
    tensors."""

    def __init__(self, opt: Optimizer) -> None:
        self._opt = opt
        self.paged_tensors: list[torch.Tensor] = []

    def prefetch_all(self, to_cpu: bool = False) -> None:
        """Reads state ahead, as far as there is room (`Optimizer.prefetch`). to_cpu: moves it to the host
        (`Optimizer.demote`)."""
        self._opt.demote() if to_cpu else self._opt.prefetch(self._opt.report()["state_bytes"])


class BitsandbytesOptimizer(Optimizer):
    """Base class. Besides bitsandbytes' arguments, all classes take the options of `lowtide.Options` by name, except state and
    min_quantized_numel, which optim_bits and min_8bit_size set. With `synchronous` (default False), `step` waits for its queued
    work on a device. `state_dict` is Lowtide's, which resumes bit for bit; `bitsandbytes_state_dict` is bitsandbytes';
    `load_state_dict` takes both."""

    ENTRY = Entry
    MASTER = None  # bitsandbytes has no masters
    _rule: ClassVar[str]
    _bits: ClassVar[int | None] = None  # set in classes that always have 8 or 32
    _paged: ClassVar[bool] = False
    _signature: ClassVar[inspect.Signature]
    _all: ClassVar[inspect.Signature]  # the family's, including arguments that this class lacks
    _required: ClassVar[dict[str, tuple[object, str]]] = {}  # arguments with one allowed value, and the reason

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        name = type(self).__name__
        given = self._bound(args, kwargs)
        params, options = given.pop("params"), given.pop("options")
        # Some callers always pass these arguments of versions before 0.50.
        percentile = options.pop("percentile_clipping", 100)
        unclipped = "100, which clips nothing: clip by opt.clip_grad_norm_ or max_grad_norm="
        expect(percentile == 100, f"{name}: percentile_clipping", percentile, unclipped)
        if not options.pop("block_wise", True):
            warnings.warn(f"{name}: block_wise=False has no effect: 8-bit state always has a scale per block", stacklevel=2)
        for key, instead in _INSTEAD.items():
            if key in options:
                raise TypeError(f"{name}: got {key!r}, wanted {instead!r}")
        for key, (wanted, reason) in self._required.items():
            expect(bool(given.pop(key)) == wanted, f"{name}: {key}", not wanted, f"{wanted}{reason}")
        self.synchronous = bool(options.pop("synchronous", False))
        options = {**DEFAULTS, **options, **self._options(given, name)}
        paged = given.pop("is_paged", False)
        if (self._paged or paged) and "memory" not in options:
            options["memory"] = _paged_memory()
        if isinstance(given.get("betas"), str):
            given["betas"] = _betas(given["betas"], name)
        super().__init__(params, self._rule, given, cast("Options", options))

    def _bound(self, args: Any, kwargs: Any) -> dict[str, Any]:
        """The value of every argument of the family. Raises TypeError as Python does, naming the class."""
        name = type(self).__name__
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{name}: {error}") from None
        bound.apply_defaults()
        for key in self._all.parameters.keys() - self._signature.parameters.keys():
            if key in bound.arguments["options"]:
                raise TypeError(f"{name}: got unknown argument {key!r}")
        defaults = {key: one.default for key, one in self._all.parameters.items() if one.default is not one.empty}
        return {**defaults, **bound.arguments, "options": dict(bound.arguments["options"])}

    def _options(self, given: dict[str, Any], name: str) -> dict[str, Any]:
        """Removes the arguments that select the state format from `given`, and returns the format."""
        bits, args, least = (given.pop(key, none) for key, none in (("optim_bits", 32), ("args", None), ("min_8bit_size", 0)))
        default = self._signature.parameters.get("optim_bits")
        if default is not None:  # in most 8-bit classes, the default of 32 has no effect
            allowed = {self._bits, default.default} if self._bits else {*STATES}
            expect(bits in allowed, f"{name}: optim_bits", repr(bits), f"one of {sorted(allowed)}")
        bits, max_unorm = self._bits or bits, given.get("max_unorm", 0.0)
        if args is not None:
            missing = [key for key in Args._fields if not hasattr(args, key)]
            expect(not missing, f"{name}: args", f"an object without {missing}", f"one with all of {Args._fields}")
            bits, least, max_unorm, skip_zeros = (getattr(args, key) for key in Args._fields)
            expect(bits in STATES, f"{name}: args.optim_bits", repr(bits), "8 or 32")
            decayed = "False: elements without gradient decay, too"
            expect(not skip_zeros, f"{name}: args.skip_zeros", skip_zeros, decayed)
        if "max_unorm" in given:
            given["max_unorm"] = max_unorm or NO_LIMIT
        else:
            expect(not max_unorm, f"{name}: max_unorm", max_unorm, "0: LAMB and LARS have it")
        return {"state": STATES[bits], "min_quantized_numel": least}

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Like `Optimizer.step`; with `synchronous`, then calls `Optimizer.synchronize` (not while a step is recorded)."""
        loss = super().step(closure)
        if self.synchronous and not self.engine.capturing:
            self.synchronize()
        return loss

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "synchronous": self.synchronous}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.synchronous = state.get("synchronous", False)
        super().__setstate__(state)

    @property
    def args(self) -> Args:
        """The arguments that determine the state, under bitsandbytes' names. Read-only, because the state exists already."""
        bits = next(bits for bits, state in STATES.items() if state == self.defaults["state"])
        limit = self.defaults.get("max_unorm", 0.0)
        return Args(bits, self.defaults["min_quantized_numel"], 0.0 if limit == NO_LIMIT else limit, False)

    @property
    def is_paged(self) -> bool:
        """True for a Paged class or with `memory`: state may be apart from its parameter."""
        return self._paged or self.engine.settings.memory is not None

    @property
    def page_mng(self) -> Pages:
        """The page manager, for this optimizer alone."""
        return Pages(self)

    @property
    def optimizer_name(self) -> str:
        """bitsandbytes' name of the rule."""
        return _NAMES.get(self._rule, self._rule)

    def state_dict(self) -> dict[str, Any]:
        """Like `Optimizer.state_dict`, in plain dicts."""
        saved = super().state_dict()
        return {**saved, "state": {key: dict(entry) for key, entry in saved["state"].items()}}

    def load_state_dict(self, state_dict: dict[str, Any], move_to_device: bool = True) -> None:
        """Like `Optimizer.load_state_dict`. move_to_device has no effect: `memory` decides where state goes, so paged state
        stays paged."""
        del move_to_device
        super().load_state_dict(state_dict)


Class = type[BitsandbytesOptimizer]


def family(
    name: str, rule: str, arguments: Callable[..., None], text: str, required: dict[str, tuple[object, str]] | None = None
) -> Class:
    """Makes the class `name`, whose `optim_bits` selects the bits of state. arguments: a lambda whose parameters are the
    arguments with their defaults. text: the docstring."""
    signature = inspect.signature(arguments)
    return _class(name, BitsandbytesOptimizer, text, signature, _rule=rule, _all=signature, _required=required or {})


def variant(
    base: Class, name: str, bits: int | None = None, paged: bool = False, without: Sequence[str] = (), **defaults: Any
) -> Class:
    """Makes the class `name` from `base`, with a fixed number of bits, or paged; without the arguments `without`, and with
    other `defaults`."""
    signature = base._all.replace(
        parameters=[
            one.replace(default=defaults.get(key, base._signature.parameters.get(key, one).default))
            for key, one in base._all.parameters.items()
            if key not in without
        ]
    )
    kind = " ".join([*(["paged"] if paged else []), *([f"{bits}-bit"] if bits else [])])
    return _class(name, base, f"`{base.__name__}` with {kind} state.", signature, _bits=bits, _paged=paged)


def _class(name: str, base: Class, text: str, signature: inspect.Signature, **body: Any) -> Class:
    body |= {"__doc__": text, "__module__": __name__.replace("base", "classes"), "_signature": signature}
    defaults = {**DEFAULTS, "master": base.MASTER, "synchronous": False, **({"memory": PAGED} if body.get("_paged") else {})}
    return cast("Class", type(name, (base,), {**body, "__signature__": with_options(signature, [*_INSTEAD], **defaults)}))


def _paged_memory() -> Memory | None:
    """The budget of a paged optimizer without `memory`. Raises like `Memory.of`, naming the environment variable."""
    try:
        return Memory.of(os.environ.get(PAGED_VARIABLE) or PAGED)
    except (TypeError, ValueError) as error:
        raise with_context(PAGED_VARIABLE, error) from None


def _betas(betas: str, where: str) -> tuple[float, ...]:
    """Converts a text such as "(0.9, 0.95)" to numbers."""
    try:
        return tuple(float(part) for part in betas.replace("(", "").replace(")", "").split(","))
    except ValueError:
        raise ValueError(f"{where}: betas: got {betas!r}, wanted numbers such as '(0.9, 0.999)'") from None
