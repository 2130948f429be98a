"""Meshes change nothing: weights, state, checkpoints and resumed training equal those of one process, also under fully_shard,
DistributedDataParallel and tensor parallelism."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import distributed_jobs as jobs
import distributed_models as models
import lowtide
import pytest
import torch
import torch.distributed as dist
from distributed_jobs import Layout, Net, build, snapshot, train
from distributed_models import SPOILERS, give, parts
from distributed_support import alike, of_all, on_ranks, same, shared_ranks
from lowtide.state.elsewhere import as_core
from support import raised
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

ROWS = [Layout("rows", (n,)) for n in (1, 2, 3, 4)] + [Layout("rows", (2, 2))]
COLUMNS = [Layout("columns", (n,)) for n in (1, 2, 3)] + [Layout("columns", (2, 2))]
REPLICAS = [Layout("plain"), Layout("replicas", (2,))]


@on_ranks(2)
def test_the_log_says_what_each_rank_has() -> str:
    """Rows 0 to 2 of 5 on one rank, 3 to 4 on the other; 8 bytes of state per element."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("lowtide")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        whole = torch.nn.Parameter(torch.zeros(7))
        rows = distribute_tensor(torch.zeros(5, 16), init_device_mesh("cpu", (2,)), [Shard(0)])
        lowtide.AdamW([torch.nn.Parameter(rows), whole], state="fp32")
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    rank = dist.get_rank()
    elements = (48, 32)[rank] + 7
    wanted = f"AdamW on cpu, rank {rank}: 2 parameters, {elements} elements, {8 * elements} bytes of state in RAM"
    assert said == [wanted]
    return "; ".join(of_all(wanted))


@pytest.mark.parametrize(
    ("rule", "state"),
    [
        ("adamw", "dynamic8"),
        ("adamw", "bf16"),
        ("adamw", "fp32"),
        ("lion", "dynamic8"),
        ("sgd", "dynamic8"),
        ("schedulefree", "dynamic8"),
        ("prodigy", "dynamic8"),
        ("prodigy", "fp32"),
    ],
)
@pytest.mark.share
def test_any_mesh_gives_the_same_bits(rule: str, state: str, figure) -> None:
    ranks = shared_ranks()
    compared, meshes = 0, 0
    for family in (ROWS, COLUMNS, REPLICAS) if rule == "adamw" else (ROWS[::2],):
        expected = None
        for layout in family:
            for found in ranks.run(layout.world, jobs.uninterrupted, layout, rule, state):
                expected = expected or found
                compared += same(found, expected, f"{layout}")
            meshes += 1
    figure(f"{rule} {state}: {meshes} meshes, {len(jobs.SHAPES)} parameters, {compared} bytes compared, 0 differ")


@pytest.mark.parametrize("rule", ["adamw", "schedulefree"])
def test_a_mesh_gives_the_bits_of_no_mesh(rule: str, figure) -> None:
    """Except what a mesh stores in another format, as docs/distributed.md says: the long row."""
    plain = Layout("plain")
    alone = shared_ranks().run(1, jobs.uninterrupted, plain, rule, "dynamic8")[0]
    for layout in (Layout("rows", (3,)), Layout("rows", (2, 2))):
        found = shared_ranks().run(layout.world, jobs.uninterrupted, layout, rule, "dynamic8")[0]
        same = [name for name in alone if name.split(".")[0] != "row"]
        assert [name for name in same if alone[name] != found[name]] == []
        scales = [torch.frombuffer(bytearray(of["row.exp_avg_sq_scale"]), dtype=torch.float32) for of in (alone, found)]
        assert (scales[0] >= 0).all() and (scales[1] == -1).all(), "without codes of its own"
        assert "uneven.exp_avg_sq_scale" in found and "edge.exp_avg_sq_scale" in found, "judged by the whole"
        figure(f"{rule}, {layout}: {sum(len(alone[name]) for name in same)} bytes compared, 0 differ")


@pytest.mark.parametrize("layout", [Layout("rows", (1,)), Layout("rows", (2,)), Layout("rows", (2, 2)), Layout("columns", (3,))], ids=str)
def test_one_d_serves_all_shards(layout: Layout, figure) -> None:
    """Prodigy's sums over all parameters have the bits of one process; with float32 state so has everything."""
    alone = shared_ranks().run(1, jobs.uninterrupted, Layout("plain"), "prodigy", "fp32")[0]
    found = shared_ranks().run(layout.world, jobs.uninterrupted, layout, "prodigy", "fp32")[0]
    figure(f"{layout}: {same(found, alone, str(layout))} bytes compared, 0 differ")


