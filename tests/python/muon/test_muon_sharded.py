"""Muon over meshes: the bits of one process, each matrix orthogonalized once, and as many bytes sent as stated."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import lowtide
import pytest
import torch
import torch.distributed as dist
from distributed_jobs import load, save, snapshot
from distributed_models import sharded
from distributed_support import alike, of_all, on_ranks, same, shared_ranks
from lowtide.devices.sharding import sharding_of
from lowtide.optimizers import matrix_step, muon
from lowtide.optimizers.batches import Matrix, batches_of
from lowtide.optimizers.muon import Communication
from lowtide.optimizers.orthogonal import cost
from support import bits, raised
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

# Rows that no number of ranks divides, wide and tall matrices, fewer rows than ranks, a matrix smaller than the mesh, 16 bits.
MATRICES: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
    "uneven": ((37, 300), torch.float32),
    "tall": ((64, 48), torch.float32),
    "few": ((3, 96), torch.float32),
    "point": ((1, 1), torch.float32),
    "bfloat": ((41, 160), torch.bfloat16),
    "vector": ((60,), torch.float32),
    "frozen": ((8, 256), torch.float32),
}
EXPERTS: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
    "experts": ((6, 40, 72), torch.float32),
    "tall_experts": ((3, 72, 24), torch.bfloat16),
}
LEAST = 512  # elements from which on state is in 8 bits


class Layout(NamedTuple):
    """cuts: for each mesh dimension, the tensor dimension that it cuts, or None for copies; () for plain tensors."""

    cuts: tuple[int | None, ...]
    mesh: tuple[int, ...] = (1,)

    @property
    def world(self) -> int:
        return int(torch.tensor(self.mesh).prod())

    def placements(self, shape: Sequence[int]) -> list[Any]:
        return [Replicate() if dim is None else Shard(min(dim, len(shape) - 1)) for dim in self.cuts]


class Net(torch.nn.Module):
    def __init__(self, layout: Layout, experts: Layout | None = None) -> None:
        """experts: the layout of stacks of experts; None: there are none."""
        super().__init__()
        self.layouts: dict[str, Layout] = dict.fromkeys(MATRICES, layout)
        self.layouts |= dict.fromkeys(EXPERTS, experts) if experts else {}
        meshes = {each: init_device_mesh("cpu", each.mesh) for each in self.layouts.values() if each.cuts}
        for name, of in self.layouts.items():
            shape, dtype = {**MATRICES, **EXPERTS}[name]
            value = _random(name, -1, shape).to(dtype)
            if of.cuts:
                value = distribute_tensor(value, meshes[of], of.placements(shape), src_data_rank=None)
            self.register_parameter(name, torch.nn.Parameter(value, requires_grad=name != "frozen"))

    def set_gradients(self, step: int) -> None:
        """The same whole gradients on every mesh."""
        for name, param in self.named_parameters():
            if param.requires_grad:
                give(param, _random(name, step, tuple(param.shape)))


def give(param: torch.nn.Parameter, whole: torch.Tensor) -> None:
    whole = whole.to(param.dtype)
    if isinstance(param, DTensor):
        whole = distribute_tensor(whole, param.device_mesh, param.placements, src_data_rank=None)
    param.grad = whole


def _random(name: str, step: int, shape: tuple[int, ...]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()) + step)
    return torch.randn(shape, generator=generator)


def build(layout: Layout, experts: Layout | None, state: str, **options: Any) -> tuple[Net, lowtide.Muon]:
    net = Net(layout, experts)
    named = list(net.named_parameters())
    groups = [{"params": named[::2], "row_beta2": 0.9}, {"params": named[1::2], "lr": 3e-2, "nesterov": False, "momentum": 0.8}]
    options = {"lr": 1e-2, "state": state, "min_quantized_numel": LEAST, "use_muon": "experts", **options}
    return net, lowtide.Muon(groups, **options)


def train(net: Net, opt: lowtide.Muon, steps: range) -> None:
    for step in steps:
        net.set_gradients(step)
        opt.step()
        opt.zero_grad()


@contextmanager
def counting() -> Iterator[dict[str, int]]:
    """Counts the bytes that torch sends to and gets from other ranks, and the calls of all collectives."""
    counts = {"sent": 0, "received": 0, "exchanges": 0}
    names = [name for name in dir(dist) if name.startswith(_COLLECTIVE) and callable(getattr(dist, name))]
    kept = {name: getattr(dist, name) for name in names}

    def exchange(output: torch.Tensor, message: torch.Tensor, came: list[int], sent: list[int], **options: Any) -> Any:
        own = dist.get_rank(options["group"])
        for name, tensor, sizes in (("sent", message, sent), ("received", output, came)):
            assert tensor.numel() == sum(sizes)
            counts[name] += (tensor.numel() - sizes[own]) * tensor.element_size()
        counts["exchanges"] += 1
        return kept["all_to_all_single"](output, message, came, sent, **options)

    def counted(name: str) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            counts[name] = counts.get(name, 0) + 1
            return kept[name](*args, **options)

        return call

    for name in names:
        setattr(dist, name, exchange if name == "all_to_all_single" else counted(name))
    try:
        yield counts
    finally:
        for name, function in kept.items():
            setattr(dist, name, function)


_COLLECTIVE = ("all_", "barrier", "batch_isend", "broadcast", "gather", "irecv", "isend", "recv", "reduce", "scatter", "send")


def trained(
    layout: Layout, experts: Layout | None, state: str, room: int = 64 << 20, disk: str | None = None
) -> tuple[dict[str, bytes], Communication, dict[str, int]]:
    """Weights and state after 3 steps, the stated traffic of a step, and the actual one. room: elements of directions at a
    time. disk: a directory, for a budget too small for the state."""
    muon._BUCKET = room
    memory = None
    if disk is not None:
        own = Path(disk) / f"rank{dist.get_rank()}"
        own.mkdir(exist_ok=True)
        memory = lowtide.Memory(host="24KiB", disk=own, chunk="4KiB")
    net, opt = build(layout, experts, state, memory=memory)
    train(net, opt, range(2))
    stated = opt.communication()
    with counting() as counts:
        train(net, opt, range(2, 3))
    assert (disk is not None) == (opt.report()["moved_per_step"] > 0)
    return snapshot(net, opt), stated, counts


class Experts(torch.nn.Module):
    """A layer in which every token passes every expert, between two matrices."""

    def __init__(self, width: int = 36, inner: int = 22, experts: int = 6, outer: int = 24, out: int = 5) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = torch.nn.Linear(width, inner)
        self.experts = torch.nn.Parameter(torch.randn(experts, inner, outer) / 5)
        self.last = torch.nn.Linear(outer, out, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.einsum("nd,edo->no", torch.relu(self.first(x)), self.experts))


def _backward(net: Experts, step: int) -> None:
    x = torch.randn(8, net.first.in_features, generator=torch.Generator().manual_seed(step))
    net(x.to(net.first.weight.dtype)).square().mean().backward()


def _learn(net: Experts, opt: lowtide.Muon, step: int) -> None:
    _backward(net, step)
    opt.step()
    opt.zero_grad()


def uninterrupted(layout: Layout, state: str, path: str) -> dict[str, bytes]:
    """Four steps, with a checkpoint after two."""
    net, opt = build(layout, layout, state)
    train(net, opt, range(2))
    save(net, opt, path)
    train(net, opt, range(2, 4))
    return snapshot(net, opt)


def resumed(layout: Layout, state: str, path: str) -> dict[str, bytes]:
    """The last two of the four steps."""
    net, opt = build(layout, layout, state)
    with torch.no_grad():
        for param in net.parameters():
            param.mul_(0.5)
    load(net, opt, path)
    train(net, opt, range(2, 4))
    return snapshot(net, opt)


def _matrices(**options: Any) -> tuple[list[torch.nn.Parameter], lowtide.Muon]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    params = [
        torch.nn.Parameter(distribute_tensor(torch.randn(shape), mesh, [placement], src_data_rank=None))
        for shape, placement in (((40, 24), Shard(0)), ((24, 9), Shard(1)), ((7,), Shard(0)))
    ]
    return params, lowtide.Muon([(str(i), param) for i, param in enumerate(params)], lr=0.1, **options)


def _gradients(params: list[torch.nn.Parameter], step: int) -> None:
    for i, param in enumerate(params):
        give(param, torch.randn(param.shape, generator=torch.Generator().manual_seed(10 * step + i)))




class _BrokenDisk:
    """A core whose second call in a step fails, as if a disk could not be read. The first call steps AdamW's parameters."""

    def __init__(self, core: Any) -> None:
        self._core, self._steps = core, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def step(self, *args: Any, **options: Any) -> Any:
        self._steps += 1
        if self._steps == 2:
            raise OSError("the disk cannot be read")
        return self._core.step(*args, **options)


