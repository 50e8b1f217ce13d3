"""PyTorch's padding modes of a 3x3 convolution, against its zeros, as bench_boundary.c measures ours:

    bench_boundary.py [channels [side [batch [repeats]]]]

One thread; kinds take turns; medians of ratios to the zeros of the same turn, of processor time, in channels_last, which is
PyTorch's fastest form of such convolutions. PyTorch copies the image for every mode but zeros (F.pad).
"""
import statistics
import sys
import time

if "--help" in sys.argv:  # before PyTorch, which not every reader has
    print(__doc__)
    sys.exit()

import torch

MODES = ("zeros", "circular", "reflect")


def turn(layer, x, dy):
    start = time.process_time()
    y = layer(x)
    forward = time.process_time() - start
    start = time.process_time()
    y.backward(dy)
    return forward, time.process_time() - start


def main():
    channels, side, batch, repeats = [int(word) for word in sys.argv[1:]] + [64, 256, 4, 21][len(sys.argv) - 1:]
    torch.set_num_threads(1)
    last = torch.channels_last
    layers = [torch.nn.Conv2d(channels, channels, 3, padding=1, padding_mode=mode).to(memory_format=last)
              for mode in MODES]
    x = torch.randn(batch, channels, side, side).contiguous(memory_format=last).requires_grad_()
    dy = torch.randn(batch, channels, side, side).contiguous(memory_format=last)
    took = [[turn(layer, x, dy) for layer in layers] for _ in range(repeats + 2)][2:]
    print(f"{'edge':10} {'forward':>10} {'ratio':>10} {'backward':>10} {'ratio':>10}")
    for k in reversed(range(len(MODES))):
        cells = []
        for way in range(2):
            cells.append(f"{1e3 * statistics.median(t[k][way] for t in took):7.2f} ms")
            cells.append(f"{statistics.median(t[k][way] / t[0][way] for t in took):10.3f}")
        print(f"{MODES[k]:10} {' '.join(cells)}")


main()
