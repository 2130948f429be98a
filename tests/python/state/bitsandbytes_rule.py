"""bitsandbytes' 8-bit rules for CPUs in plain torch, and state_dicts in its layout: what the real one is checked to
agree with where it is installed (test_compat_interchange.py), and stands for it where it is not."""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from lowtide.state import blockwise

BLOCK = 256
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
TWO_STATES = ("adamw", "ademamix")


@cache
def _table(signed: bool) -> torch.Tensor:
    """The entry that the CPU library takes for each of 65,536 points from -1 to 1."""
    book = blockwise.dynamic_map(signed)
    points = torch.arange(65536, dtype=torch.float32) / 65535 * 2 - 1
    upper = torch.searchsorted(book, points).clamp(1, 255)
    return torch.where((points - book[upper - 1]).abs() <= (book[upper] - points).abs(), upper - 1, upper)


def quantize(
    x: torch.Tensor, signed: bool, by_table: bool, positive: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and absmax of flat blocks: the exactly nearest entry, or the CPU library's choice."""
    codes, scales = blockwise.encode(x, blockwise.dynamic_map(signed), BLOCK, positive)
    if by_table:
        each = scales.repeat_interleave(BLOCK)[: x.numel()]
        scaled = torch.where(each > 0, x.reshape(-1) * (1 / each), 0.0)
        codes = _table(signed)[((scaled + 1) * 32767.5 + 0.5).long().clamp(0, 65535)].to(torch.uint8).view(x.shape)
        codes.view(-1)[each == 0] = 0
    return codes, scales


class Twin:
    """One parameter under one rule. by_table: as the real one on a CPU, with torch's fused operations; else with each
    operation rounded once, exact codes, no positive second moment at 0, and second moments in the unsigned map."""

    def __init__(
        self, rule: str, param: torch.Tensor, hyper: dict[str, Any], by_table: bool, small: bool = False
    ) -> None:
        self.rule, self.p, self.by_table, self.small = rule, param.detach().clone(), by_table, small
        self.hyper = {"weight_decay": 0.0, **hyper}
        self.t = 0
        self.signed = {"adamw": [True, False], "ademamix": [True, False, True]}.get(rule, [True])
        if rule in ("rmsprop", "adagrad") and not by_table:
            self.signed = [False]
        zeros = torch.zeros(-(-param.numel() // BLOCK))
        self.codes = [torch.zeros(param.shape, dtype=torch.uint8) for _ in self.signed]
        self.scales = [zeros.clone() for _ in self.signed]
        self.floats = [torch.zeros(param.shape) for _ in self.signed]

    def step(self, g: torch.Tensor) -> None:
        self.t += 1
        books = [blockwise.dynamic_map(signed) for signed in self.signed]
        states = self.floats
        if not self.small:
            parts = zip(self.codes, self.scales, books, strict=True)
            states = [blockwise.decode(codes, scales, book, BLOCK) for codes, scales, book in parts]
        self._update(g, states)
        self.floats = states
        if not self.small:
            squares = {"adamw": 1, "ademamix": 1, "rmsprop": 0, "adagrad": 0}
            for k, state in enumerate(states):
                positive = squares.get(self.rule) == k and not self.by_table
                self.codes[k], self.scales[k] = quantize(state, self.signed[k], self.by_table, positive)

    def _average(self, s: torch.Tensor, x: torch.Tensor, beta: float) -> None:
        s.mul_(beta).add_(x, alpha=1 - beta) if self.by_table else s.copy_(s * beta + x * (1 - beta))

    def _square(self, s: torch.Tensor, g: torch.Tensor, beta: float) -> None:
        s.mul_(beta).addcmul_(g, g, value=1 - beta) if self.by_table else s.copy_(s * beta + g * g * (1 - beta))

    def _update(self, g: torch.Tensor, s: list[torch.Tensor]) -> None:
        h, p = self.hyper, self.p
        lr, betas, decay = h["lr"], h.get("betas", (0.0, 0.0)), h["weight_decay"]
        if self.rule in ("adamw", "ademamix", "lion") and decay > 0:
            p.mul_(1 - lr * decay)
        if self.rule in TWO_STATES:
            bias1, bias2 = 1 - betas[0] ** self.t, math.sqrt(1 - betas[1] ** self.t)
            self._average(s[0], g, betas[0])
            self._square(s[1], g, betas[1])
            if self.rule == "adamw":
                p.addcdiv_(s[0], (s[1].sqrt() / bias2).add_(h["eps"]), value=-lr / bias1)
            else:
                self._average(s[2], g, betas[2])
                p.add_((s[0] / bias1 + h["alpha"] * s[2]) / (s[1].sqrt() / bias2 + h["eps"]), alpha=-lr)
        elif self.rule == "lion":
            if self.by_table:
                p.add_(torch.sign(s[0].mul(betas[0]) + g.mul(1 - betas[0])), alpha=-lr)
            else:
                p.sub_(torch.sign(s[0] * betas[0] + g * (1 - betas[0])) * lr)
            self._average(s[0], g, betas[1])
        elif self.rule == "sgd":
            s[0].copy_(g) if self.t == 1 else s[0].mul_(h["momentum"]).add_(g)
            p.add_(s[0], alpha=-lr)
        elif self.rule == "rmsprop":
            self._square(s[0], g, h["alpha"])
            p.addcdiv_(g, s[0].sqrt().add_(h["eps"]), value=-lr)
        else:
            s[0].addcmul_(g, g) if self.by_table else s[0].copy_(s[0] + g * g)
            p.addcdiv_(g, s[0].sqrt().add_(h["eps"]), value=-lr)

    def entry(self, nested: bool = True) -> dict[str, Any]:
        """The state as in bitsandbytes' state_dict."""
        doubled = self.rule == "ademamix"
        tensors: dict[str, torch.Tensor] = {}
        for k, states in enumerate([[0, 2], [1]] if doubled else [[j] for j in range(len(self.signed))], 1):
            join = torch.stack if len(states) == 2 else lambda each: each[0].clone()
            if self.small:
                tensors[f"state{k}"] = join([self.floats[j] for j in states])
                continue
            tensors[f"state{k}"] = join([self.codes[j] for j in states])
            tensors[f"absmax{k}"] = join([self.scales[j] for j in states])
            tensors[f"qmap{k}"] = blockwise.dynamic_map(self.signed[states[0]])
        return {"step": self.t, **({NESTED: tensors} if nested else tensors)}


def group_of(rule: str, hyper: dict[str, Any], numbers: Sequence[int]) -> dict[str, Any]:
    """A group of bitsandbytes' state_dict."""
    names = {"sgd": ("momentum", None), "rmsprop": ("alpha", None), "adagrad": (None, None)}.get(rule)
    betas = tuple(hyper.get(name, 0.0) if name else 0.0 for name in names) if names else hyper["betas"]
    decay = hyper.get("weight_decay", 0)
    group = {"lr": hyper["lr"], "betas": betas, "eps": hyper.get("eps", 0.0), "weight_decay": decay}
    if rule in TWO_STATES:
        group |= {"alpha": hyper.get("alpha", 0.0), "t_alpha": None, "t_beta3": None}
    return {**group, "params": list(numbers)}


def state_dict_of(rule: str, twins: Sequence[Twin], nested: bool = True) -> dict[str, Any]:
    groups = [group_of(rule, twins[0].hyper, range(len(twins)))]
    return {"state": {i: twin.entry(nested) for i, twin in enumerate(twins)}, "param_groups": groups}
