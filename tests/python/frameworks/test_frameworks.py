"""The hooks of docs/frameworks.md in the frameworks' own code, and packages that need more to start than is tested."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import lowtide
import pytest
import torch
from support import bits, through_file
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from lora_support import LENGTH, TOKENS, Sequences, adapted, one_thread  # noqa: F401

PAGE = Path(__file__).parents[3] / "docs" / "frameworks.md"


def section_text(title: str, page: Path = PAGE) -> str:
    """The text below this heading of a page."""
    found = re.search(rf"^##+ {re.escape(title)}\n(.*?)(?=^##+ |\Z)", page.read_text(), re.S | re.M)
    assert found, f"{page.name} has no section {title!r}"
    return found[1]


def section(page: Path, title: str, languages: str) -> list[str]:
    """The code blocks in these languages, such as "py|yaml", below this heading of a page."""
    return re.findall(rf"^```(?:{languages})\n(.*?)^```", section_text(title, page), re.S | re.M)


def blocks(title: str) -> list[str]:
    return section(PAGE, title, "py|yaml")


@contextmanager
def without_start(*packages: str) -> Iterator[dict[str, ModuleType]]:
    """Allows imports of modules of these packages without running the packages' `__init__`, and removes all afterwards."""
    made, tops = {}, {name.partition(".")[0] for name in packages}
    try:
        for name in packages:
            parent = name.rpartition(".")[0]
            found = PathFinder.find_spec(name, made[parent].__path__ if parent else None)
            if not found or not found.submodule_search_locations:
                pytest.skip(f"{name} is not installed")
            made[name] = ModuleType(name)
            made[name].__path__ = list(found.submodule_search_locations)
            sys.modules[name] = made[name]
        yield made
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] in tops]:
            del sys.modules[name]


def matrices(seed: int) -> torch.nn.Sequential:
    """A model with 8-bit and 32-bit state."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(96, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64))


def gradients(model: torch.nn.Module, step: int) -> None:
    """Gradients that depend only on the weights and the number of the step."""
    inputs = torch.randn(8, 96, generator=torch.Generator().manual_seed(step))
    model.zero_grad()
    model(inputs).square().mean().backward()


def weights(model: torch.nn.Module) -> dict[str, bytes]:
    return {name: bits(param) for name, param in model.named_parameters()}


def train(model: torch.nn.Module, step: Callable[[], Any], numbers: Iterable[int]) -> dict[str, bytes]:
    """The weights after steps with these numbers."""
    for number in numbers:
        gradients(model, number)
        step()
    return weights(model)


yaml = pytest.importorskip("yaml")
BUILDER_STEPS, CUT = range(6), 3


def direct(seed: int, **options: Any) -> dict[str, bytes]:
    """The weights that Lowtide's class makes from the same model."""
    model = matrices(seed)
    return train(model, lowtide.AdamW(model.parameters(), **options).step, BUILDER_STEPS)


def check_built(optimizer: torch.optim.Optimizer, model: torch.nn.Module, seed: int, shown: Any, **options: Any) -> None:
    assert type(optimizer) is lowtide.AdamW and weights(model) == weights(matrices(seed))
    assert optimizer.engine.settings.memory == lowtide.Memory(host="8GiB")
    got, wanted = train(model, optimizer.step, BUILDER_STEPS), direct(seed, **options)
    assert got != weights(matrices(seed))
    wrong = [name for name in wanted if got[name] != wanted[name]]
    shown(f"{len(wanted) - len(wrong)} of {len(wanted)} tensors as by lowtide.AdamW after {len(BUILDER_STEPS)} steps")
    assert not wrong


def test_torchtune(seed: int, figure: Any) -> None:
    """Its `__init__` needs a torchao before 0.18; its reader of components does not."""
    omegaconf = pytest.importorskip("omegaconf")
    pytest.importorskip("torchao")
    (block,) = blocks("torchtune")
    with without_start("torchtune", "torchtune.utils"):
        from torchtune import config

        model = matrices(seed)
        built = config.instantiate(omegaconf.OmegaConf.create(block).optimizer, model.parameters())
        check_built(built, model, seed, figure, lr=2e-5, betas=(0.9, 0.95), state="dynamic8")