PLAIN = Layout(())
ROWS = [Layout((0,), (n,)) for n in (1, 2, 4)]
HSDP = Layout((None, 0), (2, 2))
COLUMNS = [Layout((1,), (1,)), Layout((1,), (2,)), Layout((1,), (3,))]
BOTH = [Layout((0, 1), (2, 2)), Layout((1, 0), (2, 2))]
COPIES = Layout((None,), (2,))


@pytest.mark.parametrize("state", ["fp32", "bf16", "dynamic8", "float8"])
@pytest.mark.share
def test_every_mesh_gives_the_bits_of_one_process(state: str, figure) -> None:
    """Owners compute the same products of the same matrices as a single process. Matrices cut by columns have float32 state
    instead of formats with scales, like all parameters."""
    ranks = shared_ranks()
    compared = meshes = 0
    for layouts, alone in (([*ROWS, HSDP, COPIES], state), ([*COLUMNS, *BOTH], "bf16" if state == "bf16" else "fp32")):
        expected = ranks.run(1, trained, PLAIN, PLAIN, alone)[0][0]
        for layout in layouts:
            for found, _, _ in ranks.run(layout.world, trained, layout, layout, state):
                both = expected.keys() & found.keys()  # vectors may have another format
                compared += same({name: found[name] for name in both}, {name: expected[name] for name in both}, f"{layout}")
            meshes += 1
    figure(f"{state}: {meshes} meshes, {compared} bytes compared, 0 differ")


