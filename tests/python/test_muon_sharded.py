"""Muon over meshes: the bits of one process, each matrix made orthogonal once, as many bytes sent as stated."""

from __future__ import annotations

import muon_jobs as jobs
import muon_model_jobs as models
import pytest
from distributed_support import differing, shared_ranks, size
from muon_jobs import EXPERTS, MATRICES, Layout

PLAIN = Layout(())
ROWS = [Layout((0,), (n,)) for n in (1, 2, 4)]
HSDP = Layout((None, 0), (2, 2))
COLUMNS = [Layout((1,), (1,)), Layout((1,), (2,)), Layout((1,), (3,))]
BOTH = [Layout((0, 1), (2, 2)), Layout((1, 0), (2, 2))]
COPIES = Layout((None,), (2,))
SIXTEEN_BITS = [name for name, (_, dtype) in {**MATRICES, **EXPERTS}.items() if dtype.itemsize == 2]


def _float32(found: dict[str, bytes]) -> dict[str, bytes]:
    """Without weights of 16 bits, which torch rounds by their place in memory."""
    return {name: value for name, value in found.items() if name not in SIXTEEN_BITS}


@pytest.mark.parametrize("state", ["fp32", "bf16", "dynamic8", "float8"])
def test_every_mesh_gives_the_bits_of_one_process(state: str, figure) -> None:
    """Owners make the same products of the same matrices as a process alone. Matrices that are cut by columns have
    float32 state in place of formats with scales, as all parameters have."""
    ranks = shared_ranks()
    compared = meshes = 0
    for layouts, alone in (([*ROWS, HSDP, COPIES], state), ([*COLUMNS, *BOTH], "bf16" if state == "bf16" else "fp32")):
        expected = _float32(ranks.run(1, jobs.trained, PLAIN, PLAIN, alone)[0][0])
        of_mesh: dict[str, bytes] = {}
        for layout in layouts:
            for found, _, _ in ranks.run(layout.world, jobs.trained, layout, layout, state):
                both = expected.keys() & found.keys()
                assert [name for name in both if expected[name] != found[name]] == [], f"{layout}"
                of_mesh = of_mesh or found
                assert differing(found, of_mesh) == [], f"{layout}: 16 bits"
                compared += size(found)
            meshes += 1
    figure(f"{state}: {meshes} meshes, {compared} bytes compared, 0 differ")


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


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("world", [2, 4])
def test_models_under_fully_shard_train_as_alone(columns: bool, world: int, figure) -> None:
    sent = []
    for found, alone, bytes_sent in shared_ranks().run(world, models.fsdp2, columns, "fp32" if columns else "dynamic8"):
        assert found == alone
        sent.append(bytes_sent)
    assert all(sent)
    figure(f"{world} ranks, {'columns' if columns else 'rows'}: {len(found)} parameters bit-equal after 4 steps; {sent} bytes")


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
