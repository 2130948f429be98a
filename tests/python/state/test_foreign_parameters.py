"""Optimizers accept parameters that they do not step: frozen parameters of any kind, and parameters without memory."""

import copy
from collections.abc import Callable
from typing import Any

import lowtide
import pytest
import torch
from torch import nn

from support import bits, parameter, refused, snapshot, state_bits, step_alike, take_steps, through_file


class Wrapped(torch.Tensor):
    """A wrapper of another tensor, like torchao's quantized weights: it has no memory of its own."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls: Any, inner: torch.Tensor) -> Any:
        wrap: Any = torch.Tensor._make_wrapper_subclass  # type: ignore[attr-defined]
        made: Any = wrap(cls, inner.shape, dtype=torch.float32)
        made.inner = inner
        return made

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], _: None, size: Any, stride: Any) -> torch.Tensor:
        return Wrapped(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return Wrapped(args[0].inner)
        raise NotImplementedError(str(func))


def frozen(tensor: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(tensor, requires_grad=False)


FOREIGN: dict[str, Callable[[], nn.Parameter]] = {
    "uint8": lambda: frozen(torch.zeros(64, 32, dtype=torch.uint8)),
    "int8": lambda: frozen(torch.zeros(64, 32, dtype=torch.int8)),
    "float8": lambda: frozen(torch.zeros(64, 32).to(torch.float8_e4m3fn)),
    "float64": lambda: frozen(torch.zeros(64, 32, dtype=torch.float64)),
    "bool": lambda: frozen(torch.zeros(7, dtype=torch.bool)),
    "complex": lambda: frozen(torch.zeros(7, dtype=torch.complex64)),
    "meta": lambda: frozen(torch.zeros(64, 32, device="meta")),
    "meta that trains": lambda: nn.Parameter(torch.zeros(64, 32, device="meta")),
    "subclass": lambda: frozen(Wrapped(torch.zeros(64, 32))),
    "sparse": lambda: frozen(torch.eye(7).to_sparse()),
    "expanded": lambda: frozen(torch.zeros(1, 7).expand(64, 7)),
    "lazy": lambda: nn.UninitializedParameter(requires_grad=False),
    "empty": lambda: frozen(torch.zeros(0, 32, dtype=torch.uint8)),
}


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("where", ["first", "between", "own group"])
def test_a_foreign_parameter_is_taken_along_and_costs_nothing(kind, where, seed, figure):
    """The others have the bits of an optimizer with an empty tensor in its place, which keeps the numbering."""

    def groups(one: nn.Parameter, other: nn.Parameter, two: nn.Parameter) -> Any:
        ways = {"first": [other, one, two], "between": [one, other, two]}
        return ways.get(where) or [{"params": [other]}, {"params": [one, two]}]

    a, b = parameter(64, 256), parameter(300)
    twins = [nn.Parameter(p.detach().clone()) for p in (a, b)]
    other = FOREIGN[kind]()
    opt, alone = lowtide.AdamW(groups(a, other, b)), lowtide.AdamW(groups(twins[0], frozen(torch.zeros(0)), twins[1]))
    for _ in range(3):
        step_alike(([a, b], opt), (twins, alone))
    assert [bits(a), bits(b)] == [*map(bits, twins)]
    report, wanted = opt.report(), alone.report()
    assert {k: report[k] for k in ("params", "elements", "state_bytes")} == {
        k: wanted[k] for k in ("params", "elements", "state_bytes")
    }
    at = [id(p) for group in opt.param_groups for p in group["params"]].index(id(other))
    saved = opt.state_dict()
    assert at not in saved["state"] and len(saved["state"]) == 2
    figure(f"{kind}: 0 bytes of state, number {at}, others as without it")


@pytest.mark.parametrize("kind", FOREIGN)
def test_state_goes_round_with_a_foreign_parameter(kind, seed, tmp_path, figure):
    """A dict in torch's file, `save` and a copy all go on with the same bits."""
    def made() -> tuple[list[nn.Parameter], lowtide.AdamW]:
        torch.manual_seed(3)
        params = [parameter(64, 256), FOREIGN[kind](), parameter(300)]
        return params, lowtide.AdamW(params)

    params, opt = made()
    take_steps([params[0], params[2]], opt)
    opt.save(tmp_path / "state")
    ways = {"dict": made()[1], "file": made()[1]}
    ways["dict"].load_state_dict(through_file(opt.state_dict()))
    ways["file"].load(tmp_path / "state")
    if kind not in ("subclass", "lazy", "sparse"):  # which torch itself cannot copy
        ways["copy"] = copy.deepcopy(opt)
    for loaded in ways.values():
        assert state_bits(loaded) == state_bits(opt)
    figure(f"{len(ways)} ways")


