"""Options that several benchmarks have."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Sequence
from typing import Protocol, TypeVar


class Named(Protocol):
    @property
    def id(self) -> str: ...


V = TypeVar("V", bound=Named)


def chosen(variants: Sequence[V], wanted: str) -> list[V]:
    """The variants of these names, separated by commas; "": all. For an option's `type`."""
    names = [name for name in wanted.split(",") if name]
    known = [variant.id for variant in variants]
    if unknown := [name for name in names if name not in known]:
        raise ArgumentTypeError(f"got {', '.join(unknown)}, wanted some of {', '.join(known)}")
    return [variant for variant in variants if not names or variant.id in names]
