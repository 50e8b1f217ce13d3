#!/usr/bin/env python3
"""Reads what tests/optim/tensorboard.c wrote: tensorboard_read.py RUNS RANKS. Frames, checksums, fields and pictures are read
with the standard library alone, from the description of the formats; the package `tensorboard` reads the same files where
it is installed."""
import glob
import math
import os
import struct
import sys
import zlib

RUNS, RANKS = sys.argv[1], int(sys.argv[2])


def crc32c(data):
    """By a table, where the library goes bit by bit."""
    table = []
    for i in range(256):
        for _ in range(8):
            i = i >> 1 ^ (0x82F63B78 if i & 1 else 0)
        table.append(i)
    value = 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ table[(value ^ byte) & 255]
    return value ^ 0xFFFFFFFF


assert crc32c(b"123456789") == 0xE3069283  # RFC 3720


def masked(data):
    value = crc32c(data)
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(path):
    """The records of a file; a last one that is not whole is left out, and told by None."""
    with open(path, "rb") as file:
        data = file.read()
    at = 0
    while at < len(data):
        if at + 12 > len(data):
            yield None
            return
        (length,), (check,) = struct.unpack_from("<Q", data, at), struct.unpack_from("<I", data, at + 8)
        assert check == masked(data[at:at + 8]), "checksum of a length"
        if at + 16 + length > len(data):
            yield None
            return
        content = data[at + 12:at + 12 + length]
        assert struct.unpack_from("<I", data, at + 12 + length)[0] == masked(content), "checksum of an event"
        yield content
        at += 16 + length


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return value, at


def fields(data):
    """A message as {field: [value]}: integers, floats of 4 and 8 bytes, and bytes."""
    found, at = {}, 0
    while at < len(data):
        key, at = varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(data, at)
        elif kind == 2:
            length, at = varint(data, at)
            value, at = data[at:at + length], at + length
            assert len(value) == length
        else:
            form = {1: "<d", 5: "<f"}[kind]
            value, at = struct.unpack_from(form, data, at)[0], at + struct.calcsize(form)
        found.setdefault(key >> 3, []).append(value)
    return found