def test_verl(seed: int, figure: Any) -> None:
    """Its `__init__` needs ray; its builder of optimizers does not."""
    omegaconf = pytest.importorskip("omegaconf")
    (block,) = blocks("verl")
    with without_start("verl", "verl.workers", "verl.workers.config"):
        from verl.workers.config.optimizer import FSDPOptimizerConfig, build_optimizer

        model, given = matrices(seed), omegaconf.OmegaConf.create(block).optim
        for options in (given, yaml.safe_load(block)["optim"]):  # verl has both kinds of dict in its configurations
            built = build_optimizer(model.parameters(), FSDPOptimizerConfig(**options))
        check_built(built, model, seed, figure, lr=1e-6, weight_decay=0.1, state="dynamic8")


def test_nemo_automodel(seed: int, figure: Any) -> None:
    pytest.importorskip("nemo_automodel")
    from nemo_automodel.components.config.loader import ConfigNode
    from nemo_automodel.recipes._typed_config import RecipeConfig

    (block,) = blocks("NeMo Automodel")
    model = matrices(seed)
    (built,) = RecipeConfig(ConfigNode(yaml.safe_load(block))).optimizer.build(model)
    check_built(built, model, seed, figure, lr=1e-5, betas=(0.9, 0.95), weight_decay=0.1, state="dynamic8")


def test_betas_and_budgets_of_omegaconf(seed: int) -> None:
    """Its lists and mappings unchanged, without a framework that turns them into plain ones."""
    omegaconf = pytest.importorskip("omegaconf")
    given = omegaconf.OmegaConf.create({"lr": 1e-2, "betas": [0.9, 0.95], "state": "dynamic8", "memory": {"host": "8GiB"}})
    assert type(given.betas) is omegaconf.ListConfig
    model = matrices(seed)
    built = lowtide.AdamW([{"params": model.parameters(), "betas": given.betas}], **given)
    check_built(built, model, seed, print, lr=1e-2, betas=(0.9, 0.95), state="dynamic8")
    assert through_file(built.state_dict())["param_groups"][0]["betas"] == (0.9, 0.95)


CALLS: dict[str, Callable[[torch.nn.Module, Any], Any]] = {
    "SkyRL": lambda model, cls: cls(model.parameters(), lr=1e-2, betas=[0.9, 0.999], weight_decay=0.01),
    "LightRFT": lambda model, cls: cls(model.parameters(), lr=1e-2, betas=(0.9, 0.999), weight_decay=0.01, foreach=False),
    "VeOmni": lambda model, cls: cls(
        [{"params": [*model.parameters()], "weight_decay": 0.01}], 1e-2, (0.9, 0.999), 1e-8, 0.01, fused=False, foreach=True
    ),
    "prime-rl": lambda model, cls: cls(params=[*model.parameters()], lr=1e-2, weight_decay=0.01, betas=(0.9, 0.999), fused=False),
    "OpenRLHF": lambda model, cls: cls([{"params": [*model.parameters()], "weight_decay": 0.01}], lr=1e-2, betas=(0.9, 0.999)),
}


@pytest.mark.parametrize("stack", CALLS)
def test_calls_of_rl_stacks(stack: str, seed: int) -> None:
    """Calls like their code, which no package has, calls torch's class."""
    assert stack in section_text("Reinforcement learning")
    model = matrices(seed)
    assert train(model, CALLS[stack](model, lowtide.AdamW).step, BUILDER_STEPS) == direct(seed, lr=1e-2, weight_decay=0.01)


