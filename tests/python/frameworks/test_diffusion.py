"""The hooks of docs/frameworks.md. Of the trainers, only SimpleTuner is a package. The others' calls are copied here: how they
read arguments, name the class, and step in hooks of backward."""

from __future__ import annotations

import ast
import importlib
import re
import runpy
import shlex
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import lowtide
import pytest
import torch
from lowtide.compat.bitsandbytes import optim
from test_frameworks import BUILDER_STEPS, CUT, direct, matrices, section, train, weights, without_start

PAGE = Path(__file__).parents[3] / "docs" / "frameworks.md"
BUDGET = lowtide.Memory(host="8GiB")
Params = Sequence[torch.nn.Parameter]


def block(title: str, language: str) -> str:
    return section(PAGE, title, language)[0]


def by_dotted_name(name: str, arguments: Sequence[str], params: Any, lr: float) -> Any:
    """Makes an optimizer like kohya-ss's scripts and musubi-tuner: from literals, split at every "="."""
    options: dict[str, Any] = {}
    for argument in arguments:
        key, value = argument.split("=")
        options[key] = ast.literal_eval(value)
    module, _, cls = name.rpartition(".")
    return getattr(importlib.import_module(module), cls)(params, lr=lr, **options)


def kohya(*left_out: str) -> tuple[str, list[str], float]:
    """The name, arguments and learning rate of the page's command, without some arguments."""
    words = shlex.split(block("kohya-ss", "sh").replace("\\\n", ""))
    at = words.index("--optimizer_args")
    given = [word for word in words[at + 1 :] if not word.startswith(left_out or ("\0",))]
    return words[words.index("--optimizer_type") + 1], given, float(words[words.index("--learning_rate") + 1])


def test_kohya_command_line(seed: int, figure: Any) -> None:
    model = matrices(seed)
    name, arguments, lr = kohya()
    arguments = [each.replace("/scratch", str(Path.cwd())) for each in arguments]
    opt = by_dotted_name(name, arguments, model.parameters(), lr)
    assert opt.engine.settings.memory == lowtide.Memory(host="8GiB", disk=str(Path.cwd())) and type(opt) is lowtide.AdamW
    assert train(model, opt.step, BUILDER_STEPS) == direct(seed, lr=lr, betas=(0.9, 0.99))
    with pytest.raises(ValueError, match="too many values"):
        by_dotted_name(name, ["memory='host=8GiB'"], model.parameters(), lr)
    figure(f"{arguments}: the bits of lowtide.AdamW")


@pytest.mark.parametrize("options", [{}, {"master": "residual16"}], ids=str)
def test_kohya_blockwise_hooks(options: dict[str, Any], seed: int) -> None:
    """Each block's optimizer steps when its last gradient arrives, and frees the gradients."""
    dtype = torch.bfloat16 if options else torch.float32
    whole, parted = matrices(seed).to(dtype), matrices(seed).to(dtype)
    options = {"lr": 1e-2, "rounding": "nearest", **options}  # stochastic rounding depends on parameters' numbers
    one = lowtide.AdamW(whole.parameters(), **options)
    blocks = [lowtide.AdamW(layer.parameters(), **options) for layer in parted if [*layer.parameters()]]
    arrived = [0] * len(blocks)

    def hook(number: int, param: torch.nn.Parameter) -> None:
        arrived[number] += 1
        if arrived[number] == len(blocks[number].param_groups[0]["params"]):
            blocks[number].step()
            blocks[number].zero_grad(set_to_none=True)

    for number, each in enumerate(blocks):
        for param in each.param_groups[0]["params"]:
            param.register_post_accumulate_grad_hook(partial(hook, number))
    for step in BUILDER_STEPS:
        x = torch.randn(8, 96, generator=torch.Generator().manual_seed(step)).to(dtype)
        whole.zero_grad()
        whole(x).square().mean().backward()
        one.step()
        arrived[:] = [0] * len(blocks)
        parted(x).square().mean().backward()
        assert all(param.grad is None for param in parted.parameters())
    assert weights(parted) == weights(whole)


def clipped(model: torch.nn.Module, opt: torch.optim.Optimizer, clip: Any) -> dict[str, bytes]:
    """The weights after steps after backward, with each gradient clipped separately."""

    def step() -> None:
        for param in model.parameters():
            clip(param, 0.01)
        opt.step()

    return train(model, step, BUILDER_STEPS)


def release(model: torch.nn.Module, step: Callable[[torch.nn.Parameter, dict[str, Any], int], None], opt: Any, clip: Any) -> None:
    """Hooks that clip, step and free each gradient, as in kohya-ss's and OneTrainer's fused backward passes."""

    def hook(group: dict[str, Any], index: int, param: torch.nn.Parameter) -> None:
        clip(param, 0.01)
        step(param, group, index)
        param.grad = None

    for group in opt.param_groups:
        for index, param in enumerate(group["params"]):
            param.register_post_accumulate_grad_hook(partial(hook, group, index))


