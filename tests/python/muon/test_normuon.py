"""Row scaling of Muon (NorMuon) beside its formula in float64 and two libraries, and where its moments go: dicts, files, copies,
assignments, resets, other optimizers' dicts, meshes."""

from __future__ import annotations

import copy
import itertools
import pickle
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lowtide
import pytest
import torch
import torch.distributed as dist
from distributed_support import on_ranks
from lowtide.optimizers.orthogonal import orthogonal, row_scaled, schedule
from lowtide.state import files
from support import (
    WAYS, bits, carried, copies_of, parameter, put, random_gradients, refused, state_bits, step_alike, take_steps,
    through_file,
)  # fmt: skip
from test_muon import failing_at
from test_muon_options import OF_DION, of_dion
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

COEFFICIENTS = schedule((3.4445, -4.775, 2.0315), 5) or []
SHAPES = [(64, 96), (96, 32), (48, 48), (1, 20), (4, 40, 72), (3, 72, 24)]
ROW = "row_moment"


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Matrices are small."""
    torch.set_num_threads(1)


@pytest.mark.parametrize("beta2", [0.0, 0.95])
def test_rows_are_scaled_as_by_the_formula(beta2: float, seed: int, figure: Callable[[str], None]) -> None:
    """Without momentum a gradient in bfloat16 is the direction, so O has the step's own bits. A moment differs from float64's by the
    roundings of a sum of n squares, 2⁻²⁴ n at most, and of a few operations; an update by half of that, for its root, once for its
    row and once for the norm, by its own rounding to bfloat16, 2⁻⁸, and the weight's to float32."""
    params = [torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
    opt = lowtide.Muon(params, lr=0.5, weight_decay=0.0, momentum=0.0, use_muon="experts", row_beta2=beta2, adjust_lr_fn="match_rms_adamw")
    moments = [torch.zeros(*shape[:-1], 1, dtype=torch.float64) for shape in SHAPES]
    off_moment = off_move = 0.0
    for _ in range(4):
        random_gradients(params)
        before = [p.detach().double() for p in params]
        for p in params:
            assert p.grad is not None
            p.grad = p.grad.bfloat16().float()
        opt.step()
        for i, (p, start) in enumerate(zip(params, before, strict=True)):
            assert p.grad is not None
            o, (rows, columns) = orthogonal(p.grad, COEFFICIENTS, 1e-7).double(), p.shape[-2:]
            moments[i] = beta2 * moments[i] + (1 - beta2) * o.square().mean(dim=-1, keepdim=True)
            scaled = o / (moments[i].sqrt() + 1e-8)
            norms = (each.square().sum(dim=(-2, -1), keepdim=True).sqrt() for each in (o, scaled))
            wanted = scaled * next(norms) / next(norms)
            ours = opt.state[p][ROW]
            assert ours.shape == (*p.shape[:-1], 1) and ours.dtype == torch.float32
            bound = (columns + 8) * 2.0**-24
            off_moment = max(off_moment, float(((ours - moments[i]).abs() / moments[i]).max()) / bound)
            move = 0.5 * 0.2 * max(rows, columns) ** 0.5 * wanted
            allowed = move.abs() * (2.0**-8 + 2 * bound) + start.abs() * 2.0**-23 + 1e-12
            off_move = max(off_move, float(((p.detach().double() - (start - move)).abs() / allowed).max()))
    figure(f"beta2={beta2}: moments {off_moment:.2f}, moves {off_move:.2f} of what roundings allow")
    assert off_moment <= 1 and off_move <= 1


def test_rows_become_alike_and_matrices_keep_their_norm(seed: int, figure: Callable[[str], None]) -> None:
    """In the first step every row is divided by a multiple of its own root mean square. bfloat16 rounds each element, and so
    a norm, by 2⁻⁸ at most: two norms are within 2 · 2⁻⁸ / ln 2 of each other, as powers of 2."""
    update = torch.randn(4, 24, 60) * torch.rand(4, 24, 1)
    update[1, 3] = 0
    scaled, _ = row_scaled(update.bfloat16(), torch.zeros(4, 24, 1), 0.9)
    norms = scaled.float().norm(dim=-1)
    spread = float((norms[0].max() / norms[0].min()).log2())
    kept = (scaled.float().norm(dim=(-2, -1)) / update.bfloat16().float().norm(dim=(-2, -1)) - 1).abs()
    figure(f"rows differ by 2^{spread:.4f}, norms by {float(kept.max()):.1e}")
    assert spread < 3 * 2.0**-8 and float(kept.max()) < 2.0**-8 and norms[1, 3] == 0
    nothing, moment = row_scaled(torch.zeros(5, 7).bfloat16(), torch.zeros(5, 1), 0.9)
    assert not nothing.any() and not moment.any()


def _of_pytorch_optimizer(params: list[torch.nn.Parameter], nesterov: bool) -> tuple[torch.optim.Optimizer, str]:
    """Keeps norms, too, and iterates in bfloat16."""
    theirs = pytest.importorskip("pytorch_optimizer", reason="needs pytorch-optimizer")
    group = {"params": params, "use_muon": True, "lr": 0.02, "momentum": 0.9, "weight_decay": 0.1, "nesterov": nesterov, "beta2": 0.8}
    return theirs.NorMuon([group], foreach=False), "second_momentum_buffer"


def _of_emerging_optimizers(params: list[torch.nn.Parameter], nesterov: bool) -> tuple[torch.optim.Optimizer, str]:
    """Has our function for O, whose bits depend on those of products. It averages along the longer side: for matrices that are not
    wide, along rows, as the paper."""
    theirs = pytest.importorskip("emerging_optimizers.orthogonalized_optimizers.adaptive_muon", reason="needs emerging-optimizers")
    made = theirs.AdaptiveMuon(
        params, lr=0.02, momentum=0.9, weight_decay=0.1, nesterov=nesterov, moment2_method="normuon", beta2=0.8, scale_mode="shape_scaling"
    )
    made.scaled_orthogonalize_fn = lambda matrix: orthogonal(matrix, COEFFICIENTS, 1e-7).float()
    return made, "moment2_buffer"


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize(
    ("theirs", "shapes"),
    [
        (_of_pytorch_optimizer, ((64, 96), (96, 32), (48, 48), (1, 20), (20, 300), (300, 20))),
        (_of_emerging_optimizers, ((96, 32), (48, 48), (200, 64))),
    ],
)
def test_steps_are_those_of_other_libraries(theirs: Any, shapes: Any, nesterov: bool, seed: int, figure: Callable[[str], None]) -> None:
    """Their updates are not rounded to bfloat16, ours is, by 2⁻⁸ of itself at most; directions that round to another bfloat16 change
    O by 1.5 % at most (test_muon.py), and squares by twice that."""
    a = [parameter(*shape) for shape in shapes]
    b, start = copies_of(a), copies_of(a)
    ours = lowtide.Muon(a, lr=0.02, nesterov=nesterov, momentum=0.9, weight_decay=0.1, state="fp32", row_beta2=0.8)
    other, name = theirs(b, nesterov)
    for _ in range(10):
        step_alike((a, ours), (b, other))
    worst = max(float((p - q).detach().norm() / (q - s).detach().norm()) for p, q, s in zip(a, b, start, strict=True))
    pairs = [(ours.state[p][ROW], other.state[q][name]) for p, q in zip(a, b, strict=True)]
    moments = max(float((mine - its).norm() / its.norm()) for mine, its in pairs)
    figure(f"after 10 steps {worst:.1e} of the move apart, moments {moments:.1e}")
    assert worst < 2.0**-8 + 0.015 and moments < 0.03


def test_state_dicts_of_dions_normuon(seed: int, figure: Callable[[str], None]) -> None:
    """Its moments go on: a step after it is the formula's, up to directions that round to another bfloat16 (test_muon_options.py)."""
    params = [parameter(40, 64), parameter(64), parameter(20, 64)]
    opt = lowtide.Muon([{"params": params[:1]}, {"params": params[1:], "use_muon": False}], state="fp32", ns_coefficients=OF_DION)
    saved = of_dion(params, 7)
    saved["param_groups"][0] |= {"algorithm": "normuon", "muon_beta2": 0.75}
    moment = torch.rand(40, 1) / 40
    saved["state"][0]["variance_neuron"] = moment.bfloat16()
    opt.load_state_dict(saved)
    assert opt.param_groups[0]["row_beta2"] == 0.75 and torch.equal(opt.state[params[0]][ROW], moment.bfloat16().float())
    random_gradients(params)
    start, grad = params[0].detach().clone(), params[0].grad
    assert grad is not None
    opt.step()
    momentum = 0.9 * saved["state"][0]["momentum"] + grad
    update, _ = row_scaled(orthogonal(grad + 0.9 * momentum, schedule(OF_DION, 5) or [], 1e-8), moment.bfloat16().float(), 0.75)
    moved = 0.02 * (40 / 64) ** 0.5 * update.float()
    apart = float((params[0].detach() - ((1 - 0.002) * start - moved)).norm() / moved.norm())
    figure(f"{apart:.1e} of the move apart")
    assert apart < 0.015
    for change, *words in (
        (put(["state", 0, "variance_neuron"], lambda t: t[:-1]), "variance_neuron", "(39, 1)", "(40, 1)"),
        (put(["state", 0, "variance_neuron"], lambda t: -t), ROW, "none below 0"),
        (lambda one: one["state"][0].pop("variance_neuron"), "variance_neuron"),
        (lambda one: one["param_groups"][0].pop("muon_beta2"), "muon_beta2"),
        (put(["param_groups", 0, "algorithm"], "muon"), "variance_neuron"),
    ):
        bad = through_file(saved)
        change(bad)
        with refused(opt, *words):
            opt.load_state_dict(bad)


def _trained(steps: int, dtype: torch.dtype = torch.float32, **options: Any) -> tuple[list[torch.nn.Parameter], lowtide.Muon]:
    params = [parameter(*shape, dtype=dtype) for shape in ((64, 256), (200, 96), (3, 40, 72), (8192,))]
    opt = lowtide.Muon(params, **{"use_muon": "experts", "row_beta2": 0.9, "min_quantized_numel": 0, **options})
    take_steps(params, opt, steps)
    return params, opt


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("dtype", "master", "momentum"),
    [(torch.float32, None, 0.95), (torch.bfloat16, "residual16", 0.95), (torch.bfloat16, "stochastic", 0.95), (torch.float32, None, 0.0)],
)
def test_row_moments_go_on(dtype: torch.dtype, master: str | None, momentum: float, way: str, seed: int, tmp_path: Path) -> None:
    """With momentum in 8 bits or none, in RAM and on a disk, to the bit; moments have bytes in report()."""
    options: dict[str, Any] = {"momentum": momentum, "master": master, "state": "dynamic8", "min_quantized_numel": 0}
    params, opt = _trained(2, dtype, **options)
    rows = 4 * (64 + 200 + 3 * 40)
    before = opt.report()["state_bytes"]
    assert sum(opt.state[p][ROW].nbytes for p in params[:3]) == rows and ROW not in opt.state[params[3]]
    ends = []
    for disk in (False, True):
        memory = lowtide.Memory(host="48KiB", disk=tmp_path, chunk=4096) if disk else None
        mine, other = carried(way, params, opt, tmp_path, row_beta2=0.5, use_muon="experts", memory=memory, **options)
        assert not momentum or way not in ("state_dict", "file") or disk == (other.report()["disk_bytes"] > 0)
        assert other.param_groups[0]["row_beta2"] == 0.9 and other.report()["state_bytes"] == before
        ends.append((mine, other))
    torch.manual_seed(seed)
    for _ in range(2):
        random_gradients(params)
        for mine, other in ends:
            for p, q in zip(mine, params, strict=True):
                p.grad = None if q.grad is None else q.grad.clone()
            other.step()
        opt.step()
    wanted = [bits(p) for p in params], [bits(opt.state[p][ROW]) for p in params[:3]]
    for mine, other in ends:
        assert ([bits(p) for p in mine], [bits(other.state[p][ROW]) for p in mine[:3]]) == wanted


