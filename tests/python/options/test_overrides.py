"""`lowtide.override`: options of single parameters, early and late, whatever becomes of the tensors."""

import copy
import gc
import pickle
import weakref

import lowtide
import pytest
import torch

from support import RULES, bits, make, parameter, refused, state_bits, take_steps, through_file


def model():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Embedding(40, 256), torch.nn.Linear(256, 64), torch.nn.Linear(64, 256))


def train(module, opt, steps=3):
    take_steps(list(module.parameters()), opt, steps)


def formats(opt, module):
    names = {id(p): name for name, p in module.named_parameters()}
    return {names[id(p)]: opt._core.state_codec(i) for i, p in enumerate(opt.engine.tensors)}


WHEN = ["before the optimizer", "before the first step", "after steps"]


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("rule", RULES)
def test_an_override_does_what_a_group_of_its_own_does(rule, when, seed, figure):
    """The bits are those of an optimizer with the overridden parameters in groups with these options; before a late override, with the
    earlier options."""
    ours, theirs = model(), model()
    lr, state = 0.02, "fp32"

    def override():
        lowtide.override(ours[0], "weight", state=state)
        lowtide.override(ours, "2.weight", lr=lr)

    if when == WHEN[0]:
        override()
    opt = make(rule, ours.parameters(), lr=0.01)
    if when == WHEN[1]:
        override()
    other = make(rule, theirs.parameters(), lr=0.01)
    if when == WHEN[2]:
        torch.manual_seed(seed)
        train(ours, opt)
        torch.manual_seed(seed)
        train(theirs, other)
        override()
    # The reference: a group for each, with the earlier state where there is one, encoded in the group's format.
    params = list(theirs.parameters())
    grouped = make(
        rule,
        [{"params": params[:1], "state": state}, {"params": params[1:3]}, {"params": params[3:4], "lr": lr},
         {"params": params[4:]}],
        lr=0.01,
    )  # fmt: skip
    if when == WHEN[2]:
        for i in range(len(params)):
            if len(other._core.state(i)) > 1:
                grouped._core.allocate_state(i)
                for k in range(len(other._core.state(i)) - 1 - sum("scale" in n for n in other._core.state(i))):
                    grouped._core.import_state(i, k, other._core.export_state(i, k))
            grouped._core.set_step_count(i, other._core.step_count(i))
            grouped._core.set_carried(i, other._core.carried(i))
        # Encoding decoded values changes codes of dynamic8, so codes are copied.
        for i in range(1, len(params)):
            if other._core.has_state(i) and len(other._core.state(i)) > 1:
                grouped._core.write_state(i, other._core.read_state(i))
    torch.manual_seed(seed + 1)
    train(ours, opt)
    torch.manual_seed(seed + 1)
    train(theirs, grouped)
    same = [bits(a) == bits(b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True)]
    assert all(same) and state_bits(opt) == state_bits(grouped)
    assert formats(opt, ours)["0.weight"] == "fp32"
    assert [group["lr"] for group in opt.param_groups] == [0.01] and len(opt.param_groups) == 1
    assert opt.report()["steps"] == (6 if when == WHEN[2] else 3)
    figure(f"{len(same)} parameters bit-equal to groups of their own")


def test_late_overrides_lose_nothing(seed, figure):
    """To fp32 and back: codes become the values they decode to, then codes again; other state keeps every bit; views are new."""
    module = model()
    opt = lowtide.AdamW(module.parameters())
    train(module, opt)
    weight = module[1].weight
    before = state_bits(opt)
    index = next(i for i, p in enumerate(opt.engine.tensors) if p is weight)
    values = [opt._core.export_state(index, k) for k in range(2)]
    taken = lowtide.override(weight, state="fp32")
    opt.state_dict()  # looks
    assert [bits(opt.state[weight][name]) for name in ("exp_avg", "exp_avg_sq")] == [bits(v) for v in values]
    after = state_bits(opt)
    assert [a == b for a, b in zip(before, after, strict=True)].count(False) == 1
    assert int(opt.state[weight]["step"]) == 3 and opt.report()["steps"] == 3
    taken.remove()
    opt.state_dict()
    assert opt.state[weight]["exp_avg_codes"].dtype == torch.uint8
    again = [opt._core.export_state(index, k) for k in range(2)]
    worst = max(float((a - b).abs().max() / a.abs().max()) for a, b in zip(values, again, strict=True))
    figure(f"after 8 bit -> 32 -> 8 values differ by {worst:.1e} of the largest")
    assert worst < 0.01
    train(module, opt, 1)


