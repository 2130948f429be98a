"""Divides a step of Muon into batches: which parameters are stepped together, and which rank orthogonalizes which matrix."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from lowtide.devices.exchange import Exchange, Part, balanced
from lowtide.devices.pieces import Coordinates, Route, route_of
from lowtide.devices.sharding import Sharding, local_of
from lowtide.optimizers.orthogonal import cost

IN_FLIGHT = 3  # batches: one on its way to owners, one being computed, one on its way back
_BYTES = 12  # the most per element that travels, on its rank and on its owner
_OF_DIRECTION = 4


class Batch(NamedTuple):
    params: list[int]  # numbers
    exchange: Exchange | None  # moves its matrices; None: they are whole on this rank


class Matrix(NamedTuple):
    """A parameter that Muon steps: a matrix or a stack of matrices."""

    number: int
    shape: torch.Size  # the whole shape
    local: torch.Size
    route: Route | None
    moments: bool  # it has row moments

    @classmethod
    def of(cls, number: int, param: torch.Tensor, sharding: Sharding | None, moments: bool = False) -> Matrix:
        return cls(number, param.shape, local_of(param).shape, route_of(sharding), moments)

    @property
    def stack(self) -> int:
        """How many matrices this rank holds at least a part of."""
        return self.local[0] if len(self.shape) == 3 else 1


def batches_of(others: Sequence[int], matrices: Sequence[Matrix], room: int) -> list[Batch]:
    """others: numbers of parameters that do not move by directions; they go first. room: elements of directions at a time.
    Matrices that travel take as many bytes on a rank, for all batches in flight, unless one matrix per rank takes more."""
    whole = [matrix for matrix in matrices if matrix.route is None]
    batches = [Batch(list(others), None)]
    left = room
    for matrix in whole:
        left -= matrix.local.numel()
        if left < 0 and len(batches[-1].params) > (len(others) if len(batches) == 1 else 0):
            batches.append(Batch([], None))
            left = room - matrix.local.numel()
        batches[-1].params.append(matrix.number)
    by_route: dict[Route, list[Matrix]] = {}
    for matrix in matrices:
        if matrix.route is not None:
            by_route.setdefault(matrix.route, []).append(matrix)
    loads: dict[tuple[object, tuple[int, ...]], list[int]] = {}
    for route, members in by_route.items():
        batches += _exchanged(route, members, room * _OF_DIRECTION // (IN_FLIGHT * _BYTES), loads)
    return [batch for batch in batches if batch.params] or batches


def _exchanged(
    route: Route, matrices: Sequence[Matrix], room: int, loads: dict[tuple[object, tuple[int, ...]], list[int]]
) -> list[Batch]:
    """loads: each rank's multiplications so far, by mesh and dimensions."""
    ranks = math.prod(route.sizes)
    dims = tuple(sorted((*route.cut, *route.copied)))
    load = loads.setdefault((route.mesh, dims), [0] * ranks)
    coordinates = _coordinates(route, dims)
    batches: list[Batch] = []
    members: list[int] = []
    parts: list[Part] = []

    def close() -> None:
        owners = balanced([cost(part.matrices, *part.matrix) for part in parts], ranks, load)
        batches.append(Batch(list(members), Exchange(route, parts, [coordinates[owner] for owner in owners])))
        members.clear()
        parts.clear()

    elements = 0
    for matrix in matrices:
        members.append(matrix.number)
        parts += _parts(matrix, ranks)
        elements += matrix.stack * math.prod(matrix.shape[-2:])
        if elements > room * ranks and len(parts) >= ranks:
            close()
            elements = 0
    if members:
        close()
    return batches


def _parts(matrix: Matrix, ranks: int) -> list[Part]:
    """One part per rank, if there are enough matrices."""
    count = min(matrix.stack, ranks) if math.prod(matrix.shape[-2:]) else 0
    edges = [matrix.stack * k // count for k in range(count + 1)] if count else []
    return [Part(matrix.number, a, b - a, matrix.shape, matrix.moments) for a, b in itertools.pairwise(edges)]


def _coordinates(route: Route, dims: Sequence[int]) -> list[Coordinates]:
    """The coordinates of each rank along the route, in the order of the mesh, which all routes share."""
    found = itertools.product(*(range(route.mesh.size(dim)) for dim in dims))
    places = [dims.index(dim) for dim in (*route.cut, *route.copied)]
    return [tuple(at[place] for place in places) for at in found]
