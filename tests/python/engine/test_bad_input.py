"""Bad arguments: the error says what was given and what is wanted, and nothing has changed."""

import copy
import math

import lowtide
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from support import (
    RULES, bits, make, parameter, random_gradients, refused, snapshot, state_bits, step_alike, take_steps, trained,
)  # fmt: skip

NAN, INF = math.nan, math.inf
# option, bad value, words of the message
HYPER = {
    "adamw": [
        ("lr", NAN, ["lr", "nan", "wanted"]), ("lr", -1e-3, ["lr", "-0.001", "wanted"]), ("lr", INF, ["lr", "inf"]),
        ("lr", 1e39, ["lr", "1e+39", "float32"]), ("lr", "fast", ["lr", "'fast'"]), ("lr", None, ["lr", "None"]),
        ("lr", torch.zeros(2), ["lr", "(2,)", "one"]), ("lr", torch.tensor(NAN), ["lr", "nan"]),
        ("lr", 1j, ["lr", "1j", "number"]), ("lr", torch.tensor(1j), ["lr", "complex64"]),
        ("betas", (1.0, 0.999), ["beta1", "1", "wanted"]), ("betas", (0.9, 1.0), ["beta2", "1", "wanted"]),
        ("betas", (-0.1, 0.999), ["beta1", "-0.1"]), ("betas", (0.9, NAN), ["beta2", "nan"]),
        ("betas", 0.9, ["betas", "0.9", "2 numbers"]),
        ("betas", (0.9,), ["betas", "2 numbers"]), ("betas", ("a", 0.9), ["betas[0]", "'a'", "number"]),
        ("eps", -1e-8, ["eps", "-1e-08", "wanted"]), ("eps", 0.0, ["eps", "0", "wanted"]), ("eps", NAN, ["eps", "nan"]),
        ("eps", 1e-60, ["eps", "1e-60", "float32"]), ("weight_decay", -0.1, ["weight_decay", "-0.1"]),
        ("weight_decay", INF, ["weight_decay", "inf"]), ("maximize", "no", ["maximize", "'no'", "bool"]),
        ("state", "int3", ["int3", "dynamic8"]), ("state", None, ["state", "None", "str"]),
        ("min_quantized_numel", "4k", ["'4k'", "integer"]), ("min_quantized_numel", 1.5, ["1.5", "integer"]),
        ("min_quantized_numel", None, ["None", "integer"]), ("min_quantized_numel", True, ["True", "integer"]),
        ("min_quantized_numel", 2**70, [str(2**70), "2^63"]), ("min_quantized_numel", -1, ["-1", "integer from 0"]),
        ("fused", "x", ["'x'", "bool or None"]), ("foreach", 1, ["1", "bool or None"]),
    ],
    "adam": [("decoupled_weight_decay", True, ["True", "False or None", "AdamW"])],
    "sgd": [
        ("momentum", -0.1, ["momentum", "-0.1", "wanted"]), ("momentum", NAN, ["momentum", "nan"]),
        ("dampening", NAN, ["dampening", "nan"]), ("nesterov", "yes", ["nesterov", "'yes'", "bool"]),
    ],
    "rmsprop": [
        ("alpha", 1.0, ["alpha=1", "RMSprop"]), ("alpha", -0.1, ["alpha=-0.1"]), ("centered", "yes", ["centered", "bool"]),
        ("momentum", 0.0, ["RMSprop: got momentum = 0.0"]), ("centered", False, ["RMSprop: got centered = False"]),
    ],
    "adagrad": [("lr_decay", -1.0, ["lr_decay=-1"]), ("initial_accumulator_value", NAN, ["initial_accumulator_value=nan"])],
    "ademamix": [
        ("betas", (0.9, 0.999), ["betas", "3 numbers"]), ("betas", (0.9, 0.999, 1.0), ["beta3=1"]),
        ("alpha", INF, ["alpha=inf"]), ("t_alpha", -1, ["t_alpha=-1"]), ("t_beta3", "all", ["t_beta3", "'all'", "number"]),
    ],
    "schedulefree": [
        ("betas", (0.0, 0.999), ["beta1=0", "0.01 or more"]), ("warmup_steps", -1, ["warmup_steps=-1"]), ("r", INF, ["r=inf"]),
        ("weight_lr_power", -1.0, ["weight_lr_power=-1"]), ("warmup_steps", "all", ["warmup_steps", "'all'", "number"]),
        ("warmup_steps", 0.1, ["warmup_steps", "0.1", "whole number"]), ("warmup_steps", 2.5, ["2.5", "whole number"]),
    ],
    "nadam": [("momentum_decay", -1.0, ["momentum_decay=-1"])],
    "lamb": [("max_unorm", -1.0, ["max_unorm=-1"]), ("max_unorm", "large", ["max_unorm", "'large'"])],
    "lars": [("max_unorm", -1.0, ["max_unorm=-1"]), ("nesterov", "yes", ["nesterov", "'yes'", "bool"])],
    "lion": [("lr", NAN, ["lr", "nan"]), ("betas", (0.9, 1.5), ["beta2", "1.5"])],
}  # fmt: skip
FIXED = ("state", "min_quantized_numel")  # refused later, whatever they become
ONLY_AT_FIRST = ("fused", "foreach", "decoupled_weight_decay")  # steps do not look at these
CASES = [(rule, *case) for rule, cases in HYPER.items() for case in cases]


