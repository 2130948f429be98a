"""Work on whole matrices that are sharded. One of the ranks that hold parts of a matrix owns it: pieces travel to the owner,
and pieces of its result travel back.

Messages travel along one dimension of the mesh at a time, in the mesh's groups: one `all_to_all_single` for all matrices of a
batch. Every rank computes the same plan and derives the contents of each message from it, so only elements are sent. No rank
sends to itself.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from lowtide.devices.pieces import Coordinates, Piece, Route, pieces_of
from lowtide.devices.sharding import moment_shape

_WORDS = 2  # elements of 16 bits for one float32


class Part(NamedTuple):
    """Matrices of one parameter that one rank processes."""

    number: int  # the parameter's number
    first: int  # index of the first matrix in this rank's stack
    matrices: int
    shape: torch.Size  # the whole parameter's shape
    moments: bool = False  # the row moments of its matrices, float32, travel behind its elements, of 16 bits

    @property
    def matrix(self) -> tuple[int, int]:
        return self.shape[-2], self.shape[-1]


class _Take(NamedTuple):
    part: int
    start: int
    stop: int
    arrived: bool = False  # taken from received elements, not from this rank's own


@dataclass
class Stage:
    """Messages along one dimension of the mesh. Before and after it, a rank has at most one flat tensor for each part."""

    group: Any = None  # ProcessGroup; None: nobody sends anything
    sent: list[int] = field(default_factory=list)  # elements, by rank of the group
    came: list[int] = field(default_factory=list)
    takes: list[_Take] = field(default_factory=list)  # the ranges to send, in order
    made: dict[int, list[_Take]] = field(default_factory=dict)  # what this rank holds afterwards, by part

    def run(self, flats: dict[int, torch.Tensor], like: torch.Tensor) -> Generator[None]:
        """Replaces the contents of `flats`. Yields once, while messages are in transit. like: a tensor of their dtype and
        device."""
        if self.group is None:
            flats.clear()
            yield
            return
        message = torch.cat([like[:0], *(flats[take.part][take.start : take.stop] for take in self.takes)])
        answer = like.new_empty(sum(self.came))
        work = dist.all_to_all_single(answer, message, self.came, self.sent, group=self.group, async_op=True)
        yield
        if work is not None:
            work.wait()
        had = dict(flats)
        flats.clear()
        for part, takes in self.made.items():
            pieces = [(answer if take.arrived else had[part])[take.start : take.stop] for take in takes]
            flats[part] = pieces[0] if len(pieces) == 1 else torch.cat(pieces)


class Exchange:
    """The messages of one batch: parts of parameters with the same layout."""

    def __init__(self, route: Route, parts: Sequence[Part], owners: Sequence[Coordinates]) -> None:
        """owners: the coordinates of each part's owner along the dimensions of the route."""
        self.parts, self.route, self.owners = list(parts), route, list(owners)
        self._here, self._cuts = route.here, len(route.cut)
        self._pieces = [pieces_of(route, part.shape) for part in parts]
        self._moments = [pieces_of(route, moment_shape(part.shape)) if part.moments else {} for part in parts]
        cuts, copies = range(self._cuts), range(self._cuts, len(route.sizes))
        self.gather = [self._stage(place, back=False) for place in reversed(cuts)]
        self.scatter = [self._stage(place, back=True) for place in (*cuts, *copies)]

    @property
    def owned(self) -> list[int]:
        """Indices of the parts that this rank works on."""
        return [n for n, owner in enumerate(self.owners) if owner == self._here]

    @property
    def stages(self) -> list[Stage]:
        return [*self.gather, *self.scatter]

    def join(self, n: int, flat: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Part `n` as whole matrices, [matrices, rows, columns], and their row moments, float32 [matrices, rows, 1], if it has
        them."""
        part = self.parts[n]
        whole = flat.new_empty(part.matrices, *part.matrix)
        moments = flat.new_empty(part.matrices, part.matrix[0], 1, dtype=torch.float32) if part.moments else None
        start = 0
        for at, piece in self._pieces[n].items():
            stop = start + self._size(n, at)
            elements, own = self._split(n, at, flat[start:stop])
            piece.write(elements, whole)
            if moments is not None and own is not None:
                self._moments[n][at].write(own, moments)
            start = stop
        return whole, moments

    def cut(self, n: int, whole: torch.Tensor, moments: torch.Tensor | None) -> torch.Tensor:
        """The reverse of `join`."""
        pieces = []
        for at, piece in self._pieces[n].items():
            own = None if moments is None else self._moments[n][at].read(moments)
            pieces.append(packed(piece.read(whole), own))
        return torch.cat(pieces)

    def piece(self, n: int) -> Piece:
        """This rank's piece of each matrix of part `n`."""
        return self._pieces[n][self._here[: self._cuts]]

    def own(self, n: int, elements: torch.Tensor, moments: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
        """This rank's share of part `n`, flat, from its part of the parameter and of its row moments. like: gives dtype and device."""
        part, here = self.parts[n], self._here[: self._cuts]

        def flat(of: torch.Tensor, piece: Piece) -> torch.Tensor:
            return of.reshape(-1)[part.first * piece.numel : (part.first + part.matrices) * piece.numel].to(like.device)

        rows = None if moments is None else flat(moments, self._moments[n][here])
        return packed(flat(elements, self._pieces[n][here]).to(like), rows)

    def split(self, n: int, flat: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The reverse of `own`: flat elements, and flat row moments."""
        return self._split(n, self._here[: self._cuts], flat)

    def _split(self, n: int, at: Coordinates, flat: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        count = self.parts[n].matrices * self._pieces[n][at].numel
        if not self.parts[n].moments:
            return flat, None
        return flat[:count], flat[count:].clone().view(torch.float32)  # the clone is aligned

    def _size(self, n: int, at: Coordinates) -> int:
        """Elements of part `n` that the ranks at these coordinates have, with their row moments."""
        more = _WORDS * self._moments[n][at].numel if self.parts[n].moments else 0
        return self.parts[n].matrices * (self._pieces[n][at].numel + more)

    def _stage(self, place: int, back: bool) -> Stage:
        """The stage along dimension `place` of the route. back: messages travel from the owners, not to them."""
        here, mine = self._here, self._here[place]
        line = range(self.route.sizes[place])
        outgoing: dict[int, list[_Take]] = {j: [] for j in line}  # by coordinate
        incoming: dict[int, list[tuple[int, int]]] = {j: [] for j in line}  # parts and numbers of elements
        made: dict[int, list[_Take | int]] = {}  # an int stands for all that comes from that coordinate
        for n, owner in enumerate(self.owners):
            # Messages along later dimensions reach their owner's coordinate before these, and leave it after them.
            if here[place + 1 :] != owner[place + 1 :]:
                continue
            ranges, at = self._ranges(n, place), owner[place]
            others = [j for j in line if j != mine]
            own = _Take(n, *ranges[mine])
            size = own.stop - own.start
            if back and at == mine:
                made[n] = [own]
                for j in others:
                    outgoing[j].append(_Take(n, *ranges[j]))
            elif back:
                made[n] = [at]
                incoming[at].append((n, size))
            elif at == mine:
                made[n] = [_Take(n, 0, size) if j == mine else j for j in line]
                for j in others:
                    incoming[j].append((n, ranges[j][1] - ranges[j][0]))
            else:
                outgoing[at].append(_Take(n, 0, size))
        if not any((*outgoing.values(), *incoming.values())):
            return Stage()  # if any rank of the group had elements, this one would
        return self._addressed(place, outgoing, incoming, made)

    def _addressed(
        self,
        place: int,
        outgoing: dict[int, list[_Take]],
        incoming: dict[int, list[tuple[int, int]]],
        made: dict[int, list[_Take | int]],
    ) -> Stage:
        """Puts the messages of the stage in the order of the group's ranks."""
        group, ranks = self.route.peers(place)
        order = sorted(range(len(ranks)), key=ranks.__getitem__)
        arrivals: dict[tuple[int, int], _Take] = {}
        at = 0
        for j in order:
            for n, size in incoming[j]:
                arrivals[j, n] = _Take(n, at, at + size, arrived=True)
                at += size
        return Stage(
            group,
            [sum(take.stop - take.start for take in outgoing[j]) for j in order],
            [sum(size for _, size in incoming[j]) for j in order],
            [take for j in order for take in outgoing[j]],
            {n: [arrivals[take, n] if isinstance(take, int) else take for take in takes] for n, takes in made.items()},
        )

    def _ranges(self, n: int, place: int) -> list[tuple[int, int]]:
        """For each coordinate along that dimension, the range of its ranks' shares in part `n`, in the flat tensor of a rank
        that has all shares."""
        ranks = self.route.sizes[place]
        if place >= self._cuts:
            return [(0, self._size(n, self._here[: self._cuts]))] * ranks
        sizes = [0] * ranks
        for at in self._pieces[n]:
            if at[:place] == self._here[:place]:
                sizes[at[place]] += self._size(n, at)
        ends = list(accumulate(sizes))
        return list(zip([0, *ends], ends, strict=False))


def packed(elements: torch.Tensor, moments: torch.Tensor | None) -> torch.Tensor:
    """Flat elements, of 16 bits, and flat row moments behind them as bits of that type."""
    return elements if moments is None else torch.cat([elements, moments.contiguous().view(elements.dtype)])


def balanced(works: Sequence[int], ranks: int, loads: list[int]) -> list[int]:
    """Assigns parts with the given amounts of work to owners: the largest part first, to the rank with the least work. loads:
    the work of all batches so far, by rank; is updated."""
    owners, now = [0] * len(works), [0] * ranks
    for n in sorted(range(len(works)), key=lambda n: -works[n]):
        owner = min(range(ranks), key=lambda rank: (now[rank], loads[rank], rank))
        owners[n] = owner
        now[owner] += works[n]
        loads[owner] += works[n]
    return owners
