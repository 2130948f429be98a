"""bitsandbytes' paged memory in Python: its names, arguments and values on liblowtide_bnb, and its way to count state."""

import copy
import ctypes
import gc
import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import bnb_library
import emulated_cuda
import pytest
import torch
from lowtide.compat import bitsandbytes as ours
from lowtide.compat.bitsandbytes import functional as F
from stand_in import StandIn

Figure = Callable[[str], None]
NAMES = ("get_paged", "prefetch_tensor", "elementwise_func", "fill", "get_ptr")


@pytest.fixture(autouse=True)
def _library() -> None:
    """Skips if the build lacks the library."""
    bnb_library.library()


def test_names_and_arguments_are_those_of_bitsandbytes(figure: Figure) -> None:
    bnb = pytest.importorskip("bitsandbytes")
    theirs = bnb.functional
    for name in NAMES:
        wanted, found = (inspect.signature(getattr(module, name)).parameters for module in (theirs, F))
        assert list(found) == list(wanted)
        assert all(found[key].default == one.default for key, one in wanted.items())
    methods = [name for name in vars(theirs.GlobalPageManager) if not name.startswith("_")]
    for name in methods:
        wanted, found = (inspect.signature(getattr(cls, name)) for cls in (theirs.GlobalPageManager, F.GlobalPageManager))
        assert list(found.parameters) == list(wanted.parameters)
    assert F.FIRST_CUDA_DEVICE == theirs.FIRST_CUDA_DEVICE
    figure(f"{len(NAMES)} functions and {len(methods)} methods of the page manager: names, order and defaults as there")


def test_bitsandbytes_own_functions_do_the_same_on_this_library(monkeypatch: pytest.MonkeyPatch, figure: Figure) -> None:
    """Its functional.py, with our library, gives the same tensors as our functions."""
    bnb = pytest.importorskip("bitsandbytes")
    theirs = bnb.functional
    monkeypatch.setattr(theirs, "lib", ours.cextension.lib)
    compared = 0
    for dtype in (torch.float32, torch.uint8):
        for shape in ((1,), (7, 9), (300, 400)):
            made = []
            for module in (theirs, F):
                tensor = module.get_paged(*shape, dtype=dtype)
                assert tensor.is_paged and tensor.page_deviceid == 0 and not tensor.any()
                module.fill(tensor, 7)
                module.prefetch_tensor(tensor)
                module.prefetch_tensor(tensor, to_cpu=True)
                made.append(tensor)
            assert torch.equal(*made) and made[0].shape == made[1].shape and made[0].dtype == made[1].dtype
            assert bool((made[1] == 7).all())
            compared += made[1].numel()
    figure(f"{compared} elements, in memory of {ours.cextension.lib.lt_bnb_place().decode()}: as with bitsandbytes' functions")


def test_elementwise_functions(figure: Figure) -> None:
    a = F.get_paged(5, 3)
    F.arange(a)
    assert torch.equal(a, torch.arange(15.0).view(5, 3))
    F.elementwise_func("_mul", a, a.clone(), 0)
    assert torch.equal(a, torch.arange(15.0).square().view(5, 3))
    managed: Any = F.get_paged(8, dtype=torch.uint8)
    managed.is_managed = True  # prefetched before
    F.fill(managed, 255)
    plain = torch.zeros(4)  # where bitsandbytes asks None whether it is paged
    F.fill(plain, 2.5)
    assert managed.tolist() == [255] * 8 and plain.tolist() == [2.5] * 4
    none = F.get_paged(0, 4)
    F.fill(none, 1)
    F.prefetch_tensor(none)
    figure("fill, arange and _mul: the values of their names")


def test_what_does_not_fit_is_refused() -> None:
    a, b = F.get_paged(4), F.get_paged(5)
    a.fill_(3)
    lib = ours.cextension.lib
    anything: Any = torch.zeros(4, 2).t()
    cases: list[tuple[type[Exception], str, Callable[[], object]]] = [
        (ValueError, "A: got a tensor that is not paged, wanted one of get_paged", lambda: F.prefetch_tensor(torch.zeros(3))),
        (ValueError, "B: got torch.float32 of shape", lambda: F.elementwise_func("_mul", a, b, 0)),
        (ValueError, "B: got NoneType, wanted a tensor for _mul", lambda: F.elementwise_func("_mul", a, None, 0)),
        (ValueError, "A: got torch.float32 of shape", lambda: F.fill(anything, 1)),
        (NotImplementedError, "got cosine of torch.float32", lambda: F.elementwise_func("cosine", a, None, 0)),
        (NotImplementedError, "got fill of torch.float16", lambda: F.fill(a.half(), 0)),
        (ValueError, "shape: got", lambda: F.get_paged(-1)),
        (RuntimeError, "cget_managed_ptr: .* to allocate", lambda: lib.cget_managed_ptr(0)),
        (RuntimeError, "cprefetch: .*wanted memory that cget_managed_ptr returned", lambda: lib.cprefetch(16, 8, 0)),
        (RuntimeError, "lt_bnb_use_backend", lambda: lib.lt_bnb_use_backend(b"abacus", b"", None)),
        (AttributeError, "cquantize: liblowtide_bnb has no such function", lambda: lib.cquantize),
        (RuntimeError, "wanted GlobalPageManager.get_instance", F.GlobalPageManager),
    ]
    for kind, words, call in cases:
        with pytest.raises(kind, match=words):
            call()
    assert a.tolist() == [3.0] * 4