@pytest.mark.parametrize(("rule", "name", "value", "words"), CASES, ids=[f"{c[0]}-{c[1]}-{c[2]}" for c in CASES])
def test_bad_options(rule, name, value, words, seed):
    """Refused by the constructor, by add_param_group, and by step() when put into a group, which is named; nothing has changed
    then. Only step() refuses values that would make another variant of the rule."""
    kinds = (ValueError, TypeError)
    params = [parameter(5000), parameter(5000)]
    opt = make(rule, [{"params": params[:1]}, {"params": params[1:]}])
    take_steps(params, opt)
    variant = any(word.startswith("RMSprop: got") for word in words)
    if not variant:
        with refused(opt, *words, kind=kinds):
            make(rule, [parameter(3)], **{name: value})
        with refused(opt, "parameter group 1", *words, kind=kinds):
            make(rule, [{"params": [parameter(3)]}, {"params": [parameter(3)], name: value}])
        with refused(opt, "parameter group 2", *words, kind=kinds):
            opt.add_param_group({"params": [parameter(3)], name: value})
    good = opt.param_groups[1].get(name)
    opt.param_groups[0]["lr"] = 0.5
    opt.param_groups[1][name] = value
    if name in FIXED:
        with refused(opt, name, repr(good)):
            opt.step()
    elif name not in ONLY_AT_FIRST:
        with refused(opt, "parameter group 1", *(words if variant else ()), kind=kinds):
            opt.step()
    opt.param_groups[1][name] = good
    opt.step()
    assert [int(opt.state[p]["step"]) for p in params] == [2, 2]


def test_nesterov_needs_momentum_and_no_dampening(seed):
    for cls, options in ((lowtide.SGD, {"momentum": 0.0}), (lowtide.SGD, {"momentum": 0.9, "dampening": 0.1}), (lowtide.LARS, {"momentum": 0})):
        with pytest.raises(ValueError, match="nesterov"):
            cls([parameter(3)], nesterov=True, **options)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"memory": 2 << 30}, TypeError, ["memory", "2147483648", "lowtide.Memory", "None"]),
        ({"nonfinite": "ignore"}, ValueError, ["nonfinite", "ignore", "skip", "raise", "propagate"]),
        ({"nonfinite": 5}, TypeError, ["nonfinite", "5", "'skip', 'raise' or 'propagate'"]),
        ({"cpu_target": None}, TypeError, ["cpu_target", "None", "str"]),
        ({"amp_scaling": "maybe"}, TypeError, ["amp_scaling", "'maybe'", "bool"]),
        ({"capturable": True}, ValueError, ["capturable", "True", "False"]),
        ({"differentiable": True}, ValueError, ["differentiable", "True", "False"]),
        ({"amsgrad": True, "nesterov": True}, ValueError, ["amsgrad and nesterov", "wanted one of them"]),
        ({"amsgrad": "yes"}, TypeError, ["amsgrad", "'yes'", "bool"]),
        ({"bits": 8}, TypeError, ["bits", "state"]),
    ],
)
def test_bad_options_of_the_whole_optimizer(options, error, words):
    with pytest.raises(error) as caught:
        lowtide.AdamW([parameter(3)], **options)
    assert all(word in str(caught.value) for word in words), caught.value
    for harmless in ("capturable", "differentiable", "foreach", "fused", "memory"):
        lowtide.AdamW([parameter(3)], **{harmless: None})
    lowtide.Adam([parameter(3)], decoupled_weight_decay=None, fused=False, min_quantized_numel=2**63 - 1)


