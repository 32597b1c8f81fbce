#!/usr/bin/env python3
"""A libnccl.so.2 with code for one kind of GPU alone, packed: small enough to travel (./dev gpu --bundle --nccl).

    scripts/thin_nccl.py pack LIBRARY 90 OUT     # libnccl.so.2, for compute capability 9.0 -> libnccl.so.2.xz
    scripts/thin_nccl.py unpack PACKED OUT

What is not for that GPU becomes zeros: other GPUs' code in the section .nv_fatbin, all of __nv_relfatbin, which only linkers of
device code read, and what debuggers read. Nothing moves, so for that GPU the library is what it was.
"""
import collections
import lzma
import pathlib
import shutil
import struct
import sys

MAGIC = 0xBA55ED50  # of a fat binary's header: magic, version, its own size, the size of what follows
ALIGNMENT = 8  # of such a header
ELF = 2  # kind of an entry: code; PTX is 1
ENTRY = struct.Struct("<HHIQ")  # kind, version, the header's size, the size of what follows
ARCHITECTURE_AT = 28  # in an entry's header


def sections(data: bytearray) -> list[tuple[str, int, int]]:
    """(name, offset, size) of those of a 64-bit ELF file."""
    if data[:5] != b"\x7fELF\x02":
        sys.exit("thin_nccl: it is no 64-bit ELF file")
    table, = struct.unpack_from("<Q", data, 0x28)
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    headers = [struct.unpack_from("<I20xQQ", data, table + number * size) for number in range(count)]
    begin = headers[names][1]
    return [(data[begin + name:data.index(0, begin + name)].decode(), offset, length) for name, offset, length in headers]


def entries(data: bytearray, begin: int, end: int) -> list[tuple[int, int, int, int]]:
    """(kind, architecture, offset, size) of what the fat binaries between two offsets have inside."""
    found = []
    while begin + 16 <= end:
        magic, _, header, size = struct.unpack_from("<IHHQ", data, begin)
        if magic != MAGIC:
            begin += ALIGNMENT
            continue
        at, stop = begin + header, begin + header + size
        begin = stop + -stop % ALIGNMENT
        while at < stop:
            kind, _, header, size = ENTRY.unpack_from(data, at)
            architecture, = struct.unpack_from("<I", data, at + ARCHITECTURE_AT)
            found.append((kind, architecture, at + header, size))
            at += header + size
    return found


def thin(data: bytearray, architecture: int) -> None:
    def clear(offset: int, size: int) -> None:
        data[offset:offset + size] = bytes(size)

    kept = collections.Counter()
    for name, offset, size in sections(data):
        if name.startswith(".debug_") or name == "__nv_relfatbin":
            clear(offset, size)
        elif name == ".nv_fatbin":
            for kind, found, at, length in entries(data, offset, offset + size):
                kept[found] += kind == ELF
                if kind != ELF or found != architecture:
                    clear(at, length)
    if not kept[architecture]:
        sys.exit(f"thin_nccl: it has no code for compute capability {architecture / 10}, but for "
                 f"{', '.join(str(each / 10) for each in sorted(kept)) or 'no GPU'}")


def main(words: list[str]) -> None:
    match words:
        case ["pack", library, architecture, out] if architecture.isdigit():
            data = bytearray(pathlib.Path(library).read_bytes())
            thin(data, int(architecture))
            with lzma.open(out, "wb") as file:
                file.write(data)
        case ["unpack", packed, out]:
            with lzma.open(packed) as source, open(f"{out}.new", "wb") as file:
                shutil.copyfileobj(source, file)
            pathlib.Path(f"{out}.new").replace(out)  # whole, or not there
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
