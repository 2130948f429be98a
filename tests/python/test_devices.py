"""What needs no device: which parameters go to which backend, and what is said where there is none."""

from collections.abc import Callable

import lowtide
import pytest
import torch
from lowtide import _core, devices
from support import parameter


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """All tensors count as on "xpu:0", whose backend is one that no build has."""
    monkeypatch.setitem(devices.KINDS, "xpu", devices.Kind("cuda", lambda _: 0, lambda _: 1 << 30))
    monkeypatch.setattr(devices, "device_of", lambda _: torch.device("xpu", 0))


def test_a_backend_that_is_missing_says_what_backends_says(elsewhere: None, figure: Callable[[str], None]) -> None:
    with pytest.raises(NotImplementedError) as caught:
        lowtide.AdamW([parameter(3)])
    assert lowtide.backends()["cuda"]["detail"] in str(caught.value) and "xpu:0" in str(caught.value)
    figure(str(caught.value))


def test_budgets_of_cpu_parameters() -> None:
    memory = lowtide.Memory(device="1MiB", host="1MiB")
    assert memory.budget()[:1] == (2 << 20,) and memory.budget().device_bytes == -1
    on_device = memory.budget(devices.Place(torch.device("xpu", 0), "xpu:0"))
    assert (on_device.ram_bytes, on_device.device_bytes) == (1 << 20, 1 << 20)
    with pytest.raises(ValueError, match="managed for parameters on cpu"):
        lowtide.AdamW([parameter(3)], memory=lowtide.Memory(managed=True))
    with pytest.raises(TypeError, match="managed"):
        lowtide.AdamW([parameter(3)], memory=lowtide.Memory(managed=1))  # type: ignore[arg-type]


def test_devices_without_a_kind_are_refused() -> None:
    with pytest.raises(ValueError, match="got a tensor on meta, wanted one on cpu or cuda or xpu"):
        lowtide.AdamW([torch.zeros(3, device="meta")])


def test_cpu_parameters_open_no_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise AssertionError("asked for backends")

    monkeypatch.setattr(_core, "backends", fail)
    param = parameter(3)
    param.grad = torch.ones(3)
    lowtide.AdamW([param]).step()