class Wrapper(torch.Tensor):
    """A tensor subclass that represents another tensor, like DTensor and quantized weights."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, requires_grad=True)

    def __init__(self, inner):
        self.inner = inner

    def __tensor_flatten__(self):
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(tensors, context, size, stride):
        return Wrapper(tensors["inner"])

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise NotImplementedError(function)

    def __repr__(self):
        return "Wrapper()"


PARAMETERS = {
    "float64": (lambda: torch.zeros(3, dtype=torch.float64), ["float64", "float32", ".float()"]),
    "complex": (lambda: torch.zeros(3, dtype=torch.complex64), ["complex64", "float32"]),
    "integer": (lambda: torch.zeros(3, dtype=torch.int64), ["int64", "float32"]),
    "bool": (lambda: torch.zeros(3, dtype=torch.bool), ["bool", "float32"]),
    "float8": (lambda: torch.zeros(3, dtype=torch.float8_e4m3fn), ["float8_e4m3fn", "float32"]),
    "meta": (lambda: torch.zeros(3, device="meta"), ["meta", "cpu"]),
    "sparse": (lambda: torch.zeros(3, 3).to_sparse(), ["sparse", "strided"]),
    "wrapper": (lambda: Wrapper(torch.zeros(3)), ["Wrapper", "plain"]),
    "nested": (lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]), ["nested", "dense"]),
    "lazy": (lambda: torch.nn.LazyLinear(3).weight, ["uninitialized", "shape"]),
    "expanded": (lambda: torch.zeros(1, 3).expand(4, 3), ["expanded"]),
    "overlapping": (lambda: torch.zeros(9).as_strided((4, 4), (1, 1)), ["address"]),
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_that_cannot_be_stepped(name, seed):
    build, words = PARAMETERS[name]
    with pytest.raises((ValueError, TypeError)) as caught:
        lowtide.AdamW([build()])
    assert all(word in str(caught.value) for word in words), caught.value
    opt = lowtide.AdamW([parameter(5000)])
    with refused(opt, *words, kind=(ValueError, TypeError)):
        opt.add_param_group({"params": [parameter(7), build()]})


def test_a_group_that_a_core_refuses_half_way_leaves_nothing(seed):
    """By then the core has the group's first parameter and the state of earlier groups, which continue unharmed."""
    params, opt = trained()
    twins, other = copy.deepcopy((params, opt))
    late, overlapping = parameter(7), PARAMETERS["overlapping"][0]()
    before = bits(late)
    with refused(opt, "parameter group 2, parameter 1", "address"):
        opt.add_param_group({"params": [late, overlapping]})
    late.grad = torch.ones_like(late)
    for _ in range(2):
        step_alike((params, opt), (twins, other))
    assert state_bits(opt) == state_bits(other) and [*map(bits, params)] == [*map(bits, twins)]
    assert bits(late) == before, "a step knows nothing of it"


def test_what_is_no_parameter(seed):
    p = parameter(3)
    with pytest.raises(TypeError):
        lowtide.AdamW([1.0])
    with pytest.raises(ValueError, match="non-leaf"):
        lowtide.AdamW([p * 2])
    with pytest.raises(ValueError, match="more than once"):
        lowtide.AdamW([p, p])
    with pytest.raises(ValueError, match="more than one parameter group"):
        lowtide.AdamW([{"params": [p]}, {"params": [p]}])
    with pytest.raises(ValueError, match="params"):
        lowtide.AdamW([{"lr": 1.0}])


