"""PyTorch's scaled_dot_product_attention of the shapes of bench_attention.c: forward, backward, both.

    bench_attention.py [THREADS] [f32|bf16] [NAME]

The better of the default and the math backend, from tokens [N,T,heads D] as a model has them. Windows have their bias and their
regions gathered into one mask, as torchvision does, whose gradient goes back to the table. The best of seven rounds.
"""
import math
import sys
import time

if "--help" in sys.argv:  # before PyTorch, which not every reader has
    print(__doc__)
    sys.exit()

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

SHAPES = (("swin", 64, 3, 49, 32, False), ("swin", 8, 24, 49, 32, False), ("vit", 1, 6, 197, 64, False)) + tuple(
    (f"heads{d}", 1, h, t, d, c) for d in (64, 32) for h, t in ((8, 197), (4, 1024), (1, 4096)) for c in (False, True))
BACKENDS = ([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH], [SDPBackend.MATH])


def best(call, seconds=0.01):
    least, calls = 1e9, 1
    for i in range(-2, 7):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        each = (time.perf_counter() - start) / calls
        if i == -1:
            calls += int(seconds / each)
        least = min(least, each) if i >= 0 else least
    return least


def measure(dtype, name, n, heads, t, d, causal):
    x = [torch.randn(n, t, heads * d, dtype=dtype, requires_grad=True) for _ in range(3)]
    dy = torch.randn(n, t, heads * d, dtype=dtype)
    side = math.isqrt(t) if name == "swin" else 1
    table = torch.randn((2 * side - 1) ** 2, heads, dtype=dtype, requires_grad=True)
    place = torch.arange(side * side)
    rows = (place // side)[None] - (place // side)[:, None] + side - 1
    index = (rows * (2 * side - 1) + (place % side)[None] - (place % side)[:, None] + side - 1).flatten()
    apart = (place % side < side // 2)[None] != (place % side < side // 2)[:, None]
    hidden = torch.zeros(side * side, side * side, dtype=dtype).masked_fill(apart, -math.inf)

    def forward():
        q, k, v = (i.view(n, t, heads, d).transpose(1, 2) for i in x)
        mask = None
        if name == "swin":
            mask = (table[index].view(t, t, heads).permute(2, 0, 1) + hidden)[None].expand(n, -1, -1, -1)
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal).transpose(1, 2).reshape(n, t, heads * d)

    def both():
        torch.autograd.grad(forward(), x + ([table] if name == "swin" else []), dy)

    times = []
    for backends in BACKENDS:
        with sdpa_kernel(backends):
            with torch.no_grad():
                one = best(forward)
            times.append((best(both), one))
    return min(times)


def main():
    words = sys.argv[1:]
    numbers = [int(w) for w in words if w.isdigit()]
    if numbers:
        torch.set_num_threads(numbers[0])
    dtype = torch.bfloat16 if "bf16" in words else torch.float32
    names = [w for w in words if not w.isdigit() and w not in ("f32", "bf16")]
    for shape in SHAPES:
        if names and not shape[0].startswith(names[0]):
            continue
        both, forward = measure(dtype, *shape)
        name, n, heads, t, d, causal = shape
        print(f"{name:8} {n:4} x {heads:2} heads of {d:3}, {t:5} tokens{', causal' if causal else '':8} "
              f"{1e3 * forward:9.3f} ms      {1e3 * (both - forward):9.3f} ms      {1e3 * both:9.3f} ms", flush=True)


main()