@pytest.mark.parametrize("paged", [False, True])
def test_torchtitan(paged: bool, seed: int, tmp_path: Path, figure: Any) -> None:
    """Its containers of optimizers and schedules save, load into new ones and continue."""
    pytest.importorskip("torchtitan")
    from torchtitan.components.optimizer import LRSchedulersContainer

    names: dict[str, Any] = {}
    exec(blocks("torchtitan")[0], names)
    if paged:
        memory = f"host=16KiB,chunk=4KiB,disk={tmp_path}"
        names["config"].optimizer_factory_kwargs_by_name = {"AdamW": {"memory": memory}}

    def made() -> tuple[Any, Any, Any]:
        model = matrices(seed)
        optimizers = names["LowtideOptimizers"](names["config"], model_parts=[model])
        schedule = LRSchedulersContainer.Config(warmup_steps=2, decay_type="cosine")
        return model, optimizers, schedule.build(optimizers=optimizers, training_steps=len(BUILDER_STEPS))

    def stepping(optimizers: Any, schedules: Any) -> Any:
        return lambda: (optimizers.step(), schedules.step())

    model, *containers = made()
    wanted = train(model, stepping(*containers), BUILDER_STEPS)
    model, *containers = made()
    at_cut = train(model, stepping(*containers), BUILDER_STEPS[:CUT])
    saved = [container.state_dict() for container in containers]
    resumed, *containers = made()
    resumed.load_state_dict(model.state_dict())
    assert containers[0].state_dict() and weights(resumed) == at_cut, "asking for state changes no weight"
    for container, state in zip(containers, saved, strict=True):
        container.load_state_dict(state)
    got = train(resumed, stepping(*containers), BUILDER_STEPS[CUT:])
    wrong = sum(got[name] != wanted[name] for name in wanted)
    figure(f"torchtitan: {len(saved[0])} entries saved; {wrong} of {len(wanted)} tensors differ after resuming")
    (optimizer,) = containers[0].optimizers
    assert wrong == 0 and type(optimizer) is lowtide.AdamW and (optimizer.report()["moved_per_step"] > 0) == paged


def test_megatron_core(seed: int, figure: Any) -> None:
    """`FP32Optimizer.__init__` puts a constant on a GPU. All other code of Megatron runs unchanged."""
    pytest.importorskip("megatron.core")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Apex and Transformer Engine are not installed
        from megatron.core.dist_checkpointing.mapping import ShardedTensor
        from megatron.core.optimizer import OptimizerConfig
        from megatron.core.optimizer import optimizer as theirs
        from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

    class OnCpu(theirs.FP32Optimizer):  # type: ignore[misc, name-defined]
        def __init__(self, *args: Any) -> None:
            theirs.MegatronOptimizer.__init__(self, *args)
            self.is_stub_optimizer = False

    def made() -> tuple[Any, Any, Any]:
        model = matrices(seed)
        keys = {"lr_mult": 1.0, "is_expert_parallel": False, "is_decoupled_lr": False}
        groups = [
            {"params": [p for p in model.parameters() if (p.ndim > 1) == decays], "wd_mult": float(decays), **keys}
            for decays in (True, False)
        ]
        names = {"groups": groups, "config": OptimizerConfig(lr=1e-3, weight_decay=0.1, clip_grad=0.0)}
        (block,) = blocks("Megatron-core")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(theirs, "FP32Optimizer", OnCpu)
            exec(block, names)
        optimizer: Any = names["optimizer"]
        schedule = OptimizerParamScheduler(optimizer, 0.0, 1e-3, 1e-4, 2, len(BUILDER_STEPS), "cosine", 0.1, 0.1, 0, "constant")
        return model, optimizer, schedule

    def stepping(model: Any, optimizer: Any, schedule: Any) -> Any:
        def step() -> None:
            for param in model.parameters():
                param.main_grad, param.grad = param.grad, None
            assert optimizer.step() == (True, None, None)
            schedule.step(1)

        return step

    first = made()
    wanted = train(first[0], stepping(*first), BUILDER_STEPS)
    assert [group["weight_decay"] for group in first[1].optimizer.param_groups] == [0.1, 0.0]
    before = made()
    train(before[0], stepping(*before), BUILDER_STEPS[:CUT])
    shards = {name: ShardedTensor.from_rank_offsets(name, param) for name, param in before[0].named_parameters()}
    sharded = before[1].sharded_state_dict(shards)["state"]
    assert int(sharded.pop("common_step")) == CUT
    assert {type(value) for entry in sharded.values() for value in entry.values()} == {ShardedTensor}
    after = made()
    after[0].load_state_dict(before[0].state_dict())
    after[1].init_state_fn(after[1].optimizer, after[1].config)  # as Megatron does before it loads
    for old, new in zip(before[1:], after[1:], strict=True):
        new.load_state_dict(old.state_dict())
    got = train(after[0], stepping(*after), BUILDER_STEPS[CUT:])
    wrong = sum(got[name] != wanted[name] for name in wanted)
    figure(f"Megatron-core: {wrong} of {len(wanted)} tensors differ after resuming")
    assert wrong == 0 and wanted != weights(matrices(seed))


