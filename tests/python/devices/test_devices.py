"""Tests that need no device: which backend gets which parameters, and the error if it is missing."""

from collections.abc import Callable

import lowtide
import pytest
import torch
from lowtide import _core
from lowtide.devices import places
from lowtide.memory.budgets import budget_at
from support import parameter


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """All tensors count as on "xpu:0", whose backend is missing."""
    monkeypatch.setitem(places.KINDS, "xpu", places.Kind("cuda", lambda _: 0, lambda _: 1 << 30))
    monkeypatch.setattr(_core, "backends", lambda: {"cuda": {"available": False, "detail": "no driver"}})
    monkeypatch.setattr(places, "device_of", lambda _: torch.device("xpu", 0))


@pytest.mark.parametrize("call", [lambda: lowtide.AdamW([parameter(3)]), lambda: lowtide.sign.pack(torch.randn(3))])
def test_a_backend_that_is_missing_says_what_backends_says(
    call: Callable[[], object], elsewhere: None, figure: Callable[[str], None]
) -> None:
    with pytest.raises(NotImplementedError) as caught:
        call()
    assert lowtide.backends()["cuda"]["detail"] in str(caught.value) and "xpu:0" in str(caught.value)
    figure(str(caught.value))


def test_an_older_torch_lends_no_memory_of_an_xpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """State is then in the driver's memory, and free memory is unknown."""
    place = places.Place(torch.device("xpu", 0), "xpu:0")
    for name in ("get_stream_from_external", "mem_get_info"):
        monkeypatch.delattr(torch.xpu, name)
    assert place.kind.allocator(place.device) is None and (place.free(), place.room()) == (-1, -1)


def test_budgets_of_cpu_parameters() -> None:
    memory = lowtide.Memory(device="1MiB", host="1MiB")
    with pytest.raises(ValueError, match="device='1MiB' for parameters on cpu, wanted host=BYTES"):
        lowtide.AdamW([parameter(3)], memory=memory)
    on_device = memory.budget(places.Place(torch.device("xpu", 0), "xpu:0"))
    assert (on_device.host, on_device.device) == (1 << 20, 1 << 20)
    with pytest.raises(ValueError, match="managed for parameters on cpu"):
        lowtide.AdamW([parameter(3)], memory=lowtide.Memory(managed=True))
    with pytest.raises(TypeError, match="managed"):
        lowtide.AdamW([parameter(3)], memory=lowtide.Memory(managed=1))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="transfer for parameters on cpu"):
        lowtide.AdamW([parameter(3)], memory=lowtide.Memory(transfer="copy"))
    with pytest.raises(TypeError, match="transfer: got 3"):
        lowtide.AdamW([parameter(3)], memory=lowtide.Memory(transfer=3))  # type: ignore[arg-type]
    assert lowtide.Memory(device="auto", host="1MiB").budget()[:1] == (1 << 20,)


def test_budgets_of_cuda_parameters() -> None:
    """Residency is automatic unless something else was requested."""
    place = places.Place(torch.device("cuda", 0), "cuda:0")
    for memory in (None, lowtide.Memory(), lowtide.Memory(device="auto"), lowtide.Memory(host="1MiB", transfer="hybrid")):
        found = budget_at(memory, place)
        assert found and found.automatic and found.device == -1 and not found.managed
        assert found.transfer == (memory.transfer or "" if memory else "")
    for memory in (lowtide.Memory(device="1MiB"), lowtide.Memory(managed=True)):
        found = budget_at(memory, place)
        assert found and not found.automatic
    with pytest.raises(ValueError, match="managed with device='auto'"):
        lowtide.Memory(device="auto", managed=True).budget(place)
    elsewhere = places.Place(torch.device("xpu", 0), "xpu:0")
    assert budget_at(None, elsewhere) is None and budget_at(None, places.HOST) is None
    found = budget_at(lowtide.Memory(device="auto"), elsewhere)
    assert found and found.automatic


def test_arithmetic_where_there_is_no_choice() -> None:
    for optimizer in (lowtide.AdamW([parameter(3)], arithmetic="exact"), lowtide.AdamW([parameter(3)])):
        optimizer.step()
    for name in ("fast", "exactly"):
        with pytest.raises(ValueError, match=f"arithmetic: got '{name}' for parameters on cpu, wanted 'exact'"):
            lowtide.AdamW([parameter(3)], arithmetic=name)
    with pytest.raises(TypeError, match="arithmetic: got 1"):
        lowtide.AdamW([parameter(3)], arithmetic=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="wanted it among the options of the whole optimizer"):
        lowtide.AdamW([{"params": [parameter(3)], "arithmetic": "fast"}])
    place = places.Place(torch.device("cuda", 3), "cuda:3")
    assert [place.target(name) for name in ("exact", "fast")] == ["exact:3", "fast:3"]
    with pytest.raises(ValueError, match="wanted 'exact' or 'fast'"):
        place.target("")


def test_devices_without_a_kind_are_refused() -> None:
    with pytest.raises(ValueError, match="got a tensor on meta, wanted one on cpu or cuda or xpu, or on another torch accelerator"):
        lowtide.AdamW([torch.zeros(3, device="meta")])


def test_cpu_parameters_open_no_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise AssertionError("asked for backends")

    monkeypatch.setattr(_core, "backends", fail)
    param = parameter(3)
    param.grad = torch.ones(3)
    lowtide.AdamW([param]).step()
