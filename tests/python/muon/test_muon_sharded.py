"""Muon over meshes: the bits of one process, each matrix made orthogonal once, as many bytes sent as stated."""

from __future__ import annotations

import muon_jobs as jobs
import muon_model_jobs as models
import pytest
import torch
from distributed_support import differing, shared_ranks, size
from muon_jobs import EXPERTS, MATRICES, Layout

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
        of_one = ranks.run(1, jobs.trained, PLAIN, PLAIN, alone)[0][0]
        expected = _float32(of_one)
        of_mesh: dict[str, bytes] = {}
        for layout in layouts:
            for found, _, _ in ranks.run(layout.world, jobs.trained, layout, layout, state):
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
    answers = shared_ranks().run(layout.world, jobs.trained, layout, layout, "dynamic8")
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
    at_once = ranks.run(layout.world, jobs.trained, layout, layout, "fp32")
    for (found, stated, counts), (expected, few, _) in zip(
        ranks.run(layout.world, jobs.trained, layout, layout, "fp32", 1), at_once, strict=True
    ):
        assert differing(found, expected) == []
        assert stated.collectives > few.collectives and stated.sent_bytes == counts["sent"]
    figure(f"{layout}: {stated.collectives} collectives in place of {few.collectives}, {size(found)} bytes equal")


def test_state_on_disk_changes_no_bit(tmp_path, figure) -> None:
    ranks = shared_ranks()
    compared = 0
    for layout in (ROWS[1], HSDP):
        expected = ranks.run(layout.world, jobs.trained, layout, layout, "fp32")
        for (found, *_), (wanted, *_) in zip(
            ranks.run(layout.world, jobs.trained, layout, layout, "fp32", 5000, str(tmp_path)), expected, strict=True
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
    every, few = (shared_ranks().run(layout.world, jobs.loads, layout, each) for each in (64 << 20, room))
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
    answers = shared_ranks().run(4, jobs.trained, PLAIN, layout, "dynamic8")
    alone = shared_ranks().run(1, jobs.trained, PLAIN, PLAIN, "dynamic8")[0][0]
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
        expected = ranks.run(source.world, models.uninterrupted, source, state, path)[0]
        for target in (ROWS[0], Layout((0,), (3,)), ROWS[2], HSDP):
            for found in ranks.run(target.world, models.resumed, target, state, path):
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
        world, models.fsdp2, columns, "fp32" if columns else "dynamic8", before
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
    for equal, far in shared_ranks().run(4, models.against_torch):
        exact, worst = equal, max(worst, far)
    figure(f"4 ranks: {exact:.0f} of 3 matrices bit-equal to torch.optim.Muon's after 1 step; after 5, {worst:.1e} of the move")
    assert worst < 0.02


def test_tensor_parallelism_under_fully_shard(figure) -> None:
    """Two-dimensional meshes, also with strided shards, of sizes that no number of ranks divides."""
    for found, alone, lie, as_stated in shared_ranks().run(4, models.tensor_parallel):
        assert found == alone and as_stated
        assert any("Shard(dim=1)" in each for each in lie) and any("_StridedShard" in each for each in lie), lie
    figure(f"4 ranks, {len(found)} parameters bit-equal after 3 steps, bytes as stated; {sorted(set(lie))}")


def test_matrices_of_several_meshes_in_one_group(figure) -> None:
    for found, alone in shared_ranks().run(4, models.several_meshes):
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
        shared_ranks().run(3, models.spoilt_on_rank_1, kind, nonfinite)
    ):
        assert unchanged and alike, f"rank {rank}: {error}"
        assert skipped == (words is None)
        assert (words[0 if rank == 1 else 1] in error) if words else not error, f"rank {rank}: {error}"
    figure(f"{kind}, {nonfinite}: 3 ranks unchanged by the step; then as if it had not been")


def test_an_error_between_batches_leaves_no_rank_waiting(figure) -> None:
    errors = shared_ranks().run(3, models.failing_disk)
    assert errors == ["", "the disk cannot be read", ""]
    figure("3 ranks, one error, none waits")


def test_a_rank_without_memory_for_products_leaves_no_rank_waiting(figure) -> None:
    """The others go on without the updates of its matrices, and all have the same weights."""
    found = shared_ranks().run(3, models.failing_products)
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
    for found in shared_ranks().run(2, models.refusals):
        assert found.keys() == wanted.keys()
        for name, words in wanted.items():
            assert words in found[name], found[name]
    figure(f"{len(wanted)} refusals on 2 ranks, each by name")


def test_plans_and_versions(figure) -> None:
    for planned, state_bytes, refused in shared_ranks().run(2, models.planned_and_stale):
        assert planned == state_bytes and refused
    figure("plans of shards are off by 0 bytes; a stale graph is refused")