class OnGpu(torch.nn.Parameter):
    """A CPU parameter that Megatron-core takes for one on a GPU."""

    is_cuda = True  # type: ignore[assignment]


class Stream:
    """Stands for torch's streams and events of CUDA: everything is done at once."""

    def __init__(self, *args: Any) -> None:
        pass

    def record_event(self) -> Stream:
        return self

    def synchronize(self) -> None:
        pass

    wait = wait_stream = __init__


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("state", ["fp32", "bf16", "dynamic8"])
def test_megatron_hybrid_device_optimizer(
    state: str, overlap: bool, seed: int, monkeypatch: pytest.MonkeyPatch, figure: Any
) -> None:
    """Megatron-core's own class, whose load assigns every entry of its sub-optimizers' state. It needs stand-ins for a GPU."""
    pytest.importorskip("megatron.core")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core.optimizer.cpu_offloading import hybrid_optimizer as theirs
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    for name, stand_in in (("Stream", Stream), ("current_stream", Stream), ("stream", lambda stream: nullcontext())):
        monkeypatch.setattr(torch.cuda, name, stand_in)

    def made() -> tuple[torch.nn.Module, Any]:
        model = matrices(seed)
        for layer in (model[0], model[2]):
            layer.weight, layer.bias = OnGpu(layer.weight.detach()), OnGpu(layer.bias.detach())

        class Chosen(lowtide.AdamW):
            def __init__(self, params: Any) -> None:  # stochastic rounding depends on parameters' numbers
                super().__init__(params, state=state, rounding="nearest")

        return model, theirs.HybridDeviceOptimizer(
            [*model.parameters()], offload_fraction=1.0, cpu_optimizer_cls=Chosen,
            gpu_optimizer_cls=torch.optim.AdamW, pin_cpu_grads=False, overlap_cpu_optimizer_d2h_h2d=overlap, lr=1e-2,
        )  # fmt: skip

    model, hybrid = made()
    wanted = train(model, hybrid.step, BUILDER_STEPS)
    assert wanted == direct(seed, lr=1e-2, state=state, rounding="nearest")
    before, first = made()
    train(before, first.step, BUILDER_STEPS[:CUT])
    after, second = made()
    after.load_state_dict(before.state_dict())
    saved = first.state_dict()
    if state == "dynamic8":
        second.load_state_dict(saved)
        with pytest.raises(ValueError, match="assigned state of parameter 0: got .*exp_avg_scale"):
            train(after, second.step, BUILDER_STEPS[CUT:])
        return
    second.load_state_dict(saved)
    got = train(after, second.step, BUILDER_STEPS[CUT:])
    wrong = sum(got[name] != wanted[name] for name in wanted)
    figure(f"{len(second.sub_optimizers)} sub-optimizers: {wrong} of {len(wanted)} tensors differ after resuming")
    assert wrong == 0


STEPS = 6
# Relative difference between losses of two float32 AdamWs that differ only in rounding (2^-24 per operation): 100 times that
# and more, over these few steps of a model with 0.1 M weights.
CLOSE = 1e-4


def model_of(seed: int) -> Any:
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=TOKENS, hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4,
                    max_position_embeddings=LENGTH, tie_word_embeddings=False)
    )  # fmt: skip


def arguments(out: Path, kind: Any = TrainingArguments, **more: Any) -> Any:
    given = {"optim": "adamw_torch", "learning_rate": 2e-3, "weight_decay": 0.1, **more}
    return kind(
        str(out), use_cpu=True, report_to=[], disable_tqdm=True, seed=7, max_steps=STEPS, logging_steps=1,
        save_strategy="no", per_device_train_batch_size=4, **given,
    )  # fmt: skip


def losses(trainer: Any) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def lowtide_of(trainer: Any) -> Any:
    """The optimizer inside of Accelerate's wrapper."""
    optimizer = trainer.optimizer.optimizer
    assert isinstance(optimizer, lowtide.Optimizer) and optimizer.report()["steps"] == STEPS
    return optimizer


def check_as_torch(trainer: Any, wanted: list[float], shown: Any) -> None:
    got = losses(trainer)
    worst = max(abs(a / b - 1) for a, b in zip(got, wanted, strict=True))
    assert type(lowtide_of(trainer)) is lowtide.AdamW
    shown(f"loss {got[0]:.3f} → {got[-1]:.3f}, at most {worst:.1e} (allowed {CLOSE}) from torch's, relative")
    assert worst < CLOSE and got[-1] < got[0]