def test_kohya_fused_backward_pass(seed: int) -> None:
    """By the line of the page's diff, on Accelerate's wrapper."""
    accelerate = pytest.importorskip("accelerate")
    added = re.findall(r"^\+ *(optimizer\..*)$", block("kohya-ss", "diff"), re.M)
    allowed = re.findall(r"^\+ *(optimizer_type .*)$", block("kohya-ss", "diff"), re.M)
    name, arguments, lr = kohya("memory", "step_in_backward")
    assert eval(allowed[0], {"optimizer_type": name.lower()}) and not eval(allowed[0], {"optimizer_type": "prodigy"})
    accelerator, model = accelerate.Accelerator(cpu=True), matrices(seed)
    optimizer = accelerator.prepare(by_dotted_name(name, arguments, model.parameters(), lr))
    exec(added[0], {"optimizer": optimizer})
    release(model, lambda param, group, index: optimizer.step_param(param, group), optimizer, accelerator.clip_grad_norm_)
    twin = matrices(seed)
    other = lowtide.AdamW(twin.parameters(), lr=lr, betas=(0.9, 0.99))
    assert train(model, lambda: None, BUILDER_STEPS) == clipped(twin, other, accelerator.clip_grad_norm_)
    assert optimizer.optimizer.report()["steps"] == len(BUILDER_STEPS)


