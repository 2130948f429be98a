"""Memory for the signs of a vote: on the gradients' device for kernels, and on the host for the collective."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch

from lowtide import _core
from lowtide.devices import places
from lowtide.devices.places import EXACT, HOST, Place

BLOCK: int = _core.SIGN_BLOCK  # signs per presence bit
FEEDBACK_BLOCK: int = _core.FEEDBACK_BLOCK  # signs per scale
_MARK = 64  # bytes before the bits, for the word that marks non-finite values
_DTYPES = {"bits": torch.uint8, "presence": torch.uint8, "scales": torch.int16, "zeros": torch.uint8}

# For each gradient: address, elements, index of its first sign.
Items = Sequence[tuple[int, int, int]]


class Parts(NamedTuple):
    """Addresses of the buffers of `SignBuffers` for kernels; 0: no buffer."""

    bits: int
    presence: int
    scales: int
    zeros: int


def signer_at(place: Place) -> _core.Signer:
    """A new signer, for use by one thread at a time."""
    return _core.Signer(place.kind.backend, place.queue(), place.target(EXACT))


@dataclass(frozen=True)
class SignPart:
    """Signs of `SignBuffers` from index `first` on."""

    of: SignBuffers
    first: int
    count: int
    bits: torch.Tensor
    presence: torch.Tensor | None
    zeros: torch.Tensor | None
    previous: torch.Tensor | None
    scales: torch.Tensor | None = None


class SignBuffers:
    """Room for `count` signs, a multiple of `ALIGNMENT`: uint8 CPU tensors `bits` and `presence` or, for error feedback,
    `scales` (bfloat16 as int16). `zeros` and `previous` (the previous result) exist if the tie rule needs them.

    Kernels use copies in memory of `place`, at the addresses `there`; on the CPU, the tensors themselves. `fetch` and `send`
    move everything in one copy; fetching a part takes one copy per tensor. queue: the queue of the place that orders the work.
    stay: the tensors stay on the device, and its group moves them: only the mark is fetched, and nothing is sent.
    """

    first = 0  # index of the first sign

    def __init__(self, count: int, ties: str | None, place: Place = HOST, stay: bool = False) -> None:
        """ties: None for error feedback."""
        self.of, self.count, self.place, self.stay = self, count, place, stay
        sizes = {
            "bits": count // 8,
            "presence": count // (8 * BLOCK) if ties else 0,
            "scales": 0 if ties else count // FEEDBACK_BLOCK * 2,
            "zeros": count // 8 if ties == "zero" else 0,
        }
        self.signer = signer_at(place)
        self._ballot, self._all = sum(sizes.values()) - sizes["zeros"], sum(sizes.values())
        room = _MARK + -(-self._all // 4) * 4  # devices set bits in whole 4-byte words
        if stay:
            whole = places.new_bytes(place, room)
            self._memory = _core.SignMemory(self.signer, room, whole.data_ptr())
            self._marked = _core.SignMemory(self.signer, _MARK)
        else:
            self._marked = self._memory = _core.SignMemory(self.signer, room)
            whole = tensor_at(self._memory.host(), room)
        found: dict[str, torch.Tensor] = {}
        first, there = _MARK, dict.fromkeys(sizes, 0)
        for name, size in sizes.items():
            found[name] = whole[first : first + size].view(_DTYPES[name])
            there[name] = self._memory.there() + first if size else 0
            first += size
        self._mark = ctypes.c_uint32.from_address(self._marked.host())
        self.there = Parts(**there)
        self.bits = found["bits"]
        self.presence = found["presence"] if ties else None
        self.scales = None if ties else found["scales"]
        self.zeros = found["zeros"] if ties == "zero" else None
        self.previous = None
        if ties == "previous":
            self.previous = places.new_bytes(place if stay else HOST, count // 8)

    def pack(self, items: Items, dtype: str, zero_is_plus: bool, threads: int, queue: int) -> None:
        """Packs the signs of gradients and, if it exists, presence. Sets the mark if a value is not finite."""
        with self.using(queue), using(self._marked, queue):
            there, mark = self.there, self._marked.there()
            _core.pack_gradients(
                self.signer, items, dtype, there.bits, there.presence, mark, zero_is_plus, threads, queue
            )  # fmt: skip

    def unpack(self, items: Items, dtype: str, threads: int, queue: int) -> None:
        """Replaces gradients by the result: +1, -1 or 0, times the scales if they exist."""
        there = self.there
        with self.using(queue):
            _core.unpack_gradients(
                self.signer, items, dtype, there.bits, there.presence, there.zeros, there.scales, threads, queue
            )  # fmt: skip

    def clear_mark(self, queue: int) -> None:
        """Clears the mark of non-finite values."""
        self._marked.clear(0, _MARK, queue)

    def fetch(self, queue: int, part: SignPart | None = None) -> bool:
        """Copies the ballot, or a part of it, to the host and waits. Returns True if a value was not finite."""
        if self.stay:
            self._marked.fetch(0, _MARK, queue)
        elif part is None:
            self._memory.fetch(0, _MARK + self._ballot, queue)
        else:
            base = self._memory.host()
            ballot = [tensor for tensor in (part.bits, part.presence) if tensor is not None and tensor.nbytes]
            for first, size in [(0, _MARK), *((tensor.data_ptr() - base, tensor.nbytes) for tensor in ballot)]:
                self._memory.fetch(first, size, queue)
        return bool(self._mark.value)

    def send(self, queue: int) -> None:
        """Copies the result, or a ballot that the host changed, to the gradients' device."""
        if not self.stay:
            self._memory.send(_MARK, self._all, queue)

    def part(self, first: int, count: int) -> SignPart:
        """The `count` signs from `first` on. Both are multiples of `ALIGNMENT`. Not for error feedback."""

        def cut(tensor: torch.Tensor | None, signs: int) -> torch.Tensor | None:
            return None if tensor is None else tensor[first // signs : (first + count) // signs]

        return SignPart(
            self, first, count, self.bits[first // 8 : (first + count) // 8], cut(self.presence, 8 * BLOCK), cut(self.zeros, 8),
            cut(self.previous, 8),
        )  # fmt: skip

    def using(self, queue: int) -> AbstractContextManager[None]:
        """See `using`."""
        return using(self._memory, queue)


@contextmanager
def using(memory: _core.SignMemory, queue: int) -> Iterator[None]:
    """Orders work on `queue` behind earlier uses of the memory by other queues."""
    memory.follow(queue)
    try:
        yield
    finally:
        memory.note_use(queue)


def tensor_at(address: int, size: int) -> torch.Tensor:
    """Wraps bytes of host memory in a tensor, which does not keep them alive."""
    if not size:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.uint8)


def read_bytes(
    tensor: torch.Tensor, place: Place, signers: dict[Place, _core.Signer]
) -> ctypes.Array[ctypes.c_char]:
    """The bytes of a contiguous tensor, which must outlive them. Copies them from a device and waits. signers: open signers by
    place; gets one for `place`."""
    if place.on_host:
        return (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())
    copy = (ctypes.c_char * tensor.nbytes)()
    if place not in signers:
        signers[place] = signer_at(place)
    signers[place].read(tensor.data_ptr(), ctypes.addressof(copy), tensor.nbytes, place.queue())
    return copy
