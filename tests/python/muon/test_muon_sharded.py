"""Muon over meshes: the bits of one process, each matrix made orthogonal once, as many bytes sent as stated."""

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
from distributed_support import differing, shared_ranks, size
from lowtide.devices.sharding import sharding_of
from lowtide.optimizers import matrix_step, muon
from lowtide.optimizers.batches import Matrix, batches_of
from lowtide.optimizers.muon import Communication
from lowtide.optimizers.orthogonal import cost
from support import bits
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

# Rows that no number of ranks divides, wide and tall, fewer rows than ranks, a matrix smaller than the mesh, 16 bits.
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
    """cuts: by dimension of the mesh, the tensor dimension that it cuts, or None for copies; () for plain tensors."""

    cuts: tuple[int | None, ...]
    mesh: tuple[int, ...] = (1,)

    @property
    def world(self) -> int:
        return int(torch.tensor(self.mesh).prod())

    def placements(self, shape: Sequence[int]) -> list[Any]:
        return [Replicate() if dim is None else Shard(min(dim, len(shape) - 1)) for dim in self.cuts]


class Net(torch.nn.Module):
    def __init__(self, layout: Layout, experts: Layout | None = None) -> None:
        """experts: how stacks of experts lie; None: there are none."""
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
    groups = [{"params": named[::2]}, {"params": named[1::2], "lr": 3e-2, "nesterov": False, "momentum": 0.8}]
    options = {"lr": 1e-2, "state": state, "min_quantized_numel": LEAST, "use_muon": "experts", **options}
    return net, lowtide.Muon(groups, **options)


def train(net: Net, opt: lowtide.Muon, steps: range) -> None:
    for step in steps:
        net.set_gradients(step)
        opt.step()
        opt.zero_grad()


@contextmanager
def counting() -> Iterator[dict[str, int]]:
    """Counts the bytes that torch is given to send to others and to get from them, and the calls of all collectives."""
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
    """Weights and state after 3 steps; what a step is said to send; what one sent. room: elements of directions at a time.
    disk: a directory, for a budget that state does not fit into."""
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


def loads(layout: Layout, room: int) -> list[tuple[int, int, list[int]]]:
    """For each batch of a step of eight matrices in turn wide and tall: elements, the most that one has, and the work of
    each rank."""
    mesh = init_device_mesh("cpu", layout.mesh)
    sizes = [(10 * n, 160 - 10 * n) for n in range(1, 16)]
    values = [distribute_tensor(torch.ones(size), mesh, layout.placements(size), src_data_rank=None) for size in sizes]
    params = [torch.nn.Parameter(value) for value in values]
    matrices = [Matrix.of(i, param, sharding_of(param, "")) for i, param in enumerate(params)]
    ranks = list(itertools.product(*map(range, layout.mesh)))
    found = []
    for batch in batches_of([], matrices, room):
        assert batch.exchange is not None
        works = [cost(part.matrices, *part.matrix) for part in batch.exchange.parts]
        owned = [sum(w for w, owner in zip(works, batch.exchange.owners, strict=True) if owner == at) for at in ranks]
        elements = [params[i].numel() for i in batch.params]
        found.append((sum(elements), max(elements), owned))
    return found