@pytest.mark.parametrize("layout", [Layout("rows", (3,)), Layout("columns", (2,)), Layout("replicas", (2,))], ids=str)
@on_ranks()
def test_a_plan_of_shards_is_what_the_report_says(layout: Layout, tmp_path: Path) -> str:
    on_disk = 0
    for state in ("dynamic8", "fp32"):
        for folder in (None, str(tmp_path)):
            memory = jobs.on_disk(folder)
            params = [param for param in Net(layout).parameters() if param.requires_grad]
            plan = lowtide.forecast(params, "adamw", state, memory)
            opt = lowtide.AdamW(params, state=state, memory=memory)
            for param in params:
                param.grad = torch.zeros_like(param)
            opt.step()
            report = opt.report()
            assert (plan.state_bytes, plan.host_bytes) == (report["state_bytes"], report["allocated_bytes"])
            assert (plan.disk_bytes, plan.moved_per_step) == (report["disk_bytes"], report["moved_per_step"])
            on_disk += plan.disk_bytes
    assert on_disk > 0
    return f"{layout}: 4 plans of each rank ({on_disk} bytes on disk): RAM, disk and traffic off by 0 bytes"


def go_on(pairs: Any, training: Callable[..., None], steps: range) -> None:
    for net, opt in pairs:
        training(net, opt, steps)


def locals_of(params: Any) -> list[torch.Tensor]:
    return [param.detach().to_local().clone() for param in params]


def equal(some: Any, others: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(locals_of(some), locals_of(others), strict=True))


@pytest.mark.parametrize(
    ("kind", "rule", "world"),
    [
        ("rows", "adamw", 3),
        ("rows", "lion", 2),
        ("hsdp", "adamw", 4),
        ("tensor", "adamw", 4),
        ("bf16", "adamw", 2),
        ("offload", "adamw", 2),
        ("ddp", "adamw", 2),  # of three, the order of sums changes when torch rebuilds its buckets
    ],
)
@pytest.mark.share
@on_ranks()
def test_models_resume(kind: str, rule: str, world: int, tmp_path: Path) -> str:
    """Six steps in one go, and from a checkpoint after three, in another model and optimizer."""
    net, other_net = models.sharded(kind), models.sharded(kind)
    opt, other = models.optimizer(net, rule), models.optimizer(other_net, rule)
    models.train(net, opt, range(3))
    jobs.save(net, opt, str(tmp_path / "saved"))
    with torch.no_grad():
        for param in other_net.parameters():
            param.mul_(0.5)
    jobs.load(other_net, other, str(tmp_path / "saved"))
    go_on(((net, opt), (other_net, other)), models.train, range(3, 6))
    for param in net.parameters():
        if param.requires_grad:
            average = as_core(opt.state[param])["exp_avg"]
            assert isinstance(param, DTensor) == isinstance(average, DTensor) == (kind != "ddp")
            assert int(opt.state[param]["step"]) == 6 and (kind == "ddp" or average.placements == param.placements)
    one = alike(snapshot(net, opt))
    return f"{kind}, {world} ranks: {len(one)} tensors, {same(one, snapshot(other_net, other))} bytes compared twice, 0 differ"


@pytest.mark.parametrize(("kind", "world"), [("offload", 1), ("offload", 2), ("rows", 3), ("bf16", 2), ("hsdp", 4)])
@pytest.mark.parametrize("bucket", [0, True])
@on_ranks()
def test_steps_in_backward_are_those_after_it(kind: str, world: int, bucket: int | bool) -> str:
    runs, left = [], []
    for options in ({}, {"step_in_backward": bucket}):
        net = models.sharded(kind)
        opt = lowtide.AdamW([*net.named_parameters()], lr=1e-2, **options)
        if options:
            opt.register_step_pre_hook(lambda opt, *_: left.append(sum(p.grad is not None for p in opt.engine.tensors)))
        models.train(net, opt, range(3), clips=False)
        runs.append(alike(snapshot(net, opt)))
    assert left == [1, 0, 0], "the first one tells of clipping"
    net = models.sharded(kind)
    opt = lowtide.AdamW(net.parameters(), step_in_backward=bucket)

    def clip(*_: Any) -> None:
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)

    opt.register_step_pre_hook(clip)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        models.train(net, opt, range(2), clips=False)
    assert sum("clip_grad_norm_" in str(each.message) for each in said) == 1
    return f"{kind}, {world} ranks: {len(runs[0])} tensors, {same(*runs)} bytes, 0 differ; no gradient is left"


