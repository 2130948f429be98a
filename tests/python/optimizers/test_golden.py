"""Results of the Python package that must never change, as hashes in a section of tests/golden/list.txt.

A cell has a row, a column without blanks, and a value. Rows with the same columns stand below one another. A cell that differs, is missing or is not in the list fails by name. After an intended change of results, or a new class
or state format, write the section again and review the difference:

    LOWTIDE_GOLDEN=write .venv/bin/python -m pytest -q tests/python/optimizers/test_golden.py

Data is made of integers: torch's random numbers and its matrix products depend on the CPU.
"""

import ctypes
import hashlib
import os
import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lowtide
import pytest
import torch
from lowtide import _core, sign
from lowtide.compat import bitsandbytes, deepspeed, flashoptim
from lowtide.optimizers.classes import CLASSES as OF_RULES

import bnb_library

Figure = Callable[[str], None]
Cells = Iterator[tuple[str, str, bytes]]  # row, column, value

TARGET = "LOWTIDE_GOLDEN_TARGET"  # the instruction set of this run; none: the best there is
LIST, SECTION = Path(__file__).parents[2] / "golden" / "list.txt", "\n[python]\n"
FORMATS = ("fp32", "bf16", "dynamic8", "float8", "dynamic4")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# By the name of their cells: classes with options, and all others that are made for a rule of the core.
CLASSES: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "AdamW amsgrad": (lowtide.AdamW, {"amsgrad": True}),
    "NAdam": (lowtide.NAdam, {}),
    "SGD": (lowtide.SGD, {"lr": 0.1}),
    "SGD momentum": (lowtide.SGD, {"lr": 0.1, "momentum": 0.9}),
    "SGD nesterov": (lowtide.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "Adagrad": (lowtide.Adagrad, {"lr_decay": 0.01, "initial_accumulator_value": 0.1}),
    "RMSprop": (lowtide.RMSprop, {}),
    "RMSprop centered": (lowtide.RMSprop, {"centered": True, "momentum": 0.9, "alpha": 0.9}),
    "AdEMAMix": (lowtide.AdEMAMix, {"t_alpha": 10, "t_beta3": 20}),
    "AdamWScheduleFree": (lowtide.AdamWScheduleFree, {"warmup_steps": 3}),
    "LARS": (lowtide.LARS, {"lr": 0.1}),
}
CLASSES |= {cls.__name__: (cls, {}) for rule in _core.rule_names() if (cls := OF_RULES[rule]).__name__ not in CLASSES}
# Averages of bitsandbytes' dicts: the rule, and how many parts state1 has.
BITSANDBYTES = {
    "Adam": 2, "AdamW": 2, "Lion": 1, "SGD momentum": 1, "RMSprop": 1, "Adagrad": 1, "AdEMAMix": 3, "LAMB": 2,
}  # fmt: skip
SHAPES = ((48, 256), (7, 301), (9,), ())


