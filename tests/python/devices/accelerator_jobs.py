"""The jobs of `test_accelerators`: parameters on an accelerator that Lowtide has no kernels for, in one process, on torch's device
"toy" (toy_device.py). It computes by torch's kernels of the CPU, so that a model's gradients there have the bits of the CPU."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lowtide
import lowtide.distributed
import torch
import toy_device

sys.path.append(str(Path(__file__).parents[1]))
from support import CODECS, DTYPES, RULES, bits, make, state_bits

FOLDER = Path(sys.argv[1])
toy = toy_device.load(FOLDER)
SHAPES = ((33, 300), (5000,), (7,), ())


def weight_bits(params: Any) -> list[bytes]:
    return [bits(param.detach().cpu()) for param in params]


def memories() -> list[lowtide.Memory | None]:
    return [None, lowtide.Memory(host="256KiB", disk=FOLDER, chunk="16KiB")]


def pair(dtype: torch.dtype) -> tuple[list[torch.nn.Parameter], list[torch.nn.Parameter]]:
    """The same parameters on the CPU and on the device."""
    here = [torch.nn.Parameter(torch.randn(shape).to(dtype)) for shape in SHAPES]
    return here, [torch.nn.Parameter(param.detach().to("toy")) for param in here]


def random_gradients(here: list[torch.nn.Parameter], there: list[torch.nn.Parameter]) -> None:
    for one, other in zip(here, there, strict=True):
        one.grad = torch.randn(one.shape).to(one.dtype)
        other.grad = one.grad.to("toy")


def every_rule() -> str:
    cells = differing = 0
    for rule, state, dtype, memory in itertools.product(RULES, CODECS, DTYPES, memories()):
        torch.manual_seed(cells)
        here, there = pair(dtype)
        masters = {"master": "residual16"} if dtype == torch.bfloat16 and rule == "adamw" else {}
        opts = [make(rule, params, lr=1e-2, state=state, memory=memory, **masters) for params in (here, there)]
        for _ in range(3):
            random_gradients(here, there)
            for opt in opts:
                opt.step()
        differing += weight_bits(here) != weight_bits(there) or state_bits(opts[0]) != state_bits(opts[1])
        cells += 1
    assert not differing, f"{differing} of {cells} cells differ"
    return f"{cells} cells of rule, format, dtype and budget, {differing} differ from the CPU"


def net(device: str) -> torch.nn.Module:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 256), torch.nn.Tanh(), torch.nn.Linear(256, 16))
    return model.to(device)


def train(device: str, steps: int, way: str, cut: int = -1) -> list[bytes]:
    """Trains with clipping, a schedule and two micro-batches a step. After step `cut` all goes on with what a file, and then a dict,
    have of the optimizer."""
    model = net(device)
    options: dict[str, Any] = {"max_grad_norm": 0.1} if way == "option" else {"amp_scaling": way == "scaler"}

    if way == "backward":
        options = {"step_in_backward": True}
    if way.startswith("offload") and device != "cpu":
        options = {"offload_in_backward": True}
    if way == "offload, option":
        options["max_grad_norm"] = 0.1

    def optimizer() -> lowtide.AdamW:
        return lowtide.AdamW(model.parameters(), lr=1e-2, memory=memories()[1], **options)

    opt = optimizer()
    schedule = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**20) if way == "scaler" else None
    data = torch.Generator().manual_seed(1)
    for step in range(steps):
        for _ in range(1 if way == "backward" else 2):
            loss = model(torch.randn(8, 32, generator=data).to(device)).square().mean()
            (scaler.scale(loss) if scaler else loss).backward()
        if "offload" in way:
            assert all((param.grad is None) == (device != "cpu") for param in model.parameters()), "gradients left the device"
        if way in ("call", "offload"):
            opt.clip_grad_norm_(0.1)
        scaler.step(opt) if scaler else opt.step()
        if scaler:
            scaler.update()
        schedule.step()
        opt.zero_grad()
        if step == cut:
            opt.save(FOLDER / "state.lt")
            opt = optimizer()
            opt.load(FOLDER / "state.lt")
            saved = copy.deepcopy(opt.state_dict())
            opt = optimizer()
            opt.load_state_dict(saved)
            last = schedule.state_dict()
            schedule = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)
            schedule.load_state_dict(last)
    return weight_bits(model.parameters())


def training() -> str:
    ways = ("call", "option", "scaler", "backward", "offload", "offload, option")
    for way in ways:
        assert train("toy", 6, way) == train("cpu", 6, way), way
    assert train("toy", 6, "call", cut=2) == train("cpu", 6, "call"), "resumed"
    return f"{len(ways)} ways of training, and one resumed from a file and a dict: 0 bits differ from the CPU"


def failures() -> str:
    """Every copy of a step fails once. What is whole then goes on to the weights of a run without failures."""
    torch.manual_seed(0)
    here, _ = pair(torch.bfloat16)
    began = copy.deepcopy(here)

    def gradients(params: list[torch.nn.Parameter], step: int) -> None:
        random = torch.Generator().manual_seed(step)
        for param in params:
            param.grad = torch.randn(param.shape, generator=random).to(param.dtype).to(param.device)

    opt = lowtide.AdamW(here, lr=1e-2)
    for step in range(3):
        gradients(here, step)
        opt.step()
    before = after = 0
    for good in itertools.count():
        there = [torch.nn.Parameter(param.detach().to("toy")) for param in began]
        opt = lowtide.AdamW(there, lr=1e-2)
        failed = False
        for step in range(3):
            gradients(there, step)
            old, counted = weight_bits(there), opt.report()["steps"]
            if step == 1:
                toy.toy_fail_after(good)
            try:
                opt.step()
            except RuntimeError as error:
                toy.toy_fail_after(-1)
                failed = True
                assert "toy:0 failed while copying" in str(error) and "does not answer" in str(error), error
                if opt.report()["steps"] == counted:
                    assert weight_bits(there) == old and "nothing was changed" in str(error)
                    opt.step()
                    before += 1
                else:
                    opt.synchronize()
                    after += 1
            toy.toy_fail_after(-1)
        assert weight_bits(there) == weight_bits(here), f"copy {good}"
        if not failed:
            break
    assert before == 2 * len(SHAPES) and after == len(SHAPES), (before, after)
    return f"{before} failures before and {after} after a step, {before + after}/{before + after} whole"


def traffic() -> str:
    """A step brings gradients and weights to the host, once though the norm is read before it, and weights back."""
    here, there = pair(torch.bfloat16)
    opt = lowtide.AdamW(there, lr=1e-2)
    elements = sum(param.numel() for param in there)
    random_gradients(here, there)
    start = toy.toy_bytes_to_host(), toy.toy_bytes_to_device()
    opt.clip_grad_norm_(1.0)
    norm = toy.toy_bytes_to_device() - start[1]
    opt.step()
    down, up = toy.toy_bytes_to_host() - start[0], toy.toy_bytes_to_device() - start[1] - norm
    assert (down, up, norm) == (4 * elements, 2 * elements, 8), (down, up, norm, elements)
    return f"{down / elements} bytes a bf16 parameter to the host, {up / elements} back"


@contextlib.contextmanager
def refused(kind: type[Exception], *words: str) -> Iterator[None]:
    try:
        yield
    except kind as error:
        assert all(word in str(error) for word in words), error
        return
    raise AssertionError(f"wanted {kind.__name__} with {words}")


def inputs() -> str:
    here, there = pair(torch.float32)
    with refused(ValueError, "device='1MiB'", "host=BYTES"):
        lowtide.AdamW(there, memory=lowtide.Memory(device="1MiB"))
    with refused(ValueError, "managed"):
        lowtide.AdamW(there, memory=lowtide.Memory(managed=True))
    with refused(ValueError, "offload_in_backward", "GradScaler"):
        lowtide.AdamW(there, offload_in_backward=True, amp_scaling=True)
    with refused(ValueError, "step_in_backward and offload_in_backward"):
        lowtide.AdamW(there, offload_in_backward=True, step_in_backward=True)
    with refused(ValueError, "arithmetic: got 'fast'"):
        lowtide.AdamW(there, arithmetic="fast")
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    for cls in (lowtide.Muon, lowtide.distributed.DistributedLion):
        with refused(NotImplementedError, "got parameters on toy:0"):
            cls(there, lr=1e-2)
    torch.distributed.destroy_process_group()
    lowtide.AdamW(there, memory=lowtide.Memory(device=0, host="1MiB"))
    # Gradients that are not finite change nothing, or raise.
    for nonfinite in ("skip", "raise"):
        opt = lowtide.AdamW(there, lr=1e-2, nonfinite=nonfinite)
        random_gradients(here, there)
        there[0].grad[0, 0] = float("nan")
        old = weight_bits(there)
        with refused(ValueError, "NaN", "nothing was changed") if nonfinite == "raise" else contextlib.nullcontext():
            opt.step()
        assert weight_bits(there) == old and (nonfinite == "raise" or opt.skipped_steps == 1)
    # Parameters on both devices, and a frozen one. Users change weights in place, also where torch's version counters miss it.
    frozen = torch.randn(64, 64)
    mixed = [here[0], there[1], torch.nn.Parameter(frozen.to("toy"), requires_grad=False)]
    alone = [torch.nn.Parameter(param.detach().cpu().clone(), requires_grad=param.requires_grad) for param in mixed]
    opts = [lowtide.AdamW(params, lr=1e-2) for params in (mixed, alone)]
    for _ in range(3):
        for mine, other in zip(mixed[:2], alone[:2], strict=True):
            other.grad = torch.randn(other.shape)
            mine.grad = other.grad.to(mine.device)
            mine.data.mul_(0.5)
            other.data.mul_(0.5)
        for opt in opts:
            opt.step()
    assert weight_bits(mixed) == weight_bits(alone)
    return "10 refusals and changes; 0 bits differ with parameters on both devices"


JOBS = (every_rule, training, failures, traffic, inputs)

if __name__ == "__main__":
    print(json.dumps({job.__name__: job() for job in JOBS}))