class Experts(torch.nn.Module):
    """A layer in which every token goes through every expert, between two matrices."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = torch.nn.Linear(36, 22)
        self.experts = torch.nn.Parameter(torch.randn(6, 22, 24) / 5)
        self.last = torch.nn.Linear(24, 5, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.einsum("nd,edo->no", torch.relu(self.first(x)), self.experts))


def fsdp2(shard_columns: bool, state: str, before: int = 0) -> tuple[list[bytes], list[bytes], int]:
    """Weights after training under fully_shard and alone, all ranks with the same data: a mean of two or four equal
    gradients is that gradient. And bytes that a step sends from here. before: steps that are taken before the model is
    sharded, by the same optimizer."""
    results = []
    sent = 0
    for cut in (True, False):
        net = Experts()
        opt = lowtide.Muon(net.parameters(), lr=0.05, state=state, use_muon="experts", min_quantized_numel=100)
        for step in range(before):
            _learn(net, opt, step)
        if cut:
            mesh = init_device_mesh("cpu", (dist.get_world_size(),))
            options: dict[str, Any] = {}
            if shard_columns:
                options["shard_placement_fn"] = lambda param: Shard(1 if param.ndim == 2 else 0)
            fully_shard(net, mesh=mesh, **options)
            opt.param_groups[0]["params"] = list(net.parameters())
        for step in range(before, 4):
            _learn(net, opt, step)
        results.append([bits(p.full_tensor() if isinstance(p, DTensor) else p) for p in net.parameters()])
        sent += opt.communication().sent_bytes
    return results[0], results[1], sent


def _learn(net: torch.nn.Module, opt: lowtide.Muon, step: int) -> None:
    x = torch.randn(8, 36, generator=torch.Generator().manual_seed(step))
    net(x).square().mean().backward()
    opt.step()
    opt.zero_grad()


def tensor_parallel() -> tuple[list[bytes], list[bytes], list[str], bool]:
    """Weights of a model under fully_shard over tensor parallelism, and of one process that has the same gradients, which
    torch puts together; how matrices lie; and whether bytes sent are those stated."""
    net = sharded("tensor")
    params = [p for p in net.parameters() if p.requires_grad]
    alone = [torch.nn.Parameter(p.detach().full_tensor()) for p in params]
    options: dict[str, Any] = {"lr": 0.02, "state": "fp32"}
    opt, plain = lowtide.Muon(params, **options), lowtide.Muon(alone, **options)
    equal = True
    for step in range(3):
        tokens = torch.randint(0, 101, (3, 11), generator=torch.Generator().manual_seed(step))
        net(tokens).float().square().mean().backward()
        for p, q in zip(params, alone, strict=True):
            q.grad = p.grad.full_tensor()
        with counting() as counts:
            opt.step()
        equal = equal and opt.communication()[:3] == (counts["sent"], counts["received"], counts["exchanges"])
        plain.step()
        opt.zero_grad()
    lie = [str(p.placements) for p in params if p.ndim == 2]
    return [bits(p.full_tensor()) for p in params], [bits(q) for q in alone], lie, equal


def against_torch() -> tuple[int, float]:
    """Matrices on all ranks beside torch.optim.Muon's on each: how many are bit-equal after a step, and the largest
    difference after five, as a part of the move."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = [torch.randn(size, generator=torch.Generator().manual_seed(size[0])) for size in ((37, 60), (64, 20), (3, 8))]
    theirs = [torch.nn.Parameter(value.clone()) for value in whole]
    ours = [torch.nn.Parameter(distribute_tensor(value, mesh, [Shard(0)], src_data_rank=None)) for value in whole]
    opt, other = lowtide.Muon(ours, lr=0.02, state="fp32"), torch.optim.Muon(theirs, lr=0.02)
    equal = 0
    for step in range(5):
        _gradients(theirs, step)
        for p, q in zip(ours, theirs, strict=True):
            give(p, q.grad)
        opt.step()
        other.step()
        if step == 0:
            equal = sum(bits(p.full_tensor()) == bits(q) for p, q in zip(ours, theirs, strict=True))
    triples = [(p.detach().full_tensor(), q.detach(), start) for p, q, start in zip(ours, theirs, whole, strict=True)]
    return equal, max(float((p - q).norm() / (q - start).norm()) for p, q, start in triples)


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


def _nan(params: list[torch.nn.Parameter]) -> None:
    params[0].grad.to_local()[0, 0] = float("nan")


def _none(params: list[torch.nn.Parameter]) -> None:
    params[0].grad = None


def _partial(params: list[torch.nn.Parameter]) -> None:
    params[1].grad = DTensor.from_local(torch.ones(24, 9), params[1].device_mesh, [Partial()])


SPOILERS: dict[str, Callable[[list[torch.nn.Parameter]], None]] = {"nan": _nan, "none": _none, "partial": _partial}


def spoilt_on_rank_1(kind: str, nonfinite: str) -> tuple[str, int, bool, bool]:
    """A good step, one that is spoilt on rank 1, a good one: the error ("" for none), steps skipped, whether the spoilt step
    changed nothing, whether the end is that of the two good steps alone."""
    ends, error, unchanged = [], "", True
    for spoil in (True, False):
        params, opt = _matrices(nonfinite=nonfinite)
        for step in range(3) if spoil else (0, 2):
            _gradients(params, step)
            before = _all(params, opt) if step == 1 else {}
            if step == 1 and dist.get_rank() == 1:
                SPOILERS[kind](params)
            try:
                opt.step()
            except ValueError as caught:
                error = str(caught)
            if step == 1:
                unchanged = before == _all(params, opt)
        if spoil:
            skipped = opt.skipped_steps
        ends.append([bits(p.full_tensor()) for p in params])
    return error, skipped, unchanged, ends[0] == ends[1]


