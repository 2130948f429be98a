"""torch's device "toy" (toy_device.cpp), for processes of their own: a process registers one such device, for good."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch
from torch.utils import cpp_extension
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "toy"


class _Module:
    """torch.toy: what torch asks of a device's module. It has no streams."""

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def is_initialized() -> bool:
        return True

    @staticmethod
    def _is_in_bad_fork() -> bool:
        return False

    @staticmethod
    def manual_seed_all(seed: int) -> None:
        pass

    @staticmethod
    def device_count() -> int:
        return 1

    @staticmethod
    def current_device() -> int:
        return 0

    @staticmethod
    def get_amp_supported_dtype() -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


def load(directory: Path) -> ctypes.CDLL:
    """Compiles the device in `directory`, unless it is there, and registers it with this process. Returns its library, which has
    the counters."""
    _setup_privateuseone_for_python_backend(NAME, backend_module=_Module())  # before the library, which needs what it registers
    source = str(Path(__file__).with_suffix(".cpp"))
    cpp_extension.load(
        "toy_device", [source], extra_cflags=["-O0", "-g0"], build_directory=str(directory), is_python_module=False
    )
    found = ctypes.CDLL(str(directory / "toy_device.so"))
    found.toy_bytes_to_host.restype = found.toy_bytes_to_device.restype = ctypes.c_int64
    found.toy_fail_after.argtypes = [ctypes.c_int64]
    return found
