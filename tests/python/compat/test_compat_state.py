"""`state[p]` of bitsandbytes' classes under bitsandbytes' names, read and written like code for bitsandbytes."""

import copy
import importlib.util
import math

import lowtide
import pytest
import torch
from lowtide.compat.bitsandbytes import functional, optim
from lowtide.state.elsewhere import Elsewhere

from bitsandbytes_runs import NESTED
from support import bits, state_bits

SHAPES = ((64, 256), (5000,), (33, 200))  # rows of whole blocks, one row, and rows that end within blocks there
HALF = 0.9 / 128  # of the largest gap between entries of a dynamic map, as absmax is 1
ROUNDING = 1e-6  # of both values and their difference, of float32 near 1: 2^-24 each, and of the moment's own two products
EIGHT = [name for name in optim.__all__ if name.endswith("8bit")]


def build(name, params, **options):
    lr = {"lr": 0.01, "momentum": 0.9} if name.startswith(("SGD", "LARS", "PagedSGD")) else {}
    return getattr(optim, name)(params, **{**lr, **options})


def stepped(name, shape, steps=2, **options):
    p = torch.nn.Parameter(torch.randn(shape) * 0.1)
    opt = build(name, [p], **options)
    for _ in range(steps):
        p.grad = torch.randn(shape) * 0.01
        opt.step()
    return p, opt, opt.state[p]


@pytest.mark.parametrize("name", ["AdamW8bit", "AdamW", "PagedAdamW8bit", "PagedAdamW32bit", "Adam8bit", "Adam"])
def test_the_dict_of_torchs_class_is_read(name, seed, figure):
    """Reads a dict of AdamW, because weights decay in both of bitsandbytes' classes so. A dict of torch's Adam is refused."""
    p = torch.nn.Parameter(torch.randn(64, 256))
    p.grad = torch.randn_like(p)
    theirs = torch.optim.AdamW([p], lr=1e-3)
    theirs.step()
    opt = build(name, [torch.nn.Parameter(p.detach().clone())], min_8bit_size=0)
    with pytest.raises(ValueError, match="decoupled_weight_decay"):
        opt.load_state_dict(torch.optim.Adam([p]).state_dict())
    opt.load_state_dict(theirs.state_dict())
    (own,) = opt.param_groups[0]["params"]
    found, wanted = opt.state[own], theirs.state[p]["exp_avg"]
    codes = values(found, 1) if "absmax1" in found else found["state1"]
    off = ((codes.view_as(wanted) - wanted).abs() / wanted.abs().amax()).max().item()
    figure(f"{name}: the first moment of torch.optim.AdamW, off by {off:.1e} of its largest")
    assert off <= (HALF + ROUNDING if "absmax1" in found else 0)


def values(state, k, dequantize=functional.dequantize_blockwise):
    codes = state[f"state{k}"]
    return dequantize(codes, absmax=state[f"absmax{k}"], code=state[f"qmap{k}"], blocksize=256)


@pytest.mark.parametrize("name", [name for name in optim.__all__ if name != "GlobalOptimManager"])
def test_keys_shapes_and_types_are_those_of_bitsandbytes(name, seed, figure):
    """Every tensor of the real class after a step exists, except the norm of the update, which is not kept: reading it raises.
    One class fails in its first step on a CPU."""
    bitsandbytes = pytest.importorskip("bitsandbytes")
    compared = 0
    for shape in SHAPES:
        p, _, state = stepped(name, shape)
        q = torch.nn.Parameter(p.detach().clone())
        lr = {"lr": 0.01, "momentum": 0.9} if name.startswith(("SGD", "LARS")) or name == "PytorchLARS" else {}
        theirs = getattr(bitsandbytes.optim, name)([q], **lr)
        q.grad = torch.randn(shape)
        try:
            theirs.step()
        except (NotImplementedError, RuntimeError, ValueError, KeyError, AttributeError):
            continue
        for key, wanted in theirs.state[q].items():
            if key == "unorm_vec":
                assert key not in state and state.get(key) is None
                with pytest.raises(KeyError, match="norm"):
                    state[key]
            elif isinstance(wanted, torch.Tensor) and key != "momentum_buffer":
                assert key in state and (state[key].shape, state[key].dtype) == (wanted.shape, wanted.dtype), key
                compared += 1
    figure(f"{name}: {compared} tensors of the shape and type there")
    assert compared or name in ("PytorchLARS", "AdEMAMix32bit", "PagedAdEMAMix32bit")