def _all(params: list[torch.nn.Parameter], opt: lowtide.Muon) -> dict[str, bytes]:
    return snapshot(torch.nn.ParameterList(params), opt)


class _BrokenDisk:
    """A core whose second step of a batch fails, as it does when a disk cannot be read."""

    def __init__(self, core: Any) -> None:
        self._core, self._steps = core, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def step(self, *args: Any) -> Any:
        self._steps += 1
        if self._steps == 2:
            raise OSError("the disk cannot be read")
        return self._core.step(*args)


def failing_disk() -> str:
    """The error of a step in which the core of rank 1 fails between batches; no rank waits for another in vain."""
    params, opt = _matrices()
    if dist.get_rank() == 1:
        opt.engine.core = _BrokenDisk(opt.engine.core)  # type: ignore[assignment]
    _gradients(params, 0)
    try:
        opt.step()
    except OSError as error:
        return str(error)
    return ""


def failing_products() -> tuple[str, list[bytes], list[bytes]]:
    """The error of a step in which rank 1 has no memory for its matrices, and the weights after it and after another one."""
    params, opt = _matrices()
    _gradients(params, 0)
    error = ""
    with pytest.MonkeyPatch.context() as patch:
        if dist.get_rank() == 1:
            patch.setattr(matrix_step, "orthogonal", _no_memory)
        try:
            opt.step()
        except MemoryError as found:
            error = str(found)
    after = [bits(param.detach().full_tensor()) for param in params]
    _gradients(params, 1)
    opt.step()
    return error, after, [bits(param.detach().full_tensor()) for param in params]


def _no_memory(*_: Any) -> Any:
    raise MemoryError("no memory for products")


def refusals() -> dict[str, str]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    partial = torch.nn.Parameter(DTensor.from_local(torch.ones(8, 8), mesh, [Partial()]))
    whole = torch.nn.Parameter(distribute_tensor(torch.ones(8, 8), mesh, [Shard(0)]).bfloat16())
    params, _ = _matrices()
    attempts: dict[str, Callable[[], Any]] = {
        "partial": lambda: lowtide.Muon([*params, partial]),
        "master": lambda: lowtide.Muon([whole], master="residual16"),
        "use_muon": lambda: lowtide.Muon(params, use_muon="all"),  # type: ignore[arg-type]
    }
    found = {}
    for name, attempt in attempts.items():
        try:
            attempt()
        except (ValueError, TypeError, NotImplementedError) as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def several_meshes() -> tuple[list[bytes], list[bytes]]:
    """Weights of one optimizer whose matrices are on three meshes of four ranks, or plain, in turn; and alone."""
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
    return results[0], results[1]


def planned_and_stale() -> tuple[int, int, bool]:
    """State bytes of a plan of this rank's part, and of the optimizer; whether autograd refuses a stale graph."""
    params, opt = _matrices(state="dynamic8", min_quantized_numel=64)
    planned = lowtide.forecast(params, "muon", min_quantized_numel=64).state_bytes
    loss = (params[0] * params[0]).sum()
    loss.backward(retain_graph=True)
    for param in params[1:]:
        param.grad = torch.zeros_like(param)
    opt.step()
    try:
        loss.backward()
        refused = False
    except RuntimeError as error:
        refused = "modified by an inplace operation" in str(error)
    return planned, opt.report()["state_bytes"], refused


PLAIN = Layout(())
ROWS = [Layout((0,), (n,)) for n in (1, 2, 4)]
HSDP = Layout((None, 0), (2, 2))
COLUMNS = [Layout((1,), (1,)), Layout((1,), (2,)), Layout((1,), (3,))]
BOTH = [Layout((0, 1), (2, 2)), Layout((1, 0), (2, 2))]
COPIES = Layout((None,), (2,))
SIXTEEN_BITS = [name for name, (_, dtype) in {**MATRICES, **EXPERTS}.items() if dtype.itemsize == 2]