def test_the_option_begins_and_ends_them(seed: int) -> None:
    """From zeros, as if the momentum so far had been loaded; without it steps are those of Muon."""
    params, opt = _trained(2, row_beta2=None, state="fp32")
    assert all(ROW not in opt.state[p] for p in params)
    begun = copies_of(params)
    twin = lowtide.Muon(begun, use_muon="experts", state="fp32")
    twin.load_state_dict(opt.state_dict())
    opt.param_groups[0]["row_beta2"] = 0.9
    saved = opt.state_dict()  # has zeros
    assert not any(entry[ROW].any() for entry in itertools.islice(saved["state"].values(), 3))
    started = copies_of(params)
    third = lowtide.Muon(started, use_muon="experts", state="fp32")
    third.load_state_dict(saved)
    for beta2 in (0.9, None):
        for each in (opt, twin, third):
            each.param_groups[0]["row_beta2"] = beta2
        random_gradients(params)
        for mine, other in ((begun, twin), (started, third)):
            for p, q in zip(mine, params, strict=True):
                p.grad = q.grad
            other.step()
        opt.step()
        assert [bits(p) for p in params] == [bits(p) for p in begun] == [bits(p) for p in started]
        assert state_bits(opt) == state_bits(twin) == state_bits(third)
        assert [ROW in opt.state[p] for p in params] == [beta2 is not None] * 3 + [False]
    assert opt.report()["state_bytes"] == 4 * sum(p.numel() for p in params[:3]) + 8 * params[3].numel()


