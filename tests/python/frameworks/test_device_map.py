"""`device_map="auto"` with accelerate: its own functions cut the model (`infer_auto_device_map`), hook every module
(`dispatch_model`) and train it (`Accelerator.prepare`, `backward`). The devices are stand-ins (several_devices_support.py),
whose memory torch takes for the CPU's, so the hooks move no activation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import lowtide
import pytest
import torch
from several_devices_support import Machine
from support import bits
from twins import dict_bits

accelerate = pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")

STEPS = 5


@pytest.fixture(autouse=True)
def _state() -> Iterator[None]:
    torch.set_num_threads(1)
    yield
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


def llama(seed: int) -> Any:
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=2,
        tie_word_embeddings=False,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def auto(model: Any) -> dict[str, int | str]:
    """Accelerate's choice for two GPUs that hold the embeddings or a layer, and a CPU for the rest."""
    room = {0: "44KB", 1: "36KB", "cpu": "1GB"}
    found: dict[str, int | str] = accelerate.infer_auto_device_map(
        model, max_memory=room, no_split_module_classes=["LlamaDecoderLayer"]
    )
    return found


HOW: dict[str, dict[str, Any]] = {
    "plain": {},
    "step_in_backward": {"step_in_backward": True},
    "host": {"memory": lowtide.Memory(device="16KiB", host="1MiB", chunk=4096)},
}


@pytest.mark.parametrize("how", HOW)
def test_a_model_that_accelerate_dispatches_trains(
    machine: Machine, how: str, seed: int, figure: Callable[[str], None]
) -> None:
    """Losses, weights and state are those of the CPU without accelerate. The optimizer is made from the dispatched model."""
    tokens = torch.randint(64, (4, 12))
    plain, placed = llama(seed), llama(seed)
    reference = lowtide.AdamW(plain.parameters(), lr=0.01, min_quantized_numel=0)
    losses = []
    for _ in range(STEPS):
        loss = plain(input_ids=tokens, labels=tokens).loss
        loss.backward()
        reference.step()
        reference.zero_grad()
        losses.append(loss.item())

    chosen = auto(placed)
    assert {*chosen.values()} == {0, 1, "cpu"}
    names = []
    for name, param in [*placed.named_parameters()]:
        at = next(where for module, where in chosen.items() if name.startswith(f"{module}."))
        names.append(at if isinstance(at, str) else f"cuda:{at}")
        owner, _, last = name.rpartition(".")
        placed.get_submodule(owner)._parameters[last] = machine.parameters([param], names[-1:])[0]
    as_torch_sees = dict.fromkeys(chosen, torch.device("cpu"))
    placed = accelerate.dispatch_model(placed, as_torch_sees, force_hooks=True)
    hooked = [isinstance(placed.get_submodule(name)._hf_hook, accelerate.hooks.AlignDevicesHook) for name in chosen]
    assert all(hooked)
    params = [*placed.parameters()]
    opt = lowtide.AdamW(params, lr=0.01, min_quantized_numel=0, **HOW[how])
    assert len(opt.engine.cores) == 3
    accelerator = accelerate.Accelerator(cpu=True)
    model, wrapped = accelerator.prepare(placed, opt)
    for wanted in losses:
        for param, name in zip(params, names, strict=True):  # autograd adds to what is there, which a device can read
            param.grad = machine.tensor(torch.zeros_like(param), name)
        loss = model(input_ids=tokens, labels=tokens).loss
        assert loss.item() == wanted
        accelerator.backward(loss)
        wrapped.step()
        machine.synchronize()
        wrapped.zero_grad()
    assert [*map(bits, params)] == [*map(bits, plain.parameters())]
    assert dict_bits(opt) == dict_bits(reference)
    assert losses[-1] < losses[0]
    figure(f"{how}: {len(params)} parameters on {sorted(set(names))}: {STEPS} losses and all bits those of the CPU")
