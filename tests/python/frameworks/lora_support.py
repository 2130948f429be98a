"""For tests of training frameworks: a tiny LLaMA with LoRA over a frozen base, data, and bit-for-bit comparison of runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lowtide
import pytest
import torch
from support import bits

for _package in ("transformers", "accelerate", "peft"):
    pytest.importorskip(_package)

from accelerate.state import AcceleratorState, GradientState  # noqa: E402
from peft import LoraConfig, get_peft_model  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

TOKENS, LENGTH = 96, 24
# Adapters have at least 4096 elements, and so get quantized state on request.
WIDTH, RANK = 128, 32


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The model is too small for more threads. Process-wide settings of frameworks neither enter nor stay."""
    torch.set_num_threads(1)
    for after in (False, True):
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        if not after:
            yield


def adapted(
    seed: int, base: torch.dtype = torch.float32, adapters: torch.dtype = torch.float32, dropout: float = 0.1
) -> Any:
    """A frozen LLaMA of two random layers, with adapters to train. The arguments are their dtypes."""
    torch.manual_seed(seed)
    config = LlamaConfig(vocab_size=TOKENS, hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=LENGTH)  # fmt: skip
    lora = LoraConfig(r=RANK, lora_alpha=RANK, lora_dropout=dropout, target_modules=["q_proj", "o_proj", "up_proj"])
    model = get_peft_model(LlamaForCausalLM(config).to(base), lora, autocast_adapter_dtype=adapters == torch.float32)
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {adapters}
    assert {p.dtype for p in model.parameters() if not p.requires_grad} == {base}
    return model


class Sequences(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Tokens in arithmetic progressions."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        tokens = (i + torch.arange(LENGTH) * (i % 5 + 1)) % TOKENS
        return {"input_ids": tokens, "labels": tokens}


def paging(folder: Path) -> lowtide.Memory:
    """A budget too small for most of the adapters' state; the rest is in a file."""
    return lowtide.Memory(host="48KiB", disk=folder, chunk="4KiB")


def trained_bits(model: torch.nn.Module, optimizer: Any) -> dict[str, bytes]:
    """Everything that training changes: the adapters, and the optimizer's state."""
    found = {name: bits(param) for name, param in model.named_parameters() if param.requires_grad}
    for number, entry in optimizer.state_dict()["state"].items():
        found |= {f"{number} {name}": bits(value) for name, value in entry.items()}
    return found


def differing(*runs: dict[str, bytes]) -> tuple[int, int]:
    """How many bytes of the other runs differ from the first, and how many were compared."""
    first, *others = runs
    count = 0
    for other in others:
        assert {k: len(v) for k, v in other.items()} == {k: len(v) for k, v in first.items()}
        count += sum(x != y for name in first for x, y in zip(first[name], other[name], strict=True))
    return count, len(others) * sum(map(len, first.values()))