def _apart(found: dict[str, bytes], alone: dict[str, bytes]) -> float:
    """The largest difference of weights of 16 bits after 3 steps, by what roundings allow: in a step, two halves of a last
    bit (2⁻⁸ of the weight each) of torch's on one side and one on the other, and 2⁻⁸ of the move, 0.06 at most, as torch
    rounds the learning rate and the product to bfloat16."""
    worst = 0.0
    for name in SIXTEEN_BITS:
        a, b = (torch.frombuffer(bytearray(each[name]), dtype=torch.bfloat16).float() for each in (found, alone))
        allowed = 3 * 2**-8 * (3 * b.abs() + 0.06)
        worst = max(worst, float(((a - b).abs() / allowed).max()))
    return worst


def _float32(found: dict[str, bytes]) -> dict[str, bytes]:
    """Without weights of 16 bits, which torch rounds by their place in memory."""
    return {name: value for name, value in found.items() if name not in SIXTEEN_BITS}


@pytest.mark.parametrize("state", ["fp32", "bf16", "dynamic8", "float8"])
@pytest.mark.share
def test_every_mesh_gives_the_bits_of_one_process(state: str, figure) -> None:
    """Owners make the same products of the same matrices as a process alone. Matrices that are cut by columns have
    float32 state in place of formats with scales, as all parameters have."""
    ranks = shared_ranks()
    compared = meshes = 0
    apart = 0.0
    for layouts, alone in (([*ROWS, HSDP, COPIES], state), ([*COLUMNS, *BOTH], "bf16" if state == "bf16" else "fp32")):
        of_one = ranks.run(1, trained, PLAIN, PLAIN, alone)[0][0]
        expected = _float32(of_one)
        of_mesh: dict[str, bytes] = {}
        for layout in layouts:
            for found, _, _ in ranks.run(layout.world, trained, layout, layout, state):
                both = expected.keys() & found.keys()
                assert [name for name in both if expected[name] != found[name]] == [], f"{layout}"
                of_mesh = of_mesh or found
                apart = max(apart, _apart(found, of_one))
                assert differing(found, of_mesh) == [], f"{layout}: 16 bits"
                compared += size(found)
            meshes += 1
    figure(f"{state}: {meshes} meshes, {compared} bytes compared, 0 differ; 16-bit weights {apart:.2f} of what is allowed")
    assert apart <= 1


