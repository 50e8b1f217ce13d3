"""PyTorch's own convolution whose image two processes share, beside the whole one, as bench_spatial.c measures ours:

    bench_spatial.py [side [channels [kernel [repeats [dims]]]]]

A DTensor cut by its last dimension, the only one whose halo its convolution exchanges, over gloo; a thread a process. Both
processes run the whole layer at the same time, unconnected; then each its part. They take turns, and medians of the slower
process count. Memory is in channels_last and in PyTorch's default order. Results are compared with those of the whole layer:
where they differ, or where PyTorch refuses, a line says so in place of times.
"""
import os
import statistics
import sys
import time

if "--help" in sys.argv:  # before PyTorch, which not every reader has
    print(__doc__)
    sys.exit()

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

PROCESSES = 2


def turn(conv, x, w, dy):
    """Seconds forward and backward of the slower process, output, and gradients of x and w."""
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    dist.barrier()
    at = [time.perf_counter()]
    y = conv(x, w, padding=w.shape[-1] // 2)
    at.append(time.perf_counter())
    y.backward(dy)
    at.append(time.perf_counter())
    took = torch.tensor([at[1] - at[0], at[2] - at[1]])
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return took.tolist(), (y, x.grad, w.grad)


def far(part, whole):
    """The largest difference, over the largest number."""
    whole = whole.detach()
    return ((part.full_tensor() - whole).abs().max() / whole.abs().max()).item()


def compare(conv, mesh, shape, channels, kernel, repeats, layout):
    torch.manual_seed(1)
    x, dy = (torch.randn(shape).contiguous(memory_format=layout) for _ in range(2))
    w = torch.randn(channels, channels, *[kernel] * (len(shape) - 2)).contiguous(memory_format=layout)
    last = [Shard(len(shape) - 1)]
    whole = (x, w, dy)
    part = (distribute_tensor(x, mesh, last), distribute_tensor(w, mesh, [Replicate()]), distribute_tensor(dy, mesh, last))
    right = turn(conv, *whole)[1]
    worst = max(far(mine, its) for mine, its in zip(turn(conv, *part)[1], right))
    if not worst < 1e-3:
        return f"differs from the whole layer by {worst:.2g}"
    took = [(turn(conv, *whole)[0], turn(conv, *part)[0]) for _ in range(repeats)]
    lines = []
    for name, ways in ("forward", (0,)), ("backward", (1,)), ("step", (0, 1)):
        serial, cut = (statistics.median(sum(t[which][way] for way in ways) for t in took) for which in (0, 1))
        lines.append(f"{name:8} {1e3 * serial:12.2f} {1e3 * cut:11.2f} {100 * serial / cut / PROCESSES:10.0f} %")
    return "\n".join(lines)


def one_process(rank, side, channels, kernel, repeats, dims):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29513", RANK=str(rank), WORLD_SIZE=str(PROCESSES))
    dist.init_process_group("gloo", rank=rank, world_size=PROCESSES)
    mesh = init_device_mesh("cpu", (PROCESSES,))
    conv, layout = (F.conv2d, torch.channels_last) if dims == 2 else (F.conv3d, torch.channels_last_3d)
    for name, order in ("channels_last", layout), ("default", torch.contiguous_format):
        try:
            said = compare(conv, mesh, (1, channels, *[side] * dims), channels, kernel, repeats, order)
        except (RuntimeError, AssertionError, IndexError) as error:
            said = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        if rank == 0:
            print(f"conv {channels}->{channels}, kernel {kernel}, sides of {side}, {dims} dimensions, {PROCESSES} processes of "
                  f"one thread, {name}\n            whole ms      cut ms  efficiency\n{said}", flush=True)
    dist.destroy_process_group()


def main():
    usual = [1024, 32, 3, 7, 2]
    args = [int(word) for word in sys.argv[1:]]
    torch.multiprocessing.spawn(one_process, args + usual[len(args):], PROCESSES)


if __name__ == "__main__":
    main()
