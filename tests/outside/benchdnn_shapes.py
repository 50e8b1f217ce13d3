#!/usr/bin/env python3
"""Makes benchdnn_shapes.txt from oneDNN's inputs for its own tests: the numbers alone, each shape once.

    git clone --depth 1 --branch v3.x https://github.com/uxlfoundation/oneDNN
    tests/outside/benchdnn_shapes.py oneDNN/tests/benchdnn/inputs "v3.x, commit ..." > tests/outside/benchdnn_shapes.txt

The rules by which benchdnn completes a shape are those of its sanitize_desc: a length that is missing is that of the dimension
before it, an output is computed from the pads, or the pads from the output. Only files shapes_* are read; of one with more than
SWEEP shapes, which a program swept, every TAKEN-th.
"""
import pathlib
import re
import sys

DRIVERS = ["conv", "deconv", "pool", "bnorm", "gnorm", "lnorm", "softmax", "matmul", "resampling"]
SWEEP, TAKEN = 120, 20
HEAD = """# Shapes of networks and of corner cases that oneDNN tests itself with: tests/benchdnn/inputs of
# github.com/uxlfoundation/oneDNN, {version}, Apache License 2.0. Written by
# tests/outside/benchdnn_shapes.py; the numbers alone, each shape once, without its name. Of sweeps every {taken}th shape.
#
# conv, deconv   groups, samples, input and output channels, input, kernel, stride, pads before, pads behind, dilation
# pool           samples, channels, input, kernel, stride, pads before, pads behind, dilation
# bnorm          samples, channels, input;  gnorm: groups in front of that
# lnorm          rows, length;  softmax: the shape;  matmul: m, k, n
# resampling     samples, channels, input, output
"""


def fields(text):
    """The numbers of "g2mb1ic16ih56...", without the name."""
    text = re.sub(r'n".*$', "", text).replace("_", "")
    found = re.findall(r"([a-z]+)(-?\d+)", text)
    if "".join(k + v for k, v in found) != text or not found:
        return None
    return {k: int(v) for k, v in found}


def windows(f, transposed, ceil):
    """Input, kernel, stride, pads and dilation of each dimension; None for a shape that benchdnn itself refuses."""
    lines = []
    for d in "dhw":
        given = [f.get(k + d) for k in "iokspd"]
        if all(v is None for v in given):
            lines.append(None)
            continue
        i, o, k, s, p, dil = given
        lines.append([i or 0, o or 0, k or 0, 1 if s is None else s, p, dil or 0])
    if lines[0] and not lines[1] and not lines[2]:
        lines = [lines[0]] * 3
    elif not lines[0] and lines[1] and not lines[2]:
        lines = [lines[1]] * 2
    lines = [line for line in lines if line]
    out = []
    for i, o, k, s, p, dil in lines:
        extent = (k - 1) * (dil + 1) + 1
        large, small = (o, i) if transposed else (i, o)
        if i <= 0 or k <= 0 or s <= 0:
            return None
        if transposed and not o:
            p = p or 0
            large = (i - 1) * s + extent - 2 * p
        if not transposed and not o:
            p = p or 0
            small = (i - extent + 2 * p) // s + 1
        if p is None:
            p = ((small - 1) * s - large + extent) // 2
        behind = (small - 1) * s - large + extent - p
        # A window need not end where the input does: pads that are equal, or none, give the same output.
        for pad in () if transposed else (p, 0):
            if behind <= pad < behind + s:
                behind = pad
                break
        if large <= 0 or small <= 0:
            return None
        out.append((i, k, s, p, behind, dil + 1))
    return list(zip(*out))


def by(numbers):
    return "x".join(str(n) for n in numbers)


def windowed(driver, f):
    w = windows(f, driver == "deconv", driver == "pool")
    if w is None or not f.get("ic"):
        return None
    tail = " ".join(by(n) for n in w)
    if driver == "pool":
        return f"{f.get('mb', 2)} {f['ic']} {tail}"
    if not f.get("oc"):
        return None
    return f"{max(f.get('g', 1), 1)} {f.get('mb', 2)} {f['ic']} {f['oc']} {tail}"


def lengths(f, letter):
    n = [f.get(letter + d) for d in "dhw"]
    if n[0] and not n[1] and not n[2]:
        return [n[0]] * 3
    if not n[0] and n[1] and not n[2]:
        return [n[1]] * 2
    return [v for v in n if v]


def plain(driver, f):
    if not f.get("ic"):
        return None
    front = [f.get("g", 1)] if driver == "gnorm" else []
    spatial = lengths(f, "i")
    if driver == "resampling":
        to = lengths(f, "o")
        return f"{f.get('mb', 2)} {f['ic']} {by(spatial)} {by(to)}" if spatial and len(to) == len(spatial) else None
    return " ".join(str(v) for v in front + [f.get("mb", 2), f["ic"]] + ([by(spatial)] if spatial else []))


def dims(driver, text):
    text = re.sub(r'_?n".*$', "", text)
    if driver == "matmul":
        two = text.split(":")
        if len(two) != 2 or not all(re.fullmatch(r"\d+(x\d+)+", t) for t in two):
            return None
        a, b = ([int(v) for v in t.split("x")] for t in two)
        return f"{a[-2]} {a[-1]} {b[-1]}" if a[-1] == b[-2] else None
    if not re.fullmatch(r"\d+(x\d+)*", text):
        return None
    n = [int(v) for v in text.split("x")]
    if driver == "lnorm":
        rows = 1
        for v in n[:-1]:
            rows *= v
        return f"{rows} {n[-1]}"
    return by(n) if 2 <= len(n) <= 5 else None


def shape(driver, text):
    if driver in ("lnorm", "softmax", "matmul"):
        return dims(driver, text)
    f = fields(text)
    if f is None:
        return None
    return windowed(driver, f) if driver in ("conv", "deconv", "pool") else plain(driver, f)


def main():
    inputs, version = pathlib.Path(sys.argv[1]), sys.argv[2]
    sys.stdout.write(HEAD.format(version=version, taken=TAKEN))
    for driver in DRIVERS:
        found, left = {}, 0
        for path in sorted((inputs / driver).glob("shapes_*")):
            lines = [line.split("#")[0] for line in path.read_text().splitlines()]
            words = [word for line in lines for word in line.split() if not word.startswith("--")]
            for word in words[:: TAKEN if len(words) > SWEEP else 1]:
                made = shape(driver, word)
                left += made is None
                if made is not None:
                    found[f"{driver} {made}"] = None
        print(f"{driver}: {len(found)} shapes, {left} words left out", file=sys.stderr)
        print("\n".join(found))


main()
