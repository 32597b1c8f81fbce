"""The compiled kernels: for which GPUs they are, which kernels there are, how large they are, and that the library holds them.
Usage: kernel_image.py IMAGE [--architectures 80 90] [--kernels kernels.h] [--library libtutti.so]

Prints a table of what is in the image, and how long nvcc took where ninja's log beside it says so; by itself, without the
options, that is all it does. Exit status: 1 when something is not as it must be.

A fat binary is a header of 16 bytes (magic, version, its own size, the size of what follows) and entries, each a header of its
own (kind at 0: 1 is PTX, 2 ELF; its own size at 4, the size of what follows at 8, compressed size at 16, architecture at 28,
size before compression at 56) and data, which nvcc compresses with zstd.
"""
import argparse
import ctypes
import dataclasses
import pathlib
import re
import struct
import sys

MAGIC = 0xBA55ED50
KINDS = {1: "PTX", 2: "ELF"}
# A third more than there is. Near it, look for unused instances of templates; docs/cuda.md has the figures.
MOST_BYTES = 900_000         # of an entry, as it lies in the library
MOST_CODE_BYTES = 6_000_000  # of all kernels of an architecture, as they lie in a GPU's memory


@dataclasses.dataclass
class Entry:
    kind: str
    architecture: int
    bytes: int
    raw: bytes | None  # None: it could not be decompressed here

    def name(self):
        return f"{self.kind} for sm_{self.architecture}"

    def code_bytes(self):
        """By kernel; of PTX, which becomes code on the GPU's machine, the names alone."""
        if self.kind == "PTX":
            return {name.decode(): 0 for name in re.findall(rb"\.entry (\w+)", self.raw)}
        sections, width, count, names = struct.unpack_from("<Q10xHHH", self.raw, 40)
        headers = [struct.unpack_from("<II4QII", self.raw, sections + i * width) for i in range(count)]
        text = headers[names][4]
        found = {}
        for header in headers:
            name = self.raw[text + header[0]:self.raw.index(b"\0", text + header[0])].decode()
            if name.startswith(".text."):
                found[name.removeprefix(".text.")] = header[5]
        return found


def decompressor():
    """A function of (data, size), or None where there is no libzstd."""
    try:
        library = ctypes.CDLL("libzstd.so.1")
    except OSError:
        return None
    library.ZSTD_decompress.restype = ctypes.c_size_t
    library.ZSTD_decompress.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]

    def decompress(data, size):
        raw = ctypes.create_string_buffer(size)
        return raw.raw if library.ZSTD_decompress(raw, size, data, len(data)) == size else None
    return decompress


def entries_of(image):
    """Raises ValueError when it is no fat binary."""
    magic, _, head, size = struct.unpack_from("<IHHQ", image)
    if magic != MAGIC or head + size != len(image):
        raise ValueError(f"it is no fat binary: magic {magic:#x}, {head} + {size} bytes; expected {MAGIC:#x}, {len(image)} bytes")
    decompress = decompressor()
    entries, at = [], head
    while at < len(image):
        kind, _, head, size = struct.unpack_from("<HHIQ", image, at)
        compressed, architecture = struct.unpack_from("<I8xI", image, at + 16)
        whole, = struct.unpack_from("<Q", image, at + 56)
        if kind not in KINDS or head < 64 or at + head + size > len(image):
            raise ValueError(f"what is at byte {at} is no entry: kind {kind}, {head} + {size} bytes")
        data = image[at + head:at + head + size]
        raw = data if compressed == 0 else decompress(data[:compressed], whole) if decompress else None
        entries.append(Entry(KINDS[kind], architecture, head + size, raw))
        at += head + size
    return entries


def seconds_of_nvcc(image):
    """Of the last time that ninja made it; None where its log does not say."""
    try:
        lines = (image.parent / ".ninja_log").read_text().splitlines()
    except OSError:
        return None
    times = [line.split("\t") for line in lines if line.split("\t")[3:4] == [image.name]]
    return (int(times[-1][1]) - int(times[-1][0])) / 1000 if times else None


def wanted_kernels(header):
    names = re.search(r"kKernelNames\[kKernels\] = \{([^}]*)\}", header.read_text())
    return set(re.findall(r'"(\w+)"', names.group(1)))


def problems_of(entries, arguments):
    problems = []
    if architectures := arguments.architectures:
        expected = sorted([("ELF", each) for each in architectures] + [("PTX", architectures[-1])])
        found = sorted((entry.kind, entry.architecture) for entry in entries)
        if found != expected:
            problems.append(f"the entries are {found}; expected {expected}")
    for entry in entries:
        if entry.bytes > MOST_BYTES:
            problems.append(f"{entry.name()} has {entry.bytes} bytes; expected at most {MOST_BYTES}")
        if entry.raw is None:
            continue
        code = entry.code_bytes()
        if sum(code.values()) > MOST_CODE_BYTES:
            problems.append(f"{entry.name()} has {sum(code.values())} bytes of code; expected at most {MOST_CODE_BYTES}")
        if arguments.kernels and set(code) != (wanted := wanted_kernels(arguments.kernels)):
            problems.append(f"the kernels of {entry.name()} are {sorted(code)}; expected {sorted(wanted)}")
    if arguments.library and arguments.image.read_bytes() not in arguments.library.read_bytes():
        problems.append(f"{arguments.library} does not hold this image")
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("image", type=pathlib.Path)
    parser.add_argument("--architectures", type=lambda word: int(word.rstrip("af")), nargs="+",
                        help="code for these, and PTX for the last one; nothing else")
    parser.add_argument("--kernels", type=pathlib.Path, help="kernels.h, which names what must be in each entry")
    parser.add_argument("--library", type=pathlib.Path)
    arguments = parser.parse_args()
    try:
        entries = entries_of(arguments.image.read_bytes())
    except (ValueError, struct.error) as error:
        sys.exit(f"{arguments.image}: {error}")
    for entry in entries:
        print(f"{entry.name()}: {entry.bytes} bytes" + ("; no libzstd.so.1 to look into it" if entry.raw is None else ""))
        if entry.kind == "ELF" and entry.raw is not None:
            for name, size in entry.code_bytes().items():
                print(f"  {name:14} {size:8}")
            print(f"  {'all code':14} {sum(entry.code_bytes().values()):8}")
    seconds = seconds_of_nvcc(arguments.image)
    print(f"in all: {arguments.image.stat().st_size} bytes" + (f", made in {seconds:.0f} s" if seconds is not None else ""))
    problems = problems_of(entries, arguments)
    for problem in problems:
        print(f"kernel_image: {problem}")
    sys.exit(1 if problems else 0)


main()