@pytest.mark.parametrize("rule", RULES)
def test_sparse_gradients_are_refused(rule, seed):
    """The parameter before the sparse gradient is not stepped, either."""
    first, table = parameter(300), torch.nn.Embedding(10, 4, sparse=True)
    opt = make(rule, [first, table.weight])
    table(torch.tensor([1, 2])).sum().backward()
    first.grad = torch.randn(300)
    with refused(opt, "sparse", "strided", "parameter 1"):
        opt.step()


def test_gradients_of_another_kind(seed):
    a, b = parameter(300), parameter(40, 50)
    opt = lowtide.AdamW([a, b])
    for grad, words in (
        (torch.randn(40, 50, dtype=torch.float64), ["float64", "float32"]),
        (torch.zeros(40, 50, dtype=torch.complex64), ["complex64", "float32"]),
    ):
        b.grad_dtype = None
        a.grad, b.grad = torch.randn(300), grad
        with refused(opt, "parameter 1", *words):
            opt.step()


def test_groups_changed_behind_the_back(seed):
    params = [parameter(300), parameter(300)]
    opt = lowtide.AdamW([{"params": params[:1]}, {"params": params[1:]}])
    take_steps(params, opt)
    stray = parameter(200)
    changes = [
        (lambda groups: groups.append({**groups[0], "params": [stray]}), lambda groups: groups.pop()),
        (lambda groups: groups[0]["params"].append(stray), lambda groups: groups[0]["params"].pop()),
        (lambda groups: groups[0].update(params=[stray]), lambda groups: groups[0].update(params=params[:1])),
        (lambda groups: groups[0].update(params=params[1:]), lambda groups: groups[0].update(params=params[:1])),
    ]
    for change, undo in changes:
        before = [bits(p) for p in params]
        change(opt.param_groups)
        with pytest.raises(ValueError, match=r"got .* wanted|got other tensors"):
            opt.step()
        undo(opt.param_groups)
        assert [bits(p) for p in params] == before
    opt.step()


def test_raising_on_nonfinite_gradients(seed):
    params = [parameter(5000), parameter(5000)]
    opt = lowtide.AdamW(params, nonfinite="raise")
    take_steps(params, opt)
    params[1].grad[77] = NAN
    with refused(opt, "parameter 1", "NaN"):
        opt.step()
    assert opt.skipped_steps == 0


def test_propagating_nonfinite_gradients_as_torch_does(seed):
    p = parameter(5000)
    opt = lowtide.AdamW([p], nonfinite="propagate", state="fp32")
    random_gradients([p])
    p.grad[77] = NAN
    opt.step()
    assert p.isnan().nonzero().tolist() == [[77]] and opt.skipped_steps == 0


def test_failed_closure_changes_nothing(seed):
    p = parameter(300)
    opt = lowtide.AdamW([p])
    random_gradients([p])
    before = snapshot(opt)

    def closure():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        opt.step(closure)
    assert snapshot(opt) == before


def functional(use):
    torch.func.functionalize(use)(torch.ones(3))


def differentiated(use):
    torch.func.grad(lambda x: (use(x), x.sum())[1])(torch.ones(3))


def batched(use):
    torch.func.vmap(lambda x: (use(x), x)[1])(torch.ones(2, 3))


def fake(use):
    with FakeTensorMode():
        use(torch.ones(3))


def functional_itself(use):
    use(torch._to_functional_tensor(torch.ones(3)))


@pytest.mark.parametrize("tensor_of", [functional, differentiated, batched, fake, functional_itself])
def test_tensors_that_stand_in_for_others_are_refused_by_name(tensor_of, recwarn):
    """Functions called by torch.func, functionalize and fake modes get tensors without memory. They are refused as gradients
    and as parameters, without a warning about access to memory."""
    param = parameter(3)
    opt = lowtide.AdamW([param], lr=0.1)
    before = snapshot(opt)

    def use(x):
        param.grad = x
        with pytest.raises(ValueError, match="got the gradient of parameter 0 as a tensor of torch.func, of functionalize or"):
            opt.step()
        param.grad = None
        x = torch.nn.Parameter(x) if tensor_of in (fake, functional_itself) else x
        with pytest.raises(ValueError, match="parameter 0: got a parameter as a tensor of torch.func, of functionalize or"):
            lowtide.AdamW([x])

    tensor_of(use)
    assert snapshot(opt) == before and not recwarn.list