@pytest.mark.parametrize("layout", [*ROWS, HSDP, *COLUMNS[1:], *BOTH, COPIES], ids=str)
def test_bytes_sent_are_those_stated(layout: Layout, figure) -> None:
    """In a step, counted where torch is given them. Each matrix is made orthogonal once. Elements go as bfloat16,
    to which the iterations round first. On a mesh of one dimension, all that a matrix's owner does not have comes to it,
    and goes from it; of what is copied, each element goes once to each of the others."""
    answers = shared_ranks().run(layout.world, trained, layout, layout, "dynamic8")
    for _, stated, counts in answers:
        counted = counts["sent"], counts["received"], counts["exchanges"]
        assert counted == stated[:3]
        assert set(counts) <= {"sent", "received", "exchanges", "all_reduce"}, "only the agreement beside"
    total = sum(stated.sent_bytes for _, stated, _ in answers)
    assert total == sum(stated.received_bytes for _, stated, _ in answers)
    two = [name for name, (shape, _) in MATRICES.items() if len(shape) == 2 and name != "frozen"]
    stacks = 0 if layout.cuts == (0,) else sum(shape[0] for shape, _ in EXPERTS.values())
    assert sum(stated.matrices for _, stated, _ in answers) == (len(two) + stacks if layout.world > 1 else 0)
    elements = sum(MATRICES[name][0][0] * MATRICES[name][0][1] for name in two)
    if layout == COPIES:
        elements += sum(a * b * c for (a, b, c), _ in EXPERTS.values())
        assert total == 2 * elements
    elif layout == ROWS[1]:  # two ranks: one has the larger half, as torch cuts, and each owner lacks one of them
        lacking = [sorted(((rows + 1) // 2, rows // 2)) for rows, _ in (MATRICES[name][0] for name in two)]
        widths = [MATRICES[name][0][1] for name in two]
        least, most = (sum(4 * of[k] * width for of, width in zip(lacking, widths, strict=True)) for k in (0, 1))
        assert least <= total <= most
    figure(f"{layout.cuts} over {layout.mesh}: {total} bytes of all ranks, all as stated")


@pytest.mark.parametrize("layout", [ROWS[2], HSDP, BOTH[0]], ids=str)
def test_batches_under_way_change_no_bit(layout: Layout, figure) -> None:
    """With room for nothing every batch has a part for each rank, and three are under way."""
    ranks = shared_ranks()
    at_once = ranks.run(layout.world, trained, layout, layout, "fp32")
    for (found, stated, counts), (expected, few, _) in zip(
        ranks.run(layout.world, trained, layout, layout, "fp32", 1), at_once, strict=True
    ):
        assert differing(found, expected) == []
        assert stated.collectives > few.collectives and stated.sent_bytes == counts["sent"]
    figure(f"{layout}: {stated.collectives} collectives in place of {few.collectives}, {size(found)} bytes equal")


def test_state_on_disk_changes_no_bit(tmp_path, figure) -> None:
    ranks = shared_ranks()
    compared = 0
    for layout in (ROWS[1], HSDP):
        expected = ranks.run(layout.world, trained, layout, layout, "fp32")
        for (found, *_), (wanted, *_) in zip(
            ranks.run(layout.world, trained, layout, layout, "fp32", 5000, str(tmp_path)), expected, strict=True
        ):
            assert differing(found, wanted) == []
            compared += size(found)
    figure(f"2 meshes under budgets, {compared} bytes compared, 0 differ")


@pytest.mark.parametrize("layout", [ROWS[2], HSDP, BOTH[0]], ids=str)
def test_work_and_memory_are_divided(layout: Layout, figure) -> None:
    """Giving the largest piece of work left to whom has least leaves nobody with more than the mean and the largest piece
    less its share (as any list schedule: Graham 1966). A batch has at most the elements that there is room for on each
    rank, and one matrix more, unless that is too few for a matrix on each."""
    room = 30_000
    share = room * 4 // (3 * 12)  # elements of each of three batches, of 12 bytes for the 4 of a direction
    worst = 0.0
    every, few = (shared_ranks().run(layout.world, loads, layout, each) for each in (64 << 20, room))
    assert all(found == every[0] for found in every) and all(found == few[0] for found in few), "ranks have one plan"
    for elements, largest, owned in every[0]:
        pieces = [160 - 10 * n for n in range(1, 16)]
        most = max(min(10 * n, side) ** 2 * (2 * max(10 * n, side) + min(10 * n, side)) for n, side in enumerate(pieces, 1))
        assert max(owned) <= sum(owned) / len(owned) + most * (1 - 1 / len(owned))
        worst = max(worst, max(owned) * len(owned) / sum(owned))
    for elements, largest, owned in few[0]:
        assert elements <= max(share * layout.world + largest, layout.world * 6400)
    assert len(few[0]) > len(every[0]) == 1
    figure(f"{layout}: the busiest rank has {worst:.2f} of the mean; {len(few[0])} batches in place of 1")


def test_experts_that_are_cut_between_matrices_send_nothing(figure) -> None:
    """Two-dimensional matrices are copies on each rank here, so that experts alone could send."""
    layout = Layout((0,), (4,))
    answers = shared_ranks().run(4, trained, PLAIN, layout, "dynamic8")
    alone = shared_ranks().run(1, trained, PLAIN, PLAIN, "dynamic8")[0][0]
    for found, stated, counts in answers:
        assert _float32(found) == _float32(alone)
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
                assert differing(found, expected) == [], f"{source} to {target}"
                compared += size(found)
    figure(f"{state}: 8 moves between meshes, {compared} bytes compared, 0 differ")


@pytest.mark.parametrize(
    ("world", "columns", "before"), [(2, False, 0), (2, True, 0), (4, False, 0), (4, True, 0), (2, False, 2)]
)
def test_models_under_fully_shard_train_as_alone(world: int, columns: bool, before: int, figure) -> None:
    """Also with an optimizer that was made, and has stepped, before the model was sharded."""
    sent = []
    for found, alone, bytes_sent in shared_ranks().run(
        world, fsdp2, columns, "fp32" if columns else "dynamic8", before
    ):
        assert found == alone
        sent.append(bytes_sent)
    assert all(sent)
    cut = "columns" if columns else "rows"
    figure(f"{world} ranks, {cut}: {len(found)} parameters bit-equal after 4 steps; {sent} bytes")


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has Muon since 2.9")
def test_four_ranks_do_what_torch_does_on_one(figure) -> None:
    """The tolerance is that of a process alone (test_muon.py): a direction that rounds to another bfloat16."""
    worst = exact = 0.0
    for equal, far in shared_ranks().run(4, against_torch):
        exact, worst = equal, max(worst, far)
    figure(f"4 ranks: {exact:.0f} of 3 matrices bit-equal to torch.optim.Muon's after 1 step; after 5, {worst:.1e} of the move")
    assert worst < 0.02


def test_tensor_parallelism_under_fully_shard(figure) -> None:
    """Two-dimensional meshes, also with strided shards, of sizes that no number of ranks divides."""
    for found, alone, lie, as_stated in shared_ranks().run(4, tensor_parallel):
        assert found == alone and as_stated
        assert any("Shard(dim=1)" in each for each in lie) and any("_StridedShard" in each for each in lie), lie
    figure(f"4 ranks, {len(found)} parameters bit-equal after 3 steps, bytes as stated; {sorted(set(lie))}")


def test_matrices_of_several_meshes_in_one_group(figure) -> None:
    for found, alone in shared_ranks().run(4, several_meshes):
        assert found == alone
    figure(f"{len(found)} matrices on 4 meshes and none, bit-equal")


@pytest.mark.parametrize(
    ("kind", "nonfinite", "words"),
    [
        ("nan", "skip", None),
        ("nan", "raise", ("NaN", "another rank")),
        ("none", "skip", ("on some ranks and none on others",) * 2),
        ("none", "propagate", ("on some ranks and none on others",) * 2),
        ("partial", "skip", ("redistribute", "another rank")),
        ("partial", "propagate", ("redistribute", "another rank")),
    ],
)
def test_what_one_rank_cannot_step_none_does(
    kind: str, nonfinite: str, words: tuple[str, str] | None, figure
) -> None:
    """`words`: in the error of rank 1, on which it goes wrong, and of the others; None: no error, a skipped step."""
    for rank, (error, skipped, unchanged, alike) in enumerate(
        shared_ranks().run(3, spoilt_on_rank_1, kind, nonfinite)
    ):
        assert unchanged and alike, f"rank {rank}: {error}"
        assert skipped == (words is None)
        assert (words[0 if rank == 1 else 1] in error) if words else not error, f"rank {rank}: {error}"
    figure(f"{kind}, {nonfinite}: 3 ranks unchanged by the step; then as if it had not been")


def test_an_error_between_batches_leaves_no_rank_waiting(figure) -> None:
    errors = shared_ranks().run(3, failing_disk)
    assert errors == ["", "the disk cannot be read", ""]
    figure("3 ranks, one error, none waits")


def test_a_rank_without_memory_for_products_leaves_no_rank_waiting(figure) -> None:
    """The others go on without the updates of its matrices, and all have the same weights."""
    found = shared_ranks().run(3, failing_products)
    assert [error for error, _, _ in found] == ["", "no memory for products", ""]
    for _, after, later in found:
        assert (after, later) == found[0][1:] and after != later
    figure(f"3 ranks, one error, none waits; {len(found[0][1])} parameters are alike then, and after one more step")


def test_refusals(figure) -> None:
    wanted = {
        "partial": "parameter 3: got placements (Partial(sum),), wanted only Shard and Replicate",
        "master": "NotImplementedError: parameter group 0, parameter 0: got master='residual16' for a matrix",
        "use_muon": "use_muon: got 'all' (str), wanted a bool or 'experts'",
    }
    for found in shared_ranks().run(2, refusals):
        assert found.keys() == wanted.keys()
        for name, words in wanted.items():
            assert words in found[name], found[name]
    figure(f"{len(wanted)} refusals on 2 ranks, each by name")


def test_plans_and_versions(figure) -> None:
    for planned, state_bytes, refused in shared_ranks().run(2, planned_and_stale):
        assert planned == state_bytes and refused
    figure("plans of shards are off by 0 bytes; a stale graph is refused")