SPOILT: list[tuple[str, str, tuple[str, str] | None]] = [
    ("nan", "skip", None),
    ("nan", "raise", ("NaN", "another rank")),
    ("none", "skip", ("on some ranks and none on others",) * 2),
    ("other layout on one rank", "skip", ("redistribute", "another rank")),
    ("partial", "skip", ("redistribute", "redistribute")),
    ("placement", "propagate", ("redistribute", "redistribute")),
]


@pytest.mark.parametrize(
    ("rule", "kind", "nonfinite", "words"),
    [
        *((rule, *case) for rule in ("adamw", "muon") for case in SPOILT),
        ("muon", "none", "propagate", ("on some ranks and none on others",) * 2),
    ],
)
@on_ranks(3)
def test_what_one_rank_cannot_step_none_does(rule: str, kind: str, nonfinite: str, words: tuple[str, str] | None) -> str:
    """A good step, a bad one, a good one: the end equals the two good steps alone. words: in the errors of rank 1, where the
    step fails, and of the others; None: no error, only a skipped step."""
    (params, opt), (good_params, good) = parts(nonfinite, rule), parts(nonfinite, rule)
    for step in range(3):
        give(params, step)
        if step == 1:
            SPOILERS[kind](params)
            before, steps = locals_of(params), [int(opt.state[p]["step"]) for p in params]
            error = raised(opt.step)[1]
            assert all(torch.equal(a, b) for a, b in zip(before, locals_of(params), strict=True))
            assert steps == [int(opt.state[p]["step"]) for p in params] and opt.skipped_steps == (words is None)
            assert (words[0 if dist.get_rank() == 1 else 1] in error) if words else not error, error
            continue
        give(good_params, step)
        opt.step()
        good.step()
    assert equal(params, good_params)
    return f"{rule}, {kind}, {nonfinite}: 3 ranks unchanged by the step; then as if it had not been"


@on_ranks(2)
def test_refusals() -> str:
    mesh = init_device_mesh("cpu", (2,))
    partial = torch.nn.Parameter(DTensor.from_local(torch.ones(8, 8), mesh, [Partial()]))
    plain = torch.nn.Parameter(torch.ones(40, 256))
    params, opt = parts()
    give(params, 0)
    opt.step()
    saved = opt.state_dict()
    first = saved["state"][0]
    codes = first["exp_avg_codes"]
    live = opt.state[params[0]]["exp_avg_codes"]
    assert isinstance(live, DTensor)
    for write in (live.zero_, lambda: live.mul_(0), live.to_local().zero_, lambda: torch._foreach_zero_([live])):
        kind, text = raised(write)
        assert kind == "RuntimeError" and "codes and scales of quantized state" in text, (kind, text)
    assert torch.equal(live.full_tensor(), codes.full_tensor()) and type(live.cpu().clone().to_local()) is torch.Tensor
    opt.state[params[0]]["exp_avg_codes"] = live.clone()  # as loops that move state
    opt.state[params[0]] = dict(opt.state[params[0]])
    same_dict = opt.state_dict()["state"][0]["exp_avg_codes"]
    assert type(same_dict.to_local()) is torch.Tensor and torch.equal(same_dict.to_local(), codes.to_local())

    def load(of: lowtide.Optimizer, codes: torch.Tensor, **more: Any) -> None:
        of.load_state_dict({**saved, "state": {**saved["state"], 0: {**first, "exp_avg_codes": codes}}, **more})

    alone = {"state": {0: first}, "param_groups": [{**saved["param_groups"][0], "params": [0]}]}
    attempts: list[tuple[Callable[[], Any], str]] = [
        (lambda: lowtide.AdamW([partial]), "only Shard and Replicate"),
        (lambda: load(opt, codes.redistribute(mesh, [Replicate()])), "redistribute"),
        (lambda: load(opt, codes.to_local()), "the whole of it"),
        (lambda: lowtide.AdamW([plain]).load_state_dict(alone), "a plain tensor"),
    ]
    for attempt, words in attempts:
        kind, text = raised(attempt)
        assert kind == "ValueError" and words in text, text
    return f"{len(attempts)} refusals on 2 ranks, each with its reason"


