"""`bitsandbytes.cextension`, as far as optimizers use it: `lib` has the C functions of liblowtide_bnb (docs/cpp.md)."""

from __future__ import annotations

import ctypes as ct
from functools import cached_property
from pathlib import Path
from typing import Any

PATH = Path(__file__).parents[2] / "liblowtide_bnb.so"

_PAGING: dict[str, tuple[Any, list[Any]]] = {  # result and parameters
    "cget_managed_ptr": (ct.c_void_p, [ct.c_size_t]),
    "cfree_managed_ptr": (None, [ct.c_void_p]),
    "cprefetch": (None, [ct.c_void_p, ct.c_size_t, ct.c_int32]),
    "cfill_fp32": (None, [ct.c_void_p, ct.c_void_p, ct.c_float, ct.c_int64]),
    "cfill_uint8": (None, [ct.c_void_p, ct.c_void_p, ct.c_uint8, ct.c_int64]),
    "lt_bnb_place": (ct.c_char_p, []),
    "lt_bnb_use_backend": (ct.c_int, [ct.c_char_p, ct.c_char_p, ct.c_void_p]),
    "lt_bnb_set_threads": (ct.c_int, [ct.c_int]),
}
_ERRORS = ("lt_bnb_last_error", "lt_bnb_clear_error")


class NativeLibrary:
    """The C functions as attributes or items. A function that fails raises RuntimeError with the message of the library, for
    which a C caller has to ask. The first use loads the library; raises OSError if it is missing."""

    compiled_with_cuda = False

    @cached_property
    def _lib(self) -> ct.CDLL:
        if not PATH.exists():
            raise OSError(
                f"{PATH} does not exist: this build of Lowtide has no liblowtide_bnb. Build from source with "
                "CMAKE_ARGS=-DLOWTIDE_BNB=ON"
            )
        loaded = ct.CDLL(str(PATH))
        loaded.lt_bnb_last_error.restype = ct.c_char_p
        return loaded

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            function = getattr(self._lib, name)
        except AttributeError:
            raise AttributeError(f"{name}: liblowtide_bnb has no such function: it has bitsandbytes' functions for optimizers") from None
        if name in _PAGING:
            function.restype, function.argtypes = _PAGING[name]
        elif name not in _ERRORS:
            function.restype = None
        if name not in _ERRORS:
            function.errcheck = self._check
        setattr(self, name, function)
        return function

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def _check(self, result: Any, function: Any, arguments: Any) -> Any:
        if said := self._lib.lt_bnb_last_error():
            self._lib.lt_bnb_clear_error()
            raise RuntimeError(f"{function.__name__}: {said.decode()}")
        return result


lib = NativeLibrary()