@pytest.mark.parametrize("when", ["early", "late"])
def test_budgets_keep_their_state(when, tmp_path, seed, figure):
    """State that streams from a disk is converted too; its bits equal a run's without a budget."""
    results = []
    for memory in (None, lowtide.Memory(host="64KiB", disk=tmp_path, chunk=4096)):
        module = model()
        if when == "early":
            lowtide.override(module[0], state="fp32")
        opt = lowtide.AdamW(module.parameters(), memory=memory)
        torch.manual_seed(seed)
        train(module, opt)
        if when == "late":
            lowtide.override(module[0], state="fp32", lr=1e-2)
        train(module, opt)
        results.append(([bits(p) for p in module.parameters()], [
            [bits(opt._core.export_state(i, k)) for k in range(2)] for i in range(5)
        ]))  # fmt: skip
        assert memory is None or opt.report()["moved_per_step"] > 0
    figure(f"bits equal: {results[0] == results[1]}")
    assert results[0] == results[1]


def test_later_ones_count_and_can_be_taken_back(seed):
    module = model()
    opt = lowtide.AdamW(module.parameters(), lr=0.0)
    start = [bits(p) for p in module.parameters()]
    first = lowtide.override(module, lr=0.1, weight_decay=0.0)
    second = lowtide.override(module[1], lr=0.0)
    third = lowtide.override(module[2].bias, lr=0.0)

    def moved():
        before = [bits(p) for p in module.parameters()]
        train(module, opt, 1)
        return [a != b for a, b in zip(before, [bits(p) for p in module.parameters()], strict=True)]

    assert moved() == [True, False, False, True, False]
    second.remove()
    assert moved() == [True, True, True, True, False]
    third.remove()
    assert moved() == [True] * 5
    first.remove()
    assert moved() == [False] * 5 and [bits(p) for p in module.parameters()] != start
    assert opt.param_groups[0]["lr"] == 0.0 and len(opt.state) == 5


def test_parameters_that_come_later_and_whole_modules(seed):
    """Overrides of a module hold for the parameters it has when an optimizer looks, and for added groups."""
    module = model()
    lowtide.override(module, state="fp32")
    module.append(torch.nn.Linear(256, 64))
    opt = lowtide.AdamW(module[0].parameters())
    opt.add_param_group({"params": module[1:].parameters(), "lr": 0.5})
    assert set(formats(opt, module).values()) == {"fp32"} and len(opt.param_groups) == 2
    train(module, opt)


def test_overrides_follow_names_through_swaps(seed):
    """New tensors under the old names (as `fully_shard` and `model.to` put them) have the overrides; tensors alone
    would not."""
    module = model()
    lowtide.override(module[1], "weight", state="fp32")
    module[1].weight = torch.nn.Parameter(module[1].weight.detach().clone())
    opt = lowtide.AdamW(module.to(torch.bfloat16).parameters())
    assert formats(opt, module)["1.weight"] == "fp32" and formats(opt, module)["2.weight"] == "dynamic8"
    before = torch.__future__.get_swap_module_params_on_conversion()
    try:
        torch.__future__.set_swap_module_params_on_conversion(True)
        module.to(torch.float32)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)
    opt = lowtide.AdamW(module.parameters())
    assert formats(opt, module)["1.weight"] == "fp32" and formats(opt, module)["2.weight"] == "dynamic8"
    # Once seen, an override stays in effect, also when the module lets go of the parameter.
    train(module, opt)
    module[1].weight = torch.nn.Parameter(module[1].weight.detach().clone())
    lowtide.override(module[2], lr=0.5)
    opt.step()
    assert [group.params for group in opt.engine.groups if group.overrides.get("state")] == [[1]]