def test_memory_goes_with_its_last_tensor(figure: Figure) -> None:
    """bitsandbytes has no way to free it."""
    freed: list[int] = []
    lib = ours.cextension.lib
    free = lib.cfree_managed_ptr

    def note(address: int) -> None:
        freed.append(address)
        free(address)

    lib.__dict__["cfree_managed_ptr"] = note
    try:
        a = F.get_paged(1000)
        address, part = a.data_ptr(), a[10:20]
        del a
        gc.collect()
        assert not freed and part.sum() == 0
        del part
        gc.collect()
    finally:
        lib.__dict__["cfree_managed_ptr"] = free
    assert freed == [address]
    figure("freed once, when the last view was gone")


def test_the_page_manager_prefetches_the_first_last(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = F.GlobalPageManager.get_instance()
    assert manager is F.GlobalPageManager.get_instance()
    manager.initialize()
    order: list[tuple[int, int]] = []
    monkeypatch.setitem(ours.cextension.lib.__dict__, "cprefetch", lambda at, size, device: order.append((at, device)))
    tensors = [F.get_paged(8, device=torch.device("xpu", number)) for number in range(3)]
    manager.paged_tensors.extend(tensors)
    manager.prefetch_all()
    manager.prefetch_all(to_cpu=True)
    addresses = [tensor.data_ptr() for tensor in tensors]
    assert order == [(addresses[k], k) for k in (2, 1, 0)] + [(addresses[k], -1) for k in (2, 1, 0)]
    manager.initialize()
    assert manager.paged_tensors == []


MANAGED_BY_CUDA = """
import torch
from lowtide.compat.bitsandbytes import cextension, functional as F
a = F.get_paged(100, 100)
F.fill(a, 2.0); F.prefetch_tensor(a); F.prefetch_tensor(a, to_cpu=True)
assert bool((a == 2).all())
print(cextension.lib.lt_bnb_place().decode())
"""


def test_on_cuda_the_memory_is_managed(figure: Figure) -> None:
    """With the emulated runtime, in a separate process, because the library opens its device once."""
    path = emulated_cuda.plugin()
    if path is None:
        pytest.skip("no emulated CUDA: it is not built (make build; needs Boost.Context)")
    environment = {**os.environ, "LOWTIDE_CUDA_PLUGIN": str(path), "LT_CUDA_EMULATOR_STRICT": "1"}
    done = subprocess.run([sys.executable, "-c", MANAGED_BY_CUDA], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("cuda")
    figure(f"filled and prefetched: {done.stdout.strip()}")


def counted(model: torch.nn.Module, opt: torch.optim.Optimizer) -> int:
    """Bytes of state, as bitsandbytes' memory benchmark counts them."""
    total = 0
    for param in model.parameters():
        for value in opt.state.get(param, {}).values():
            if isinstance(value, torch.Tensor) and value.ndim:  # a step count is no array
                total += value.numel() * value.element_size()
    return total


def test_loops_count_the_state_of_paged_classes(seed: int, figure: Figure) -> None:
    seen = {}
    for name, each in (("AdamW", 8), ("PagedAdamW", 8), ("PagedLion", 4), ("AdamW8bit", 2), ("PagedAdamW8bit", 2)):
        model = torch.nn.Linear(512, 512, bias=False)
        opt = getattr(ours.optim, name)(model.parameters(), lr=1e-3)
        model(torch.randn(4, 512)).square().mean().backward()
        opt.step()
        seen[name] = counted(model, opt)
        # 8 bits: and a float32 scale for each 256 elements of a state.
        assert seen[name] == each * 512**2 + (2 * 4 * 512**2 // 256 if each == 2 else 0)
        assert opt.state[model.weight]["state1"].nbytes == 512**2 * (1 if each == 2 else 4)
    figure(f"{seen} bytes of a weight of {512**2} elements")


def test_loops_count_the_state_that_is_on_a_device(device: StandIn, seed: int, figure: Figure) -> None:
    params = device.parameters([torch.randn(512, 512)])
    model = torch.nn.ParameterList(params)
    opt = ours.optim.PagedAdamW(model.parameters(), lr=1e-3, synchronous=True)
    params[0].grad = device.tensor(torch.randn(512, 512))
    opt.step()
    # Memory that the host shares has the new values without waiting: what the step queued is done.
    before = params[0].detach().clone()
    device.synchronize()
    assert torch.equal(before, params[0])
    assert counted(model, opt) == 8 * 512**2
    assert opt.state[params[0]]["state1"].nbytes == 4 * 512**2
    figure(f"{counted(model, opt)} bytes of 512 x 512 elements; the synchronous step was done when it returned")


def test_synchronous_goes_with_copies() -> None:
    p = torch.nn.Parameter(torch.ones(8))
    assert ours.optim.PagedLion([p]).synchronous is False
    opt = ours.optim.PagedLion([p], synchronous=True)
    p.grad = torch.ones(8)
    opt.step()
    assert copy.deepcopy(opt).synchronous and opt.synchronous and opt.step(lambda: 0.5) == 0.5


def test_pointers_are_those_of_tensors() -> None:
    x = torch.zeros(3)
    pointer = F.get_ptr(x)
    assert isinstance(pointer, ctypes.c_void_p) and pointer.value == x.data_ptr() and F.get_ptr(None) is None