def by_torch(out: Path, model: Any) -> list[float]:
    trainer = Trainer(model, arguments(out), train_dataset=Sequences())
    trainer.train()
    assert type(trainer.optimizer.optimizer) is torch.optim.AdamW
    return losses(trainer)


def tokenizer() -> Any:
    """The words "0", "1", … are the tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.WordLevel({str(i): i for i in range(TOKENS)}, unk_token="0"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="1", pad_token="2")


def test_trl(seed: int, tmp_path: Path, figure: Any) -> None:
    """The real package: SFTTrainer with a tuple, and with a factory."""
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    rows = Sequences()
    names: dict[str, Any] = {
        "tokenizer": tokenizer(),
        "data": datasets.Dataset.from_list([{"input_ids": rows[i]["input_ids"].tolist()} for i in range(len(rows))]),
    }
    tuple_form, factory_form, _ = blocks("TRL")

    args = arguments(tmp_path, trl.SFTConfig, max_length=LENGTH, bf16=False)

    def run(block: str) -> Any:
        names.update(model=model_of(seed), args=args)
        exec(block, names)
        return names["trainer"]

    wanted = run(re.sub("    optimizer_cls_and_kwargs=.*\n", "", tuple_form))
    assert type(wanted.optimizer.optimizer) is torch.optim.AdamW
    check_as_torch(run(tuple_form.replace("adamw_8bit", "adamw_torch")), losses(wanted), figure)
    eight = run(tuple_form)
    assert lowtide_of(eight).param_groups[0]["state"] == "dynamic8" and losses(eight)[-1] < losses(eight)[0]
    muon = run(factory_form)
    inner, outer = lowtide_of(muon).param_groups
    assert type(lowtide_of(muon)) is lowtide.Muon and (inner["use_muon"], outer["use_muon"]) == (True, False)
    assert len(outer["params"]) == 2 and losses(muon)[-1] < losses(muon)[0]
    figure(f"TRL's loss with 8 bits {losses(eight)[-1]:.3f}, with a factory of Muon {losses(muon)[-1]:.3f}")


@pytest.mark.parametrize("kind", ["DPO", "GRPO"])
def test_trl_by_the_attribute(kind: str, seed: int, tmp_path: Path, figure: Any) -> None:
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    block = blocks("TRL")[2]
    rows = [{"prompt": f"{3 + i % 5} 4 5", "chosen": f"{6 + i % 7} 7", "rejected": "9 8 9"} for i in range(8)]
    more: dict[str, Any] = {"max_length": LENGTH}
    if kind == "GRPO":
        block = block.replace("DPOTrainer", "GRPOTrainer").replace("(model, ", "(model, rewards, ")
        rows = [{"prompt": row["prompt"]} for row in rows]
        more = {"num_generations": 2, "max_completion_length": 4}
    args = arguments(tmp_path, getattr(trl, f"{kind}Config"), bf16=False, **more)
    names = {
        "model": adapted(seed, dropout=0),  # without adapters DPO loads the reference by the model's name
        "args": args, "data": datasets.Dataset.from_list(rows), "tokenizer": tokenizer(),
        "rewards": lambda completions, **given: [float(len(each)) for each in completions],
    }  # fmt: skip
    before = weights(names["model"])
    exec(block, names)
    opt = lowtide_of(names["trainer"])
    assert opt.param_groups[0]["state"] == "dynamic8" and weights(names["trainer"].model) != before
    figure(f"{kind}: {STEPS} steps by Lowtide's 8-bit AdamW")


def test_axolotl(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figure: Any) -> None:
    """The real plugin interface and manager. The trainer is transformers', from which Axolotl's inherits; both read the same
    attribute."""
    base = pytest.importorskip("axolotl.integrations.base")
    mine = ModuleType("my_module")
    monkeypatch.setitem(sys.modules, "my_module", mine)
    exec(blocks("Axolotl")[0], vars(mine))
    manager = base.PluginManager()
    manager.register("my_module.LowtidePlugin")
    try:
        trainer = Trainer(model_of(seed), arguments(tmp_path), train_dataset=Sequences())
        manager.post_trainer_create(None, trainer)
    finally:
        manager.plugins.clear()  # the process has one manager
    trainer.train()
    check_as_torch(trainer, by_torch(tmp_path, model_of(seed)), figure)


def test_llama_factory(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figure: Any) -> None:
    """A stand-in: LLaMA-Factory 0.9.5 cannot be imported beside today's trl. Its trainer makes its own optimizer for GaLore and
    the like, and otherwise leaves it to transformers', as this one does."""
    made: list[Any] = []

    def create_custom_optimizer(model: Any, *args: Any) -> torch.optim.Optimizer | None:
        return None  # neither GaLore nor another one was asked for

    class SftTrainer(Trainer):
        def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
            if self.optimizer is None:
                self.optimizer = create_custom_optimizer(self.model, self.args)
            return super().create_optimizer(*args, **kwargs)

    def run_exp() -> None:
        made.append(SftTrainer(model_of(seed), arguments(tmp_path), train_dataset=Sequences()))
        made[0].train()

    wanted = by_torch(tmp_path, model_of(seed))
    for name in ("llamafactory", "llamafactory.train", "llamafactory.train.tuner"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules["llamafactory.train.tuner"], "run_exp", run_exp, raising=False)
    monkeypatch.setattr(Trainer, "get_optimizer_cls_and_kwargs", Trainer.get_optimizer_cls_and_kwargs)  # restored after
    exec(blocks("LLaMA-Factory")[0], {})
    check_as_torch(made[0], wanted, figure)