def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, *, title: str) -> dict[str, Any]:
    """The names of a trainer of these lines, which the page's script starts."""
    trainer = tmp_path / "train.py"
    trainer.write_text(lines)
    monkeypatch.setattr(sys, "argv", ["launch.py", str(trainer), "--config", "its.yaml"])
    for name in ("bitsandbytes", "bitsandbytes.optim"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    names: dict[str, Any] = {}
    run = runpy.run_path
    monkeypatch.setattr(runpy, "run_path", lambda *args, **more: names.update(run(*args, **more)))
    exec(block(title, "py"), {})
    return names


ALWAYS = {"min_8bit_size": 4096, "percentile_clipping": 100}  # OneTrainer's arguments
NAMED = {  # by the names of bitsandbytes
    "Adam": {**ALWAYS, "block_wise": True, "is_paged": False, "eps": 1e-8, "betas": (0.9, 0.999)},
    "AdamW8bit": {**ALWAYS, "block_wise": True, "is_paged": True, "weight_decay": 1e-2},
    "AdEMAMix8bit": {"min_8bit_size": 4096, "alpha": 5, "is_paged": False, "betas": (0.9, 0.999, 0.9999)},
    "Adagrad8bit": {**ALWAYS, "block_wise": True, "lr_decay": 0, "initial_accumulator_value": 0},
    "RMSprop8bit": {**ALWAYS, "block_wise": True, "alpha": 0.99, "momentum": 0, "centered": False},
    "LARS8bit": {**ALWAYS, "momentum": 0.9, "dampening": 0, "nesterov": False, "max_unorm": 0.02},
    "LAMB8bit": {**ALWAYS, "block_wise": True, "bias_correction": True, "amsgrad": False, "adam_w_mode": True, "max_unorm": 1.0},
    "Lion8bit": {**ALWAYS, "block_wise": True, "is_paged": False, "betas": (0.9, 0.999)},
    "SGD8bit": {"momentum": 0.9, "dampening": 0, "weight_decay": 0, "nesterov": False},
}


@pytest.mark.filterwarnings("ignore:.*weights without master=")
def test_classes_of_bitsandbytes(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figure: Any) -> None:
    """As OneTrainer, ai-toolkit and diffusion-pipe's adamw8bit make them, in a trainer that the page's script starts."""
    lines = "import sys\nimport bitsandbytes as bnb\nargv = sys.argv\nfound = bnb.optim\n"
    found = launched(tmp_path, monkeypatch, lines, title="bitsandbytes' classes")
    assert found["found"] is optim and found["argv"][1:] == ["--config", "its.yaml"]
    for name, options in NAMED.items():
        model = matrices(seed)
        opt = getattr(found["found"], name)(params=model.parameters(), lr=1e-2, **options)
        assert train(model, opt.step, BUILDER_STEPS) != weights(matrices(seed)) and opt.report()["steps"] == len(BUILDER_STEPS)
    for name in ("Adam8bit", "AdEMAMix8bit", "AdamW8bit"):  # ai-toolkit passes eps=1e-6 and its optimizer_params
        model = matrices(seed)
        opt = getattr(found["found"], name)(model.parameters(), lr=1e-2, eps=1e-6, memory={"host": "8GiB"}, step_in_backward=True)
        train(model, opt.step, BUILDER_STEPS)
        assert opt.engine.settings.memory == BUDGET and all(param.grad is None for param in model.parameters())
    figure(f"{len(NAMED)} classes with OneTrainer's arguments, 3 with ai-toolkit's")


def test_onetrainer_backup_with_a_part_more(seed: int, tmp_path: Path) -> None:
    """A backup's dict also names its groups. Restored groups have the numbers of the new ones; an added one has no entries."""
    straight = matrices(seed)
    wanted = train(straight, optim.AdamW8bit(straight.parameters(), lr=1e-2).step, BUILDER_STEPS)
    model, more = matrices(seed), torch.nn.Linear(64, 64)
    opt = optim.AdamW8bit(model.parameters(), lr=1e-2)
    train(model, opt.step, BUILDER_STEPS[:CUT])
    torch.save({**opt.state_dict(), "param_group_mapping": ["unet"], "param_group_optimizer_mapping": ["ADAMW_8BIT"]}, tmp_path / "it")
    found = torch.load(tmp_path / "it", weights_only=True)
    again = optim.AdamW8bit([{"params": each.parameters()} for each in (more, model)], lr=1e-2)
    added, saved = again.state_dict()["param_groups"][0], found["param_groups"][0]
    state = {number + len(added["params"]): entry for number, entry in found["state"].items()}
    again.load_state_dict({**found, "state": state, "param_groups": [added, {**saved, "params": [*state]}]})
    assert train(model, again.step, BUILDER_STEPS[CUT:]) == wanted


class Optimi(ModuleType):
    """Stands for torch-optimi, whose classes are in SimpleTuner's table."""

    def __getattr__(self, name: str) -> Any:
        return torch.optim.AdamW


def test_simpletuner(seed: int, monkeypatch: pytest.MonkeyPatch, figure: Any) -> None:
    """Its table of optimizers, and its code that reads `--optimizer` and `--optimizer_config`. Its start needs diffusers."""
    pytest.importorskip("torchao")
    monkeypatch.setitem(sys.modules, "optimi", Optimi("optimi"))
    with without_start("simpletuner", "simpletuner.helpers", "simpletuner.helpers.training"):
        exec(block("SimpleTuner", "py"), {})
        from simpletuner.helpers.training import optimizer_param as theirs

        given = {"optimizer": "lowtide-adamw", "optimizer_beta1": None, "optimizer_beta2": None, "optimizer_release_gradients": False}
        for text, options in (("", {}), ("state=float8,weight_decay=0.1", {"state": "float8", "weight_decay": 0.1})):
            cls, details = theirs.optimizer_parameters("lowtide-adamw", Namespace(**given, optimizer_config=text))
            model = matrices(seed)
            opt = theirs.cpu_offload_optimizer(model.parameters(), cls, {"lr": 1e-2, **details["default_settings"]})
            assert type(opt) is lowtide.AdamW and opt.engine.settings.memory == BUDGET
            wanted = direct(seed, **{"lr": 1e-2, "betas": (0.9, 0.99), "weight_decay": 0.01, **options})
            assert train(model, opt.step, BUILDER_STEPS) == wanted
        with pytest.raises(ValueError, match="memory: got 'host'"):
            _, details = theirs.optimizer_parameters("lowtide-adamw", Namespace(**given, optimizer_config="memory=host=8GiB"))
            lowtide.AdamW(model.parameters(), **details["default_settings"])
    figure("SimpleTuner's own functions: the bits of lowtide.AdamW")


@pytest.mark.parametrize("releases", [False, True])
def test_diffusion_pipe(releases: bool, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A class by its name in pytorch_optimizer with the configuration's other entries, for all parameters or one at a time."""
    tomllib = pytest.importorskip("tomllib")  # of Python 3.11
    package = ModuleType("pytorch_optimizer")
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", package)
    exec(block("diffusion-pipe", "py"), {})
    options = tomllib.loads(block("diffusion-pipe", "toml"))["optimizer"]
    cls, model = getattr(package, options.pop("type")), matrices(seed)
    if not releases:
        opt = cls([*model.parameters()], **options)
        assert opt.engine.settings.memory == BUDGET
        got = train(model, opt.step, BUILDER_STEPS)
    else:
        del options["memory"]
        options["rounding"] = "nearest"  # stochastic rounding depends on parameters' numbers
        each = {param: cls([param], **options) for param in model.parameters()}

        def hook(param: torch.nn.Parameter) -> None:
            each[param].step()
            each[param].zero_grad()

        for param in model.parameters():
            param.register_post_accumulate_grad_hook(hook)
        got = train(model, lambda: None, BUILDER_STEPS)
    assert got == direct(seed, lr=2e-5, betas=(0.9, 0.99), **({"rounding": "nearest"} if releases else {}))