@on_ranks(2)
def test_scaled_steps_and_copies() -> str:
    """A step by GradScaler, one with an infinity on rank 1, and a copy."""
    params, _ = parts()
    opt = lowtide.AdamW(params, amp_scaling=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(2):
        give(params, step)
        if step == 1 and dist.get_rank() == 1:
            params[0].grad.to_local()[0, 0] = float("inf")
        scaler.scale(torch.ones(()))
        scaler.step(opt)
        scaler.update()
        assert (int(opt.state[params[0]]["step"]), opt.skipped_steps) == (1, step)
    params, opt = parts()
    give(params, 0)
    opt.step()
    copies, copied = copy.deepcopy((params, opt))
    for each, of in ((params, opt), (copies, copied)):
        give(each, 1)
        of.step()
    assert equal(params, copies)
    pairs = zip(params, copies, strict=True)
    assert all(a.to_local().data_ptr() != b.to_local().data_ptr() for a, b in pairs if a.to_local().numel())
    return "2 ranks skip the step with an infinity on one of them; copies go on alike"


HSDP = Layout("rows", (2, 2))


@pytest.mark.parametrize(
    ("rule", "state", "save_on_disk", "load_on_disk"),
    [
        ("adamw", "dynamic8", False, False),
        ("adamw", "dynamic8", True, False),
        ("adamw", "dynamic8", False, True),
        ("lion", "dynamic8", True, True),
        ("sgd", "dynamic8", True, True),
        ("schedulefree", "dynamic8", False, True),
        ("adamw", "bf16", False, False),
        ("adamw", "dynamic4", False, True),
    ],
)
@pytest.mark.share
def test_a_checkpoint_goes_to_any_mesh(
    rule: str, state: str, save_on_disk: bool, load_on_disk: bool, tmp_path: Path, figure
) -> None:
    ranks = shared_ranks()
    disk = str(tmp_path)
    compared = moves = on_disk = 0
    for source in (Layout("rows", (2,)), HSDP) if not save_on_disk else (Layout("rows", (2,)),):
        path = str(tmp_path / f"saved-{moves}")
        expected = ranks.run(
            source.world, jobs.uninterrupted, source, rule, state, path, disk if save_on_disk else None
        )[0]
        for target in [Layout("rows", (n,)) for n in (1, 2, 3)] + [HSDP]:
            answers = ranks.run(
                target.world, jobs.resumed, target, rule, state, path, disk if load_on_disk else None
            )
            for found, report in answers:
                compared += same(found, expected, f"{source} to {target}")
                on_disk += report["disk_bytes"]
            moves += 1
    assert bool(on_disk) == load_on_disk
    figure(f"{moves} moves between meshes, {compared} bytes compared, 0 differ; {on_disk} bytes of state on disk")


FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)
FULL_FROM_0 = StateDictOptions(full_state_dict=True, cpu_offload=True, broadcast_from_rank0=True)
TWO, THREE = Layout("rows", (2,)), Layout("rows", (3,))


def through_full_state_dict(layout: Layout, codec: str, disk: str | None, master: str | None = None) -> dict[str, bytes]:
    """Six steps in one go, and with the whole state gathered on rank 0 after three and given to a new optimizer."""
    net, opt = build(layout, "adamw", codec, master=master)
    train(net, opt, range(3))
    weights, state = get_state_dict(net, opt, options=FULL)
    assert bool(state) == (dist.get_rank() == 0), "cpu_offload leaves the whole on rank 0 only"
    other_net, other = build(layout, "adamw", codec, disk, master)
    # Not set_state_dict, which does not hand out weights on ranks that have none.
    set_model_state_dict(other_net, weights, options=FULL_FROM_0)
    set_optimizer_state_dict(other_net, other, state, options=FULL_FROM_0)
    go_on(((net, opt), (other_net, other)), train, range(3, 6))
    found = snapshot(net, opt)
    same(found, snapshot(other_net, other))
    return found


@pytest.mark.parametrize(
    ("state", "master", "layout", "world", "on_disk"),
    [
        ("dynamic8", None, THREE, 3, False),
        ("dynamic8", None, THREE, 3, True),
        ("dynamic4", None, THREE, 3, False),
        ("dynamic4", None, THREE, 3, True),
        *(
            ("dynamic8", master, *where)
            for master in ("residual16", "residual8")
            for where in ((THREE, 3, False), (TWO, 2, True), (Layout("plain"), 2, False))
        ),
    ],
    ids=str,
)
@on_ranks()
def test_a_full_state_dict(state: str, master: str | None, layout: Layout, world: int, on_disk: bool, tmp_path: Path) -> str:
    """gloo, like NCCL, carries no int16, which residuals have. DTensors are gathered, and plain tensors handed out by rank 0."""
    found = through_full_state_dict(layout, state, str(tmp_path) if on_disk else None, master)
    assert ("bfloat.residual" in found) == (master is not None)
    return f"{sum(map(len, found.values()))} bytes compared on each rank, 0 differ"