@pytest.mark.parametrize("name", EIGHT)
def test_codes_scales_and_map_are_the_state(name, seed, figure):
    """Decoded by bitsandbytes' own function, if present, they are the values of the state: bit for bit if blocks are alike;
    otherwise codes are made again, at most half a gap of the map away."""
    decoders = [functional.dequantize_blockwise]
    if importlib.util.find_spec("bitsandbytes") is not None:
        import bitsandbytes.functional

        decoders.append(bitsandbytes.functional.dequantize_blockwise)
    decoded = 0
    for shape in SHAPES:
        p, opt, state = stepped(name, shape, min_8bit_size=0)
        for k in (k for k in (1, 2) if f"state{k}" in state):
            stacked = state[f"state{k}"].ndim > p.ndim
            for i in range(2 if stacked else 1):
                order = list(opt.engine.signed(0))
                at = order.index(("exp_avg", "exp_avg_slow")[i]) if stacked else k - 1
                wanted = opt._core.export_state(0, at)
                codes, absmax = (state[f"{part}{k}"][i] if stacked else state[f"{part}{k}"] for part in ("state", "absmax"))
                for decode in decoders:
                    got = decode(codes, absmax=absmax, code=state[f"qmap{k}"], blocksize=256)
                    if shape == (33, 200):
                        scale = absmax.repeat_interleave(256)[: got.numel()].view(shape)
                        assert float(((got - wanted).abs() / scale).max()) <= HALF + ROUNDING
                    else:
                        assert bits(got) == bits(wanted), (shape, k)
                    decoded += got.numel()
    figure(f"{name}: {decoded:,} values decoded")
    assert decoded


def test_a_write_is_kept_or_refused(seed, figure):
    """Views write to the state that the next step reads. On copies, every way to write in place raises, and the state is
    unchanged."""
    p, opt, state = stepped("AdamW8bit", (64, 256))
    state["absmax1"].mul_(0.5)
    state["state2"][0] = 7
    state["state1"] = torch.full((64, 256), 200, dtype=torch.uint8)
    assert bits(opt.state[p]["exp_avg_codes"]) == bytes([200]) * 64 * 256 and set(opt.state[p]["exp_avg_sq_codes"][0].tolist()) == {7}
    wanted = values(state, 1)
    assert bits(wanted) == bits(opt._core.export_state(0, 0)) and list(state) == list(dict(state))
    twin = torch.nn.Parameter(p.detach().clone())
    other = build("AdamW8bit", [twin])
    other.load_state_dict(opt.state_dict())
    p.grad = twin.grad = torch.randn(64, 256)
    opt.step()
    other.step()
    assert bits(p) == bits(twin)
    refusals = 0
    for name, shape, key in (("AdamW8bit", (64, 256), "qmap1"), ("AdamW8bit", (33, 200), "state1"),
                             ("AdEMAMix8bit", (64, 256), "absmax1"), ("AdEMAMix", (64, 256), "state1")):  # fmt: skip
        _, opt, state = stepped(name, shape)
        before, tensor = state_bits(opt), state[key]
        value = torch.zeros_like(tensor)

        def set_part(tensor=tensor, value=value):
            tensor[0] = value[0]

        def add(tensor=tensor, value=value):
            tensor += value

        def set_data(tensor=tensor, value=value):
            tensor.data = value

        def assign(state=state, key=key, value=value):
            state[key] = value

        for write in (
            lambda t=tensor: t.zero_(),
            lambda t=tensor, v=value: t.copy_(v),
            lambda t=tensor, v=value: t.data.copy_(v),
            lambda t=tensor: t.view(-1)[:3].fill_(0),
            lambda t=tensor: t.detach().fill_(0),
            lambda t=tensor, v=value: torch.add(v, v, out=t),
            set_part, add, set_data, assign,
        ):  # fmt: skip
            with pytest.raises(RuntimeError, match="copy of optimizer state"):
                write()
            refusals += 1
        assert state_bits(opt) == before and bits(state[key]) == bits(tensor)
        assert type(tensor + 0) is torch.Tensor and float(tensor.float().sum()) == float(tensor.clone().float().sum())
    figure(f"{refusals} writes into copies refused")