@pytest.mark.parametrize("how", ["module and optimizer", "optimizer and module", "pickle"])
def test_copies_have_their_overrides(how, seed):
    module = model()
    lowtide.override(module[1], state="fp32")
    lowtide.override(module[2].weight, state="bf16", lr=0.1)
    opt = lowtide.AdamW(module.parameters())
    train(module, opt)
    if how == "pickle":
        other, twin = pickle.loads(pickle.dumps((module, opt)))
    elif how == "module and optimizer":
        other, twin = copy.deepcopy((module, opt))
    else:
        twin, other = copy.deepcopy((opt, module))
    assert formats(twin, other) == formats(opt, module) and state_bits(twin) == state_bits(opt)
    lowtide.override(model(), state="fp32")  # others' overrides change nothing
    torch.manual_seed(seed)
    train(module, opt)
    torch.manual_seed(seed)
    train(other, twin)
    assert [bits(p) for p in other.parameters()] == [bits(p) for p in module.parameters()]
    lowtide.override(other[0], state="fp32")
    twin.state_dict()
    assert formats(twin, other)["0.weight"] == "fp32" and formats(opt, module)["0.weight"] == "dynamic8"


def test_state_dicts_and_files_with_overrides(tmp_path, seed):
    module, other = model(), model()
    for each in (module, other):
        lowtide.override(each[0], state="fp32", lr=0.1)
    opt, twin = lowtide.AdamW(module.parameters()), lowtide.AdamW(other.parameters())
    train(module, opt)
    saved = through_file(opt.state_dict())
    assert "overrides" not in str(saved["param_groups"]) and saved["param_groups"][0]["lr"] == 1e-3
    twin.load_state_dict(saved)
    assert state_bits(twin) == state_bits(opt)
    opt.save(tmp_path / "saved")
    train(other, twin)
    twin.load(tmp_path / "saved")
    assert state_bits(twin) == state_bits(opt)
    plain = lowtide.AdamW(model().parameters())
    with refused(plain, "fp32", "dynamic8", "overrides"):
        plain.load_state_dict(saved)
    torch_made = torch.optim.AdamW(list(module.parameters()))
    torch_made.load_state_dict(opt.torch_state_dict())
    twin.load_state_dict(torch_made.state_dict())
    assert twin.state[other[0].weight]["exp_avg"].dtype == torch.float32


@pytest.mark.parametrize("state", ["fp32", "bf16", "dynamic8", "float8", "dynamic4"])
@pytest.mark.parametrize("of_group", ["fp32", "dynamic8", "float8", "dynamic4"])
def test_own_state_dicts_are_loaded_whatever_the_override(state, of_group, seed):
    def made():
        module = torch.nn.Sequential(torch.nn.Linear(256, 64, bias=False), torch.nn.Linear(64, 129))
        lowtide.override(module[0], state=state)
        return module, lowtide.AdamW(module.parameters(), state=of_group)

    module, opt = made()
    module(torch.randn(4, 256)).sum().backward()
    opt.step()
    saved = through_file(opt.state_dict())
    assert "lowtide_state" not in opt.state[module[0].weight] and state_bits(copy.deepcopy(opt)) == state_bits(opt)
    _, twin = made()
    twin.load_state_dict(saved)
    assert state_bits(twin) == state_bits(opt)
    opt.load_state_dict(opt.state_dict())
    assert state_bits(twin) == state_bits(opt)