@pytest.mark.parametrize("cls", [lowtide.AdamW, lowtide.Muon, lowtide.Adagrad, lowtide.LAMB])
def test_dicts_for_torch_leave_foreign_parameters_out(cls, seed):
    params: list[Any] = [parameter(16, 16), FOREIGN["uint8"](), FOREIGN["meta"]()]
    opt = cls(params)
    take_steps(params[:1], opt)
    saved = opt.state_dict()
    again = cls([nn.Parameter(params[0].detach().clone()), FOREIGN["uint8"](), FOREIGN["meta"]()])
    again.load_state_dict(saved)
    assert state_bits(again) == state_bits(opt)
    if cls in (lowtide.AdamW, lowtide.Adagrad):
        assert set(opt.torch_state_dict()["state"]) == {0}


def test_a_gradient_that_cannot_be_stepped_is_refused_by_name(seed, figure):
    a, other = parameter(300), nn.Parameter(torch.zeros(9).to(torch.float8_e4m3fn), requires_grad=False)
    opt = lowtide.AdamW([("head", a), ("base.weight", other)])
    take_steps([a], opt)
    other.grad = torch.zeros(9).to(torch.float8_e4m3fn)
    with refused(opt, "parameter 1 (base.weight)", "gradient", "float8_e4m3fn", "float32"):
        opt.step()
    other.grad = None
    opt.step()
    figure(f"{int(opt.state[a]['step'])} steps of the other")


def test_a_parameter_that_has_become_fit_is_stepped_from_its_first_gradient(seed, figure):
    """Once it is unfrozen and dequantized, its state begins as in a new optimizer; other state stays as it was."""
    a, late, meta = parameter(64, 256), FOREIGN["int8"](), FOREIGN["meta that trains"]()
    opt = lowtide.AdamW([a, late, meta])
    take_steps([a], opt)
    before, others = state_bits(opt)[0], bits(a)
    torch.utils.swap_tensors(late, nn.Parameter(torch.zeros(64, 256)))
    a.grad, late.grad = None, torch.ones(64, 256)
    opt.step()
    assert state_bits(opt)[0] == before and bits(a) == others
    assert [int(opt.state[p].get("step", 0)) for p in (a, late, meta)] == [1, 1, 0] and opt.report()["steps"] == 2
    twin = nn.Parameter(torch.zeros(64, 256))
    alone = lowtide.AdamW([torch.nn.Parameter(torch.zeros(0)), twin])
    twin.grad = torch.ones(64, 256)
    alone.step()
    assert bits(late) == bits(twin) and state_bits(opt)[1] == state_bits(alone)[1]
    figure("steps 1, 1 and 0; state of the second as a new optimizer's")


def test_torchao_weights_stay_aside(seed, figure):
    """torchao's own int8 weights, which are tensor subclasses."""
    quantization = pytest.importorskip("torchao.quantization")
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 8))
    quantization.quantize_(model[0], quantization.Int8WeightOnlyConfig())
    model[0].weight.requires_grad_(False)
    opt = lowtide.AdamW(model.parameters(), lr=0.01)
    model(torch.randn(4, 64)).sum().backward()
    opt.step()
    assert opt.state[model[0].weight] == {} and int(opt.state[model[1].weight]["step"]) == 1
    figure(f"{type(model[0].weight).__name__}: without state")


def test_a_parameter_that_trains_is_still_refused_at_once(seed):
    """Only parameters that are frozen, or have no memory yet, may wait."""
    for bad in (nn.Parameter(torch.zeros(3, dtype=torch.float64)), torch.zeros(3, dtype=torch.uint8)):
        with pytest.raises(ValueError, match="wanted one of torch.float32"):
            lowtide.AdamW([bad])
    opt = lowtide.AdamW([FOREIGN["uint8"]()])  # nothing to step at all
    before = snapshot(opt)
    opt.step()
    assert snapshot(opt) == before and opt.report()["params"] == 0


def test_planning_leaves_foreign_parameters_out():
    params = [parameter(64, 256), FOREIGN["uint8"]()]
    assert lowtide.forecast(params).state_bytes == lowtide.forecast(params[:1]).state_bytes