@on_ranks(3)
def test_codes_of_four_bits_have_the_shape_of_a_process_alone() -> None:
    """State of matrices sharded by rows. Only the number of rows differs in this process, which may have none."""
    found = []
    for each in (Layout("plain"), THREE):
        net, opt = build(each, "adamw", "dynamic4")
        train(net, opt, range(1))
        for number, param in enumerate(opt.engine.tensors):
            local = opt._core.state(number)
            assert all(local[name].shape[1:] == whole.shape[1:] for name, whole in as_core(opt.state[param]).items())
        matrices = {name: opt.state[param] for name, param in net.named_parameters() if param.ndim > 1}
        found.append({name: {key: tuple(value.shape) for key, value in entry.items()} for name, entry in matrices.items()})
    assert found[0] == found[1] and found[0]["edge"]["exp_avg_codes"] == (16, 150)


@pytest.mark.parametrize("on_disk", [False, True])
@on_ranks(2)
def test_asking_for_the_state_changes_nothing(on_disk: bool, tmp_path: Path) -> str:
    """An optimizer whose state is read before its first step, beside one whose state is not."""
    asked_net, asked = build(TWO, "adamw", "dynamic8", str(tmp_path) if on_disk else None)
    before = {name: jobs.whole(param.detach()) for name, param in asked_net.named_parameters()}
    _, state = get_state_dict(asked_net, asked)
    entries = {name: entry for name, entry in state["state"].items() if entry}
    assert len(entries) == len(jobs.SHAPES) - 1, "all but the frozen one have state"
    for entry in entries.values():
        assert int(entry["step"]) == 0 and {"exp_avg", "exp_avg_codes"} & entry.keys(), "a template for loading must be complete"
    assert before == {name: jobs.whole(param.detach()) for name, param in asked_net.named_parameters()}
    net, opt = build(TWO, "adamw", "dynamic8")
    go_on(((net, opt), (asked_net, asked)), train, range(3))
    return f"{same(snapshot(net, opt), snapshot(asked_net, asked))} bytes compared, 0 differ"


@on_ranks(2)
def test_state_dicts_of_torch() -> str:
    """In both directions, into float32 state."""
    net = Net(TWO)
    theirs = torch.optim.AdamW(net.parameters(), lr=1e-2)
    train(net, theirs, range(2))
    ours = lowtide.AdamW(net.parameters(), lr=1e-2, state="fp32")
    ours.load_state_dict(theirs.state_dict())
    back = torch.optim.AdamW(net.parameters(), lr=1e-2)
    back.load_state_dict(ours.torch_state_dict())
    worst = 0.0
    for param, entry in theirs.state.items():
        assert back.state[param]["step"] == entry["step"]
        for name in ("exp_avg", "exp_avg_sq"):
            assert back.state[param][name].placements == param.placements
            far = back.state[param][name].full_tensor().float() - entry[name].full_tensor().float()
            worst = max(worst, float(far.abs().max()))
    assert worst == 0
    return f"largest difference after going to fp32 and back: {worst}"


def own_files(layout: Layout, folder: Path) -> None:
    """Each rank reads its own file back, and refuses the previous rank's."""
    net, opt = build(layout, "adamw", "dynamic8")
    train(net, opt, range(3))
    rank = dist.get_rank()
    opt.save(folder / f"{rank}.lowtide")
    dist.barrier()
    other_net, other = build(layout, "adamw", "dynamic8")
    other_net.load_state_dict(net.state_dict())
    other.load(folder / f"{rank}.lowtide")
    assert isinstance(other.state[other_net.uneven]["exp_avg_codes"], DTensor)
    go_on(((net, opt), (other_net, other)), train, range(3, 6))
    same(snapshot(net, opt), snapshot(other_net, other))
    kind, text = raised(lambda: other.load(folder / f"{(rank + 1) % layout.world}.lowtide"))
    assert kind == "ValueError" and "coordinate" in text and "torch.distributed.checkpoint" in text, text


def read_file(layout: Layout, path: Path) -> tuple[str, str]:
    _, opt = build(layout, "adamw", "dynamic8")
    return raised(lambda: opt.load(path))


def test_a_file_is_for_its_rank(tmp_path: Path, figure) -> None:
    shared_ranks().run(4, own_files, Layout("rows", (4,)), tmp_path)
    refused = 4
    for wrong in (Layout("rows", (1,)), Layout("replicas", (1,)), Layout("plain"), TWO):
        for kind, text in shared_ranks().run(wrong.world, read_file, wrong, tmp_path / "0.lowtide"):
            assert kind == "ValueError" and "a file is for the rank and mesh" in text, text
            refused += 1
    figure(f"4 ranks read their own files; {refused} reads of others' refused")