def test_codes_of_an_override_are_not_read_as_the_groups(seed):
    module = torch.nn.Linear(256, 64, bias=False)
    lowtide.override(module, state="float8")
    opt = lowtide.AdamW(module.parameters())
    module(torch.randn(4, 256)).sum().backward()
    opt.step()
    saved = opt.state_dict()
    assert saved["state"][0]["lowtide_state"] == "float8"
    plain = lowtide.AdamW(torch.nn.Linear(256, 64, bias=False).parameters())
    with refused(plain, "float8", "dynamic8", "overrides"):
        plain.load_state_dict(saved)
    for wrong in ("float9", 8, ["float8"]):
        spoilt = {**saved, "state": {0: {**saved["state"][0], "lowtide_state": wrong}}}
        with refused(opt, repr(wrong), "one of", "'float8'"):
            opt.load_state_dict(spoilt)
    old = {**saved, "state": {0: dict(opt.state[module.weight])}}  # without it, the group's is meant
    with refused(opt, "got dynamic8", "wanted float8"):
        opt.load_state_dict(old)
    plain.load_state_dict(old)


def test_plans_know_overrides(seed):
    module = model()
    plain = lowtide.forecast(module).state_bytes
    taken = lowtide.override(module[0], state="fp32")
    planned = lowtide.forecast(module)
    assert planned.state_bytes == lowtide.AdamW(module.parameters()).report()["state_bytes"] > plain
    taken.remove()
    assert lowtide.forecast(module).state_bytes == plain
    for memory in (lowtide.Memory(host="1MiB"), {"host": "1MiB"}, "host=1MiB"):  # the forms that a group takes
        lowtide.override(module, memory=memory)
        assert {param.memory for param in lowtide.AdamW(module.parameters()).engine.params} == {lowtide.Memory(host="1MiB")}


@pytest.mark.parametrize("rule", ["adamw", "muon"])
def test_plans_of_budgets_are_exact(rule, tmp_path, seed, figure):
    """Overrides share their group's budget, in the order of the parameters: bytes as the report has them."""
    compared = 0
    for own in (False, True):
        module = torch.nn.Sequential(*(torch.nn.Linear(128, 128) for _ in range(6)))
        lowtide.override(module[1], "weight", state="fp32")
        lowtide.override(module[3], state="bf16")
        memory = lowtide.Memory(host="32KiB", disk=tmp_path, chunk=4096)
        of_group, of_all = (memory, None) if own else (None, memory)
        groups = [{"params": list(module.parameters()), "memory": of_group}]
        planned = lowtide.forecast(groups, rule, memory=of_all)
        cls = lowtide.Muon if rule == "muon" else lowtide.AdamW
        opt = cls([{**groups[0]}], memory=of_all)
        take_steps(list(module.parameters()), opt)
        report = opt.report()
        found = (report["state_bytes"], report["allocated_bytes"], report["disk_bytes"], report["moved_per_step"])
        assert found == (planned.state_bytes, planned.host_bytes, planned.disk_bytes, planned.moved_per_step)
        assert report["allocated_bytes"] <= 32 * 1024 and report["disk_bytes"] > 0
        assert [budget.params for budget in planned.budgets if budget.params] == [12]
        compared += len(found)
    figure(f"{compared} figures off by 0 bytes")