def test_budgets_make_room_when_they_begin(seed: int, tmp_path: Path) -> None:
    """State that was in RAM goes to the disk, and back once they end, in a group with its own budget and in others. No bit changes."""
    ends = []
    for limited in (False, True):
        torch.manual_seed(seed)
        params = [parameter(3000, 4), parameter(40, 256), parameter(64, 256)]
        budgets = [lowtide.Memory(host=host, disk=tmp_path, chunk=4096) if limited else None for host in (30_000, 27_300)]
        groups: list[dict[str, Any]] = [{"params": params[:1]}, {"params": params[1:], "memory": budgets[1]}]
        opt = lowtide.Muon(groups, memory=budgets[0], state="dynamic8", min_quantized_numel=0)
        for beta2 in (None, 0.9, 0.9, None):
            opt.param_groups[0]["row_beta2"] = opt.param_groups[1]["row_beta2"] = beta2
            random_gradients(params)
            opt.step()
            report = opt.report()
            assert not limited or report["allocated_bytes"] <= 57_300 and (report["moved_per_step"] > 0) >= bool(beta2)
            assert not limited or report["allocated_bytes"] + report["disk_bytes"] >= report["state_bytes"]
        saved = opt.state_dict()["state"].values()
        ends.append(([bits(p) for p in params], [{name: bits(value) for name, value in entry.items()} for entry in saved]))
    assert ends[0] == ends[1]


