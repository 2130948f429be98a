"""Short runs of bitsandbytes' own 8-bit optimizers on the CPU."""

from typing import Any

import pytest
import torch

NESTED = "__bnb_optimizer_quant_state__"
# Rule here → the family's name there, and options that both take.
RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "adamw": ("AdamW", {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.05}),
    "lion": ("Lion", {"lr": 1e-3, "betas": (0.9, 0.99), "weight_decay": 0.05}),
    "sgd": ("SGD", {"lr": 1e-2, "momentum": 0.9}),
    "rmsprop": ("RMSprop", {"lr": 1e-3, "alpha": 0.99, "eps": 1e-8}),
    "adagrad": ("Adagrad", {"lr": 1e-2, "eps": 1e-10}),
    "ademamix": (
        "AdEMAMix",
        {"lr": 1e-3, "betas": (0.9, 0.999, 0.9999), "alpha": 5.0, "eps": 1e-8, "weight_decay": 0.05},
    ),
}


def real(name: str) -> Any:
    return getattr(pytest.importorskip("bitsandbytes").optim, name)


def trained(rule: str, *shapes: tuple[int, ...], steps: int = 5) -> tuple[list[torch.nn.Parameter], torch.optim.Optimizer]:
    name, options = RULES[rule]
    params = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    opt: torch.optim.Optimizer = real(name + "8bit")(params, **options)
    for _ in range(steps):
        for param in params:
            param.grad = torch.randn(param.shape) * 0.1
        opt.step()
    return params, opt


def flat(saved: dict[str, Any]) -> dict[str, Any]:
    """The dict as versions before 0.49.2 wrote it."""
    state = {number: {"step": entry["step"], **entry[NESTED]} for number, entry in saved["state"].items()}
    return {**saved, "state": state}