def test_what_is_not_there_is_refused():
    module = model()
    for target, name, kind, words in (
        (module[1], "weigth", ValueError, ["'weigth'", "did you mean 'weight'", "Linear"]),
        (module, "weight", ValueError, ["'weight'", "0.weight"]),
        (torch.nn.Linear(4, 4, bias=False), "bias", ValueError, ["'bias'", "weight"]),
        (torch.nn.ReLU(), None, ValueError, ["ReLU without parameters"]),
        (torch.nn.ReLU(), "weight", ValueError, ["it has no parameters"]),
        (torch.zeros(3), None, ValueError, ["shape (3,) that is no parameter"]),
        ([module[1].weight, module[1].weight * 2], None, ValueError, ["parameter 1", "no parameter"]),
        ([], None, ValueError, ["no parameters"]),
        (module[1].weight, "weight", TypeError, ["the name 'weight' with a Parameter"]),
        (3, None, TypeError, ["got int"]),
        (["weight"], None, TypeError, ["parameter 0: got str"]),
    ):
        with pytest.raises(kind) as caught:
            lowtide.override(target, name, state="fp32")
        assert all(word in str(caught.value) for word in words), str(caught.value)
    with pytest.raises(ValueError, match="no options"):
        lowtide.override(module)
    opt = lowtide.AdamW(module.parameters())
    assert formats(opt, module)["1.weight"] == "dynamic8"  # no override holds


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"stat": "fp32"}, TypeError, ["unknown argument 'stat'", "did you mean 'state'"]),
        ({"state": "fp31"}, ValueError, ["fp31", "dynamic8"]),
        ({"state": 32}, TypeError, ["state: got 32"]),
        ({"lr": -1.0}, ValueError, ["lr=-1"]),
        ({"betas": (0.9,)}, TypeError, ["betas"]),
        ({"momentum": 0.9}, TypeError, ["unknown argument 'momentum'"]),
        ({"nonfinite": "raise"}, ValueError, ["'nonfinite'", "parameter group can have"]),
        ({"amsgrad": True, "nesterov": True}, ValueError, ["amsgrad and nesterov"]),
        ({"memory": "host=many"}, ValueError, ["many"]),
    ],
)
def test_what_an_optimizer_cannot_use_it_refuses_when_it_meets_it(options, kind, words, seed):
    early, late = model(), model()
    lowtide.override(early[1], "bias", **options)
    with pytest.raises(kind) as caught:
        lowtide.AdamW(early.parameters())
    opt = lowtide.AdamW(late.parameters())
    train(late, opt)
    taken = lowtide.override(late[1], "bias", **options)
    for error in (str(caught.value), None):
        if error is None:
            with refused(opt, *words, "parameter group 0, parameter 2: override", kind=kind):
                opt.step()
        else:
            assert all(word in error for word in [*words, "parameter group 0, parameter 2: override"]), error
    taken.remove()
    opt.step()


LATE = [
    ("AdamW", {}, {"amsgrad": True}), ("AdamW", {"amsgrad": True}, {"amsgrad": False}), ("AdamW", {}, {"nesterov": True}),
    ("Adam", {"nesterov": True}, {"nesterov": False}), ("AdamW", {"amsgrad": True}, {"amsgrad": False, "nesterov": True}),
    ("RMSprop", {}, {"centered": True}), ("RMSprop", {}, {"momentum": 0.9}), ("RMSprop", {"momentum": 0.9}, {"momentum": 0.0}),
]  # fmt: skip


@pytest.mark.parametrize("name, options, late", LATE)
def test_variants_come_late_neither_by_a_group_nor_by_an_override(name, options, late, seed):
    """They need states that are not there, or others than those that are: refused with the same words, nothing changed. An
    override made in time cannot be withdrawn late."""
    module = model()
    opt = getattr(lowtide, name)(module.parameters(), **options)
    train(module, opt)
    changed = ", ".join(f"{key} = {value}" for key, value in late.items())
    error = f"{name}: got {changed}, wanted the value of the first step: it decides which states exist"
    taken = lowtide.override(module[1].bias, **late)
    with refused(opt, f"parameter group 0, parameter 2: override: {error}"):
        opt.step()
    taken.remove()
    was = {key: opt.param_groups[0][key] for key in late}
    opt.param_groups[0].update(late)
    with refused(opt, f"parameter group 0: {error}"):
        opt.step()
    opt.param_groups[0].update(was)
    opt.step()
    fresh = model()
    taken = lowtide.override(fresh[1], **late)
    opt = getattr(lowtide, name)(fresh.parameters(), **options)
    train(fresh, opt)
    if late == {"amsgrad": True}:
        assert "max_exp_avg_sq_codes" in opt.state[fresh[1].weight] and "max_exp_avg_sq_codes" not in opt.state[fresh[2].weight]
    taken.remove()
    with refused(opt, f"parameter group 0: {name}: got", "it decides which states exist"):
        opt.step()


