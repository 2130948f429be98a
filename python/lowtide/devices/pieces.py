"""The rows and columns that each rank of a mesh holds of sharded matrices.

A parameter of two dimensions is a matrix; one of three dimensions is a stack of matrices. Mesh dimensions that cut a stack
between matrices separate ranks that need not communicate. Dimensions that cut matrices, or copy them, form a `Route`.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from lowtide.devices.sharding import Sharding, local_of, moment_shape

Coordinates = tuple[int, ...]  # along the dimensions of a route, or a prefix of them


class Route(NamedTuple):
    """Mesh dimensions with more than one rank whose ranks share the same matrices."""

    mesh: Any  # DeviceMesh
    placements: tuple[Any, ...]
    cut: tuple[int, ...]  # dimensions that cut matrices, in the order of the cuts
    copied: tuple[int, ...]  # dimensions along which ranks hold copies

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(self.mesh.size(dim) for dim in (*self.cut, *self.copied))

    @property
    def here(self) -> Coordinates:
        """This rank's coordinates."""
        own = self.mesh.get_coordinate()
        return tuple(own[dim] for dim in (*self.cut, *self.copied))

    def peers(self, place: int) -> tuple[dist.ProcessGroup, list[int]]:
        """The group along dimension number `place` of the route, and its ranks by coordinate."""
        dim = (*self.cut, *self.copied)[place]
        own = self.mesh.get_coordinate()
        line = self.mesh.mesh[tuple(slice(None) if k == dim else own[k] for k in range(self.mesh.ndim))]
        group = self.mesh.get_group(dim)
        return group, [dist.get_group_rank(group, int(rank)) for rank in line]


def route_of(of: Sharding | None) -> Route | None:
    """The route, or None if every matrix is whole on exactly one rank."""
    if of is None:
        return None
    spec = of.spec
    cut, copied = [], []
    for dim, placement in enumerate(spec.placements):
        if spec.mesh.size(dim) > 1:
            if not hasattr(placement, "dim"):
                copied.append(dim)
            elif placement.dim >= len(spec.shape) - 2:
                cut.append(dim)
    return Route(spec.mesh, tuple(spec.placements), tuple(cut), tuple(copied)) if cut or copied else None


class Piece(NamedTuple):
    """The elements of each matrix of a stack that one rank holds."""

    rows: int
    columns: int
    where: tuple[Any, ...]  # their index in a stack

    @classmethod
    def of(cls, rows: torch.Tensor, columns: torch.Tensor) -> Piece:
        """rows, columns: their numbers in ascending order."""
        runs = [_run(numbers) for numbers in (rows, columns)]
        where = (rows[:, None], columns) if None in runs else tuple(runs)
        return cls(len(rows), len(columns), (slice(None), *where))

    @property
    def numel(self) -> int:
        return self.rows * self.columns

    def read(self, whole: torch.Tensor) -> torch.Tensor:
        """Returns a flat copy of its elements of matrices [number, rows, columns]."""
        return whole[self.where].reshape(-1)

    def write(self, flat: torch.Tensor, whole: torch.Tensor) -> None:
        whole[self.where] = flat.view(len(whole), self.rows, self.columns)


def _run(numbers: torch.Tensor) -> slice | None:
    """The numbers as a slice, if they are consecutive."""
    first, count = int(numbers[0]) if len(numbers) else 0, len(numbers)
    return slice(first, first + count) if count == 0 or int(numbers[-1]) - first + 1 == count else None


def pieces_of(route: Route, shape: torch.Size) -> dict[Coordinates, Piece]:
    """The pieces of each matrix of a parameter with this whole shape, by coordinates along `route.cut`, in their order."""
    cuts = tuple((route.placements[dim], route.mesh.size(dim)) for dim in route.cut)
    return _pieces(cuts, tuple(shape))


def local_moments(param: torch.Tensor, of: Sharding | None) -> torch.Size:
    """The shape of this rank's row moments of a parameter."""
    local, route = local_of(param).shape, route_of(of)
    if route is None:
        return moment_shape(local)
    piece = pieces_of(route, moment_shape(param.shape))[route.here[: len(route.cut)]]
    return torch.Size((*local[:-2], piece.rows, piece.columns))


@functools.lru_cache(maxsize=1024)
def _pieces(cuts: tuple[tuple[Any, int], ...], shape: tuple[int, ...]) -> dict[Coordinates, Piece]:
    numbers = [torch.arange(size) for size in shape[-2:]]
    found = {}
    for coordinates in itertools.product(*(range(ranks) for _, ranks in cuts)):
        parts = list(numbers)
        for (placement, ranks), coordinate in zip(cuts, coordinates, strict=True):
            side = placement.dim - len(shape)
            parts[side] = _split(placement, parts[side], ranks, len(shape))[coordinate]
        found[coordinates] = Piece.of(*parts)
    return found


def _split(placement: Any, numbers: torch.Tensor, ranks: int, ndim: int) -> list[torch.Tensor]:
    """Cuts as torch does, including FSDP's strided shards on top of tensor parallelism."""
    line = numbers.view([-1 if dim == placement.dim else 1 for dim in range(ndim)])
    parts, _ = placement._split_tensor(line, ranks, with_padding=False, contiguous=False)
    return [part.reshape(-1) for part in parts]