@pytest.mark.parametrize("way", WAYS)
def test_none_ends_those_of_frozen_layers(way: str, seed: int, tmp_path: Path) -> None:
    """No copy has moments that no option asks for. A step drops them even without a gradient: they would go on if the option came back."""
    params, opt = _trained(2, state="fp32")
    others = copies_of(params)
    opt.param_groups[0]["row_beta2"] = None
    for step in range(2):
        if way in ("pickle", "copy"):
            others, other = pickle.loads(pickle.dumps((params, opt))) if way == "pickle" else copy.deepcopy((params, opt))
        else:
            other = opt if step else lowtide.Muon(others, use_muon="experts", row_beta2=0.9, state="fp32")
            if way == "file":
                opt.save(tmp_path / "saved")
                other.load(tmp_path / "saved")
            else:
                other.load_state_dict(through_file(opt.state_dict()))
        assert not any(ROW in entry for entry in (*opt.state_dict()["state"].values(), *other.state.values()))
        if not step:
            assert ROW in opt.state[params[0]]
            opt.state[params[0]]["momentum_buffer"] = opt.state[params[0]]["momentum_buffer"] * 2  # read with what stands beside it
            random_gradients(params[1:])
            params[0].grad = None
            opt.step()
            assert not any(ROW in opt.state[p] for p in params)
    opt.param_groups[0]["row_beta2"] = 0.9
    assert not any(entry[ROW].any() for entry in itertools.islice(opt.state_dict()["state"].values(), 3))


