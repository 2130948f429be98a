"""Claim: a step, a dict, a file, a copy and `state[p]` never disagree. Random sequences of what changes, moves or reads state,
against a model: the dict that must be there, from which an optimizer of its own, in RAM, takes each step as well."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lowtide
import pytest
import torch
import torch.distributed.checkpoint as dcp
from lowtide.state.elsewhere import Elsewhere, ReadOnly
from support import LONG_AVERAGES, SINGLE_STEPS, bits, copies_of, make, raised
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

Dict = dict[str, Any]
SHAPES = ((8, 256), (6, 70), (5,), (), (3, 256))
FORMATS = ("dynamic8", "dynamic4", "float8", "bf16", "fp32")
MASTERS = (None, "residual8", "residual16", "stochastic")
ALL = 10_000  # sequences of a whole run
BESIDE = {"lowtide_state", "mu_product", "weight_sum", "lr_max", "switches"}  # in dicts and not in `state[p]`
# Operations and how often they come.
WEIGHTS = {
    "step": 8, "assign_copies": 4, "assign_entry": 3, "assign_values": 3, "write": 4, "remove": 2, "reset": 1, "load": 2, "load_file": 2,
    "rate": 1, "offload": 1, "grow": 1, "refuse_dict": 1, "refuse_assignment": 1, "refuse_file": 1,
}  # fmt: skip
STEPS = ("step", "load_file", "distributed", "offload")  # operations in which a step is taken, or may be
ON_CPU = {"deepcopy": 1, "pickled": 1, "distributed": 0.1}


def of_dict(saved: Dict) -> dict[int, dict[str, Any]]:
    """A dict's entries of parameters that have stepped, comparable with ==; other parameters have zeros or no entry."""
    found = {}
    for number, entry in saved["state"].items():
        values = {name: value if isinstance(value, str) else bits(value) for name, value in entry.items() if name != "step"}
        if steps := int(entry.get("step", 0)):
            found[number] = {**values, "step": steps}
    return found