def test_the_rule_of_a_matrix_cannot_be_overridden_late(seed):
    module = model()
    opt = lowtide.Muon(module.parameters())
    train(module, opt)
    lowtide.override(module[1].weight, use_muon=False)
    with refused(opt, "parameter group 0, parameter 1: override: Muon: got use_muon = False, wanted the value of the first step"):
        opt.step()


def test_nothing_is_kept_alive(seed):
    module = model()
    lowtide.override(module, state="fp32")
    lowtide.override(module[1].weight, lr=0.1)
    ref = weakref.ref(module)
    del module
    assert ref() is None  # no cycle
    gc.collect()
    lowtide.AdamW([parameter(3)])


def test_parameters_with_overrides_are_saved_as_plain_ones(seed):
    param = parameter(4, 4)
    lowtide.override(param, state="fp32")
    again = through_file({"param": param})["param"]
    assert bits(again) == bits(param)


def test_a_refused_parameter_is_named(seed):
    """Also where the core refuses it, for an override of it."""
    a, b = (torch.nn.Parameter(torch.randn(64, 256)) for _ in range(2))
    lowtide.override(b, state="dynamic4")
    with pytest.raises(ValueError, match=r"parameter group 0, parameter 1: override: .*'dynamic4'"):
        lowtide.Adam([a, b], betas=(0.95, 0.999))


def test_a_tensor_in_an_override_is_read_in_every_step():
    """As a tensor in a group: schedulers change it in place."""
    param, other = (torch.nn.Parameter(torch.zeros(8)) for _ in range(2))
    rate = torch.tensor(0.5)
    lowtide.override(param, lr=rate)
    opt = lowtide.SGD([param, other], lr=1.0)
    for step in range(3):
        param.grad, other.grad, before = torch.ones(8), torch.ones(8), param.detach().clone()
        opt.step()
        assert torch.equal(before - param.detach(), torch.full((8,), 0.5 / 2**step))
        rate.mul_(0.5)


def test_a_tensor_in_the_place_of_another_has_its_override_without_a_step_between():
    param = torch.nn.Parameter(torch.zeros(8))
    opt = lowtide.SGD([param], lr=1.0)
    lowtide.override(param, lr=0.25)
    heir = opt.param_groups[0]["params"][0] = torch.nn.Parameter(torch.zeros(8))
    heir.grad = torch.ones(8)
    opt.step()
    assert torch.equal(heir.detach(), torch.full((8,), -0.25))


def test_an_override_lets_no_fixed_option_through():
    params = [torch.nn.Parameter(torch.zeros(64, 128)) for _ in range(2)]
    opt = lowtide.AdamW(params)
    take_steps(params, opt)
    opt.param_groups[0]["state"] = "fp32"
    lowtide.override(params[1], eps=1e-6)
    for _ in range(2):
        with pytest.raises(ValueError, match="got state='fp32', wanted state='dynamic8': fixed when the group is added"):
            opt.step()
    opt.param_groups[0]["state"] = "dynamic8"
    opt.step()
    assert opt.state[params[0]]["exp_avg_codes"].dtype == torch.uint8 and opt.report()["steps"] == 2


def test_withdrawn_overrides_leave_nothing_behind():
    """However often an override is made and withdrawn, the pickled parameter and module stay as large as after one."""
    module = model()
    sizes = []
    for _ in range(20):
        for target in (module, next(module[0].parameters())):
            lowtide.override(target, lr=0.5).remove()
        lowtide.override(module, "0.weight", lr=0.5).remove()
        sizes.append(len(pickle.dumps(module)))
    assert sizes[-1] <= sizes[1] + 16, "orders grow by digits"