@pytest.mark.parametrize("stepped", [0, 1])
def test_a_step_that_fails_ends_those_of_matrices_that_it_stepped(stepped: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others, and those of a frozen layer, are as they were if the option comes back."""
    monkeypatch.setattr("lowtide.optimizers.muon._BUCKET", 1)
    params, opt = _trained(2, state="fp32")
    before = [bits(opt.state[p][ROW]) for p in params[:3]]
    params[2].grad = opt.param_groups[0]["row_beta2"] = None
    with monkeypatch.context() as patch, warnings.catch_warnings(), pytest.raises(MemoryError):
        warnings.simplefilter("ignore")
        failing_at(patch, 1 + stepped, MemoryError(), times=9)
        opt.step()
    assert [int(opt.state[p]["step"]) for p in params] == [2 + stepped, 2, 2, 2 + stepped]
    opt.param_groups[0]["row_beta2"] = 0.9
    saved = opt.state_dict()["state"]
    assert [not saved[0][ROW].any(), *(bits(saved[i][ROW]) == before[i] for i in (0, 1, 2))] == [bool(stepped), not stepped, True, True]


@pytest.mark.parametrize("way", ["dict", "file"])
def test_what_earlier_versions_saved_begins_them(way: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their groups lack the option: it stays as it is, as if it had been set after a load without it."""
    params, opt = _trained(2, row_beta2=None, state="fp32")
    saved, ends, read = through_file(opt.state_dict()), [], files.read_metadata
    for group in saved["param_groups"]:
        del group["row_beta2"]

    def older(*given: Any) -> Any:
        metadata = read(*given)
        return {**metadata, "lowtide_groups": [{key: group[key] for key in group if key != "row_beta2"} for group in metadata["lowtide_groups"]]}

    monkeypatch.setattr(files, "read_metadata", older)
    opt.save(tmp_path / "saved")
    random_gradients(params)
    for given in (None, 0.9):
        mine = copies_of(params)
        other = lowtide.Muon(mine, use_muon="experts", row_beta2=given, state="fp32", min_quantized_numel=0)
        other.load(tmp_path / "saved") if way == "file" else other.load_state_dict(saved)
        assert other.param_groups[0]["row_beta2"] == given
        other.param_groups[0]["row_beta2"] = 0.9
        for p, q in zip(mine, params, strict=True):
            p.grad = q.grad
        other.step()
        ends.append(([bits(p) for p in mine], state_bits(other)))
        assert other.state[mine[0]][ROW].any()
    assert ends[0] == ends[1]


def test_flattened_dicts_of_checkpoints(seed: int) -> None:
    """torch asks a fresh optimizer which state it will have."""
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    ends = []
    for fresh in (False, True):
        net = torch.nn.Linear(40, 24)
        opt = lowtide.Muon(net.named_parameters(), row_beta2=0.9, min_quantized_numel=0)
        if fresh:
            set_optimizer_state_dict(net, opt, through_file(ends[0][1]), options=options)
            assert bits(opt.state[net.weight][ROW]) == ends[0][0]
        else:
            take_steps([*net.parameters()], opt)
            ends.append((bits(opt.state[net.weight][ROW]), get_optimizer_state_dict(net, opt, options=options)))


def test_resets_and_assignments(seed: int) -> None:
    params, opt = _trained(2, state="fp32")
    opt.reset([params[0]])
    assert params[0] not in opt.state and ROW in opt.state[params[1]]
    moment = torch.rand(200, 1)
    opt.state[params[1]][ROW] = moment
    saved = opt.state_dict()["state"]
    assert torch.equal(saved[1][ROW], moment) and not saved[0].get(ROW, torch.zeros(1)).any()
    opt.state[params[1]][ROW] = moment[:-1]
    with pytest.raises(ValueError, match=r"row_moment: got \(199, 1\), wanted \(200, 1\)"):
        opt.step()
    opt.state[params[1]][ROW] = moment
    opt.step()
    opt.reset()
    assert not opt.state and opt.report()["steps"] == 0
    random_gradients(params)
    twins = copies_of(params)
    fresh = lowtide.Muon(twins, use_muon="experts", row_beta2=0.9, state="fp32", min_quantized_numel=0)
    for p, q in zip(twins, params, strict=True):
        p.grad = q.grad
    fresh.step()
    opt.step()
    assert state_bits(opt) == state_bits(fresh) and [bits(p) for p in params] == [bits(p) for p in twins]


def test_what_does_not_fit_is_refused(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in (1.0, -0.1, "0.9", float("nan")):
        with pytest.raises((ValueError, TypeError), match="row_beta2"):
            lowtide.Muon([parameter(4, 4)], row_beta2=wrong)  # type: ignore[arg-type]
    params, opt = _trained(2)
    alone = lowtide.Muon([parameter(4, 4)], row_beta2=0.9)
    with refused(alone, "torch_state_dict: group 0: row_beta2", "None: torch.optim.Muon"):
        alone.torch_state_dict()
    saved = through_file(opt.state_dict())
    for change, *words in (
        (lambda one: one["state"][0].pop(ROW), "state of parameter 0, row_moment", "got none", 'with row_beta2=None, then set param_groups[0]['),
        (put(["param_groups", 0, "row_beta2"], None), "state of parameter 0, row_moment", "row_beta2 of its group is None"),
        (put(["state", 1, ROW], lambda t: t.T), "(1, 200)", "(200, 1)"),
        (put(["state", 1, ROW], lambda t: -t), "none below 0"),
        (put(["state", 1, ROW], lambda t: t.int()), "int32"),
        (put(["state", 1, ROW], lambda t: t.double()), "got torch.float64, wanted torch.float32"),
        (put(["state", 3, ROW], torch.zeros(8192)), "parameter 3"),
    ):
        bad = through_file(saved)
        change(bad)
        with refused(opt, *words):
            opt.load_state_dict(bad)
    opt.save(tmp_path / "saved")
    with monkeypatch.context() as patch, refused(opt, "save: got 384 row moments", "383 at most"):
        patch.setattr(files, "_MOST_ROWS", 383)
        opt.save(tmp_path / "other")
    read = files.read_metadata
    for rows, *words in (([], "lowtide_rows", "a dict"), ({"4": ""}, "'4'", "0 to 3"), ({"3": ""}, "parameter 3", "only matrices"), ({"0": "AA=="}, "1 bytes", "256"),
                         ({"0": "!"}, "base64"), ({"0": 3}, "base64"), ({"0": "AACAvw" + "A" * 336 + "=="}, "none below 0")):  # fmt: skip
        monkeypatch.setattr(files, "read_metadata", lambda *given, rows=rows: {**read(*given), "lowtide_rows": rows})
        with refused(opt, *words):
            opt.load(tmp_path / "saved")
    monkeypatch.setattr(files, "read_metadata", lambda *given: {**read(*given), "lowtide_rows": {"0": "A" * 342 + "=="}})
    for kind, options in ((lowtide.Muon, {"use_muon": False}), (lowtide.Muon, {"use_muon": "experts"}), (lowtide.AdamW, {})):
        other: Any = kind(copies_of(params), **options)
        other.save(tmp_path / "other")
        with refused(other, "lowtide_rows, parameter 0: got row moments, wanted none"):
            other.load(tmp_path / "other")


@on_ranks(2)
def test_two_ranks_have_the_bits_of_one_process() -> str:
    """With each master, momentum in 8 bits, in RAM and under a budget, and from a file of each rank after two of four steps."""
    mesh, compared = init_device_mesh("cpu", (2,)), 0
    with tempfile.TemporaryDirectory() as folder:
        for dtype, master, disk in itertools.product((torch.float32, torch.bfloat16), ("residual16", "stochastic"), (False, True)):
            torch.manual_seed(3)
            whole = [torch.randn(shape).to(dtype) for shape in ((37, 256), (200, 96), (5, 24, 256))]
            ends = []
            for cut in (False, True):
                values = [distribute_tensor(value, mesh, [Shard(0)], src_data_rank=None) for value in whole] if cut else whole
                params = [torch.nn.Parameter(value.clone()) for value in values]

                def made(params: list[torch.nn.Parameter], cut: bool = cut, master: str = master, disk: bool = disk) -> lowtide.Muon:
                    memory = lowtide.Memory(host="24KiB", disk=folder, chunk=4096) if cut and disk else None
                    return lowtide.Muon(params, lr=0.01, use_muon="experts", row_beta2=0.9, master=master, min_quantized_numel=0, memory=memory)

                opt = made(params)
                for step in range(4):
                    for i, p in enumerate(params):
                        grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(10 * step + i)).to(dtype)
                        p.grad = distribute_tensor(grad, mesh, [Shard(0)], src_data_rank=None) if cut else grad
                    opt.step()
                    if step == 1 and cut:
                        path = Path(folder) / f"rank{dist.get_rank()}"
                        opt.save(path)
                        params = [torch.nn.Parameter(p.detach().clone()) for p in params]
                        opt = made(params)
                        opt.load(path)
                assert (opt.report()["moved_per_step"] > 0) == (cut and disk)
                saved = opt.state_dict()["state"]
                full = [value for i in range(3) for value in (params[i].detach(), *saved[i].values())]
                ends.append([bits(value.full_tensor() if hasattr(value, "full_tensor") else value) for value in full])
            assert ends[0] == ends[1], (dtype, master, disk)
            compared += sum(map(len, ends[0]))
    return f"2 ranks, {compared} bytes, 0 differ"


@on_ranks(2)
def test_matrices_without_elements_have_those_of_one_process() -> str:
    """Even where no message has any: nothing is awaited again in every step."""
    mesh = init_device_mesh("cpu", (2,))
    for shape in ((0, 5), (8, 0), (0, 4, 5), (3, 4, 0)):
        shapes = []
        for cut in (False, True):
            value = torch.zeros(shape)
            p = torch.nn.Parameter(distribute_tensor(value, mesh, [Shard(len(shape) - 2)], src_data_rank=None) if cut else value)
            opt = lowtide.Muon([p], use_muon="experts", row_beta2=0.9)
            for _ in range(2):
                p.grad = torch.zeros_like(p)
                opt.step()
                assert not opt.engine.awaited
            shapes.append(opt.state[p][ROW].shape)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(opt.engine, "await_states", lambda numbers: pytest.fail(f"awaits {numbers}"))
                opt.step()
        assert shapes[0] == shapes[1] == (*shape[:-1], 1)
    return "4 shapes"
