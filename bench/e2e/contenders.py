"""Lowtide's optimizers beside those of other packages: what each is made of, for a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from common.contenders import PEERS, Contender
from quality.muon import NORMUON, Pair

DEVICES = ("cpu", "cuda", "xpu")


@dataclass(frozen=True)
class Job:
    """A training, by the options of run.py."""

    model: str = "llama-26M"
    batch: int = 2
    seq: int = 128
    dtype: str = "fp32"
    device: str = "cpu"
    checkpointing: bool = False
    clip: float = 0.0
    lr: float = 5e-4
    weight_decay: float = 0.01
    threads: int = 0
    warmup: int = 3
    steps: int = 12
    budget: str = "4MiB"
    stream_budget: str = "512MiB"
    disk: str | None = None


Memory = Callable[[Job, str], Any]  # the budget, of a job and a scratch folder


def budget(job: Job, scratch: str) -> dict[str, str]:
    """For state in `job.budget` of the memory where the parameters are, and on disk."""
    return {
        "host" if job.device == "cpu" else "device": job.budget,
        "disk": scratch,
        **({} if job.device == "cpu" else {"host": job.budget}),
    }


def _own(label: str, memory: Memory | None = None, streams: bool = False, **of: Any) -> Contender:
    """of: fields of Contender, and options of AdamW."""
    fields = {"devices": DEVICES} | {name: of.pop(name) for name in ("devices", "dtypes") if name in of}

    def make(whole: Any, job: Job, scratch: str, **hyper: Any) -> Any:
        import lowtide

        given = {**hyper, **of, **({"memory": memory(job, scratch)} if memory else {})}
        return lowtide.stream(whole, given.pop("memory"), **given) if streams else lowtide.AdamW(whole, **given)

    return Contender("lowtide", make, f"lowtide AdamW{label and ', '}{label}", whole=streams, **fields)


OWN = {
    "lowtide": _own(""),
    "lowtide-float8": _own("float8", state="float8"),
    "lowtide-bf16": _own("bf16 state", state="bf16"),
    "lowtide-fp32": _own("fp32 state", state="fp32"),
    "lowtide-residual16": _own("master residual16", master="residual16", dtypes=("bf16",)),
    "lowtide-in-backward": _own("step in backward", step_in_backward=True),
    "lowtide-disk": _own("state on disk", memory=budget),
    "lowtide-fp32-disk": _own("fp32 state on disk", memory=budget, state="fp32"),
    "lowtide-paged": _own("state in host memory", memory=lambda job, scratch: {"device": job.budget}, devices=DEVICES[1:]),
    "lowtide-fp32-paged": _own(
        "fp32 state in host memory", memory=lambda job, scratch: {"device": job.budget}, state="fp32", devices=DEVICES[1:]
    ),
    "lowtide-host": _own("steps by the CPU", memory=lambda job, scratch: {"step": "host"}, devices=DEVICES[1:]),
    "lowtide-stream": _own(
        "weights streamed", memory=lambda job, scratch: {"device": job.stream_budget, "host": "80%"}, streams=True, devices=DEVICES[1:],
    ),
}  # fmt: skip


def _muon(label: str, ours: Any = None) -> Contender:
    """Muon for the layers' matrices beside torch's fused AdamW: with these options of Lowtide's, or torch's."""

    def make(params: Any, **hyper: Any) -> Any:
        return Pair(ours, params, betas=(0.9, 0.95), eps=1e-8, **hyper)

    return Contender("torch" if ours is None else "lowtide", make, label, devices=DEVICES)


MUON = {
    "torch-muon": _muon("torch Muon"),
    "lowtide-muon-fp32": _muon("lowtide Muon, fp32 state", {"state": "fp32"}),
    "lowtide-muon": _muon("lowtide Muon", {}),
    "lowtide-normuon": _muon("lowtide Muon, row_beta2", NORMUON),
}
SAME_BITS = {  # optimizers with losses and weights of others, wherever backward adds in one order
    "lowtide-disk": "lowtide", "lowtide-fp32-disk": "lowtide-fp32", "lowtide-in-backward": "lowtide", "lowtide-paged": "lowtide",
    "lowtide-fp32-paged": "lowtide-fp32", "lowtide-host": "lowtide",
}  # fmt: skip
IN_BACKWARD = ("lowtide-in-backward", "lowtide-stream", "trainstream")  # before the norm of all gradients is known
ALL = {**OWN, **PEERS, **MUON}


def cannot(name: str, job: Job) -> str | None:
    """Why a job cannot have a contender, None if it may."""
    one = ALL[name]
    if job.device not in one.devices:
        return f"it is for parameters on {' and '.join(one.devices)}"
    if job.dtype not in one.dtypes:
        return f"it is for parameters in {' and '.join(one.dtypes)}"
    if job.clip and name in IN_BACKWARD:
        return "it steps before the norm of all gradients is known: --clip 0"
    return None


def make(name: str, model: torch.nn.Module, job: Job, scratch: str) -> tuple[torch.nn.Module, Any]:
    """The model to train and its optimizer. Raises whatever the package raises."""
    one = ALL[name]
    of = {"job": job, "scratch": scratch} if name in OWN else {}
    made = one.make(model if one.whole else list(model.parameters()), lr=job.lr, weight_decay=job.weight_decay, **of)
    return made if one.whole else (model, made)
