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


class Part(NamedTuple):
    """Matrices of one parameter that one rank processes."""

    number: int  # the parameter's number
    first: int  # index of the first matrix in this rank's stack
    matrices: int
    shape: torch.Size  # the whole parameter's shape

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

    def join(self, n: int, flat: torch.Tensor) -> torch.Tensor:
        """Joins part `n` to whole matrices [matrices, rows, columns]."""
        part = self.parts[n]
        whole = flat.new_empty(part.matrices, *part.matrix)
        start = 0
        for piece in self._pieces[n].values():
            stop = start + part.matrices * piece.numel
            piece.write(flat[start:stop], whole)
            start = stop
        return whole

    def cut(self, n: int, whole: torch.Tensor) -> torch.Tensor:
        """Reverses `join`."""
        return torch.cat([piece.read(whole) for piece in self._pieces[n].values()])

    def piece(self, n: int) -> Piece:
        """This rank's piece of each matrix of part `n`."""
        return self._pieces[n][self._here[: self._cuts]]

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
        """For each coordinate along that dimension, the range of its ranks' shares of part `n` in a flat tensor of all
        shares."""
        count, pieces = self.parts[n].matrices, self._pieces[n]
        ranks = self.route.sizes[place]
        if place >= self._cuts:
            return [(0, count * self.piece(n).numel)] * ranks
        sizes = [0] * ranks
        for at, piece in pieces.items():
            if at[:place] == self._here[:place]:
                sizes[at[place]] += count * piece.numel
        ends = list(accumulate(sizes))
        return list(zip([0, *ends], ends, strict=False))


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