class Sequence:
    """One sequence. device: a stand-in of a device, which the parameters are on; None: the CPU."""

    def __init__(self, seed: int, folder: Path, device: Any = None) -> None:
        torch.manual_seed(seed)
        self.random, self.folder, self.device = random.Random(seed), folder, device
        pick = self.random.choice
        self.state = pick(FORMATS)
        # Without Prodigy: its parameters share d, as in prodigyopt's groups, and entries that others remove do not take it along.
        rules = [*SINGLE_STEPS, "muon"]
        self.rule = pick([name for name in rules if self.state != "dynamic4" or name not in (*LONG_AVERAGES, "muon")])
        self.dtype = pick((torch.float32, torch.bfloat16))
        self.options: Dict = {"state": self.state, "min_quantized_numel": 256, "lr": 1e-2, "seed": seed % 1000}
        self.options["master"] = pick(MASTERS) if self.dtype != torch.float32 else None
        memory: Dict = {}
        if device is None:
            least = "5KiB" if self.rule == "muon" else "4KiB"  # a chunk, and row moments
            budgets = (None, lowtide.Memory(host="1GiB"), lowtide.Memory(host="50%"), self.on_disk("16KiB"), self.on_disk(least))
            memory = {"memory": pick(budgets)}
            if self.rule != "muon" and self.random.random() < 0.2:
                memory["step_in_backward"] = True
        elif pick((True, False)):
            memory = {"memory": pick((lowtide.Memory(device="16KiB", chunk="4KiB"), lowtide.Memory(device="50%")))}
        self.in_backward = "step_in_backward" in memory
        self.cuts = [pick((1, 2, 3))]
        self.here = [torch.nn.Parameter(torch.randn(shape).to(self.dtype)) for shape in SHAPES[:4]]
        self.params: list[Any] = device.parameters(self.here) if device else self.here
        self.memory = memory
        self.opt = self.build(self.params, **memory)
        self.truth = self.copied(self.opt.state_dict())
        self.dicts = [self.truth]  # all earlier truths
        self.files: list[tuple[Path, Dict]] = []
        self.log: list[str] = [f"{self.rule} {self.dtype} {self.options} {memory} {self.cuts}"]

    def on_disk(self, host: str) -> lowtide.Memory:
        return lowtide.Memory(host=host, disk=self.folder, chunk="4KiB")

    def build(self, params: list[Any], **more: Any) -> lowtide.Optimizer:
        ends = [*self.cuts, len(params)]
        groups = [{"params": params[a:b], "lr": 0.01 * (n + 1)} for n, (a, b) in enumerate(zip([0, *self.cuts], ends))]
        if self.rule == "muon":
            return lowtide.Muon([{**groups[0], "row_beta2": 0.9}, *groups[1:]], **self.options, **more)
        return make(self.rule, groups, **self.options, **more)

    @staticmethod
    def copied(saved: Dict) -> Dict:
        """A dict that shares nothing with live state and lacks entries that equal no entry."""
        found = copy.deepcopy(saved)
        found["state"] = {i: entry for i, entry in found["state"].items() if int(entry.get("step", 0))}
        for group in found["param_groups"]:
            group.pop("params")
        return found

    def whole(self, saved: Dict) -> Dict:
        """That dict as `load_state_dict` takes it."""
        made = copy.deepcopy(saved)
        ends = [0, *self.cuts, len(self.params)]
        for group, (a, b) in zip(made["param_groups"], zip(ends, ends[1:])):
            group["params"] = list(range(a, b))
        if made["state"]:  # then every parameter has an entry
            made["state"] = {i: made["state"].get(i, {}) for i in range(len(self.params))}
        return made

    def of_truth(self) -> Dict:
        return of_dict(self.truth)

    def run(self, length: int) -> None:
        names, weights = zip(*{**WEIGHTS, **({} if self.device else ON_CPU)}.items())
        for name in self.random.choices(names, weights, k=length):
            self.log.append(name)
            before = [bits(param) for param in self.weights()]
            getattr(self, name)()
            assert name in STEPS or before == [bits(param) for param in self.weights()[: len(before)]], "weights changed"
            if self.random.random() < 0.6:
                self.check(self.random.sample(self.readers(), 1))
        self.log.append("end")
        self.check(self.readers())
        self.step()
        self.check(self.readers())

    def weights(self) -> list[torch.Tensor]:
        if not self.device:
            return self.params
        self.device.synchronize()
        return [param.detach().cpu() for param in self.params]

    # Readers: each gives its account of the state.

    def readers(self) -> list[str]:
        return ["read_dict", "read_file", "read_shown", *([] if self.device else ["read_copy"])]

    def check(self, readers: list[str]) -> None:
        wanted = self.of_truth()
        for reader in readers:
            self.log.append(reader)
            got = getattr(self, reader)()
            if reader == "read_shown":
                known = {i: {name: value for name, value in entry.items() if name not in BESIDE} for i, entry in wanted.items()}
            else:
                known = wanted
            assert got.keys() == known.keys(), f"{reader}: entries {[*got]}, wanted {[*known]}"
            for i, entry in known.items():
                assert got[i].keys() == entry.keys(), f"{reader}, {i}: {[*got[i]]}, wanted {[*entry]}"
                wrong = [name for name in entry if got[i][name] != entry[name]]
                assert not wrong, f"{reader}, parameter {i}: {wrong} differ"

    def read_dict(self) -> Dict:
        saved = self.opt.state_dict()
        for group, true in zip(saved["param_groups"], self.truth["param_groups"], strict=True):
            assert group["lr"] == true["lr"]
        return of_dict(saved)

    def read_file(self) -> Dict:
        self.opt.save(self.folder / "read.lowtide")
        return self.of_file(self.folder / "read.lowtide")

    def of_file(self, path: Path) -> Dict:
        reader = self.build(copies_of(self.weights()))
        reader.load(path)
        return of_dict(reader.state_dict())

    def read_shown(self) -> Dict:
        entries = [self.opt.state.get(param) or {} for param in self.params]
        values = [{name: value.cpu() for name, value in entry.items() if name not in BESIDE} for entry in entries]
        return of_dict({"state": {i: entry for i, entry in enumerate(values) if entry}})

    def read_copy(self) -> Dict:
        return of_dict(copy.deepcopy((self.params, self.opt))[1].state_dict())

    # Operations.

    def step(self) -> None:
        twins = copies_of(self.weights())
        twin = self.build(twins)
        twin.load_state_dict(self.whole(self.truth))
        chosen = [i for i in range(len(twins)) if self.random.random() < 0.8]
        for param in self.params:
            param.grad = None
        gradients = {i: torch.randn(twins[i].shape).to(self.dtype) for i in chosen}
        for i, gradient in gradients.items():
            twins[i].grad = gradient.clone()
        twin.step()
        if self.device:
            for here, after in zip(self.here, twins):
                here.grad = None if after.grad is None else after.grad.clone()
            for i in chosen:
                self.device.give_gradients([self.params[i]], [self.here[i]])
            self.opt.step()
        elif self.in_backward:
            if chosen:
                torch.stack([(self.params[i] * gradient).sum().float() for i, gradient in gradients.items()]).sum().backward()
            self.opt.step()
        else:
            self.put(gradients)
        for param, wanted in zip(self.weights(), twins, strict=True):
            assert bits(param) == bits(wanted), "weights differ"
        self.become(self.copied(twin.state_dict()))

    def put(self, gradients: dict[int, torch.Tensor]) -> None:
        def closure() -> float:
            for i, gradient in gradients.items():
                self.params[i].grad = gradient.clone()
            return 0.0

        if self.random.random() < 0.3:
            self.opt.step(closure)
        else:
            closure()
            self.opt.step()

    def become(self, truth: Dict) -> None:
        self.truth = truth
        self.dicts.append(truth)

    def changed(self, number: int, values: Dict | None) -> None:
        """The truth from now on: these values of a parameter, or no entry."""
        state = {i: entry for i, entry in self.truth["state"].items() if i != number}
        if values is not None:
            state[number] = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in values.items()}
        self.become({**self.truth, "state": state})

    def stepped(self) -> int | None:
        """A parameter with an entry."""
        return self.random.choice([*self.truth["state"], None]) if self.truth["state"] else None

    def moved(self, value: torch.Tensor) -> torch.Tensor:
        """The same values in other memory, as loops that move state leave them."""
        ways: list[Callable[[], torch.Tensor]] = [
            value.clone, lambda: value.to("cpu", copy=True), lambda: value.detach().clone(), lambda: value.cpu().clone(),
            lambda: torch.empty(value.shape, dtype=value.dtype).copy_(value.cpu()), lambda: copy.deepcopy(value.cpu()),
        ]  # fmt: skip
        if torch.cuda.is_available():
            ways.append(value.pin_memory)
        return self.random.choice(ways[3:] if self.device else ways)()

    def assign_copies(self) -> None:
        if (number := self.stepped()) is None:
            return
        entry = self.opt.state[self.params[number]]
        for name in self.random.sample([*entry], self.random.randint(1, len(entry))):
            self.log.append(name)
            value = entry[name]
            entry[name] = self.moved(value)

    def assign_entry(self) -> None:
        """Puts in, by each way, an entry that was once true, or copies of the current one."""
        if (number := self.stepped()) is None:
            return
        param = self.params[number]
        former = [saved["state"][number] for saved in self.dicts if number in saved["state"]]
        values = self.random.choice([self.truth["state"][number], *former])
        if values.keys() != self.truth["state"][number].keys():
            return
        given = {name: value.clone() for name, value in values.items() if isinstance(value, torch.Tensor)}
        way = self.random.randrange(5)
        self.log.append(f"way {way}")
        if way == 0:
            self.opt.state[param] = given
        elif way == 1:
            self.opt.state.update({param: given})
        elif way == 2:
            self.opt.state |= {param: given}
        elif way == 3:
            self.opt.state.pop(param)
            self.opt.state.setdefault(param, given)
        else:
            self.opt.state = {**self.opt.state, param: given}
        self.changed(number, values)

    def assign_values(self) -> None:
        if (number := self.stepped()) is None:
            return
        entry, true = self.opt.state[self.params[number]], dict(self.truth["state"][number])
        names = [name for name, value in entry.items() if value.is_floating_point() and not name.endswith("_scale")]
        if not names or BESIDE & true.keys():
            return
        name = self.random.choice(names)
        value = torch.rand(true[name].shape).to(true[name].dtype)
        refused = raised(lambda: entry.__setitem__(name, value.clone()))
        if refused[0] == "RuntimeError" and isinstance(entry[name], Elsewhere):
            return
        assert refused[0] == "nothing", refused
        self.changed(number, {**true, name: value})

    def write(self) -> None:
        """Writes in place: a value is taken or refused, and anything else is refused."""
        if (number := self.stepped()) is None:
            return
        entry, true = self.opt.state[self.params[number]], dict(self.truth["state"][number])
        name = self.random.choice([*entry])
        value = entry[name]
        if name == "step" and self.rule in ("nadam", "schedulefree"):  # other numbers go with it
            return
        new = torch.zeros_like(true[name]) if self.random.random() < 0.5 else torch.rand(true[name].shape).to(true[name].dtype)
        self.log.append(f"{name} {self.random.randrange(9)}")
        if name == "residual":
            new = torch.zeros_like(true[name])
        if name == "step":
            new = torch.tensor(self.random.randrange(1, 9))
        ways = [lambda: value.copy_(new), lambda: value.data.copy_(new), lambda: value.zero_().add_(new)]
        if not new.any():
            ways += [value.zero_, lambda: torch._foreach_zero_([value])]
        refused = raised(self.random.choice([value.zero_] if name == "residual" else ways))
        if isinstance(value, (Elsewhere, ReadOnly)):
            assert refused[0] == "RuntimeError", refused
            return
        assert refused[0] == "nothing", refused
        self.changed(number, {**true, name: new})

    def remove(self) -> None:
        states = self.opt.state
        numbers = [i for i, param in enumerate(self.params) if param in states]
        if not numbers:
            return
        number = self.random.choice(numbers)
        way = self.random.randrange(5)
        self.log.append(f"way {way}")
        if way == 0:
            del states[self.params[number]]
        elif way == 1:
            states.pop(self.params[number])
        elif way == 2:
            states[self.params[number]] = {}
        elif way == 3:
            popped = states.popitem()[0]
            number = next(i for i, param in enumerate(self.params) if param is popped)
        else:
            states.clear()
            self.become({**self.truth, "state": {}})
            return
        self.changed(number, None)

    def reset(self) -> None:
        some = [i for i in range(len(self.params)) if self.random.random() < 0.5]
        self.opt.reset([self.params[i] for i in some] if some else None)
        state = self.truth["state"]
        self.become({**self.truth, "state": {i: entry for i, entry in state.items() if i not in some} if some else {}})

    def load(self) -> None:
        saved = self.random.choice(self.dicts)
        if len(saved["param_groups"]) != len(self.truth["param_groups"]):
            fitting = [each for each in self.dicts if len(each["param_groups"]) == len(self.truth["param_groups"])]
            older = raised(lambda: self.opt.load_state_dict({**saved, "param_groups": [{**g, "params": []} for g in saved["param_groups"]]}))
            assert older[0] == "ValueError", older
            saved = self.random.choice(fitting)
        if self.random.random() < 0.3:
            source = self.build(copies_of(self.weights()))
            source.load_state_dict(self.whole(saved))
            self.opt.load_state_dict(source.state_dict())
        elif self.random.random() < 0.2:
            saved = self.truth
            self.opt.load_state_dict(self.opt.state_dict())
        else:
            self.opt.load_state_dict(self.whole(saved))
        self.become(saved)

    def load_file(self) -> None:
        path = self.folder / f"{len(self.files)}.lowtide"
        if self.random.random() < 0.3:
            pending = self.opt.save(path, asynchronous=True)
            self.step_beside()
            pending.wait()
        else:
            self.opt.save(path)
            self.files.append((path, self.truth))
        fitting = [each for each in self.files if len(each[1]["param_groups"]) == len(self.truth["param_groups"])]
        if fitting and self.random.random() < 0.5:
            path, saved = self.random.choice(fitting)
            self.opt.load(path)
            self.become(saved)

    def step_beside(self) -> None:
        """Steps while a file is written, which has the state before the step."""
        path, before = self.folder / f"{len(self.files)}.lowtide", self.truth
        self.step()
        self.files.append((path, before))

    def distributed(self) -> None:
        model = torch.nn.Module()
        for i, param in enumerate(self.params):
            model.register_parameter(f"p{i}", param)
        saved = get_optimizer_state_dict(model, self.opt)
        got = {int(name[1:]): entry for name, entry in saved["state"].items()}
        assert of_dict({"state": got}) == self.of_truth()
        if not got:
            return
        path = self.folder / f"dcp{len(self.log)}"
        dcp.save({"opt": saved}, checkpoint_id=path, no_dist=True)
        truth = self.truth
        self.step()
        template = {"opt": get_optimizer_state_dict(model, self.opt)}
        dcp.load(template, checkpoint_id=path, no_dist=True)
        set_optimizer_state_dict(model, self.opt, template["opt"])
        self.become(truth)

    def rate(self) -> None:
        group = self.random.randrange(len(self.opt.param_groups))
        self.opt.param_groups[group]["lr"] = rate = self.random.choice((1e-3, 0.02))
        groups = [dict(each) for each in self.truth["param_groups"]]
        groups[group]["lr"] = rate
        self.become({**self.truth, "param_groups": groups})

    def offload(self) -> None:
        refused = raised(self.opt.offload)
        assert refused[0] in ("nothing", "ValueError"), refused
        self.random.choice((self.opt.onload, self.read_dict, self.step))()  # until then `state[p]` shows zeros

    def grow(self) -> None:
        if len(self.params) == len(SHAPES) or self.device:
            return
        self.cuts.append(len(self.params))
        param = torch.nn.Parameter(torch.randn(SHAPES[-1]).to(self.dtype))
        self.params.append(param)
        self.opt.add_param_group({"params": [param], "lr": 0.03})
        groups = [*self.truth["param_groups"], self.copied({"state": {}, "param_groups": [self.opt.param_groups[-1]]})["param_groups"][0]]
        self.become({**self.truth, "param_groups": groups})

    def deepcopy(self) -> None:
        self.params, self.opt = copy.deepcopy((self.params, self.opt))

    def pickled(self) -> None:
        self.params, self.opt = pickle.loads(pickle.dumps((self.params, self.opt)))

    # Refusals, which change nothing.

    def spoilt(self, entry: Dict) -> Dict:
        name = self.random.choice([name for name, value in entry.items() if isinstance(value, torch.Tensor)])
        value = entry[name]
        wrong: list[Any] = [torch.zeros(9, 9), "text", torch.full(value.shape, float("nan"))]
        if name == "step":
            wrong = [torch.tensor(-1), "text"]
        return {**entry, name: self.random.choice(wrong)}

    def refuse_dict(self) -> None:
        if (number := self.stepped()) is None:
            return
        saved = self.whole(self.truth)
        saved["state"][number] = self.spoilt(saved["state"][number])
        refused = raised(lambda: self.opt.load_state_dict(saved))
        assert refused[0] == "ValueError", refused

    def refuse_assignment(self) -> None:
        if (number := self.stepped()) is None:
            return
        param = self.params[number]
        true = {name: value for name, value in self.truth["state"][number].items() if isinstance(value, torch.Tensor)}
        self.opt.state[param] = self.spoilt(true)
        for call in (self.opt.state_dict, self.opt.step, lambda: self.opt.save(self.folder / "no.lowtide")):
            refused = raised(call)
            assert refused[0] == "ValueError" and "assigned state of parameter" in refused[1], refused
        self.opt.state[param] = {name: value.clone() for name, value in true.items()}

    def refuse_file(self) -> None:
        path = self.folder / "spoilt.lowtide"
        self.opt.save(path)
        whole = path.read_bytes()
        path.write_bytes(whole[: self.random.randrange(len(whole))])
        refused = raised(lambda: self.opt.load(path))
        assert refused[0] == "ValueError", refused


def run(first: int, count: int, folder: Path, device: Any = None, length: int = 6) -> None:
    """Runs `count` sequences with consecutive seeds. A failure names its seed."""
    for seed in range(first, first + count):
        here = folder / str(seed)
        here.mkdir()
        sequence = Sequence(seed, here, device)
        try:
            sequence.run(length)
        except (Exception, CheckpointException) as error:
            raise AssertionError(f"sequence of seed {seed}: {error}\n" + "\n".join(sequence.log)) from error


@pytest.mark.filterwarnings("ignore")
def test_sequences(seed: int, share: float, tmp_path: Path, figure: Callable[[str], None]) -> None:
    count = ALL if share >= 1 else max(10, int(200 * share))
    run(seed, count, tmp_path)
    figure(f"0 of {count} sequences disagree")


@pytest.mark.filterwarnings("ignore")
def test_sequences_on_a_device(seed: int, share: float, device: Any, tmp_path: Path, figure: Callable[[str], None]) -> None:
    count = ALL // 50 if share >= 1 else max(5, int(50 * share))
    run(seed, count, tmp_path, device)
    figure(f"0 of {count} sequences disagree on {device.kind}")
