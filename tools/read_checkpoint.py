#!/usr/bin/env python3
"""Lists and verifies a Lowtide checkpoint. Written from docs/project/checkpoint-format.md alone.

Needs only Python's standard library, which checks some 20 MB of data per second. With the package xxhash, --verify is as fast
as the disk.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import sys
from typing import Any, BinaryIO

MAGIC = b"\x89LTCK\r\n\x1a"
MOST = 1 << 60
MOST_HEADER = 100_000_000
MOST_NAME = 4096

PARAM_KEYS = ["block", "carried", "codec", "group", "name", "sizes", "states", "steps"]
STATE_KEYS = ["codes", "name", "scales", "signed"]

# --- XXH3, 64 bits ----------------------------------------------------------------------------------------------------

M32, M64 = (1 << 32) - 1, (1 << 64) - 1
P32 = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)
P64 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
    "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)


def u32(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


def u64(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")


def fold(a: int, b: int) -> int:
    product = a * b
    return (product ^ (product >> 64)) & M64


def avalanche(h: int) -> int:
    h = ((h ^ (h >> 37)) * 0x165667919E3779F9) & M64
    return h ^ (h >> 32)


def avalanche64(h: int) -> int:
    h = ((h ^ (h >> 33)) * P64[1]) & M64
    h = ((h ^ (h >> 29)) * P64[2]) & M64
    return h ^ (h >> 32)


def mix16(data: bytes, at: int, secret_at: int, seed: int) -> int:
    low, high = (u64(SECRET, secret_at) + seed) & M64, (u64(SECRET, secret_at + 8) - seed) & M64
    return fold(u64(data, at) ^ low, u64(data, at + 8) ^ high)


def xxh3_short(data: bytes, seed: int) -> int:
    """Hashes up to 240 bytes."""
    n = len(data)
    if n == 0:
        return avalanche64(seed ^ u64(SECRET, 56) ^ u64(SECRET, 64))
    if n <= 3:
        combined = data[0] << 16 | data[n >> 1] << 24 | data[-1] | n << 8
        return avalanche64(combined ^ (((u32(SECRET, 0) ^ u32(SECRET, 4)) + seed) & M64))
    if n <= 8:
        seed ^= int.from_bytes((seed & M32).to_bytes(4, "little"), "big") << 32
        flip = ((u64(SECRET, 8) ^ u64(SECRET, 16)) - seed) & M64
        h = (u32(data, n - 4) + (u32(data, 0) << 32)) ^ flip
        h ^= ((h << 49 | h >> 15) ^ (h << 24 | h >> 40)) & M64
        h = (h * 0x9FB21C651E98DF25) & M64
        h = ((h ^ ((h >> 35) + n)) * 0x9FB21C651E98DF25) & M64
        return h ^ (h >> 28)
    if n <= 16:
        low = u64(data, 0) ^ (((u64(SECRET, 24) ^ u64(SECRET, 32)) + seed) & M64)
        high = u64(data, n - 8) ^ (((u64(SECRET, 40) ^ u64(SECRET, 48)) - seed) & M64)
        return avalanche((n + int.from_bytes(low.to_bytes(8, "little"), "big") + high + fold(low, high)) & M64)
    acc = n * P64[0]
    if n <= 128:
        for i in range((n - 1) // 32 + 1):
            acc += mix16(data, 16 * i, 32 * i, seed) + mix16(data, n - 16 * (i + 1), 32 * i + 16, seed)
        return avalanche(acc & M64)
    for i in range(8):
        acc += mix16(data, 16 * i, 16 * i, seed)
    acc = avalanche(acc & M64)
    for i in range(8, n // 16):
        acc += mix16(data, 16 * i, 16 * (i - 8) + 3, seed)
    return avalanche((acc + mix16(data, n - 16, 136 - 17, seed)) & M64)


def xxh3_64(data: bytes, seed: int) -> int:
    """XXH3_64bits_withSeed."""
    n = len(data)
    if n <= 240:
        return xxh3_short(data, seed)
    words = struct.unpack("<24Q", SECRET)
    secret = struct.pack("<24Q", *((w - seed if i & 1 else w + seed) & M64 for i, w in enumerate(words)))
    keys = [struct.unpack_from("<8Q", secret, 8 * i) for i in range(17)]  # 0 to 15: stripes of a block; 16: the scramble
    acc = [P32[2], P64[0], P64[1], P64[2], P64[3], P32[1], P64[4], P32[0]]

    def stripe(lanes: tuple[int, ...], key: tuple[int, ...]) -> None:
        for i in range(8):
            mixed = lanes[i] ^ key[i]
            acc[i] += (mixed & M32) * (mixed >> 32)
            acc[i ^ 1] += lanes[i]  # reduced modulo 2^64 once per block

    lanes_of = struct.Struct("<8Q").unpack_from
    for number in range((n - 1) // 64):
        stripe(lanes_of(data, 64 * number), keys[number % 16])
        if number % 16 == 15:
            for i in range(8):
                a = acc[i] & M64
                acc[i] = ((a ^ (a >> 47) ^ keys[16][i]) * P32[0]) & M64
    stripe(lanes_of(data, n - 64), struct.unpack_from("<8Q", secret, 192 - 64 - 7))
    total = n * P64[0]
    for i in range(0, 8, 2):
        total += fold((acc[i] & M64) ^ u64(secret, 11 + 8 * i), (acc[i + 1] & M64) ^ u64(secret, 19 + 8 * i))
    return avalanche(total & M64)


try:
    from xxhash import xxh3_64_intdigest as checksum
except ImportError:
    checksum = xxh3_64

# --- The format -------------------------------------------------------------------------------------------------------


class Refused(Exception):
    """The file is not a checkpoint, or is truncated or corrupt."""


def require(condition: bool, message: str) -> None:
    if not condition:
        raise Refused(message)


def integer(value: Any, what: str, most: int) -> int:
    require(type(value) is int and 0 <= value <= most, f"{what} is {str(value)[:50]}; wanted 0 to {most}")
    return value


def text(value: Any, what: str, most: int | None = MOST_NAME, least: int = 1) -> str:
    require(type(value) is str, f"{what} is not a string")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise Refused(f"{what} is not UTF-8") from None
    require(size >= least and (most is None or size <= most), f"{what} has {size} bytes")
    return value


def sorted_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    require(all(a < b for a, b in zip(keys, keys[1:])), "keys of the header are not sorted, or one is there twice")
    return dict(pairs)


def keys_of(value: Any, what: str, keys: list[str]) -> None:
    require(type(value) is dict and list(value) == keys, f"{what} is not an object with the keys {', '.join(keys)}")


def list_of(value: Any, what: str, most: int | None = None) -> list[Any]:
    require(type(value) is list and (most is None or len(value) <= most), f"{what} is not a list of at most {most}")
    return value


class Checkpoint:
    """header: the checked header of the file. arrays: (parameter, state, "codes" or "scales", offset in the file, bytes)."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.length = os.fstat(file.fileno()).st_size
        self.read_prefix()
        head = self.read(0, self.data_at)
        table = self.read(self.data_at + self.data_bytes, 8 * self.pieces + 8)
        root = u64(table, 8 * self.pieces)
        require(checksum(head + table[:-8], 0) == root, "garbled: the checksum of its header and table is wrong")
        self.table = struct.unpack(f"<{self.pieces}Q", table[:-8])
        require(not any(head[64 + self.header_bytes :]), "the gap after its header is not zero")
        self.read_header(head[64 : 64 + self.header_bytes])

    def read(self, offset: int, size: int) -> bytes:
        self.file.seek(offset)
        data = self.file.read(size)
        require(len(data) == size, f"truncated: no {size} bytes at {offset}")
        return data

    def read_prefix(self) -> None:
        require(self.length >= 64, f"truncated, or not a checkpoint: {self.length} bytes")
        prefix = self.read(0, 64)
        require(prefix[:8] == MAGIC, "not a checkpoint of Lowtide")
        version, self.piece_bytes, self.header_bytes, self.data_bytes, self.pieces, length, zero, total = struct.unpack(
            "<IIQQQQQQ", prefix[8:]
        )
        require(version == 2, f"format version {version}; this tool reads version 2")
        require(checksum(prefix[:56], 0) == total, "garbled: the checksum of the first 64 bytes is wrong")
        power = self.piece_bytes & (self.piece_bytes - 1) == 0
        require(power and 4096 <= self.piece_bytes <= 1 << 24, f"pieces of {self.piece_bytes} bytes")
        require(self.header_bytes <= MOST_HEADER, f"a header of {self.header_bytes} bytes")
        self.data_at = (64 + self.header_bytes + 4095) // 4096 * 4096
        wanted = self.data_at + self.data_bytes + 8 * self.pieces + 8
        require(zero == 0 and length == wanted, "the sizes in its first 64 bytes contradict each other")
        require(self.length == length, f"it has {self.length} bytes; wanted {length}")

    def read_header(self, raw: bytes) -> None:
        def refuse(number: str) -> None:
            raise Refused(f"the header holds {number[:50]}; wanted integers")

        require(raw[:1] == b"{", "the header is not a JSON object")
        try:
            self.header = json.loads(
                raw.decode("utf-8"), object_pairs_hook=sorted_object, parse_float=refuse, parse_constant=refuse
            )
        except (ValueError, RecursionError) as error:
            raise Refused(f"the header is not valid JSON: {error}") from None
        keys_of(self.header, "the header", ["metadata", "params", "rule"])
        text(self.header["metadata"], "the metadata", None, 0)
        text(self.header["rule"], "the rule")
        self.arrays: list[tuple[dict[str, Any], dict[str, Any], str, int, int]] = []
        self.end = 0
        names = set()
        for param in list_of(self.header["params"], "params"):
            self.read_param(param)
            require(param["name"] not in names, f"two parameters are named {param['name'][:100]!r}")
            names.add(param["name"])
        require(self.end == self.data_bytes, f"arrays end at {self.end}; the data has {self.data_bytes} bytes")
        pieces = sum(-(-array[4] // self.piece_bytes) for array in self.arrays)
        require(pieces == self.pieces, f"arrays have {pieces} pieces; the file has {self.pieces}")

    def read_param(self, param: Any) -> None:
        keys_of(param, "a parameter", PARAM_KEYS)
        name = text(param["name"], "the name of a parameter")
        text(param["codec"], f"the codec of {name!r}", MOST_NAME, 0)
        block = integer(param["block"], f"block of {name!r}", 2**31 - 1)
        for number in list_of(param["carried"], f"carried of {name!r}", 16):
            integer(number, f"a carried number of {name!r}", M64)
        integer(param["group"], f"group of {name!r}", 2**31 - 1)
        integer(param["steps"], f"steps of {name!r}", 2**63 - 1)
        product = numel = 1
        for size in list_of(param["sizes"], f"sizes of {name!r}", 64):
            product *= integer(size, f"a size of {name!r}", MOST) or 1
            numel *= size
            require(product <= MOST, f"{name!r} has more than 2^60 elements")
        rows = param["sizes"][0] if len(param["sizes"]) > 1 else 1
        row = numel // rows if numel else 0
        blocks = rows * -(-row // block) if block else 0
        names = [text(state.get("name"), "the name of a state") for state in self.states_of(param)]
        require(len(set(names)) == len(names), f"two states of {name!r} have one name")
        for state in param["states"]:
            require(type(state["signed"]) is bool, f"signed of {name!r} is not true or false")
            codes = self.array(param, state, "codes")
            widths = [rows * -(-row * bits // 8) for bits in (1, 2, 4, 8, 16, 32, 64)]
            require(codes in widths, f"{name!r} has {codes} bytes of codes for {rows} rows of {row} elements")
            scales = self.array(param, state, "scales")
            halves = 2 if row > 1 and codes == rows * -(-row // 2) else 1  # 4-bit codes have twice as many scales
            wanted = 0 if state["name"] == "residual" else 4 * halves * blocks  # residuals of weights have none
            require(scales == wanted, f"{name!r} has {scales} bytes of scales for {blocks} blocks")

    def states_of(self, param: dict[str, Any]) -> list[dict[str, Any]]:
        states = list_of(param["states"], f"states of {param['name']!r}", 64)
        for state in states:
            keys_of(state, "a state", STATE_KEYS)
        return states

    def array(self, param: dict[str, Any], state: dict[str, Any], which: str) -> int:
        pair = list_of(state[which], which, 2)
        require(len(pair) == 2, f"{which} is not [offset, bytes]")
        offset, size = integer(pair[0], "an offset", MOST), integer(pair[1], "a number of bytes", MOST)
        require(offset == self.end, f"an array starts at {offset}; the one before it ends at {self.end}")
        self.arrays.append((param, state, which, self.data_at + offset, size))
        self.end += size
        return size

    def verify(self) -> None:
        """Checks every piece, the only check left after opening."""
        index = 0
        for param, state, which, offset, size in self.arrays:
            for at in range(0, size, self.piece_bytes):
                piece = self.read(offset + at, min(self.piece_bytes, size - at))
                require(
                    checksum(piece, index) == self.table[index],
                    f"garbled: piece {index}, {len(piece)} bytes at {offset + at} ({which} of state {state['name']!r} "
                    f"of parameter {param['name']!r})",
                )
                index += 1


def listing(checkpoint: Checkpoint) -> str:
    header = checkpoint.header
    lines = [
        f"rule {header['rule']}, {len(header['params'])} parameters, {checkpoint.data_bytes} bytes of state in "
        f"{checkpoint.pieces} pieces, {len(header['metadata'])} characters of metadata"
    ]
    for param in header["params"]:
        carried = [struct.unpack("<d", bits.to_bytes(8, "little"))[0] for bits in param["carried"]]
        lines.append(
            f"{param['name']!r}: sizes {param['sizes']}, group {param['group']}, {param['steps']} steps, "
            f"codec {param['codec']!r}, block {param['block']}, carried {carried}"
        )
        for state in param["states"]:
            sign = "signed" if state["signed"] else "unsigned"
            codes, scales = (f"{state[k][1]} bytes at {checkpoint.data_at + state[k][0]}" for k in ("codes", "scales"))
            lines.append(f"  {state['name']!r}, {sign}: codes {codes}; scales {scales}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", metavar="path", help="a checkpoint")
    parser.add_argument("--verify", action="store_true", help="check all data too, not only header and table")
    parser.add_argument("--quiet", action="store_true", help="no listing")
    options = parser.parse_args()
    return max([show(path, options) for path in options.paths])


def show(path: str, options: argparse.Namespace) -> int:
    try:
        with open(path, "rb") as file:
            checkpoint = Checkpoint(file)
            if not options.quiet:
                # The terminal's encoding may lack characters in names.
                encoding = sys.stdout.encoding or "utf-8"
                print(listing(checkpoint).encode(encoding, "backslashreplace").decode(encoding))
            if options.verify:
                checkpoint.verify()
    except (OSError, Refused) as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 1
    if options.verify:
        print(f"verified: {checkpoint.pieces} pieces, {checkpoint.data_bytes} bytes of state, header, table and root")
    else:
        print("header, table and root are right; the data was not checked (--verify does)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