class Numbers:
    """The same numbers on every machine: multiples of 2^-12 in [-8, 8)."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def codes(self, *shape: int) -> torch.Tensor:
        count = torch.Size(shape).numel()
        return torch.frombuffer(bytearray(self._random.randbytes(count)), dtype=torch.uint8).view(shape)

    def values(self, *shape: int) -> torch.Tensor:
        low, high = self.codes(*shape).float(), self.codes(*shape).float()
        return (low + 256 * high - 32768) / 4096

    def powers(self, *shape: int) -> torch.Tensor:
        """1, 1/2, 0, -1/2 and -1: sums of their squares are exact in any order."""
        return (self.codes(*shape) % 5).float() / 2 - 1

    def parameters(self, dtype: torch.dtype, shapes: Any = SHAPES) -> list[torch.nn.Parameter]:
        return [torch.nn.Parameter(self.values(*shape).to(dtype)) for shape in shapes]


def raw(value: Any) -> bytes:
    """Tensors, and what dicts and sequences of them hold, as bytes."""
    if isinstance(value, torch.Tensor):
        if value.dim() == 0:
            return repr(value.item()).encode()
        dense = value.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
        return str(value.dtype).encode() + str(tuple(value.shape)).encode() + dense.view(torch.uint8).numpy().tobytes()
    if isinstance(value, dict):  # codes by the name of their moment, whatever they are shown as
        named = {str(key).removesuffix("_codes"): each for key, each in value.items()}
        return b"".join(key.encode() + raw(named[key]) for key in sorted(named))
    if isinstance(value, (list, tuple)):
        return b"".join(map(raw, value))
    return repr(value).encode()


def trained(name: str, dtype: torch.dtype, **options: Any) -> tuple[list[torch.nn.Parameter], Any]:
    cls, fixed = CLASSES[name]
    numbers = Numbers(1)
    params = numbers.parameters(dtype)
    groups = [{"params": params[:2]}, {"params": params[2:], "lr": 0.01}]
    opt = cls(groups, **fixed, **options, cpu_target=os.environ.get(TARGET, ""))
    for step in range(3):
        for param in params:
            param.grad = (numbers.values(*param.shape) / 16).to(dtype)
        opt.param_groups[0]["lr"] = 0.02 / (1 + step)
        opt.step()
    return params, opt


def cell(make: Callable[[], Any]) -> bytes:
    """The result of `make`, as bytes; "-" if it refuses."""
    try:
        return raw(make())
    except (ValueError, TypeError, NotImplementedError):
        return b"-"


def classes() -> Cells:
    """State dicts as stored, parameters, and the same state for torch and for bitsandbytes."""
    for name in CLASSES:
        for state in FORMATS:
            for dtype in DTYPES:
                for master in (None, "residual16", "residual8", "stochastic"):
                    if master and (dtype == torch.float32 or state not in ("fp32", "dynamic8")):
                        continue

                    def run(name=name, state=state, dtype=dtype, master=master) -> Any:
                        params, opt = trained(name, dtype, state=state, master=master)
                        saved = opt.state_dict()["state"]
                        for entry in saved.values() if master == "residual16" else ():  # hashed as dicts first had it
                            entry["residual"] = entry["residual"].view(dtype).view(entry["residual"].shape[:-1])
                        return params, saved

                    kind = f"{str(dtype)[6:]}{'+' + master if master else ''}"
                    yield f"{name}, {state}", kind, cell(run)
            for method in ("torch_state_dict", "bitsandbytes_state_dict"):

                def converted(name=name, state=state, method=method) -> Any:
                    _, opt = trained(name, torch.float32, state=state)
                    return getattr(opt, method)()["state"]

                yield f"{name}, {state}", method, cell(converted)


def reloaded() -> Cells:
    """State dicts of one optimizer in another, and a step from there."""

    def run(name: str, state: str) -> Any:
        _, opt = trained(name, torch.float32, state=state)
        params, other = trained(name, torch.float32, state=state)
        other.step()
        other.load_state_dict(opt.state_dict())
        other.step()
        return params, other.state_dict()["state"]

    for name in CLASSES:
        for state in FORMATS:
            yield f"{name}, {state}", "reloaded", cell(lambda n=name, s=state: run(n, s))


def muon() -> Cells:
    """Without products of matrices, which torch makes: momentum, norm and movement of exact numbers."""
    for state in ("fp32", "bf16", "dynamic8", "float8"):
        for nesterov in (True, False):

            def run(state=state, nesterov=nesterov) -> Any:
                numbers = Numbers(2)
                params = [torch.nn.Parameter(numbers.powers(*shape)) for shape in ((64, 32), (16, 256), (9,))]
                opt = lowtide.Muon(params, lr=0.5, momentum=0.5, nesterov=nesterov, weight_decay=0.25, ns_steps=0,
                                   state=state, min_quantized_numel=100,
                                   cpu_target=os.environ.get(TARGET, ""))  # fmt: skip
                for _ in range(2):
                    for param in params:
                        param.grad = numbers.powers(*param.shape)
                    opt.step()
                return params, opt.state_dict()["state"]

            yield f"Muon, {state}", f"nesterov={nesterov}", cell(run)


def blockwise() -> Cells:
    functional = bitsandbytes.functional
    for dtype in DTYPES:
        for size in (64, 256, 4096):
            for nested in (False, True):

                def run(dtype=dtype, size=size, nested=nested) -> Any:
                    values = Numbers(3).values(5, 4099).to(dtype)
                    codes, state = functional.quantize_blockwise(values, blocksize=size, nested=False)
                    if nested:  # as nested=True, whose mean torch's sum decides
                        inner = functional.quantize_blockwise(state.absmax - 0.5, blocksize=size)
                        return inner[0], functional.dequantize_blockwise(*inner)
                    return codes, state.absmax, functional.dequantize_blockwise(codes, state)

                yield f"blockwise {str(dtype)[6:]}", f"{'scales' if nested else 'values'},{size}", cell(run)
    for signed in (True, False):
        for bits in (4, 7):
            yield "map", f"signed={signed},{bits}", cell(lambda s=signed, b=bits: functional.create_dynamic_map(s, b))


def signs() -> Cells:
    for dtype in DTYPES:
        for order in ("little", "big"):

            def run(dtype=dtype, order=order) -> Any:
                bits = sign.pack(Numbers(4).values(3, 701).to(dtype), bitorder=order)
                return bits, sign.unpack(bits, 3 * 701, dtype=dtype, shape=(3, 701), bitorder=order)

            yield f"sign.pack {str(dtype)[6:]}", order, cell(run)
    for ties in ("hash", "plus", "minus", "zero", "previous"):

        def vote(ties=ties) -> Any:
            ballots = Numbers(5).codes(4, 500)
            previous = Numbers(6).codes(500) if ties == "previous" else None
            return sign.majority(ballots, 3999, ties=ties, seed=3, step=4, offset=64, previous=previous)

        yield "sign.majority", ties, cell(vote)
    yield "deepspeed", "packbits", cell(lambda: deepspeed.packbits(Numbers(7).values(70001), 70001, 0))
    yield "deepspeed", "unpackbits", cell(lambda: deepspeed.unpackbits(Numbers(7).codes(701), 701, 0))


def foreign() -> Cells:
    """State dicts of others, made of given codes and scales, in each state format, and a step from there."""
    shape = (48, 256)
    count = 48 * 256

    def loaded(name: str, entry: dict[str, Any], group: dict[str, Any], state: str) -> Any:
        cls, fixed = CLASSES[name]
        numbers = Numbers(8)
        param = torch.nn.Parameter(numbers.values(*shape).to(torch.bfloat16))
        opt = cls([param], **fixed, state=state, master=None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            opt.load_state_dict({"state": {0: entry}, "param_groups": [{**group, "params": [0]}]})
        before = raw(opt.state_dict()["state"])
        param.grad = (numbers.values(*shape) / 16).to(torch.bfloat16)
        opt.step()
        return before, param, opt.state_dict()["state"]

    def of_bitsandbytes(name: str, states: int, block: int) -> tuple[dict[str, Any], dict[str, Any]]:
        numbers = Numbers(9)
        maps = [bitsandbytes.functional.create_dynamic_map(s) for s in (True, name in ("Lion", "SGD momentum"))]
        entry: dict[str, Any] = {"step": 5}
        parts = (2,) if states == 3 else ()
        for k, lead in enumerate([parts, ()][: 1 if states == 1 else 2], 1):
            entry[f"state{k}"] = numbers.codes(*lead, *shape)
            entry[f"absmax{k}"] = numbers.values(*lead, count // block).abs() + 1
            entry[f"qmap{k}"] = maps[k - 1] if states > 1 else maps[0 if name in ("Lion", "SGD momentum") else 1]
        betas = {1: (0.9, 0.99), 2: (0.9, 0.999), 3: (0.9, 0.999, 0.9999)}[states]
        betas = (0.9, 0.0) if name == "RMSprop" else betas
        group = {"lr": 0.01, "betas": betas, "eps": 1e-8, "weight_decay": 0.0}
        return entry, {**group, "alpha": 5.0, "t_alpha": None, "t_beta3": None} if states == 3 else group

    adam = {"lr": 0.01, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1, "amsgrad": False}

    def of_torchao(bits: int) -> dict[str, Any]:
        numbers = Numbers(10)
        entry: dict[str, Any] = {"step": torch.tensor(5.0)}
        for moment in ("exp_avg", "exp_avg_sq"):
            codes = numbers.codes(*shape) if bits == 8 else numbers.codes(count // 2)
            scale = numbers.values(count // (256 if bits == 8 else 128)).abs() + 1
            qmap = torch.arange(16) / 16
            if bits == 8:
                qmap = bitsandbytes.functional.create_dynamic_map(moment == "exp_avg")
            entry[moment] = {"codes": codes, "scale": scale, "qmap": qmap}
        return entry

    def of_flashoptim() -> dict[str, Any]:
        numbers = Numbers(11)
        entry: dict[str, Any] = {"step": torch.tensor(5.0)}
        for moment, kind in (("exp_avg", torch.int8), ("exp_avg_sq", torch.uint8)):
            entry[f"{moment}::quantized"] = numbers.codes(*shape).view(kind)
            entry[f"{moment}::scales"] = (numbers.values(count // 32).abs() + 1).half()
        entry["error_bits"] = numbers.codes(*shape).view(torch.int8)
        return entry

    for state in FORMATS[:4]:
        for name, states in BITSANDBYTES.items():
            for block in (256, 2048):
                entry, group = of_bitsandbytes(name, states, block)
                made = cell(lambda n=name, e=entry, g=group, s=state: loaded(n, e, g, s))
                yield f"from bitsandbytes {name}, blocks of {block}", state, made
        for bits in (8, 4):
            made = cell(lambda b=bits, s=state: loaded("AdamW", of_torchao(b), adam, s))
            yield f"from torchao {bits} bits", state, made
        made = cell(lambda s=state: loaded("AdamW", of_flashoptim(), {**adam, "master_bytewidth": 3}, s))
        yield "from flashoptim", state, made
        for name in CLASSES:

            def from_torch(name=name, state=state) -> Any:
                _, opt = trained(name, torch.float32, state="fp32")
                _, other = trained(name, torch.float32, state=state)
                other.load_state_dict(opt.torch_state_dict())
                return other.state_dict()["state"]

            yield f"{name}, {state}", "from_torch", cell(from_torch)

    def weights() -> Any:
        param = Numbers(12).values(*shape).to(torch.bfloat16)
        saved = {"state": {0: of_flashoptim()}, "param_groups": [{**adam, "master_bytewidth": 3, "params": [0]}]}
        return flashoptim.master_weights([param], saved)

    yield "flashoptim", "master_weights", cell(weights)


def bnb_functions() -> Cells:
    """liblowtide_bnb, in host memory. Arguments as in lowtide/bnb.h."""
    library = bnb_library.library()
    n = 40 * 256 + 77
    f32 = ctypes.c_float

    def address(tensor: torch.Tensor | None) -> Any:
        return ctypes.c_void_p(0 if tensor is None else tensor.data_ptr())

    def run(name: str, suffix: str, dtype: torch.dtype, coded: bool, max_unorm: float) -> bytes:
        numbers = Numbers(13)
        two, parts = name in ("adam", "ademamix"), 2 if name == "ademamix" else 1
        p, unorm = numbers.values(n).to(dtype), torch.zeros(1)
        kind, blocks = torch.uint8 if coded else torch.float32, -(-n // 256)
        state1, absmax1 = torch.zeros(parts * n, dtype=kind), torch.zeros(parts * blocks)
        state2, absmax2 = (torch.zeros(n, dtype=kind), torch.zeros(blocks)) if two else (None, None)
        maps = [bitsandbytes.functional.create_dynamic_map(signed) for signed in (True, False)]
        for step in (1, 2, 3):
            g = (numbers.values(n) / 16).to(dtype)
            betas = [f32(x) for x in (0.9, 0.99, 0.999, 3.0, 1e-8)]
            library.lt_bnb_clear_error()
            if coded:
                getattr(library, f"c{name}_8bit_blockwise_grad_{suffix}")(
                    address(p), address(g), address(state1), address(state2), *betas, step, f32(1e-2),
                    *map(address, (*maps, absmax1, absmax2)), f32(1e-2), f32(0.5), step == 2, n,
                )  # fmt: skip
            else:
                getattr(library, f"c{name}32bit_grad_{suffix}")(
                    address(g), address(p), address(state1), address(state2), address(unorm), f32(max_unorm), f32(4.0),
                    *betas, f32(1e-2), step, f32(1e-2), f32(0.5), step == 2, n,
                )  # fmt: skip
            assert bnb_library.last_error(library) == ""
        return raw([p, state1, state2, absmax1, absmax2])

    suffixes = dict(zip(("fp32", "bf16", "fp16"), DTYPES, strict=True))
    for name in bnb_library.OPTIMIZERS:
        for suffix, dtype in suffixes.items():
            yield f"bnb {name}", f"8bit,{suffix}", run(name, suffix, dtype, True, 0)
            short = {"fp32": "32", "fp16": "16", "bf16": ""}[suffix] if name in bnb_library.NO_BF16_32BIT else suffix
            if short:
                yield f"bnb {name}", f"32bit,{suffix}", run(name, short, dtype, False, 0)
                yield f"bnb {name}", f"32bit,{suffix},max_unorm", run(name, short, dtype, False, 0.01)


# Without liblowtide_bnb (LOWTIDE_BNB) its cells are not looked at.
BNB = "bnb "
PARTS = (classes, reloaded, muon, blockwise, signs, foreign, *([bnb_functions] if bnb_library.PATH.exists() else []))


def text_of(cells: dict[str, str]) -> str:
    """`cells`, by "row : column", as tables: a line of columns above the rows that have them."""
    rows: dict[str, dict[str, str]] = {}
    for name, value in cells.items():
        row, column = name.split(" : ")
        rows.setdefault(row, {})[column] = value
    tables: dict[str, list[str]] = {}
    for row, values in rows.items():
        tables.setdefault(" ".join(["columns", *values]), []).append(f"{row} : {' '.join(values.values())}")
    return "".join("\n".join([columns, *lines, ""]) for columns, lines in tables.items())


def cells_of(text: str) -> dict[str, str]:
    cells: dict[str, str] = {}
    columns: list[str] = []
    for line in text.splitlines():
        row, _, values = line.partition(" : ")
        if values:
            cells |= {f"{row} : {column}": value for column, value in zip(columns, values.split(), strict=True)}
        elif not line.startswith("#"):
            columns = line.split()[1:]
    return cells


# The last is "scalar"; a build with LOWTIDE_NATIVE has one alone, whose bits are those of the list as well.
@pytest.mark.parametrize("target, threads", [("", 2), (_core.cpu_targets()[-1], 1)])
def test_every_cell_has_the_bits_of_the_list(
    target: str, threads: int, monkeypatch: pytest.MonkeyPatch, figure: Figure
) -> None:
    monkeypatch.setenv(TARGET, target)
    torch.set_num_threads(threads)
    got: dict[str, str] = {}
    for part in PARTS:
        for row, column, value in part():
            name = f"{row} : {column}"
            assert name not in got, f"two cells are named {name}"
            got[name] = "-" if value == b"-" else hashlib.blake2b(value, digest_size=5).hexdigest()
    if os.environ.get("LOWTIDE_GOLDEN") == "write" and not target:
        bnb_library.library()
        others, _, section = LIST.read_text().partition(SECTION)
        head = section.splitlines()[0]
        LIST.write_text(others + SECTION + f"{head}\n" + text_of(got))
    _, _, section = LIST.read_text().partition(SECTION)
    wanted = cells_of(section)
    if bnb_functions not in PARTS:
        wanted = {name: value for name, value in wanted.items() if not name.startswith(BNB)}
        figure(f"without the cells of {bnb_library.PATH}, which is not there")
    both = [name for name in got if name in wanted]
    differ = [f"{name}: got {got[name]}, wanted {wanted[name]}" for name in both if got[name] != wanted[name]]
    missing = [f"{name}: in the list, not made" for name in wanted if name not in got]
    extra = [f"{name}: not in the list" for name in got if name not in wanted]
    refused = sum(value == "-" for value in got.values())
    found = f"{len(differ)} differ, {len(missing)} missing, {len(extra)} not in the list"
    figure(f"{len(got)} cells on {target or _core.cpu_targets()[0]}, {refused} of them refusals: {found}")
    if offences := [*differ, *missing, *extra]:
        pytest.fail("\n".join(offences[:40]))
