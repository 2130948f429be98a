"""Sharded tensors instead of parameters, as FSDP2 makes them: state, steps and options follow, cut again."""

from __future__ import annotations

from typing import Any

import lowtide
import lowtide.distributed
import pytest
import torch
import torch.distributed as dist
from distributed_jobs import Layout, Net, build, random_tensor, snapshot, train, uninterrupted, whole
from distributed_support import alike, on_ranks, same, shared_ranks
from support import bits, raised, state_bits
from torch.distributed.tensor import DTensor, distribute_tensor


def put(opt: lowtide.Optimizer, old: torch.nn.Module, new: torch.nn.Module) -> None:
    """Puts the new parameters of the same names into new lists, as wrappers do."""
    names = {id(param): name for name, param in old.named_parameters()}
    now = dict(new.named_parameters())
    for group in opt.param_groups:
        group["params"] = [now[names[id(param)]] for param in group["params"]]


def relaid(net: Net, layout: Layout) -> Net:
    """The same model in another layout."""
    made = Net(layout)
    with torch.no_grad():
        for param, old in zip(made.parameters(), net.parameters(), strict=True):
            value = old.detach()
            value = value.full_tensor() if isinstance(value, DTensor) else value
            if isinstance(param, DTensor):
                value = distribute_tensor(value, param.device_mesh, param.placements, src_data_rank=None)
            param.copy_(value)
    return made


def rebound(
    layouts: list[Layout], rule: str, state: str, disk: str | None = None, at: int = 3, master: str | None = None
) -> tuple[dict[str, bytes], dict[str, bytes], dict[str, bytes], bool]:
    """Takes six steps. After each step in `at`, the next layout's parameters replace the previous ones. Returns the contents
    before, the state_dict directly afterwards, the contents at the end, and whether `state` has entries only for the new
    tensors."""
    net, opt = build(layouts[0], rule, state, disk, master)
    train(net, opt, range(at))
    before = snapshot(net, opt)
    for layout in layouts[1:]:
        new = relaid(net, layout)
        put(opt, net, new)
        net = new
        after = snapshot(net, opt)
    train(net, opt, range(at, 6))
    mine = {id(param) for name, param in net.named_parameters() if name not in ("frozen", "idle")}
    return before, after, snapshot(net, opt), {*map(id, opt.state)} == mine


def matrices(found: dict[str, bytes]) -> dict[str, bytes]:
    return {name: value for name, value in found.items() if not name.startswith("row")}


PLAIN, ROWS, COLUMNS = Layout("plain"), Layout("rows", (2,)), Layout("columns", (2,))


@pytest.mark.parametrize(
    ("rule", "state", "on_disk", "at"),
    [
        ("adamw", "dynamic8", False, 3),
        ("adamw", "dynamic8", True, 3),
        ("adamw", "dynamic8", False, 0),
        ("adamw_amsgrad", "dynamic4", False, 3),
        ("sgd", "bf16", False, 3),
        ("sgd_plain", "fp32", False, 3),
        ("ademamix", "float8", False, 3),
    ],
)
def test_whole_parameters_become_shards(rule, state, on_disk, at, tmp_path, figure):
    """Weights and state have the bits of an optimizer that kept whole parameters, also through a third layout. Single rows are
    left out, because their shards have other state."""
    ranks = shared_ranks()
    disk = str(tmp_path) if on_disk else None
    expected = matrices(ranks.run(1, uninterrupted, PLAIN, rule, state)[0])
    compared = 0
    for layouts in ([PLAIN, ROWS], [PLAIN, ROWS, PLAIN], [PLAIN, ROWS, Layout("replicas", (2,))]):
        if rule == "ademamix" and len(layouts) > 2:
            continue
        for before, after, end, keyed in ranks.run(2, rebound, layouts, rule, state, disk, at):
            assert keyed
            compared += same(matrices(before), matrices(after)) + same(matrices(end), expected, layouts)
    figure(f"{rule} {state}, after {at} steps: {compared} bytes compared, 0 differ")


@on_ranks(2)
def test_master_weights_go_along() -> str:
    """The residuals of bfloat16 weights are cut like the weights."""
    before, after, _, _ = rebound([PLAIN, ROWS], "adamw", "dynamic8", None, 3, "residual16")
    assert any(name.endswith(".residual") for name in before)
    return f"{same(matrices(before), matrices(after))} bytes, 0 differ"


