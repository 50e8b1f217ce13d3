"""Cuts an NCCL wheel down to one architecture: cut_wheel.py WHEEL ARCHITECTURE, for example 90. Tried by --self.

The library of NVIDIA's wheel has machine code for seven architectures, 300 MB packed. Code of the others, and
what only debuggers read, is written over with zeros, which pack to nothing; sizes and places stay, and a driver takes the code of its own architecture alone. Of the wheel
the library and its headers are kept: 17 MB for sm_90. The wheel is replaced.
"""
import os
import struct
import sys
import zipfile

LIBRARY = "nvidia/nccl/lib/libnccl.so.2"
MAGIC = 0xBA55ED50  # of a container of machine code
CODE = 2  # an entry's kind; others are PTX and what links it


def sections(library):
    """Yields name, place and size of each section of an ELF file of 64 bits."""
    table = struct.unpack_from("<Q", library, 0x28)[0]
    size, count, names = struct.unpack_from("<HHH", library, 0x3A)
    header = [struct.unpack_from("<IIQQQQ", library, table + i * size) for i in range(count)]
    for name, _, _, _, place, length in header:
        at = header[names][4] + name
        yield bytes(library[at : library.index(0, at)]).decode(), place, length


def cut(library, architecture):
    """Zeroes the code of other architectures, and what debuggers read, in a bytearray; returns the bytes that stay."""
    kept = 0
    for name, at, length in sections(library):
        end = at + length
        if name.startswith(".debug_"):
            library[at:end] = bytes(length)
        while name in (".nv_fatbin", "__nv_relfatbin") and at + 16 <= end:
            magic, _, header, total = struct.unpack_from("<IHHQ", library, at)
            if magic != MAGIC:
                at += 8
                continue
            at, last = at + header, at + header + total
            while at < last:
                kind, _, header, payload = struct.unpack_from("<HHIQ", library, at)
                own = struct.unpack_from("<I", library, at + 28)[0] == architecture
                # What is linked already needs none of the parts that it was linked from.
                if name == ".nv_fatbin" and kind == CODE and own:
                    kept += payload
                else:
                    library[at + header : at + header + payload] = bytes(payload)
                at += header + payload
    return kept


def cut_wheel(wheel, architecture):
    with zipfile.ZipFile(wheel) as given, zipfile.ZipFile(wheel + ".part", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as cut_one:
        library = bytearray(given.read(LIBRARY))
        kept = cut(library, architecture)
        if kept == 0:
            os.remove(wheel + ".part")
            raise SystemExit(f"cut_wheel: {wheel} has no code for sm_{architecture}")
        cut_one.writestr(LIBRARY, bytes(library))
        for name in given.namelist():
            if name.startswith("nvidia/nccl/include/") and not name.endswith("/"):
                cut_one.writestr(name, given.read(name))
    os.replace(wheel + ".part", wheel)
    print(f"{os.path.basename(wheel)}: {os.path.getsize(wheel)} bytes with the code of sm_{architecture} alone, {kept} bytes")


def try_self():
    """A library of two containers, in a section each, with code of two architectures and PTX."""

    def entry(kind, architecture, payload):
        return struct.pack("<HHIQ", kind, 1, 64, len(payload)) + bytes(12) + struct.pack("<I", architecture) + bytes(32) + payload

    body = entry(CODE, 80, b"a" * 40) + entry(CODE, 90, b"b" * 48) + entry(1, 90, b"c" * 8)
    container = struct.pack("<IHHQ", MAGIC, 1, 16, len(body)) + body
    names = b"\0.nv_fatbin\0__nv_relfatbin\0.debug_d\0.names\0"
    debug = b"d" * 24
    places = (64, 64 + len(container), 64 + 2 * len(container), 64 + 2 * len(container) + len(debug))
    heads = b"".join(
        struct.pack("<IIQQQQ", names.index(name), 1, 0, 0, place, size) + bytes(24)
        for name, place, size in (
            (b".nv_fatbin", places[0], len(container)),
            (b"__nv_relfatbin", places[1], len(container)),
            (b".debug_d", places[2], len(debug)),
            (b".names", places[3], len(names)),
        )
    )
    elf = bytearray(64)
    struct.pack_into("<Q", elf, 0x28, places[3] + len(names))
    struct.pack_into("<HHH", elf, 0x3A, 64, 4, 3)
    library = elf + container + container + debug + names + heads
    size = len(library)
    assert cut(library, 90) == 48 and len(library) == size, "the code of sm_90 does not stay"
    assert library.count(b"b") == 48 + names.count(b"b") and library.count(b"b" * 48) == 1, "sm_90 stays twice, or not at all"
    for other in (b"a" * 40, b"c" * 8, debug):
        assert other not in library, f"{other} stays"
    assert cut(library, 80) == 40 and cut(library, 70) == 0, "entries moved"
    print("a library is cut to one architecture")


if sys.argv[1:] == ["--self"]:
    try_self()
elif len(sys.argv) == 3 and sys.argv[2].isdigit():
    cut_wheel(sys.argv[1], int(sys.argv[2]))
else:
    raise SystemExit(__doc__.split(". Tried")[0])