def test_streamed_state_is_read_as_resident_state_is(seed, tmp_path):
    """Copies and pickles of an entry, and saved entries, are plain."""
    torch.manual_seed(seed)
    _, resident, there = stepped("AdamW8bit", (512, 256))
    torch.manual_seed(seed)
    memory = lowtide.Memory(host="64KiB", disk=tmp_path, chunk="16KiB")
    _, opt, state = stepped("AdamW8bit", (512, 256), memory=memory)
    assert opt._core.is_paged(0) and isinstance(state["exp_avg_codes"], Elsewhere)
    for key in ("state1", "state2", "absmax1", "absmax2", "qmap1", "qmap2"):
        assert key in state and bits(state[key]) == bits(there[key])
    assert opt.is_paged and not resident.is_paged and optim.PagedAdamW8bit([torch.nn.Parameter(torch.ones(3))]).is_paged
    for plain in (copy.deepcopy(there), resident.state_dict()["state"][0]):
        assert type(plain) is dict and "state1" not in plain
    assert resident.bitsandbytes_state_dict()["state"][0][NESTED].keys() == {
        "state1", "state2", "absmax1", "absmax2", "qmap1", "qmap2"
    }  # fmt: skip


def test_what_code_for_bitsandbytes_asks_an_optimizer(seed):
    opt = optim.LAMB32bit([torch.nn.Parameter(torch.ones(8))], min_8bit_size=5, max_unorm=0.0)
    assert tuple(opt.args) == (32, 5, 0.0, False) and opt.optimizer_name == "lamb"
    with pytest.raises(AttributeError):
        opt.args.optim_bits = 8
    opt = optim.PagedAdam8bit([torch.nn.Parameter(torch.ones(8))])
    assert tuple(opt.args) == (8, 4096, 0.0, False) and opt.optimizer_name == "adam"
    assert opt.page_mng.paged_tensors == []
    opt.page_mng.prefetch_all()
    opt.page_mng.prefetch_all(to_cpu=True)
    assert math.isclose(optim.LAMB([torch.nn.Parameter(torch.ones(8))], max_unorm=0.5).args.max_unorm, 0.5)


def test_initialize_forgets_what_was_overridden(seed):
    """bitsandbytes' tests begin so. Overrides made without the manager stay."""
    manager = optim.GlobalOptimManager.get_instance()
    manager.initialize()
    params = [torch.nn.Parameter(torch.randn(64, 256)) for _ in range(3)]
    manager.override_config(params[2], "optim_bits", 8)
    manager.register_parameters(params)
    kept = lowtide.override(params[1], state="dynamic8")
    opt = optim.Adam(params)
    for p in params:
        p.grad = torch.randn_like(p)
    opt.step()
    assert [opt.state[p]["state1"].dtype for p in params] == [torch.float32, torch.uint8, torch.uint8]
    manager.initialize()
    opt = optim.Adam(params)
    opt.step()
    assert [opt.state[p]["state1"].dtype for p in params] == [torch.float32, torch.uint8, torch.float32]
    kept.remove()