def png(data):
    """Width, height, samples of a pixel, and the bytes of all rows."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, []
    while at < len(data):
        (length,), kind = struct.unpack_from(">I", data, at), data[at + 4:at + 8]
        content = data[at + 8:at + 8 + length]
        assert struct.unpack_from(">I", data, at + 8 + length)[0] == zlib.crc32(kind + content), kind
        chunks.append((kind, content))
        at += 12 + length
    assert [kind for kind, _ in chunks] == [b"IHDR", b"IDAT", b"IEND"]
    width, height, depth, colour, *rest = struct.unpack(">IIBBBBB", chunks[0][1])
    samples = {0: 1, 2: 3}[colour]
    rows, line = zlib.decompress(chunks[1][1]), 1 + width * samples
    assert (depth, rest) == (8, [0, 0, 0]) and len(rows) == height * line
    assert all(rows[h * line] == 0 for h in range(height))
    return width, height, samples, [rows[h * line + 1:(h + 1) * line] for h in range(height)]


def events(folder):
    """Of all files of a folder, in the order in which they were made: (step, kind, tag, value), and whether all is whole."""
    found, whole = [], True
    names = sorted(glob.glob(f"{folder}/events.out.tfevents.*"), key=lambda name: os.stat(name).st_mtime_ns)
    for name in names:
        words = os.path.basename(name).split(".")
        assert words[3].isdigit() and words[-2].isdigit(), name
        content = list(records(name))
        whole = whole and content[-1] is not None
        read = [fields(record) for record in content if record is not None]
        assert read[0][3] == [b"brain.Event:2"], "the first event"
        assert all(abs(event[1][0] - os.stat(name).st_mtime) < 600 for event in read), "times"
        for event in read[1:]:
            step = event[2][0]
            if 7 in event:
                found.append((step, "start", fields(event[7][0])[1][0], None))
                continue
            (value,) = fields(event[5][0])[1]
            value = fields(value)
            ((kind, content),) = [(k, v[0]) for k, v in value.items() if k != 1]
            found.append((step, {2: "scalar", 4: "image", 5: "histogram"}[kind], value[1][0].decode(), content))
    return found, whole, len(names)


def near(a, b):
    return abs(a - b) <= 1e-6 * max(abs(a), abs(b))


def check_image(content, count, channels, side, columns):
    """Images of byte k = 7 k modulo 256, [N,C,H,W], between borders of two pixels."""
    image = fields(content)
    height, width = side
    sheet = 2 + height + 2, 2 + columns * (width + 2)
    assert (image[1][0], image[2][0], image[3][0]) == (*sheet, channels), image
    assert png(image[4][0])[:3] == (sheet[1], sheet[0], channels)
    want = [bytearray(sheet[1] * channels) for _ in range(sheet[0])]
    for k in range(count * channels * height * width):
        n, rest = divmod(k, channels * height * width)
        c, rest = divmod(rest, height * width)
        h, w = divmod(rest, width)
        want[2 + h][(2 + n * (width + 2) + w) * channels + c] = 7 * k % 256
    assert png(image[4][0])[3] == [bytes(row) for row in want], "pixels"


VALUES = [-3, -0.5, 0, 0, 1e-13, 2, 1e30]


def check_histogram(content):
    h = fields(content)
    numbers = [h[i][0] for i in range(1, 6)]
    assert numbers == [min(VALUES), max(VALUES), len(VALUES), sum(VALUES), sum(v * v for v in VALUES)], numbers
    limits, counts = (struct.unpack(f"<{len(h[i][0]) // 8}d", h[i][0]) for i in (6, 7))
    assert list(limits) == sorted(limits) and len(limits) == len(counts) and 0 in limits
    assert limits[-1] == sys.float_info.max and counts[0] == 0 and counts[1] == 1 and limits[1] > -3
    for low, limit, count in zip((-math.inf, *limits), limits, counts):
        assert count == sum(low <= v < limit for v in VALUES), (low, limit, count)
        assert not 0 < low < limit < 1e20 or near(limit / low, 1.1)


def loss(step):
    return 1 / step + (RANKS - 1) / 2


def check_run(folder):
    found, whole, files = events(folder)
    assert whole and files == 2
    assert [e[:3] for e in found if e[1] == "start"] == [(4, "start", 1)]
    scalars = [(step, value) for step, kind, tag, value in found if tag == "test/loss"]
    assert [step for step, _ in scalars] == [1, 2, 3, 4, 5, 4, 5, 6]
    assert all(near(value, loss(step)) for step, value in scalars)
    assert {tag for _, kind, tag, _ in found if kind == "scalar"} == {"test/loss", "iterations_per_second", "h/not_finite"}
    assert all(value == 2 for _, _, tag, value in found if tag == "h/not_finite")
    shown = [(step, tag) for step, kind, tag, _ in found if kind in ("image", "histogram")]
    assert shown == [(step, tag) for step in (2, 4, 4, 6) for tag in ("colour", "grey", "h")], shown
    for _, kind, tag, content in found:
        if tag == "colour":
            check_image(content, 2, 3, (2, 3), 2)
        elif tag == "grey":
            check_image(content, 1, 1, (5, 4), 1)
        elif kind == "histogram":
            check_histogram(content)


def check_fit(folder):
    found, whole, files = events(folder)
    assert whole and files == 1
    tags = sorted({(kind, tag) for _, kind, tag, _ in found})
    assert [tag for kind, tag in tags if kind == "histogram"] == ["fc/W", "fc/b"], tags
    assert {("scalar", "loss"), ("scalar", "lr")} <= set(tags) and len(tags) == 5, tags
    assert [value for _, _, tag, value in found if tag == "lr"] == [0.25, 0.25]


def check_full(folder):
    found, whole, _ = events(folder)
    assert not whole and {step for step, *_ in found} == {1}, "what was written before the disk was full"


def check_with_package(folder):
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        print("no package tensorboard: the files were read by this script alone")
        return
    read = EventAccumulator(folder, size_guidance={"scalars": 0, "images": 0, "histograms": 0})
    read.Reload()
    scalars = read.Scalars("test/loss")
    assert [s.step for s in scalars] == [1, 2, 3, 4, 5, 6], scalars
    assert all(near(s.value, loss(s.step)) for s in scalars)
    assert [(i.step, i.width, i.height) for i in read.Images("grey")] == [(2, 8, 9), (4, 8, 9), (6, 8, 9)]
    for h in read.Histograms("h"):
        v = h.histogram_value
        assert (v.min, v.max, v.num, v.sum) == (min(VALUES), max(VALUES), len(VALUES), sum(VALUES))
        assert sum(v.bucket) == len(VALUES) and len(v.bucket_limit) == len(v.bucket)
    print("the package tensorboard reads the same")


check_run(f"{RUNS}/a/run")
check_fit(f"{RUNS}/fit")
check_full(f"{RUNS}/full")
check_with_package(f"{RUNS}/a/run")