def test_unsloth_embedding_learning_rate(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in that, like UnslothTrainer, asks SFTTrainer's method for the class if embeddings have their own rate."""

    class UnslothTrainer(Trainer):
        def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
            cls, options = Trainer.get_optimizer_cls_and_kwargs(self.args)
            named = [*self.model.named_parameters()]
            inner, outer = ([p for name, p in named if ("embed" in name) == chosen] for chosen in (False, True))
            self.optimizer = cls([{"params": inner}, {"params": outer, "lr": 5e-5}], **options)
            return self.optimizer

    args = arguments(tmp_path, optim="adamw_torch")
    made = lowtide.hf.optimizer(args.optim, args)
    ignoring = UnslothTrainer(model_of(seed), args, train_dataset=Sequences(), optimizer_cls_and_kwargs=made)
    assert type(ignoring.create_optimizer()) is torch.optim.AdamW
    (line,) = re.findall(r"^Trainer\.get_optimizer_cls_and_kwargs = .*$", blocks("LLaMA-Factory")[0], re.M)
    monkeypatch.setattr(Trainer, "get_optimizer_cls_and_kwargs", Trainer.get_optimizer_cls_and_kwargs)  # restored after
    exec(line, {"Trainer": Trainer, "lowtide": lowtide})
    trainer = UnslothTrainer(model_of(seed), arguments(tmp_path, optim="adamw_8bit"), train_dataset=Sequences())
    trainer.train()
    opt = lowtide_of(trainer)
    assert [group["initial_lr"] for group in opt.param_groups] == [2e-3, 5e-5] and opt.param_groups[0]["state"] == "dynamic8"


def test_ms_swift(seed: int, tmp_path: Path, figure: Any) -> None:
    """The real callback class, with stand-ins for the table of callbacks and the trainer that asks it. That trainer also drops
    groups without parameters: LoRA trains no parameters without decay."""
    with without_start("swift", "swift.optimizers") as packages:
        from swift.optimizers.base import OptimizerCallback

        table: dict[str, Any] = {"default": OptimizerCallback}
        vars(packages["swift"]).update(OptimizerCallback=OptimizerCallback, optimizers_map=table)
        exec(blocks("ms-swift")[0], {})

        class SwiftTrainer(Trainer):
            def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
                self.optimizer: Any = table[self.callback](self.args, self).create_optimizer(model=model)
                self.optimizer.param_groups = [group for group in self.optimizer.param_groups if group["params"]]
                return self.optimizer

        runs = []
        for SwiftTrainer.callback in ("default", "lowtide"):
            args = arguments(tmp_path, learning_rate=2e-2)
            runs.append(SwiftTrainer(adapted(seed, dropout=0), args, train_dataset=Sequences()))
            runs[-1].train()
    check_as_torch(runs[1], losses(runs[0]), figure)
    assert len(lowtide_of(runs[1]).param_groups) == 1
