"""Numbers of PyTorch for boundary_torch.c: boundary_torch.py FILE [SEED [CASES]]

Convolutions of one to three dimensions with every padding_mode, and F.pad, with gradients, in float64, drawn at random. A case
is seven integers and six for each dimension, then arrays of float64, each after its length: x, the gradient of y, y, the gradient of x, and of
a convolution w, b and their gradients. All are little endian.
"""
import random
import struct
import sys

import numpy
import torch
import torch.nn.functional as F

MODES = ("zeros", "reflect", "replicate", "circular")
torch.set_default_dtype(torch.float64)


def most_beyond(mode, length):
    """How far a mode reaches; PyTorch refuses more."""
    return {"reflect": length - 1, "circular": length}.get(mode, 3)


def write(file, integers, arrays):
    file.write(struct.pack(f"<{len(integers)}q", *integers))
    for x in arrays:
        x = x.detach().contiguous().numpy().astype("<f8")
        file.write(struct.pack("<q", x.size))
        file.write(x.tobytes())


def with_gradients(apply, x, params=()):
    x.requires_grad_(True)
    y = apply(x)
    dy = torch.randn_like(y)
    return y, dy, torch.autograd.grad(y, (x, *params), dy)


def conv(file, draw):
    nd, mode, groups = draw.randint(1, 3), draw.choice(MODES), draw.randint(1, 2)
    channels, outputs = groups * draw.randint(1, 3), groups * draw.randint(1, 3)
    kernel, dilation = [draw.randint(1, 4) for _ in range(nd)], [draw.randint(1, 2) for _ in range(nd)]
    extent = [d * (k - 1) for k, d in zip(kernel, dilation)]
    length = [draw.randint(max(e, 1) + 1, max(e, 1) + 6) for e in extent]
    same = draw.random() < 0.3
    stride = [1 if same else draw.randint(1, 3) for _ in range(nd)]
    pad = "same" if same else [min(draw.randint(0, 3), most_beyond(mode, n)) for n in length]
    sides = [(e // 2, e - e // 2) for e in extent] if same else [(p, p) for p in pad]
    layer = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)[nd - 1](
        channels, outputs, kernel, stride=stride, padding=pad, dilation=dilation, groups=groups, padding_mode=mode)
    x = torch.randn(draw.randint(1, 2), channels, *length)
    y, dy, (dx, dw, db) = with_gradients(layer, x, (layer.weight, layer.bias))
    numbers = [n for d in range(nd) for n in (length[d], kernel[d], stride[d], dilation[d], *sides[d])]
    write(file, [0, nd, MODES.index(mode), x.shape[0], channels, outputs, groups, *numbers],
          (x, dy, y, dx, layer.weight, layer.bias, dw, db))


def pad(file, draw):
    nd, mode = draw.randint(1, 3), draw.choice(MODES[1:])
    length = [draw.randint(1 + (mode == "reflect"), 6) for _ in range(nd)]
    lo, hi = ([draw.randint(0, min(most_beyond(mode, n), 4)) for n in length] for _ in range(2))
    x = torch.randn(draw.randint(1, 2), draw.randint(1, 3), *length)
    reversed_pairs = [n for d in reversed(range(nd)) for n in (lo[d], hi[d])]
    y, dy, (dx,) = with_gradients(lambda x: F.pad(x, reversed_pairs, mode=mode), x)
    numbers = [n for d in range(nd) for n in (length[d], 0, 0, 0, lo[d], hi[d])]
    write(file, [1, nd, MODES.index(mode), x.shape[0], x.shape[1], x.shape[1], 1, *numbers], (x, dy, y, dx))


def main():
    seed, cases = (int(sys.argv[2]), int(sys.argv[3])) if len(sys.argv) > 3 else (29, 600)
    draw = random.Random(seed)
    torch.manual_seed(seed)
    with open(sys.argv[1], "wb") as file:
        for i in range(cases):
            (pad if i % 3 == 2 else conv)(file, draw)
    print(f"{cases} cases of PyTorch {torch.__version__}, seed {seed}")


main()