@pytest.mark.parametrize("layout", [*ROWS, HSDP, *COLUMNS[1:], *BOTH, COPIES], ids=str)
@on_ranks()
def test_bytes_sent_are_those_stated(layout: Layout) -> str:
    """In a step, counted where torch is given them. Each matrix is made orthogonal once. Elements go as bfloat16,
    to which the iterations round first, and row moments as float32. On a mesh of one dimension, all that a matrix's owner does not have comes to it,
    and goes from it; of what is copied, each element goes once to each of the others."""
    _, stated, counts = trained(layout, layout, "dynamic8")
    assert (counts["sent"], counts["received"], counts["exchanges"]) == stated[:3]
    assert set(counts) <= {"sent", "received", "exchanges", "all_reduce"}, "only the agreement beside"
    every = of_all(stated)
    total = sum(each.sent_bytes for each in every)
    assert total == sum(each.received_bytes for each in every)
    two = [shape for name, (shape, _) in MATRICES.items() if len(shape) == 2 and name != "frozen"]
    scaled = [MATRICES[name][0][0] for name in ("uneven", "few", "bfloat")]  # rows of matrices with row moments
    stacks = 0 if layout.cuts == (0,) else sum(shape[0] for shape, _ in EXPERTS.values())
    assert sum(each.matrices for each in every) == (len(two) + stacks if layout.world > 1 else 0)
    if layout == COPIES:
        elements = sum(a * b for a, b in two) + sum(a * b * c for (a, b, c), _ in EXPERTS.values())
        assert total == 2 * elements + 4 * (sum(scaled) + 3 * 72)
    elif layout == ROWS[1]:  # two ranks: one has the larger half, as torch cuts, and each owner lacks one of them
        least, most = (
            sum(4 * ((rows + more) // 2) * width for rows, width in two) + sum(8 * ((rows + more) // 2) for rows in scaled) for more in (0, 1)
        )
        assert least <= total <= most
    return f"{layout.cuts} over {layout.mesh}: {total} bytes of all ranks, all as stated"


@pytest.mark.parametrize("layout", [ROWS[2], HSDP, BOTH[0]], ids=str)
@on_ranks()
def test_batches_under_way_change_no_bit(layout: Layout) -> str:
    """Without room, every batch has a part for each rank, and three are under way."""
    expected, few, _ = trained(layout, layout, "fp32")
    found, stated, counts = trained(layout, layout, "fp32", 1)
    compared = same(found, expected)
    assert stated.collectives > few.collectives and stated.sent_bytes == counts["sent"]
    return f"{layout}: {stated.collectives} collectives in place of {few.collectives}, {compared} bytes equal"


@pytest.mark.parametrize("layout", [ROWS[1], HSDP], ids=str)
@on_ranks()
def test_state_on_disk_changes_no_bit(layout: Layout, tmp_path: Path) -> str:
    expected, *_ = trained(layout, layout, "fp32")
    found, *_ = trained(layout, layout, "fp32", 5000, str(tmp_path))
    return f"{layout}: {sum(of_all(same(found, expected)))} bytes compared under budgets, 0 differ"


@pytest.mark.parametrize("layout", [ROWS[2], HSDP, BOTH[0]], ids=str)
@on_ranks()
def test_work_and_memory_are_divided(layout: Layout) -> str:
    """Giving the largest remaining piece of work to the rank with the least leaves nobody with more than the mean plus the
    largest piece less its share (as for any list schedule: Graham 1966). A batch has at most as many elements per rank as there
    is room for, and one matrix more, unless that is too few for one matrix each."""
    room = 30_000
    share = room * 4 // (3 * 12)  # elements of each of three batches, of 12 bytes for the 4 of a direction
    mesh = init_device_mesh("cpu", layout.mesh)
    sizes = [(10 * n, 160 - 10 * n) for n in range(1, 16)]  # in turn wide and tall
    values = [distribute_tensor(torch.ones(size), mesh, layout.placements(size), src_data_rank=None) for size in sizes]
    params = [torch.nn.Parameter(value) for value in values]
    matrices = [Matrix.of(i, param, sharding_of(param, "")) for i, param in enumerate(params)]
    [whole], few = batches_of([], matrices, 64 << 20), batches_of([], matrices, room)
    assert whole.exchange is not None and len(few) > 1
    works = [cost(part.matrices, *part.matrix) for part in whole.exchange.parts]
    ranks = itertools.product(*map(range, layout.mesh))
    owned = [sum(w for w, owner in zip(works, whole.exchange.owners, strict=True) if owner == at) for at in ranks]
    most = max(min(size) ** 2 * (2 * max(size) + min(size)) for size in sizes)
    assert max(owned) <= sum(owned) / len(owned) + most * (1 - 1 / len(owned))
    for batch in few:
        elements = [params[i].numel() for i in batch.params]
        assert sum(elements) <= max(share * layout.world + max(elements), layout.world * 6400)
    alike(([(batch.params, batch.exchange and batch.exchange.owners) for batch in few], owned))
    busiest = max(owned) * len(owned) / sum(owned)
    return f"{layout}: the busiest rank has {busiest:.2f} of the mean; {len(few)} batches in place of 1"


def test_experts_that_are_cut_between_matrices_send_nothing(figure) -> None:
    """Two-dimensional matrices are copied on each rank here, so only experts could send."""
    layout = Layout((0,), (4,))
    answers = shared_ranks().run(4, trained, PLAIN, layout, "dynamic8")
    alone = shared_ranks().run(1, trained, PLAIN, PLAIN, "dynamic8")[0][0]
    for found, stated, counts in answers:
        assert found == alone
        assert stated == (0, 0, 0, 0) and counts["exchanges"] == 0
    figure(f"4 ranks, {len(EXPERTS)} stacks of experts: 0 bytes, the bits of one process")


@pytest.mark.parametrize("state", ["dynamic8", "float8"])
def test_a_checkpoint_goes_to_any_mesh(state: str, tmp_path, figure) -> None:
    ranks = shared_ranks()
    compared = 0
    for n, source in enumerate((ROWS[1], HSDP)):
        path = str(tmp_path / f"saved-{n}")
        expected = ranks.run(source.world, uninterrupted, source, state, path)[0]
        for target in (ROWS[0], Layout((0,), (3,)), ROWS[2], HSDP):
            for found in ranks.run(target.world, resumed, target, state, path):
                compared += same(found, expected, f"{source} to {target}")
    figure(f"{state}: 8 moves between meshes, {compared} bytes compared, 0 differ")


@pytest.mark.parametrize(
    ("world", "columns", "before"), [(2, False, 0), (2, True, 0), (4, False, 0), (4, True, 0), (2, False, 2)]
)
@on_ranks()
def test_models_under_fully_shard_train_as_alone(world: int, columns: bool, before: int) -> str:
    """Even with an optimizer that was made, and has stepped, before the model was sharded. All ranks have the same data: a mean
    of two or four equal gradients is that gradient."""
    results, sent = [], 0
    for cut in (True, False):
        net = Experts()
        options: dict[str, Any] = {"state": "fp32" if columns else "dynamic8", "min_quantized_numel": 100, "row_beta2": 0.9}
        opt = lowtide.Muon(net.parameters(), lr=0.05, use_muon="experts", **options)
        for step in range(before):
            _learn(net, opt, step)
        if cut:
            placed = {"shard_placement_fn": lambda param: Shard(1 if param.ndim == 2 else 0)} if columns else {}
            fully_shard(net, mesh=init_device_mesh("cpu", (world,)), **placed)
            opt.param_groups[0]["params"] = list(net.parameters())
        for step in range(before, 4):
            _learn(net, opt, step)
        results.append([bits(p.full_tensor() if isinstance(p, DTensor) else p) for p in net.parameters()])
        sent += opt.communication().sent_bytes
    assert results[0] == results[1] and sent > 0
    cut_by = "columns" if columns else "rows"
    return f"{world} ranks, {cut_by}: {len(results[0])} parameters bit-equal after 4 steps; {of_all(sent)} bytes"


@pytest.mark.parametrize("master", ["residual16", "stochastic"])
@on_ranks(4)
def test_everything_together_sends_what_is_stated(master: str, tmp_path: Path) -> str:
    """FSDP2 on four ranks with weights that it keeps on the CPU, which steps them: bf16 weights, 8-bit momentum on a disk, row moments,
    and a stack of experts. A step sends 4 (n - 1) / n bytes per element and 8 (n - 1) / n per row of a matrix in all, nothing for
    experts, which are cut between matrices, and has the bits of one process. Equal gradients of 16 bits have an exact mean in 32."""
    ends = []
    own = tmp_path / f"rank{dist.get_rank()}"
    own.mkdir()
    for cut in (False, True):
        net = Experts(256, 48, 8, 256, 20).bfloat16()
        if cut:
            policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
            fully_shard(net, mesh=init_device_mesh("cpu", (4,)), mp_policy=policy, offload_policy=CPUOffloadPolicy(pin_memory=False))
        memory = lowtide.Memory(host="24KiB", disk=own, chunk=4096, step="host") if cut else None
        options: dict[str, Any] = {"master": master, "row_beta2": 0.9, "use_muon": "experts", "min_quantized_numel": 100, "memory": memory}
        opt = lowtide.Muon(net.named_parameters(), lr=0.02, **options)
        for step in range(3):
            _backward(net, step)
            with counting() as counts:
                opt.step()
            opt.zero_grad()
        stated = opt.communication()
        assert (counts["sent"], counts["received"], counts["exchanges"]) == stated[:3]
        ends.append(snapshot(net, opt))
    assert opt.report()["moved_per_step"] > 0
    total = sum(of_all(stated.sent_bytes))
    assert total == 4 * 3 // 4 * (48 + 20) * 256 + 8 * 3 // 4 * (48 + 20)
    return f"4 ranks, {master}: {total} bytes of all ranks, as stated; {same(*ends)} bytes of weights and state equal"


@on_ranks(4)
def test_tensor_parallelism_under_fully_shard() -> str:
    """Two-dimensional meshes, even with strided shards, with sizes that no number of ranks divides, compared with one process
    that has the same gradients, which torch assembles."""
    net = sharded("tensor")
    params = [p for p in net.parameters() if p.requires_grad]
    alone = [torch.nn.Parameter(p.detach().full_tensor()) for p in params]
    options: dict[str, Any] = {"lr": 0.02, "state": "fp32"}
    opt, plain = lowtide.Muon(params, **options), lowtide.Muon(alone, **options)
    for step in range(3):
        tokens = torch.randint(0, 101, (3, 11), generator=torch.Generator().manual_seed(step))
        net(tokens).float().square().mean().backward()
        for p, q in zip(params, alone, strict=True):
            q.grad = p.grad.full_tensor()
        with counting() as counts:
            opt.step()
        assert opt.communication()[:3] == (counts["sent"], counts["received"], counts["exchanges"])
        plain.step()
        opt.zero_grad()
    lie = sorted({str(p.placements) for p in params if p.ndim == 2})
    assert [bits(p.full_tensor()) for p in params] == [*map(bits, alone)]
    assert any("Shard(dim=1)" in each for each in lie) and any("_StridedShard" in each for each in lie), lie
    return f"4 ranks, {len(params)} parameters bit-equal after 3 steps, bytes as stated; {lie}"


@on_ranks(4)
def test_matrices_of_several_meshes_in_one_group() -> str:
    """Three meshes of four ranks, or plain, in turn."""
    whole = init_device_mesh("cpu", (4,))
    both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    lies: list[tuple[Any, list[Any]]] = [
        (whole, [Shard(0)]), (both["b"], [Shard(1)]), (None, []), (both, [Replicate(), Shard(0)]), (whole, [Shard(1)]),
        (both["a"], [Shard(0)]),
    ]  # fmt: skip
    results = []
    for cut in (True, False):
        params = []
        for i, (mesh, placements) in enumerate(lies * 2):
            value = torch.randn(20 + i, 17, generator=torch.Generator().manual_seed(i))
            if cut and mesh is not None:
                value = distribute_tensor(value, mesh, placements, src_data_rank=None)
            params.append(torch.nn.Parameter(value))
        opt = lowtide.Muon(params, lr=0.1, state="fp32")
        for step in range(2):
            _gradients(params, step)
            opt.step()
        results.append([bits(p.full_tensor() if isinstance(p, DTensor) else p) for p in params])
    assert results[0] == results[1]
    return f"{len(results[0])} matrices on 4 meshes and none, bit-equal"


@on_ranks(3)
def test_an_error_between_batches_leaves_no_rank_waiting() -> str:
    """The core of rank 1 fails. Matrices stay unchanged everywhere, and every rank says so."""
    params, opt = _matrices()
    on_1, before = dist.get_rank() == 1, [bits(param.detach().full_tensor()) for param in params]
    if on_1:
        opt.engine.core = _BrokenDisk(opt.engine.core)  # type: ignore[assignment]
    _gradients(params, 0)
    assert _told(opt) == (("OSError", "the disk cannot be read") if on_1 else OTHER_RANK)
    after = alike([bits(param.detach().full_tensor()) for param in params])
    assert after[0] == before[0] and after[2] != before[2]
    return "3 ranks, errors on all, none waits"


OTHER_RANK = ("RuntimeError", "Muon: another rank could not compute the updates of")


def _told(opt: lowtide.Muon) -> tuple[str, str]:
    with pytest.warns(UserWarning, match="have taken and . have not, each with its state"):
        kind, text = raised(opt.step)
    return kind, text.split(" parameter group")[0]


def _no_memory(*_: Any) -> Any:
    raise MemoryError("no memory for products")


@on_ranks(3)
def test_a_rank_without_memory_for_products_leaves_no_rank_waiting() -> str:
    """On rank 1: its matrix and state stay unchanged on all ranks, which raise. The next step takes all."""
    params, opt = _matrices()
    on_1 = dist.get_rank() == 1
    ends = [[bits(param.detach().full_tensor()) for param in params]]
    for step in range(2):
        _gradients(params, step)
        if step == 0:
            with pytest.MonkeyPatch.context() as patch:
                if on_1:
                    patch.setattr(matrix_step, "orthogonal", _no_memory)
                assert _told(opt) == (("MemoryError", "no memory for products") if on_1 else OTHER_RANK)
        else:
            opt.step()
        ends.append(alike([bits(param.detach().full_tensor()) for param in params]))
        alike([int(opt.state[param].get("step", 0)) for param in params])
    assert sum(a == b for a, b in zip(ends[0], ends[1], strict=True)) == 1
    assert all(a != b for a, b in zip(ends[1], ends[2], strict=True))
    return f"3 ranks, errors on all, none waits; {len(params)} parameters are alike then, and after one more step"


@on_ranks(2)
def test_refusals() -> str:
    mesh = init_device_mesh("cpu", (2,))
    partial = torch.nn.Parameter(DTensor.from_local(torch.ones(8, 8), mesh, [Partial()]))
    params, _ = _matrices()
    attempts: list[tuple[Callable[[], Any], str, str]] = [
        (lambda: lowtide.Muon([*params, partial]), "ValueError", "parameter 3: got placements (Partial(sum),), wanted only Shard and Replicate"),
        (lambda: lowtide.Muon(params, use_muon="all"), "TypeError", "use_muon: got 'all' (str), wanted a bool or 'experts'"),  # type: ignore[arg-type]
    ]  # fmt: skip
    for attempt, kind, words in attempts:
        found = raised(attempt)
        assert found[0] == kind and words in found[1], found
    return f"{len(attempts)} refusals on 2 ranks, each by name"


@on_ranks(2)
def test_plans_and_versions() -> str:
    """A plan of this rank's part; and autograd refuses a stale graph."""
    params, opt = _matrices(state="dynamic8", min_quantized_numel=64)
    planned = lowtide.forecast(params, "muon", min_quantized_numel=64).state_bytes
    loss = (params[0] * params[0]).sum()
    loss.backward(retain_graph=True)
    for param in params[1:]:
        param.grad = torch.zeros_like(param)
    opt.step()
    kind, text = raised(loss.backward)
    assert kind == "RuntimeError" and "modified by an inplace operation" in text, text
    assert planned == opt.report()["state_bytes"]
    return "plans of shards are off by 0 bytes; a stale graph is refused"