@pytest.mark.parametrize("layout", [COLUMNS, ROWS], ids=str)
@on_ranks()
def test_shards_that_cut_blocks_have_decoded_state(layout: Layout) -> str:
    """Cut rows and single rows have float32 state: the values of the codes, as torch's dict has them."""
    net, opt = build(PLAIN, "adamw", "dynamic8")
    train(net, opt, range(3))
    names = [name for group in opt.param_groups for name in group["param_names"]]

    def values() -> dict[str, bytes]:
        state = opt.torch_state_dict()["state"]
        return {f"{names[i]}.{key}": whole(value) for i, entry in state.items() for key, value in entry.items()}

    before = values()
    coded = [name for name, param in net.named_parameters() if "exp_avg_scale" in opt.state[param]]
    new = relaid(net, layout)
    put(opt, net, new)
    opt.state_dict()
    now = dict(new.named_parameters())
    decoded = [name for name in coded if "exp_avg_scale" not in opt.state[now[name]]]
    assert ("uneven" in decoded) == (layout == COLUMNS) and "row" in decoded
    return f"{len(decoded)} parameters have float32 state now; {same(before, values())} bytes of values, 0 differ"


@on_ranks(2)
def test_matrices_of_muon_become_shards() -> str:
    """Momentum moves exactly. Steps orthogonalize in bfloat16, so two may differ in its last places: by 2^-8 of each step, over
    the root of the longer side, times a ratio of at most 7."""
    nets = [Net(PLAIN) for _ in range(2)]
    optimizers = [lowtide.Muon([*net.named_parameters()], lr=0.01) for net in nets]
    for net, opt in zip(nets, optimizers, strict=True):
        train(net, opt, range(3))
    before = snapshot(nets[0], optimizers[0])
    new = relaid(nets[0], ROWS)
    put(optimizers[0], nets[0], new)
    compared = same(matrices(before), matrices(snapshot(new, optimizers[0])))
    for net, opt in zip((new, nets[1]), optimizers, strict=True):
        train(net, opt, range(3, 5))
    pairs: Any = zip(new.parameters(), nets[1].parameters(), strict=True)
    apart = [a.detach().full_tensor() - b.detach() for a, b in pairs if b.dtype == torch.float32]
    worst = max(float(difference.abs().max()) for difference in apart) / 0.01
    assert worst <= 2 * 7 * 2**-8
    return f"{compared} bytes, 0 differ; {worst:.1e} of a step from whole matrices after two"


@on_ranks(2)
def test_votes_go_on_with_other_tensors() -> str:
    """Like votes of workers whose parameters stayed: four votes, with other tensors before the third."""
    ends = []
    for swapped in (False, True):
        params = [torch.nn.Parameter(torch.ones(300))]
        opt = lowtide.distributed.DistributedLion(params, lr=0.1)
        for step in range(4):
            if swapped and step == 2:
                params = [torch.nn.Parameter(params[0].detach().clone())]
                opt.param_groups[0]["params"] = params
                opt.state_dict()
                assert not opt._agreed  # the next vote asks whether all workers have these
            params[0].grad = torch.randn(300, generator=torch.Generator().manual_seed(step + 10 * dist.get_rank()))
            opt.step()
        ends.append((alike(bits(params[0])), state_bits(opt)))
    assert ends[0] == ends[1]
    return f"{len(ends[0][0])} bytes on 2 ranks, 0 differ"


@on_ranks(2)
def test_what_does_not_fit_is_refused_and_nothing_moves() -> str:
    net, opt = build(PLAIN, "adamw", "dynamic8")
    train(net, opt, range(2))
    old, before = opt.param_groups[0]["params"], snapshot(net, opt)
    shards = dict(relaid(net, ROWS).named_parameters())
    few: Any = distribute_tensor(random_tensor("few", 0), shards["few"].device_mesh, shards["few"].placements)
    for swapped, words in (
        (old[:-1], "got 4 tensors, wanted 5 as registered"),
        ([torch.nn.Parameter(few), *old[1:]], "of shape (2, 3000), wanted shape (37, 300)"),
    ):
        opt.param_groups[0]["params"] = swapped
        net.set_gradients(2)
        kind, text = raised(opt.step)
        assert kind == "ValueError" and words in text, text
        opt.param_groups[0]["params"] = old
        assert snapshot(net, opt) == before
    return text
